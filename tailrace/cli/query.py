"""`tailrace query`: prints the results of a search as they arrive.

Reads ndjson, whose last record says whether the result is complete. Without `--json` a record is
its message, with the run's name before it unless `--fqn` and `--run` name it, as grep does with
files. `--follow` goes on live, `--histogram` and `--count` count. Exit status: 0 complete, 2
partial (stderr says why).
"""

from __future__ import annotations

import argparse
import asyncio
import ssl
import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, Protocol, TextIO

import httpx
import orjson

from tailrace.cli.remote import (
    READ_SECONDS,
    TIMES,
    EventFollower,
    ServerSentEvent,
    add_url,
    authorization,
    check,
    complete_names,
    errors_as_ours,
    trusted,
    warn_of_silent,
)
from tailrace.cli.terminal import (
    RunColours,
    add_pager,
    coloured,
    in_json,
    paged,
    say,
    say_json,
    wants_colour,
)
from tailrace.logstore.clock import Clock, SystemClock
from tailrace.logstore.errors import InvalidInput, TailraceError

# Output: records, groups of them around hits, and a chart of counts.


_BAR_CHARS: Final = 40


class RecordPrinter:
    """Writes records; keeps the `stats` that the result ends with."""

    def __init__(self, out: TextIO, *, whole: bool, named: bool) -> None:
        self._out = out
        self._whole = whole
        self._named = named
        self._terminal = out.isatty()
        self._colour = wants_colour(out)
        self._names = RunColours(colour=self._colour)
        self.stats: dict[str, Any] | None = None
        self._group: int | None = None
        self.left = False
        """Whether nobody reads any more: what is left out then is not missing."""

    def take(self, lines: Iterable[bytes]) -> None:
        """Prints some lines of ndjson. Raises `TailraceError` if the search broke off."""
        texts = [text for line in lines if (text := self._text(line)) is not None]
        try:
            self._out.write("".join(texts))
            self._out.flush()
        except BrokenPipeError:
            self.left = True
            raise

    def _text(self, line: bytes) -> str | None:
        record = orjson.loads(line)
        if "ulid" in record:
            return self._json(line.decode()) if self._whole else self._message(record)
        if "error" in record:
            problem = record["error"]
            raise TailraceError(str(problem.get("detail")), hint=str(problem.get("hint") or ""))
        self.stats = record.get("stats")
        return None

    def _json(self, line: str) -> str:
        return f"{in_json(line) if self._terminal else line}\n"

    def _message(self, record: dict[str, Any]) -> str:
        group, hit = record.get("group"), record.get("hit")
        between = "--\n" if group is not None and self._group not in (None, group) else ""
        self._group = group
        message = record["message"]
        if self._terminal:
            message = coloured(message, record.get("level"), colour=self._colour)
        if not self._named:
            return f"{between}{message}\n"
        # As grep: a colon after the name for a hit, a dash for the records around it.
        sign = "-" if hit is False else ":"
        run = f"{record['fqn']}/{record['run_id']}"
        if self._terminal:
            run = self._names.of(run)
        return f"{between}{run}{sign} {message}\n"


