"""What a segment's rows are, said once more in plain Python, a line at a time."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

import numpy as np

from tailrace.logstore import ulid
from tailrace.logstore.batch import RunKey
from tailrace.logstore.segments.continuations import BatchPlaces, Continuations
from tailrace.logstore.segments.file_format import LEVELS
from tailrace.logstore.segments.levels import (
    NO_LEVEL,
    TextRecords,
    find_first_words,
    find_levels,
    find_levels_of,
    prefixes,
)
from tailrace.logstore.segments.rare_times import shift_of
from tailrace.logstore.segments.times import NO_TIME, find_short_times
from tests.batches import MemoryBatches

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
TIME = re.compile(
    rb"(\d{4})([-/])(\d\d)\2(\d\d)[ T](\d\d):(\d\d):(\d\d)"
    rb"(?:[.,](\d{1,9}))?"
)
COLOUR = re.compile(rb"\x1b\[[0-9;:?]*[A-Za-z]")


class Row(NamedTuple):
    ulid: str
    ts: int
    fqn: str
    run: str
    pos: int
    level: str | None
    connector: str | None
    message: bytes
    attributes: dict[str, str] | None
    carried: bool | None


def plain(line: bytes) -> bytes:
    """What is looked at: the first bytes, of which colours take no place."""
    return (COLOUR.sub(b"", line[:384]) + line[384:])[:95]


def time_of(line: bytes) -> int | None:
    """Microseconds since the epoch of the first time within the first 60 bytes."""
    line = plain(line)
    for start in range(60):
        match = TIME.match(line, start)
        if match is None or line[start - 1 : start].isdigit():
            continue
        value = _micros(match)
        if value is not None:
            shift = shift_of(line[match.end() :], int(match[5]))
            return value + shift if shift is not None and in_range(value + shift) else None
    return None


def in_range(value: int) -> bool:
    return -2_208_988_800_000_000 <= value <= 253_402_300_799_999_999


def short_time_of(line: bytes, arrival: int) -> int | None:
    """The time of a line that names no year, looked at alone."""
    look = prefixes(line, np.array([len(line)]))
    found = int(find_short_times(look, np.array([0]), np.array([arrival]))[0])
    return None if found == NO_TIME else found


def _micros(match: re.Match[bytes]) -> int | None:
    year, month, day, hour, minute, second = (int(match[k]) for k in (1, 3, 4, 5, 6, 7))
    try:
        moment = datetime(year, month, day, hour, minute, second, tzinfo=UTC)
    except ValueError:
        return None
    value = (moment - EPOCH) // timedelta(microseconds=1)
    value += int((match[8] or b"0").ljust(9, b"0")) // 1000
    return value if in_range(value) else None


def level_of(line: bytes) -> str | None:
    """The level that the line states, looked at alone."""
    level = int(find_levels_of([line.removesuffix(b"\n")]).levels[0])
    return None if level == NO_LEVEL else LEVELS[level]


def continued(lines: list[bytes]) -> list[bool]:
    """Which lines of a run continue the record before them."""
    text, ends = b"".join(lines), np.cumsum([len(line) for line in lines])
    words, whole = find_first_words(prefixes(text, ends)), TextRecords(text, ends)
    none = np.zeros(1, np.int64)
    starts, last = np.arange(len(lines)) == 0, np.array([len(lines) - 1])
    place = BatchPlaces(starts, last, {}, {}, None, none, none > 0, none + NO_LEVEL, none)
    found = Continuations().find(whole, words, find_levels(whole, words), place)
    return [bool(one) for one in found.lines]


def as_plain(level: str | None) -> bytes:
    """A line like a record of a client, to those after it."""
    return b"x\n" if level is None else f"{level} x\n".encode()


def rows_of(batches: MemoryBatches) -> list[Row]:
    """The rows of a segment of these batches, in order."""
    times: dict[RunKey, int] = {}
    levels: dict[RunKey, str | None] = {}
    texts: dict[RunKey, list[bytes]] = {}
    seen: set[tuple[Any, ...]] = set()
    rows: list[Row] = []
    for index, batch in enumerate(batches.rows):
        key = batches.runs[batch["run"]]
        text = batches.content[int(batch["offset"]) : int(batch["offset"] + batch["size"])]
        identity = (key, int(batch["ulid_hi"]), int(batch["ulid_lo"]), text)
        if identity in seen:
            continue
        seen.add(identity)
        meta, shared = batches.meta(index), batches.constant_attributes(index)
        ends = meta.ends if meta else [m.end() for m in re.finditer(b"\n", text)]
        first = int(batch["ulid_hi"]) << 64 | int(batch["ulid_lo"])
        lines = [text[start:end] for start, end in zip([0, *ends], ends, strict=False)]
        before = texts.setdefault(key, [])
        if meta:
            going_on = [False] * len(lines)
        else:
            going_on = continued([*before, *lines])[len(before) :]
            before += lines
        for number, (line, goes_on) in enumerate(zip(lines, going_on, strict=True)):
            own_time = time_of(line) or short_time_of(line, (first >> 80) * 1000)
            if meta:
                given, given_level = meta.ts[number], meta.levels[number]
                own_time = own_time if given is None else given
                own_time = (first >> 80) * 1000 if own_time is None else own_time
                levels[key] = given_level if given_level in LEVELS else level_of(line)
                before.append(as_plain(levels[key]))
            elif not goes_on:
                levels[key] = level_of(line)
            if own_time is not None:
                times[key] = own_time
            rows.append(
                Row(
                    ulid.encode(first + number),
                    times.get(key, (first >> 80) * 1000),
                    key.fqn,
                    key.run,
                    int(batch["pos"]) + number,
                    levels.get(key),
                    batches.connectors[batch["connector"]],
                    line[:-1],
                    dict((meta.attributes[number] if meta else shared) or {}) or None,
                    (goes_on and not meta and key in levels) or None,
                )
            )
    return sorted(rows, key=by_identity)


def by_identity(row: Row) -> tuple[str, str, str]:
    """The order of a segment."""
    return row.ulid, row.fqn, row.run
