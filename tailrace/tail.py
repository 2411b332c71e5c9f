"""`tailrace tail`: prints lines as they arrive, each once, over lost connections.

Of one run it reads server-sent events: `event: logs` carries text exactly as it was received (JSON
keeps every byte), `id:` the cursor after it. When the connection ends without
`complete`, the stream is opened again at the last cursor. In a terminal, and with `--json`, it asks
for records, which have a level. A terminal also shows the line that is not finished yet. Names with
`*`, `?` or `[…]` are patterns: see `tailrace.tailing.many`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Callable
from typing import TextIO

import httpx

from logstore.clock import Clock, SystemClock
from logstore.errors import InvalidInput, NotFound, TailraceError
from tailrace.console.pager import add_pager, paged
from tailrace.console.terminal import note
from tailrace.remote.api import (
    RUNS,
    TIMES,
    add_url,
    authorization,
    check,
    complete_names,
    component,
    errors_as_ours,
    trusted,
)
from tailrace.remote.events import READ_SECONDS, Event, EventFollower, warn_of_silent
from tailrace.tailing.attempts import before
from tailrace.tailing.lines import PREFIXES, Lines
from tailrace.tailing.many import follow_many, is_pattern, print_many
from tailrace.tailing.start import has_no_lines, where
from tailrace.tailing.unfinished import end, show_unfinished

_AGAIN = "the store has lines before some of these: the run is printed again from there"
_LOOKED_AT = 100  # runs that began last
DEFAULT_LINES = 100


def configure(parser: argparse.ArgumentParser) -> None:
    """Whom to follow, from where, and where."""
    add_url(parser)
    fqn = parser.add_argument(
        "fqn", metavar="FQN", help="name of the pipeline, or a pattern: '*', 'shop.*', 'a?[12]'"
    )
    name = parser.add_argument(
        "run", metavar="RUN", nargs="?", help="the run, or a pattern (default: the newest)"
    )
    complete_names(fqn, name)
    parser.add_argument("--after", metavar="CURSOR", help="start beyond this cursor")
    parser.add_argument("--since", metavar="T", help=f"start at this time: {TIMES}")
    parser.add_argument(
        "-n",
        "--tail",
        metavar="N",
        type=int,
        help=f"start with the last N lines; -1: with all of them (default: {DEFAULT_LINES})",
    )
    parser.add_argument(
        "-p",
        "--previous",
        action="store_true",
        help="the attempt before this one; for a run that is no attempt, the run before it",
    )
    end = parser.add_mutually_exclusive_group()
    end.add_argument("-f", "--follow", action="store_true", help="go on with what comes, as always")
    end.add_argument(
        "--no-follow", action="store_true", help="print what is there, then end; in a pager"
    )
    parser.add_argument(
        "--prefix",
        choices=PREFIXES,
        default="auto",
        help="what is before each line: its run's id, with its pipeline's name, or nothing; auto:"
        " both where patterns are followed (default: auto)",
    )
    parser.add_argument("--json", action="store_true", help="whole records, one JSON object a line")
    add_pager(parser)


def run(arguments: argparse.Namespace) -> int:
    """Prints until the run is complete; runs of a pattern, until it is interrupted."""
    _check(arguments)
    if not arguments.no_follow:
        return asyncio.run(_run(arguments, sys.stdout))
    with paged(sys.stdout, wanted=not arguments.no_pager) as out:
        return asyncio.run(_run(arguments, out))


def patterns(arguments: argparse.Namespace) -> bool:
    """Whether several runs may be meant."""
    return is_pattern(arguments.fqn) or is_pattern(arguments.run or "")


def _check(arguments: argparse.Namespace) -> None:
    """Raises `InvalidInput` for flags that say nothing together."""
    if arguments.tail is not None and arguments.tail < -1:
        raise InvalidInput(f"--tail is {arguments.tail}", hint="Give a number, or -1 for all.")
    if arguments.after is not None and (arguments.tail is not None or arguments.since is not None):
        raise InvalidInput(
            "--after is given with another beginning", hint="Leave --tail and --since out."
        )
    if not patterns(arguments):
        return
    if arguments.previous:
        raise InvalidInput("--previous is of one run", hint="Name the pipeline, without a pattern.")
    if not arguments.no_follow and arguments.since is not None and arguments.tail is not None:
        raise InvalidInput(
            "--since and --tail are both given with a pattern", hint="Give one of the two."
        )
    if arguments.no_follow and arguments.after is not None:
        raise InvalidInput("--after is for following", hint="Leave it out, or --no-follow.")


async def _run(arguments: argparse.Namespace, out: TextIO) -> int:
    timeout = httpx.Timeout(10, read=READ_SECONDS)
    headers = authorization(arguments.token_file)
    many = patterns(arguments)
    lines = Lines(out, sys.stderr, whole=arguments.json, prefix=arguments.prefix, many=many)
    async with httpx.AsyncClient(
        base_url=arguments.url,
        timeout=timeout,
        headers=headers,
        verify=trusted(arguments.ca_file),
    ) as client:
        if many:
            act = print_many if arguments.no_follow else follow_many
            await act(client, arguments, lines, DEFAULT_LINES)
            return 0
        with errors_as_ours(arguments.url):
            name = await _named(client, arguments)
            start = arguments.after
            if start is None:
                wanted = arguments.tail
                if wanted is None and arguments.no_follow and arguments.since is None:
                    wanted = DEFAULT_LINES
                start = await where(client, arguments.fqn, name, wanted, arguments.since)
            if arguments.no_follow:
                await print_pages(client, arguments.fqn, name, start, lines)
                return 0
            if sys.stderr.isatty() and await has_no_lines(client, arguments.fqn, name):
                note(f"{arguments.fqn}/{name} has no lines yet: waiting for the first")
        form = lines.of_one(arguments.fqn, name)
        tail = DEFAULT_LINES if start is None else None
        clock, below = SystemClock(), None
        if lines.shows_unfinished:
            shown = show_unfinished(client, clock, arguments.fqn, name, lines)
            below = asyncio.create_task(shown)
        try:
            follower = Follower(client, clock, arguments.fqn, name, lines.write, form, tail)
            await follower.follow(start)
        finally:
            await end(below, lines)
    return 0


async def _named(client: httpx.AsyncClient, arguments: argparse.Namespace) -> str:
    if not arguments.previous:
        return arguments.run or await newest_run(client, arguments.fqn)
    response = await client.get(f"{RUNS}/{component(arguments.fqn)}", params={"limit": _LOOKED_AT})
    check(response)
    details = response.json().get("details") or []
    own = arguments.run or (details[0]["runId"] if details else None)
    found = before(details, own) if own is not None else None
    if found is None:
        raise NotFound(
            f"{arguments.fqn} has no run before {own or 'the newest'}",
            hint=f"It is looked for in the {_LOOKED_AT} runs that began last.",
        )
    return found


async def newest_run(client: httpx.AsyncClient, fqn: str) -> str:
    """The pipeline's newest run. Raises `NotFound` if it has none."""
    response = await client.get(f"{RUNS}/{component(fqn)}", params={"limit": 1})
    check(response)
    runs = response.json().get("runs") or []
    if not runs:
        raise NotFound(f"{fqn} has no runs", hint="Name the run to wait for its first line.")
    return str(runs[0])


