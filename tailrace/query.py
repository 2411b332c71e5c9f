"""`tailrace query`: prints what a search finds, as it is found.

Reads ndjson, whose last record says whether the result is complete. Without `--json` a
record is its message, with the run's name before it unless `--fqn` and `--run` name
it, as grep does with files. Exit status: 0 complete, 2 partial (stderr says why).
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Iterator
from typing import Any, Final, TextIO

import httpx
import orjson

from logstore.errors import TailraceError
from tailrace.api import add_url, check, errors_as_ours

PARTIAL: Final = 2
_READ_SECONDS: Final = 300  # longer than any search may work without finding anything


def configure(parser: argparse.ArgumentParser) -> None:
    """What to look for, and where."""
    add_url(parser)
    parser.add_argument(
        "--from",
        dest="start",
        metavar="T",
        help="earliest time: RFC 3339, now-1d, 0 (default: now-1h)",
    )
    parser.add_argument("--to", dest="end", metavar="T", help="latest time (default: no bound)")
    parser.add_argument("--fqn", metavar="F", help="only this pipeline")
    parser.add_argument("--run", metavar="R", help="only runs of this id")
    parser.add_argument("--level", metavar="L", help="only these levels, separated by commas")
    parser.add_argument("--limit", metavar="N", type=int, help="at most N records (default: all)")
    parser.add_argument(
        "--order", choices=("asc", "desc"), default="desc", help="newest first, or oldest first"
    )
    parser.add_argument("--regex", action="store_true", help="EXPRESSION is a regular expression")
    parser.add_argument("--json", action="store_true", help="whole records, one JSON object a line")
    parser.add_argument(
        "expression",
        metavar="EXPRESSION",
        nargs="*",
        help="words, phrases, fields, AND, OR, NOT: level>=WARN timeout (docs/search.md)",
    )


def run(arguments: argparse.Namespace) -> int:
    """Prints the result. Raises what the service answers."""
    timeout = httpx.Timeout(10, read=_READ_SECONDS)
    with (
        errors_as_ours(arguments.url),
        httpx.Client(base_url=arguments.url, timeout=timeout) as client,
        client.stream("GET", "/query", params=parameters(arguments)) as response,
    ):
        if not response.is_success:
            response.read()
        check(response)
        named = arguments.fqn is None or arguments.run is None
        printer = Printer(sys.stdout, whole=arguments.json, named=named)
        for lines in _lines(response.iter_bytes()):
            printer.take(lines)
    return _verdict(printer.stats)


def parameters(arguments: argparse.Namespace) -> dict[str, str]:
    """The query string: only what was given."""
    given = {
        "q": " ".join(arguments.expression) or None,
        "from": arguments.start,
        "to": arguments.end,
        "fqn": arguments.fqn,
        "run": arguments.run,
        "level": arguments.level,
        "limit": arguments.limit,
        "regex": "true" if arguments.regex else None,
    }
    always = {"order": arguments.order, "format": "ndjson"}
    return {name: str(value) for name, value in given.items() if value is not None} | always


class Printer:
    """Writes records; keeps the `stats` that the result ends with."""

    def __init__(self, out: TextIO, *, whole: bool, named: bool) -> None:
        self._out = out
        self._whole = whole
        self._named = named
        self.stats: dict[str, Any] | None = None

    def take(self, lines: Iterable[bytes]) -> None:
        """Prints some lines of ndjson. Raises `TailraceError` if the search broke off."""
        texts = [text for line in lines if (text := self._text(line)) is not None]
        self._out.write("".join(texts))
        self._out.flush()

    def _text(self, line: bytes) -> str | None:
        record = orjson.loads(line)
        if "ulid" in record:
            return f"{line.decode()}\n" if self._whole else self._message(record)
        if "error" in record:
            problem = record["error"]
            raise TailraceError(str(problem.get("detail")), hint=str(problem.get("hint") or ""))
        self.stats = record.get("stats")
        return None

    def _message(self, record: dict[str, Any]) -> str:
        name = f"{record['fqn']}/{record['run_id']}: " if self._named else ""
        return f"{name}{record['message']}\n"


def _lines(pieces: Iterable[bytes]) -> Iterator[list[bytes]]:
    """The whole lines of each piece; the last may lack its end."""
    rest = b""
    for piece in pieces:
        *lines, rest = (rest + piece).split(b"\n")
        if lines:
            yield lines
    if rest:
        yield [rest]


def _verdict(stats: dict[str, Any] | None) -> int:
    if stats is None:
        print("warning: partial: the connection ended before the result", file=sys.stderr)
        return PARTIAL
    if stats.get("set_aside"):
        print(f"warning: damaged and quarantined: {_names(stats['set_aside'])}", file=sys.stderr)
    if stats.get("complete"):
        return 0
    unread = [*stats.get("missing", []), *stats.get("unreadable", [])]
    print(f"warning: partial: could not read {_names(unread)}{_count(stats)}", file=sys.stderr)
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
