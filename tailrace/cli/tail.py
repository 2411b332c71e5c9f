"""`tailrace tail`: prints lines as they arrive, each once, over lost connections.

For one run it reads server-sent events: `event: logs` carries text exactly as it was received (JSON
keeps every byte), `id:` the cursor after it. When the connection ends without `complete`, the
stream is opened again at the last cursor. In a terminal, and with `--json`, it asks for records,
which have a level. A terminal also shows the unfinished line. Names with `*`, `?` or `[…]` are
patterns: then one live search follows all runs that match.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import sys
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from typing import Any, Final, TextIO

import httpx

from tailrace.cli.query import SearchFollower
from tailrace.cli.remote import (
    READ_SECONDS,
    RUNS,
    TIMES,
    EventFollower,
    EventParser,
    ServerSentEvent,
    add_url,
    authorization,
    check,
    complete_names,
    component,
    errors_as_ours,
    trusted,
    warn_of_silent,
)
from tailrace.cli.terminal import (
    RunColours,
    add_json,
    add_pager,
    coloured,
    fitting,
    in_json,
    last_states,
    note,
    paged,
    say,
    wants_colour,
)
from tailrace.logstore.clock import Clock, SystemClock
from tailrace.logstore.errors import InvalidInput, NotFound, TailraceError, Unavailable

# The attempt before a run, or the run before it, as the page's comparison takes it.


_NUMBERED: Final = re.compile(r"(.+?)[\W_]*(?:attempt|retry|try)?[\W_]*?0*(\d+)", re.IGNORECASE)


def base_of(run: dict[str, Any]) -> str | None:
    """What the ids of attempts of one thing have in common; None for a run that is none."""
    found = _NUMBERED.fullmatch(run["runId"])
    attempt = run.get("attempt")
    return found[1] if found and attempt is not None and int(found[2]) == attempt else None


def before(runs: Sequence[dict[str, Any]], run: str) -> str | None:
    """The id of the attempt before `run`, else of the run that began before it; None without.

    `runs` are details as `GET …/logs/{fqn}` lists them: the run that began last first.
    """
    at = next((n for n, one in enumerate(runs) if one["runId"] == run), None)
    if at is None:
        return None
    own = runs[at]
    base = base_of(own)
    if base is not None:
        earlier = [r for r in runs if base_of(r) == base and r["attempt"] < own["attempt"]]
        if earlier:
            return str(max(earlier, key=lambda one: int(one["attempt"]))["runId"])
    return str(runs[at + 1]["runId"]) if at + 1 < len(runs) else None


# The start of the output: a number of lines before the end, or a time.


async def where(
    client: httpx.AsyncClient, fqn: str, run: str, wanted: int | None, since: str | None
) -> str | None:
    """The number of the line to begin at, as the stream's `after`; None: where the service does.

    `wanted` is a number of lines, -1 for all; of both, what begins later. A run that is not there
    yet begins with its first line. Raises what the service answers.
    """
    if wanted is None and since is None:
        return None
    total = await _total(client, fqn, run)
    if not total:
        return "0"
    first = 0 if wanted in (None, -1) else max(0, total - (wanted or 0))
    if since is not None:
        first = max(first, await _line_at(client, fqn, run, since, total))
    return str(first)


async def has_no_lines(client: httpx.AsyncClient, fqn: str, run: str) -> bool:
    """Whether a follower is to wait for the first line. Raises what the service answers."""
    return await _total(client, fqn, run) == 0


async def _total(client: httpx.AsyncClient, fqn: str, run: str) -> int:
    try:
        return (await _page(client, fqn, run, {"tail": "1"}))["totalLines"]
    except NotFound:
        return 0


async def _line_at(client: httpx.AsyncClient, fqn: str, run: str, since: str, total: int) -> int:
    asked = {"fqn": fqn, "run": run, "from": since, "order": "asc", "limit": "1"}
    response = await client.get("/query", params=asked)
    check(response)
    found = [json.loads(line) for line in response.text.split("\n") if line]
    if not found or "ulid" not in found[0]:
        return total
    page = await _page(client, fqn, run, {"at": found[0]["ulid"], "limit": "1"})
    return int(page["line"])


async def _page(
    client: httpx.AsyncClient, fqn: str, run: str, asked: dict[str, str]
) -> dict[str, int]:
    path = f"{RUNS}/{component(fqn)}/{component(run)}"
    response = await client.get(path, params=asked)
    check(response)
    page: dict[str, int] = response.json()
    return page


# The output of a record: its lines, each with its run's name in front.


PREFIXES: Final = ("auto", "none", "run", "full")
_TAKE_AWAY: Final = "\r\x1b[K"


class TailPrinter:
    """Writes records; on a terminal it says on `notes` which run it sees for the first time."""

    def __init__(self, out: TextIO, notes: TextIO, *, whole: bool, prefix: str, many: bool) -> None:
        self._out = out
        self._whole = whole
        self._terminal = out.isatty()
        self._colour = wants_colour(out)
        self._names = RunColours(colour=self._colour)
        self._prefix = ("full" if many else "none") if prefix == "auto" else prefix
        self._notes = notes if many and notes.isatty() and not whole else None
        self._seen: set[str] = set()
        self._unfinished = ""

    @property
    def shows_unfinished(self) -> bool:
        """Whether lines that are not finished are shown below the others."""
        return self._terminal and not self._whole

    def write(self, text: str) -> None:
        """Writes at once, above the line that is not finished."""
        if self._unfinished:
            text = f"{_TAKE_AWAY}{text}{self._unfinished}"
        self._out.write(text)
        self._out.flush()

    def show(self, text: str) -> None:
        """Replaces the unfinished line below all others; empty: there is none."""
        line = fitting(text)
        if line == self._unfinished:
            return
        self._out.write(f"{_TAKE_AWAY}{line}" if self._unfinished else line)
        self._unfinished = line
        self._out.flush()

    def of_one(self, fqn: str, run: str) -> Callable[[str], str] | None:
        """What makes text of a record's JSON; None where the text is wanted as it was received."""
        if not (self._whole or self._terminal or self._prefix != "none"):
            return None
        return lambda data: self._text(data, fqn, run)

    def of_any(self, data: str) -> str:
        """The text of a record's JSON, which names its run."""
        record = json.loads(data)
        return self._text(data, record["fqn"], record["run_id"])

    def _text(self, data: str, fqn: str, run: str) -> str:
        if self._whole:
            return f"{in_json(data) if self._terminal else data}\n"
        record = json.loads(data)
        text = str(record["message"])
        if self._terminal:
            text = last_states(text)
            text = coloured(text, record.get("level"), colour=self._colour)
        if self._notes is not None and (name := f"{fqn}/{run}") not in self._seen:
            self._seen.add(name)
            say(f"+ {name}", self._notes)
        if self._prefix == "none":
            return f"{text}\n"
        name = f"{fqn}/{run}" if self._prefix == "full" else run
        begin = self._names.of(name) if self._terminal else name
        return "".join([f"{begin}: {line}\n" for line in text.split("\n")])