async def print_pages(
    client: httpx.AsyncClient, fqn: str, name: str, start: str | None, lines: Lines
) -> None:
    """Prints a run from a place to its end as it is now.

    Raises what the service answers, and `NotFound` for a run without lines.
    """
    path = f"{RUNS}/{component(fqn)}/{component(name)}"
    after: str | None = start or "0"
    form = lines.of_one(fqn, name)
    without_store = False
    while after is not None:
        asked = {"after": after, **({} if form is None else {"format": "ndjson"})}
        response = await client.get(path, params=asked)
        check(response)
        if form is None:
            page = response.json()
            # An empty line alone is an empty text, as is nothing behind the run's end.
            if page["logs"] or _line_of(after) < page["totalLines"]:
                lines.write(f"{page['logs']}\n")
        else:
            *records, last = response.text.split("\n")[:-1]
            page = json.loads(last)["stats"]
            lines.write("".join([form(record) for record in records]))
        without_store |= bool(page.get("store"))
        if not page["totalLines"]:
            raise NotFound(f"{fqn}/{name} has no lines", hint="Without --no-follow it is awaited.")
        after = page["after"]
    if page.get("silent") or without_store:
        warn_of_silent(page.get("silent") or (), store=without_store)


def _line_of(after: str) -> int:
    """The line number that a page's place begins with; an older service's may have none."""
    number = after.partition(".")[0]
    return int(number) if number.isdigit() else sys.maxsize


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
        tail: int | None = None,
    ) -> None:
        """Without a place to begin at, it begins with the last `tail` lines; None: with all."""
        path = f"{RUNS}/{component(fqn)}/stream/{component(run)}"
        asked = {} if form is None else {"format": "ndjson"}
        if tail is not None:
            asked["tail"] = str(tail)
        super().__init__(client, clock, path, asked)
        self._write = write
        self._form = form

    def take(self, event: Event) -> bool:
        """Writes lines; `complete` is the end."""
        if event.name == "complete":
            return True
        if event.name == "error":
            raise TailraceError(_message(event.data))
        if event.name == "silent":
            said = json.loads(event.data)
            warn_of_silent(said.get("nodes", ()), store=bool(said.get("store")))
        elif event.name == "again":
            note(_AGAIN)
        elif self._form is not None and event.name == "message":
            self._write(self._form(event.data))
            self.cursor = event.id
        elif event.name == "logs":
            value = json.loads(event.data)
            if value.get("replay"):
                note(_AGAIN)
            self._write(value.get("logs") or "")
            self.cursor = event.id
        return False


def _message(data: str) -> str:
    try:
        value = json.loads(data)
    except ValueError:
        return data
    return str(value.get("message") or data) if isinstance(value, dict) else data
