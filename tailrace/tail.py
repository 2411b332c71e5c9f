"""`tailrace tail`: prints a run's lines as they arrive, each once, over lost connections.

Reads server-sent events: `event: logs` carries text exactly as it was received (JSON
keeps every byte), `id:` the cursor after it. When the connection ends without
`complete`, the stream is opened again at the last cursor. In a terminal, and with `--json`, it asks
for records, which have a level.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Callable

import httpx

from logstore.clock import Clock, SystemClock
from logstore.errors import NotFound, TailraceError
from tailrace.api import RUNS, add_url, authorization, check, component, errors_as_ours
from tailrace.events import READ_SECONDS, Event, EventFollower
from tailrace.terminal import coloured, wants_colour

_LOOKED_AT = 16  # runs that changed last: the newest is first among them


def configure(parser: argparse.ArgumentParser) -> None:
    """Whom to follow, and where."""
    add_url(parser)
    parser.add_argument("fqn", metavar="FQN", help="name of the pipeline")
    parser.add_argument("run", metavar="RUN", nargs="?", help="the run (default: the newest)")
    parser.add_argument(
        "--after", metavar="CURSOR", help="start beyond this cursor (default: the last 100 lines)"
    )

    parser.add_argument("--json", action="store_true", help="whole records, one JSON object a line")


def run(arguments: argparse.Namespace) -> int:
    """Prints until the run is complete."""

    def write(text: str) -> None:
        sys.stdout.write(text)
        sys.stdout.flush()

    form: Callable[[str], str] | None = None
    if arguments.json:
        form = _whole
    elif sys.stdout.isatty():
        colour = wants_colour(sys.stdout)
        form = lambda data: _message_of(data, colour=colour)  # noqa: E731
    return asyncio.run(_run(arguments, write, form))


def _whole(data: str) -> str:
    return f"{data}\n"


def _message_of(data: str, *, colour: bool) -> str:
    record = json.loads(data)
    return f"{coloured(record['message'], record.get('level'), colour=colour)}\n"


async def _run(
    arguments: argparse.Namespace,
    write: Callable[[str], None],
    form: Callable[[str], str] | None,
) -> int:
    timeout = httpx.Timeout(10, read=READ_SECONDS)
    headers = authorization(arguments.token_file)
    async with httpx.AsyncClient(
        base_url=arguments.url, timeout=timeout, headers=headers
    ) as client:
        with errors_as_ours(arguments.url):
            name = arguments.run or await newest_run(client, arguments.fqn)
        follower = Follower(client, SystemClock(), arguments.fqn, name, write, form)
        await follower.follow(arguments.after)
    return 0


async def newest_run(client: httpx.AsyncClient, fqn: str) -> str:
    """The pipeline's newest run. Raises `NotFound` if it has none."""
    response = await client.get(f"{RUNS}/{component(fqn)}", params={"limit": _LOOKED_AT})
    check(response)
    runs = response.json().get("runs") or []
    if not runs:
        raise NotFound(f"{fqn} has no runs", hint="Name the run to wait for its first line.")
    return str(runs[0])


class Follower(EventFollower):
    """One run's live view: its text, or what `form` makes of each record's JSON."""

    def __init__(
        self,
        client: httpx.AsyncClient,
        clock: Clock,
        fqn: str,
        run: str,
        write: Callable[[str], None],
        form: Callable[[str], str] | None = None,
    ) -> None:
        path = f"{RUNS}/{component(fqn)}/stream/{component(run)}"
        super().__init__(client, clock, path, {} if form is None else {"format": "ndjson"})
        self._write = write
        self._form = form

    def take(self, event: Event) -> bool:
        """Writes lines; `complete` is the end."""
        if event.name == "complete":
            return True
        if event.name == "error":
            raise TailraceError(_message(event.data))
        if self._form is not None:
            self._write(self._form(event.data))
            self.cursor = event.id
        elif event.name == "logs":
            self._write(json.loads(event.data).get("logs") or "")
            self.cursor = event.id
        return False


def _message(data: str) -> str:
    try:
        value = json.loads(data)
    except ValueError:
        return data
    return str(value.get("message") or data) if isinstance(value, dict) else data