# Patterns: one live search, so runs that begin later are in it as well.
#
# A pattern is a shell's: `*` is any text, `?` one character, `[…]` one of these.


# Lines of several runs are held back for this time, to print them in the order of their times.
_WINDOW_SECONDS: Final = "0.5"
_SPECIAL: Final = re.compile(r"[*?\[]")


def is_pattern(name: str) -> bool:
    """Returns whether the text is a pattern, which may match several names."""
    return _SPECIAL.search(name) is not None


def condition(field: str, name: str) -> dict[str, str]:
    """A name or a pattern as a parameter of a search; `q` holds what is a pattern."""
    if not is_pattern(name):
        return {field: name}
    return {"q": f"{field}:/{regex(name)}/"}


def regex(pattern: str) -> str:
    """The pattern as a regular expression of RE2 between slashes. Raises `InvalidInput`."""
    made, at = ["^"], 0
    while at < len(pattern):
        character = pattern[at]
        at += 1
        if character == "*":
            made.append(".*")
        elif character == "?":
            made.append(".")
        elif character == "[":
            end = pattern.find("]", at + 1)
            if end < 0:
                raise InvalidInput(f"{pattern!r} has a [ without a ]", hint="Write [[] for a [.")
            inside = pattern[at:end]
            negated = inside.startswith("!")
            escaped = re.sub(r"([\\\[\]^&~|/])", r"\\\1", inside.removeprefix("!"))
            made.append(f"[{'^' if negated else ''}{escaped}]")
            at = end + 1
        elif character == "/":
            made.append(r"\/")
        else:
            made.append(re.escape(character))
    return "".join([*made, "$"])


