"""What a segment's rows are, said once more in plain Python, a line at a time."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from logstore import ulid
from logstore.batch import RunKey
from logstore.segments.levels import NAMES
from logstore.segments.schema import LEVELS
from tests.batches import MemoryBatches

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
TIME = re.compile(
    rb"(\d{4})([-/])(\d\d)\2(\d\d)[ T](\d\d):(\d\d):(\d\d)"
    rb"(?:[.,](\d{1,9}))?(?:([+-])(\d\d):?(\d\d))?"
)
COLOUR = re.compile(rb"\x1b\[[0-9;:?]*[A-Za-z]")
WORD = re.compile(rb"[A-Za-z0-9_]")
KEY = re.compile(rb'(level|lvl|severity)"?[:=]? ?"?$', re.IGNORECASE)
LOGCAT = re.compile(rb".{2}-.{2} .{2}:.{2}:.{2}\..{3} .{11} ([VDIWEF]) .", re.DOTALL)
LOGCAT_LEVELS = dict(zip(b"VDIWEF", LEVELS, strict=True))


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
            return value
    return None


def _micros(match: re.Match[bytes]) -> int | None:
    year, month, day, hour, minute, second = (int(match[k]) for k in (1, 3, 4, 5, 6, 7))
    try:
        moment = datetime(year, month, day, hour, minute, second, tzinfo=UTC)
    except ValueError:
        return None
    value = (moment - EPOCH) // timedelta(microseconds=1)
    value += int((match[8] or b"0").ljust(9, b"0")) // 1000
    if match[9] and int(match[10]) < 24 and int(match[11]) < 60:
        offset = (int(match[10]) * 60 + int(match[11])) * 60_000_000
        value -= offset if match[9] == b"+" else -offset
    return value if -2_208_988_800_000_000 <= value <= 253_402_300_799_999_999 else None


def level_of(line: bytes) -> str | None:
    """The first level within the first 87 bytes, or logcat's letter."""
    line = plain(line)
    logcat = LOGCAT.match(line)
    if logcat:
        return LOGCAT_LEVELS[logcat[1][0]]
    for start in range(min(87, len(line))):
        for name in sorted(NAMES, key=len, reverse=True):
            word = line[start : start + len(name)]
            behind = line[start + len(name) :]
            if word.upper() != name.encode() or WORD.match(behind):
                continue
            if _counts(line[:start], word, behind):
                return LEVELS[NAMES[name]]
    return None


def _counts(before: bytes, word: bytes, behind: bytes) -> bool:
    if word.isupper() and not WORD.match(before[-1:]):
        return True
    if before.endswith(b"["):
        return re.match(rb" {0,8}\]", behind) is not None
    if before.endswith((b"=", b'"')):
        return bool(KEY.search(before))
    return bool(re.search(rb"[0-9], $", before))


def rows_of(batches: MemoryBatches) -> list[Row]:
    """The rows of a segment of these batches, in order."""
    times: dict[RunKey, int] = {}
    levels: dict[RunKey, str | None] = {}
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
        for number, (start, end) in enumerate(zip([0, *ends], ends, strict=False)):
            line = text[start:end]
            own_time, own_level = time_of(line), level_of(line)
            if meta:
                given = meta.ts[number]
                own_time = own_time if given is None else given
                given_level = meta.levels[number]
                if given_level in LEVELS:
                    own_level = given_level
                elif given_level is not None:  # a level that is none of ours
                    levels[key] = None
            if own_time is not None:
                times[key], levels[key] = own_time, None
            if own_level is not None:
                levels[key] = own_level
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
                )
            )
    return sorted(rows, key=by_identity)


def by_identity(row: Row) -> tuple[str, str, str]:
    """The order of a segment."""
    return row.ulid, row.fqn, row.run