def chart(found: Mapping[str, Any]) -> str:
    """A line for each bucket of a histogram: its time, its count, a bar, counts by level."""
    buckets = found["buckets"]
    most = max([bucket["count"] for bucket in buckets], default=0)
    width = len(str(most))
    lines = []
    for bucket in buckets:
        count = bucket["count"]
        bar = "#" * (-(-count * _BAR_CHARS // most) if most else 0)
        levels = ", ".join(
            f"{n} {'without a level' if level == 'null' else level}"
            for level, n in bucket["levels"].items()
        )
        line = f"{bucket['at'].removesuffix('.000Z')}  {count:>{width}}  {bar:<{_BAR_CHARS}}"
        lines.append(f"{line}  {levels}".rstrip())
    return "".join(f"{line}\n" for line in lines)


def counts(found: Mapping[str, Any]) -> str:
    """A line for each combination of values: how many records have it, and the values."""
    rows = [*found["counts"]]
    width = len(str(found["records"]))
    lines = [f"{found['records']:>{width}}  records"]
    for row in rows:
        values = [
            f"{name}={'-' if value is None else value}" for name, value in row["values"].items()
        ]
        lines.append(f"{row['records']:>{width}}  {'  '.join(values)}")
    rest = found["records"] - sum(row["records"] for row in rows)
    if rest:
        lines.append(f"{rest:>{width}}  others")
    return "".join(f"{line}\n" for line in lines)


PARTIAL: Final = 2
_FOLLOWED: Final[tuple[str, ...]] = ("q", "regex", "from", "fqn", "run", "level")
_COUNTED: Final[tuple[str, ...]] = (*_FOLLOWED, "to")
_READ_SECONDS: Final = 300  # longer than any search may work without finding anything


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds the flags of a search, and of the service to ask."""
    add_url(parser)
    parser.add_argument(
        "--from",
        dest="start",
        metavar="T",
        help=f"earliest time: {TIMES}; 0 is everything (default: now-1h)",
    )
    parser.add_argument(
        "--by",
        choices=("arrival", "ts"),
        help="the time that --from and --to apply to: arrival, or the timestamp in the line "
        "(default: arrival)",
    )
    parser.add_argument("--to", dest="end", metavar="T", help="latest time (default: no bound)")
    fqn = parser.add_argument("--fqn", metavar="F", help="only this pipeline")
    run_id = parser.add_argument("--run", metavar="R", help="only runs of this id")
    complete_names(fqn, run_id)
    parser.add_argument("--level", metavar="L", help="only these levels, separated by commas")
    parser.add_argument(
        "--limit",
        metavar="N",
        type=int,
        help="at most N records (default: all; hits, with --context: 20); with --follow: begin with"
        " the newest N",
    )
    parser.add_argument(
        "--order", choices=("asc", "desc"), default="desc", help="newest first, or oldest first"
    )
    parser.add_argument("--regex", action="store_true", help="EXPRESSION is a regular expression")
    parser.add_argument(
        "--context",
        metavar="N",
        type=int,
        help="show each hit with N records of its run before and after it",
    )
    parser.add_argument(
        "-f",
        "--follow",
        action="store_true",
        help="keep running, and print new matches as they arrive",
    )
    parser.add_argument(
        "--histogram", action="store_true", help="print a chart of counts over time, by level"
    )
    parser.add_argument(
        "--count",
        metavar="FIELDS",
        help="count records by the values of these fields, such as level,json.status",
    )
    parser.add_argument(
        "--json",
        action="store_true",
        help="print complete records, one JSON object per line; with --histogram, --count: "
        "counts as JSON",
    )
    add_pager(parser)
    parser.add_argument(
        "expression",
        metavar="EXPRESSION",
        nargs="*",
        help="words, phrases, fields, AND, OR, NOT: level>=WARN timeout (docs/use/search.md)",
    )


def run(arguments: argparse.Namespace) -> int:
    """Prints the result. Raises what the service answers."""
    _check(arguments)
    if arguments.follow:
        return _follow(arguments)
    timeout = httpx.Timeout(10, read=_READ_SECONDS)
    with (
        errors_as_ours(arguments.url),
        httpx.Client(
            base_url=arguments.url,
            timeout=timeout,
            headers=authorization(arguments.token_file),
            verify=trusted(arguments.ca_file),
        ) as client,
    ):
        if arguments.histogram:
            return _histogram(arguments, client)
        if arguments.count is not None:
            return _count_by(arguments, client)
        with client.stream("GET", "/query", params=parameters(arguments)) as response:
            if not response.is_success:
                response.read()
            check(response)
            with paged(sys.stdout, wanted=not arguments.no_pager) as out:
                printer = _printer(arguments, out)
                for lines in _lines(response.iter_bytes()):
                    printer.take(lines)
    return 0 if printer.left else _verdict(printer.stats)


def _follow(arguments: argparse.Namespace) -> int:
    given = parameters(arguments)
    asked = {name: given[name] for name in _FOLLOWED if name in given}
    if "limit" in given:
        asked["tail"] = given["limit"]
    headers = authorization(arguments.token_file)
    verify = trusted(arguments.ca_file)
    asyncio.run(follow(arguments.url, asked, _printer(arguments), headers, verify))
    return 0


def _histogram(arguments: argparse.Namespace, client: httpx.Client) -> int:
    given = parameters(arguments)
    asked = {name: given[name] for name in (*_COUNTED, "by") if name in given}
    response = client.get("/query/histogram", params=asked)
    check(response)
    found = response.json()
    _print(response.text, chart(found), as_json=arguments.json)
    return _verdict(found["stats"])


def _count_by(arguments: argparse.Namespace, client: httpx.Client) -> int:
    given = parameters(arguments)
    asked = {name: given[name] for name in (*_COUNTED, "limit") if name in given}
    time = {"time": arguments.by} if arguments.by else {}
    response = client.post("/query/count", json=asked | time | {"by": arguments.count})
    check(response)
    found = response.json()
    _print(response.text, counts(found), as_json=arguments.json)
    return _verdict(found["stats"])


def _printer(arguments: argparse.Namespace, out: TextIO | None = None) -> RecordPrinter:
    named = arguments.fqn is None or arguments.run is None
    return RecordPrinter(out or sys.stdout, whole=arguments.json, named=named)


def _check(arguments: argparse.Namespace) -> None:
    """Raises `InvalidInput` for flags that say nothing together."""
    alone = [
        name for name in ("follow", "histogram", "context", "count") if getattr(arguments, name)
    ]
    if len(alone) > 1:
        raise InvalidInput(
            f"--{alone[0]} and --{alone[1]} are both given", hint="Give one of the two."
        )
    if arguments.by == "ts" and arguments.follow:
        raise InvalidInput("--follow works only by arrival time", hint="Leave out --by.")
    if arguments.follow and arguments.end is not None:
        raise InvalidInput("--follow cannot have an end time", hint="Leave out --to or --follow.")


def parameters(arguments: argparse.Namespace) -> dict[str, str]:
    """The query string: only what was given."""
    given = {
        "q": " ".join(arguments.expression) or None,
        "from": arguments.start,
        "to": arguments.end,
        "by": arguments.by,
        "fqn": arguments.fqn,
        "run": arguments.run,
        "level": arguments.level,
        "limit": arguments.limit,
        "regex": "true" if arguments.regex else None,
        "context": arguments.context,
    }
    always = {"order": arguments.order, "format": "ndjson"}
    return {name: str(value) for name, value in given.items() if value is not None} | always


def _lines(pieces: Iterable[bytes]) -> Iterator[list[bytes]]:
    """The whole lines of each piece; the last may lack its end."""
    rest = b""
    for piece in pieces:
        *lines, rest = (rest + piece).split(b"\n")
        if lines:
            yield lines
    if rest:
        yield [rest]


def _print(received: str, text: str, *, as_json: bool) -> None:
    if as_json:
        say_json(received)
    else:
        say(text, end="")


def _verdict(stats: dict[str, Any] | None) -> int:
    if stats is None:
        say("warning: partial: the connection ended before the result", sys.stderr)
        return PARTIAL
    if stats.get("set_aside"):
        say(f"warning: damaged and quarantined: {_names(stats['set_aside'])}", sys.stderr)
    if stats.get("complete"):
        return 0
    if stats.get("set_aside") and not (stats.get("missing") or stats.get("unreadable")):
        return PARTIAL
    unread = [*stats.get("missing", []), *stats.get("unreadable", [])]
    say(f"warning: partial: could not read {_names(unread)}{_count(stats)}", sys.stderr)
    return PARTIAL


def _count(stats: dict[str, Any]) -> str:
    """How much is missing, of how much; the names above are the first ones."""
    said = [
        f"{stats[f'{kind}_failed']} {kind} failed, {stats[kind]} were to be read"
        for kind in ("segments", "files")
        if stats.get(f"{kind}_failed")
    ]
    return f" ({'; '.join(said)})" if said else ""


def _names(keys: list[str]) -> str:
    return ", ".join(keys) or "everything"


# `--follow`: prints matches as they are acknowledged, each record once.


class Taker(Protocol):
    """The receiver of found records."""

    def take(self, lines: Iterable[bytes], /) -> None:
        """Takes some lines of ndjson."""


class SearchFollower(EventFollower):
    """A live search; goes on until it is interrupted."""

    silence_counts = True

    def __init__(
        self, client: httpx.AsyncClient, clock: Clock, parameters: Mapping[str, str], printer: Taker
    ) -> None:
        super().__init__(client, clock, "/query/stream", parameters)
        self._printer = printer

    def take(self, event: ServerSentEvent) -> bool:
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
    printer: RecordPrinter,
    headers: Mapping[str, str] | None = None,
    verify: ssl.SSLContext | bool = True,
) -> None:
    """Follows until it is interrupted. Raises what the service answers."""
    timeout = httpx.Timeout(10, read=READ_SECONDS)
    async with httpx.AsyncClient(
        base_url=url, timeout=timeout, headers=headers, verify=verify
    ) as client:
        await SearchFollower(client, SystemClock(), parameters, printer).follow()