def _conditions(arguments: argparse.Namespace) -> dict[str, str]:
    parts = [condition("fqn", arguments.fqn)]
    if arguments.run is not None:
        parts.append(condition("run", arguments.run))
    asked = {name: text for part in parts for name, text in part.items() if name != "q"}
    words = [part["q"] for part in parts if "q" in part]
    return {"q": " ".join(words), **asked}


class _Written:
    """Takes records as a search's printer does."""

    def __init__(self, lines: TailPrinter) -> None:
        self._lines = lines

    def take(self, found: Iterable[bytes]) -> None:
        """Writes some records."""
        self._lines.write("".join([self._lines.of_any(line.decode()) for line in found]))


async def follow_many(
    client: httpx.AsyncClient, arguments: argparse.Namespace, lines: TailPrinter, default: int
) -> None:
    """Follows until it is interrupted. Raises what the service answers."""
    asked = {**_conditions(arguments), "window": _WINDOW_SECONDS}
    wanted = arguments.tail
    if arguments.since is not None:
        asked["from"] = arguments.since
    elif wanted == -1:
        asked["from"] = "0"
    elif wanted != 0 and arguments.after is None:
        asked["tail"] = str(default if wanted is None else wanted)
    await SearchFollower(client, SystemClock(), asked, _Written(lines)).follow(arguments.after)


async def print_many(
    client: httpx.AsyncClient, arguments: argparse.Namespace, lines: TailPrinter, default: int
) -> None:
    """Prints what is there, oldest first. Raises what the service answers, and for a part."""
    asked = {**_conditions(arguments), "from": arguments.since or "0", "order": "asc"}
    wanted = default if arguments.tail is None and arguments.since is None else arguments.tail
    if wanted == 0:
        return
    if wanted not in (None, -1):
        asked |= {"order": "desc", "limit": str(wanted)}
    newest: list[str] = []
    stats = None
    with errors_as_ours(str(client.base_url)):
        async with client.stream("GET", "/query", params=asked) as response:
            if not response.is_success:
                await response.aread()
            check(response)
            async for line in _lines(response):
                if line.startswith('{"stats"'):
                    stats = json.loads(line)["stats"]
                elif line.startswith('{"error"'):
                    problem = json.loads(line)["error"]
                    raise TailraceError(problem["detail"], hint=problem.get("hint") or "")
                elif asked["order"] == "desc":
                    newest.append(line)
                else:
                    lines.write(lines.of_any(line))
    for line in reversed(newest):
        lines.write(lines.of_any(line))
    if stats is None or not stats.get("complete"):
        raise Unavailable(
            "not everything could be read", hint="Run `tailrace query`: it names the missing parts."
        )


async def _lines(response: httpx.Response) -> AsyncIterator[str]:
    """Lines of ndjson: split at newlines alone, which JSON escapes within text."""
    rest = b""
    async for piece in response.aiter_bytes():
        *whole, rest = (rest + piece).split(b"\n")
        for line in whole:
            yield line.decode()


# The unfinished lines of a run on a terminal: one line below all others, which shows the newest.
#
# The line is removed before anything else is written, and comes back below it. It is never longer
# than the terminal is wide, so that it can be removed. Its stream is an addition: if it is lost it
# is opened again, and a service that does not have it is not asked again.


_PAUSE_SECONDS: Final = 2.0
_UNKNOWN: Final = range(400, 500)


