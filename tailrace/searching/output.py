"""What `tailrace query` writes: records, groups of them around hits, and a chart of counts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, TextIO

import orjson

from logstore.errors import TailraceError
from tailrace.console.terminal import Names, coloured, in_json, wants_colour

_BAR_CHARS: Final = 40


class Printer:
    """Writes records; keeps the `stats` that the result ends with."""

    def __init__(self, out: TextIO, *, whole: bool, named: bool) -> None:
        self._out = out
        self._whole = whole
        self._named = named
        self._terminal = out.isatty()
        self._colour = wants_colour(out)
        self._names = Names(colour=self._colour)
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
        # As grep: a colon behind the name of what was searched for, a dash around it.
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
