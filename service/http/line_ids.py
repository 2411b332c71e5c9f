"""Ids of events within a group of lines whose order may change.

A group of lines comes behind one cursor. Where lines have their final place, or there is one node,
an id counts them: `<cursor>+<lines>`. Elsewhere nodes differ in the order of lines, and a close
sorts them (`service.runs.source_pieces`). There an id says which record it follows:

    <cursor>~<file>.<pos>.<ulid>.<n>@<node>        behind record n of a batch
    <cursor>~<file>.<pos>.<ulid>.-1@<node>+<k>     behind k lines of it, if records have several

`file` and `node` are where the batch is, `pos` and `ulid` are the batch's. A group has lines of one
node, in the order of its positions, so whoever has seen one of them has seen those before it. Of
a batch that was begun, what is left comes first at every node.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from logstore import ulid as ulids
from logstore.errors import InvalidCursor, InvalidInput
from logstore.position import Cursor, Position, without_number
from service.runs.held_place import PREFIX as HELD
from service.runs.held_place import HeldPlace
from service.runs.source_pieces import Begun

_DIGITS = 19  # a line number has fewer


class Batch(NamedTuple):
    """A batch, or whole records of it from number `first` on; `pos` is the first one's.

    `before` lines of the batch come before them.
    """

    ulid: int
    pos: int
    records: int
    lines: int
    first: int = 0
    before: int = 0


class Group(NamedTuple):
    """Batches of one node, of which a reader has seen `begun` lines, and their journal file."""

    node: str
    file: str
    batches: tuple[Batch, ...]
    begun: int = 0


class LiveStart(NamedTuple):
    """The place where a stream begins: `cursor`, then a number of lines to leave out.

    Or lines of a batch that was `begun`, wherever it comes.
    """

    cursor: Cursor | int | HeldPlace | None
    skip: int = 0
    begun: Begun | None = None


def line_ids(before: str, group: Group) -> list[bytes]:
    """The id of every line of the group."""
    stem = f"{before}~{group.file}."
    found = [one for batch in group.batches for one in _of_lines(stem, group.node, batch)]
    return found[group.begun :]


def record_ids(before: str, group: Group) -> list[bytes]:
    """The id of every record of the group."""
    stem = f"{before}~{group.file}."
    return [one for batch in group.batches for one in _of_records(stem, group.node, batch)]


def _of_lines(stem: str, node: str, batch: Batch) -> Iterator[bytes]:
    if batch.records == batch.lines:
        yield from _of_records(stem, node, batch)
        return
    head = f"{stem}{batch.pos - batch.first}.{ulids.encode(batch.ulid)}.-1@{node}+".encode()
    yield from [b"%b%d" % (head, batch.before + number + 1) for number in range(batch.lines - 1)]
    last = batch.records - 1
    yield from _of_records(
        stem, node, batch._replace(first=batch.first + last, pos=batch.pos + last, records=1)
    )


def _of_records(stem: str, node: str, batch: Batch) -> Iterator[bytes]:
    head = f"{stem}{batch.pos - batch.first}.{ulids.encode(batch.ulid)}.".encode()
    tail = f"@{node}".encode()
    for number in range(batch.first, batch.first + batch.records):
        yield b"%b%d%b" % (head, number, tail)


def parse_start(text: str) -> LiveStart:
    """The place that an event's `id` names. Raises `InvalidCursor`."""
    try:
        stem, plus, count = text.partition("+")
        skip = _number(count) if plus else 0
        stem, tilde, place = stem.partition("~")
        stem = without_number(stem)
        if stem.startswith(HELD):
            return LiveStart(HeldPlace.decode(stem))
        cursor = _number(stem) if _is_number(stem) else Cursor.decode(stem)
        return _behind(cursor, place, skip) if tilde else LiveStart(cursor, skip)
    except (ValueError, InvalidInput) as error:
        raise InvalidCursor(f"not a cursor: {text[:80]!r}", field="after") from error


def _behind(cursor: Cursor | int, place: str, lines: int) -> LiveStart:
    where, at, node = place.partition("@")
    file, pos, ulid, number = where.split(".")
    if not (at and node) or isinstance(cursor, int):
        raise ValueError(place)
    batch, record = int(ulids.parse(ulid)), -1 if number == "-1" else _number(number)
    newest = (batch + record,) if record >= 0 else ()
    end = _number(pos) + record
    behind = cursor.advanced(node, Position(file, end), newest) if end >= 0 else cursor
    return LiveStart(behind) if record >= 0 else LiveStart(behind, begun=Begun(batch, lines))


def _number(text: str) -> int:
    if not _is_number(text):
        raise ValueError(text)
    return int(text)


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < _DIGITS