async def show_unfinished(
    client: httpx.AsyncClient, clock: Clock, fqn: str, run: str, lines: TailPrinter
) -> None:
    """Shows them until cancelled, or until the run is over."""
    path = f"{RUNS.removesuffix('/logs')}/unfinished/{component(fqn)}/stream/{component(run)}"
    while True:
        try:
            async with client.stream("GET", path) as response:
                if response.status_code in _UNKNOWN:
                    return
                parser = EventParser()
                async for line in response.aiter_lines():
                    for event in parser.feed([line]):
                        if event.name == "complete":
                            return
                        lines.show(last_text(event.data))
        except httpx.HTTPError:
            lines.show("")
        await clock.sleep(_PAUSE_SECONDS)


def last_text(data: str) -> str:
    """The newest of the lines in an event."""
    try:
        found = json.loads(data)["lines"]
        return str(max(found, key=lambda line: line["number"])["text"]) if found else ""
    except (ValueError, KeyError, TypeError):
        return ""


async def end(task: asyncio.Task[None] | None, lines: TailPrinter) -> None:
    """Takes the line away for good."""
    if task is not None:
        task.cancel()
        await asyncio.wait({task})
        lines.show("")


_AGAIN = "the store has lines older than some of these: the run is printed again from that point"
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
    parser.add_argument("--after", metavar="CURSOR", help="start after this cursor")
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
        help="show the attempt before this one; without attempts, the run before this one",
    )
    end = parser.add_mutually_exclusive_group()
    end.add_argument(
        "-f", "--follow", action="store_true", help="print new lines as they arrive (default)"
    )
    end.add_argument(
        "--no-follow", action="store_true", help="print the existing lines in a pager, then exit"
    )
    parser.add_argument(
        "--prefix",
        choices=PREFIXES,
        default="auto",
        help="prefix of each line: the run's id, pipeline and run, or nothing; auto: pipeline "
        "and run if a pattern is followed (default: auto)",
    )
    add_json(parser, "print complete records, one JSON object per line")
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
            "--after cannot be combined with --tail or --since",
            hint="Leave out --tail and --since.",
        )
    if not patterns(arguments):
        return
    if arguments.previous:
        raise InvalidInput(
            "--previous works with a single run", hint="Name the pipeline, without a pattern."
        )
    if not arguments.no_follow and arguments.since is not None and arguments.tail is not None:
        raise InvalidInput(
            "--since and --tail are both given with a pattern", hint="Give one of the two."
        )
    if arguments.no_follow and arguments.after is not None:
        raise InvalidInput(
            "--after works only while following", hint="Leave out --after or --no-follow."
        )


async def _run(arguments: argparse.Namespace, out: TextIO) -> int:
    timeout = httpx.Timeout(10, read=READ_SECONDS)
    headers = authorization(arguments.token_file)
    many = patterns(arguments)
    lines = TailPrinter(out, sys.stderr, whole=arguments.json, prefix=arguments.prefix, many=many)
    async with httpx.AsyncClient(
        base_url=arguments.url, timeout=timeout, headers=headers, verify=trusted(arguments.ca_file)
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
            hint=f"Only the {_LOOKED_AT} newest runs were searched.",
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
    client: httpx.AsyncClient, fqn: str, name: str, start: str | None, lines: TailPrinter
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
            _note_again(page)
            # An empty line alone is an empty text, as is nothing behind the run's end.
            if page["logs"] or _line_of(after) < page["totalLines"]:
                lines.write(f"{page['logs']}\n")
        else:
            *records, last = response.text.split("\n")[:-1]
            page = json.loads(last)["stats"]
            _note_again(page)
            lines.write("".join([form(record) for record in records]))
        without_store |= bool(page.get("store"))
        if not page["totalLines"]:
            raise NotFound(
                f"{fqn}/{name} has no lines", hint="Leave out --no-follow to wait for it."
            )
        after = page["after"]
    if page.get("silent") or without_store:
        warn_of_silent(page.get("silent") or (), store=without_store)


def _note_again(page: Mapping[str, Any]) -> None:
    if page.get("again"):
        note(_AGAIN)


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

    def take(self, event: ServerSentEvent) -> bool:
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
