"""`tailrace query --follow`: prints what matches as it is acknowledged, each record once."""

from __future__ import annotations

import ssl
import sys
from collections.abc import Iterable, Mapping
from typing import Protocol

import httpx
import orjson

from logstore.clock import Clock, SystemClock
from logstore.errors import TailraceError
from tailrace.console.terminal import say
from tailrace.remote.events import READ_SECONDS, Event, EventFollower, warn_of_silent
from tailrace.searching.output import Printer


class Taker(Protocol):
    """What takes the records that are found."""

    def take(self, lines: Iterable[bytes], /) -> None:
        """Takes some lines of ndjson."""


class SearchFollower(EventFollower):
    """A live search; goes on until it is interrupted."""

    silence_counts = True

    def __init__(
        self,
        client: httpx.AsyncClient,
        clock: Clock,
        parameters: Mapping[str, str],
        printer: Taker,
    ) -> None:
        super().__init__(client, clock, "/query/stream", parameters)
        self._printer = printer

    def take(self, event: Event) -> bool:
        """Prints a record, or says on stderr what may be missing."""
        if event.name == "error":
            problem = orjson.loads(event.data)
            raise TailraceError(str(problem.get("detail")), hint=str(problem.get("hint") or ""))
        if event.name == "gap":
            reason = orjson.loads(event.data).get("reason")
            say(f"warning: records may be missing: {reason}", sys.stderr)
        elif event.name == "silent":
            said = orjson.loads(event.data)
            warn_of_silent(said.get("nodes", ()), store=bool(said.get("store")))
        else:
            self._printer.take([event.data.encode()])
        self.cursor = event.id
        return False


async def follow(
    url: str,
    parameters: Mapping[str, str],
    printer: Printer,
    headers: Mapping[str, str] | None = None,
    verify: ssl.SSLContext | bool = True,
) -> None:
    """Follows until it is interrupted. Raises what the service answers."""
    timeout = httpx.Timeout(10, read=READ_SECONDS)
    async with httpx.AsyncClient(
        base_url=url, timeout=timeout, headers=headers, verify=verify
    ) as client:
        await SearchFollower(client, SystemClock(), parameters, printer).follow()
