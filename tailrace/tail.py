"""`tailrace tail`: prints a run's lines as they arrive, each once, over lost connections.

Reads server-sent events: `event: logs` carries text exactly as it was received (JSON
keeps every byte), `id:` the cursor after it. When the connection ends without
`complete`, the stream is opened again at the last cursor.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import httpx

from logstore.clock import Clock, SystemClock
from logstore.errors import NotFound, TailraceError, Unavailable
from tailrace.api import RUNS, add_url, check, component, errors_as_ours

_LOOKED_AT = 16  # runs that changed last: the newest is first among them
_READ_SECONDS = 60  # several heartbeats: silence beyond it is a dead connection
_PATIENCE_SECONDS = 60
_LONGEST_PAUSE_SECONDS = 5.0


def configure(parser: argparse.ArgumentParser) -> None:
    """Whom to follow, and where."""
    add_url(parser)
    parser.add_argument("fqn", metavar="FQN", help="name of the pipeline")
    parser.add_argument("run", metavar="RUN", nargs="?", help="the run (default: the newest)")
    parser.add_argument(
        "--after", metavar="CURSOR", help="start beyond this cursor (default: the last 100 lines)"
    )


def run(arguments: argparse.Namespace) -> int:
    """Prints until the run is complete."""

    def write(text: str) -> None:
        sys.stdout.write(text)
        sys.stdout.flush()

    return asyncio.run(_run(arguments, write))


async def _run(arguments: argparse.Namespace, write: Callable[[str], None]) -> int:
    timeout = httpx.Timeout(10, read=_READ_SECONDS)
    async with httpx.AsyncClient(base_url=arguments.url, timeout=timeout) as client:
        with errors_as_ours(arguments.url):
            name = arguments.run or await newest_run(client, arguments.fqn)
        await Follower(client, SystemClock(), arguments.fqn, name, write).follow(arguments.after)
    return 0


async def newest_run(client: httpx.AsyncClient, fqn: str) -> str:
    """The pipeline's newest run. Raises `NotFound` if it has none."""
    response = await client.get(f"{RUNS}/{component(fqn)}", params={"limit": _LOOKED_AT})
    check(response)
    runs = response.json().get("runs") or []
    if not runs:
        raise NotFound(f"{fqn} has no runs", hint="Name the run to wait for its first line.")
    return str(runs[0])


@dataclass(frozen=True, slots=True)
class Event:
    """A server-sent event; `id` is the last one seen, also when this event names none."""

    name: str
    data: str
    id: str | None


class EventParser:
    """Lines of a stream to events, as the HTML standard's section on them says."""

    def __init__(self) -> None:
        self._name = ""
        self._data: list[str] = []
        self._id: str | None = None

    def feed(self, lines: Iterable[str]) -> Iterator[Event]:
        """Takes lines without their ends; an empty one ends an event."""
        for line in lines:
            if line:
                self._field(*_split(line))
            else:
                if self._data:
                    yield Event(self._name or "message", "\n".join(self._data), self._id)
                self._name, self._data = "", []

    def _field(self, name: str, value: str) -> None:
        if name == "data":
            self._data.append(value)
        elif name == "event":
            self._name = value
        elif name == "id":
            self._id = value


def _split(line: str) -> tuple[str, str]:
    name, _, value = line.partition(":")
    return name, value.removeprefix(" ")


class Follower:
    """One run's live view; `cursor` is beyond the last line that was written."""

    def __init__(
        self,
        client: httpx.AsyncClient,
        clock: Clock,
        fqn: str,
        run: str,
        write: Callable[[str], None],
    ) -> None:
        self._client = client
        self._clock = clock
        self._path = f"{RUNS}/{component(fqn)}/stream/{component(run)}"
        self._write = write
        self.cursor: str | None = None

    async def follow(self, after: str | None = None) -> None:
        """Returns when the run is complete.

        Raises what the service answers, and `Unavailable` when it cannot be reached for a minute.
        """
        self.cursor = after
        pause, quiet_since = 0.1, self._clock.monotonic()
        while True:
            before = self.cursor
            try:
                with errors_as_ours(str(self._client.base_url)):
                    if await self._connection():
                        return
                quiet_since = self._clock.monotonic()
            except Unavailable:
                if self._clock.monotonic() - quiet_since > _PATIENCE_SECONDS:
                    raise
            if self.cursor != before:
                pause, quiet_since = 0.1, self._clock.monotonic()
            await self._clock.sleep(pause)
            pause = min(pause * 2, _LONGEST_PAUSE_SECONDS)

    async def _connection(self) -> bool:
        """Reads one connection to its end; whether the run is complete."""
        parameters = {} if self.cursor is None else {"after": self.cursor}
        async with self._client.stream("GET", self._path, params=parameters) as response:
            if not response.is_success:
                await response.aread()
            check(response)
            return await self._read(response)

    async def _read(self, response: httpx.Response) -> bool:
        parser, buffer = EventParser(), b""
        async for piece in response.aiter_bytes():
            *lines, buffer = (buffer + piece).split(b"\n")
            for event in parser.feed(line.decode().removesuffix("\r") for line in lines):
                if self._take(event):
                    return True
        return False

    def _take(self, event: Event) -> bool:
        if event.name == "complete":
            return True
        if event.name == "error":
            raise TailraceError(_message(event.data))
        if event.name == "logs":
            self._write(json.loads(event.data).get("logs") or "")
            self.cursor = event.id
        return False


def _message(data: str) -> str:
    try:
        value = json.loads(data)
    except ValueError:
        return data
    return str(value.get("message") or data) if isinstance(value, dict) else data
