r"""Formats server-sent events of a run: how text, records and their cursors look on the wire.

    id: <cursor>                      the value for `Last-Event-ID` and `after`
    event: logs | complete | error    upstream's Python client ends on these names; a reader that
                                      asked for unnamed events does not get this line
    data: <one LogStreamEvent>        one line of JSON, extra fields forbidden

With `format=text` each line is an event of its own, without a name:

    id: <cursor before the group>+<lines of the group so far>, or <cursor>, or see below
    data: <the line>

With `format=ndjson` each record is an event of its own, an object as in `/query`; ids count lines
in this form as well, so that each is a place in every format.

    event: silent                     these nodes do not answer; their newest lines come once they
    data: {"nodes": […]}              do. An empty list: all answer again. In JSON `: silent {…}`.
                                      `"store": true`: the object store does not answer, and the
                                      stream sends lines that nodes hold

    event: again                      the object store answers, and has lines before some that came:
    data: {}                          the stream continues before those. In JSON an empty replay

No line of a log can begin or end a frame. In JSON every character that any client takes for a line
end is escaped (Python's `splitlines` takes more than the standard does). In text they are shown as
escapes (`\r`, `\v`, `\f`, `\0`, `\x1c`, `\x85`, `\u2028`), except a `\r` at the end, which is left
out. Backslashes of the line that stand before one of these letters, or before such a character, are
doubled: an odd number of them before a letter ends in an escape.

A group of lines follows one cursor. If its lines have their final place, or only one node exists,
an id counts them: `<cursor>+<lines>`. Otherwise nodes differ in the order of lines, and a close
sorts them (`service.run_log.cursors`). Then an id names the record before it:

    <cursor>~<file>.<pos>.<ulid>.<n>@<node>        after record n of a batch
    <cursor>~<file>.<pos>.<ulid>.-1@<node>+<k>     after k lines of it, if records have several

`file` and `node` are the place of the batch, `pos` and `ulid` are the batch's. A group has lines of
one node in the order of its positions, so a reader that has seen one of them has seen all before
it. Of a batch that was begun, the remaining lines come first at every node.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc

from service.http.body import Send
from service.http.json_body import shown
from service.query.output import lines
from service.run_log.cursors import Begun
from service.run_log.lines import PREFIX as HELD
from service.run_log.lines import HeldPlace
from service.runtime.counters import HttpCounters
from service.tail import Tail, Watcher
from tailrace.logstore import ulid as ulids
from tailrace.logstore.batch import RunKey
from tailrace.logstore.errors import InvalidCursor, InvalidInput
from tailrace.logstore.position import Cursor, Position, without_number

HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),
]


@contextmanager
def watching(tail: Tail, key: RunKey, counters: HttpCounters) -> Iterator[Watcher]:
    """Registers a watcher of the run at the tail while the block runs."""
    watcher = tail.watch(key)
    counters.readers += 1
    try:
        yield watcher
    finally:
        counters.readers -= 1
        tail.unwatch(watcher)


HEARTBEAT = b": heartbeat\n\n"
COMPLETE = b"event: complete\ndata: {}\n\n"
_JSON_ESCAPES = (
    (b"\xc2\x85", b"\\u0085"),
    (b"\xe2\x80\xa8", b"\\u2028"),
    (b"\xe2\x80\xa9", b"\\u2029"),
)
_TEXT_ESCAPES = (
    (b"\r", b"\\r"),
    (b"\x0b", b"\\v"),
    (b"\x0c", b"\\f"),
    (b"\x1c", b"\\x1c"),
    (b"\x1d", b"\\x1d"),
    (b"\x1e", b"\\x1e"),
    (b"\x00", b"\\0"),
    (b"\xc2\x85", b"\\x85"),
    (b"\xe2\x80\xa8", b"\\u2028"),
    (b"\xe2\x80\xa9", b"\\u2029"),
)

_BEFORE_ESCAPES = re.compile(
    rb"(?<!\\)\\++(?=[rvf0xu\r\x0b\x0c\x1c\x1d\x1e\x00]|\xc2\x85|\xe2\x80[\xa8\xa9])"
)
"""Backslashes that would be read as a part of an escape."""


async def send_frame(send: Send, counters: HttpCounters, frame: bytes) -> None:
    """Sends and counts a part of a stream."""
    counters.stream_events += 1
    counters.stream_bytes += len(frame)
    await send({"type": "http.response.body", "body": frame, "more_body": True})


def event(kind: str, run: str, cursor: str | None, *, named: bool = True, **fields: Any) -> bytes:
    """Returns one event of the JSON form.

    `fields` are the fields of a LogStreamEvent that are set.
    """
    value: dict[str, Any] = {"eventType": kind, "runId": run, **fields}
    if cursor is not None:
        value["after"] = cursor
    head = b"" if cursor is None else b"id: %b\n" % cursor.encode()
    return b"%b%b%b" % (head, b"event: %b\n" % kind.encode() if named else b"", data(value))


def data(value: dict[str, Any]) -> bytes:
    """Returns a JSON object as the end of an event."""
    return json_data(orjson.dumps(value))


def json_data(text: bytes) -> bytes:
    """Returns encoded JSON as the end of an event."""
    return b"data: %b\n\n" % one_line(text)


def one_line(text: bytes) -> bytes:
    r"""Escapes the characters in encoded JSON that a client takes for a line end, except `\n`."""
    for separator, escape in _JSON_ESCAPES:
        if separator in text:
            text = text.replace(separator, escape)
    return text


def text_lines(
    text: bytes, before: str, cursor: str, skipped: int = 0, ids: Sequence[bytes] | None = None
) -> bytes:
    """Returns lines as one event each.

    The group follows `before`; its first `skipped` lines are left out. `ids` are of all its lines.
    """
    body = shown(text).encode().replace(b"\r\n", b"\n")
    if b"\\" in body:
        body = _BEFORE_ESCAPES.sub(rb"\g<0>\g<0>", body)
    for separator, escape in _TEXT_ESCAPES:
        if separator in body:
            body = body.replace(separator, escape)
    shown_lines = body[:-1].split(b"\n")
    stem = before.encode()
    frames = [
        b"id: %b\ndata: %b\n\n" % (b"%b+%d" % (stem, i) if ids is None else ids[i - 1], line)
        for i, line in enumerate(shown_lines, skipped + 1)
    ]
    frames[-1] = b"id: %b\ndata: %b\n\n" % (cursor.encode(), shown_lines[-1])
    return b"".join(frames)


def records(
    batch: pa.RecordBatch,
    before: str,
    cursor: str,
    skipped: int = 0,
    ids: Sequence[bytes] | None = None,
) -> bytes:
    """Returns records as one event each; those of the first `skipped` lines are left out.

    Without `ids` of all records, ids count lines.
    """
    objects = one_line(lines(batch))
    ends = np.cumsum(pc.count_substring(batch.column("message"), "\n").to_numpy() + 1)
    stem = before.encode()
    frames = [
        b"id: %b\ndata: %b\n\n" % (b"%b+%d" % (stem, end) if ids is None else ids[number], text)
        for number, (end, text) in enumerate(zip(ends.tolist(), objects.split(b"\n"), strict=False))
        if end > skipped
    ]
    if frames:
        last = objects[objects.rfind(b"\n", 0, -1) + 1 : -1]
        frames[-1] = b"id: %b\ndata: %b\n\n" % (cursor.encode(), last)
    return b"".join(frames)


def silence(nodes: Sequence[str], *, store: bool) -> dict[str, Any]:
    """Returns the data of an event `silent`."""
    return {"nodes": list(nodes)} | ({"store": True} if store else {})


AGAIN = b"event: again\ndata: {}\n\n"


def silent(nodes: Sequence[str], *, store: bool, named: bool) -> bytes:
    """Returns the nodes that do not answer, as an event; none: all answer again.

    It has no id, because it is no place in a run. `store`: the object store does not answer either.
    In the JSON form, not `named`, it is a comment: upstream takes every event for one of its own.
    """
    body = orjson.dumps(silence(nodes, store=store))
    return b"event: silent\ndata: %b\n\n" % body if named else b": silent %b\n\n" % body


def text_complete() -> bytes:
    """Returns the last event of the text form."""
    return b"event: complete\ndata: \n\n"


# --- Ids within a group of lines ----------------------------------------------------------------


_DIGITS = 19  # a line number has fewer


class EventBatch(NamedTuple):
    """A batch, or whole records of it from number `first` on; `pos` is the position of the first.

    `before` lines of the batch come before them.
    """

    ulid: int
    pos: int
    records: int
    lines: int
    first: int = 0
    before: int = 0


class EventGroup(NamedTuple):
    """Batches of one node, of which a reader has seen `begun` lines, and their journal file."""

    node: str
    file: str
    batches: tuple[EventBatch, ...]
    begun: int = 0


class LiveStart(NamedTuple):
    """The place where a stream begins: `cursor`, then a number of lines to leave out.

    If a batch was `begun`, the lines to leave out are of that batch, wherever it comes.
    """

    cursor: Cursor | int | HeldPlace | None
    skip: int = 0
    begun: Begun | None = None


def line_ids(before: str, group: EventGroup) -> list[bytes]:
    """Returns the id of every line of the group."""
    stem = f"{before}~{group.file}."
    found = [one for batch in group.batches for one in _of_lines(stem, group.node, batch)]
    return found[group.begun :]


def record_ids(before: str, group: EventGroup) -> list[bytes]:
    """Returns the id of every record of the group."""
    stem = f"{before}~{group.file}."
    return [one for batch in group.batches for one in _of_records(stem, group.node, batch)]


def _of_lines(stem: str, node: str, batch: EventBatch) -> Iterator[bytes]:
    if batch.records == batch.lines:
        yield from _of_records(stem, node, batch)
        return
    head = f"{stem}{batch.pos - batch.first}.{ulids.encode(batch.ulid)}.-1@{node}+".encode()
    yield from [b"%b%d" % (head, batch.before + number + 1) for number in range(batch.lines - 1)]
    last = batch.records - 1
    yield from _of_records(
        stem, node, batch._replace(first=batch.first + last, pos=batch.pos + last, records=1)
    )


def _of_records(stem: str, node: str, batch: EventBatch) -> Iterator[bytes]:
    head = f"{stem}{batch.pos - batch.first}.{ulids.encode(batch.ulid)}.".encode()
    tail = f"@{node}".encode()
    for number in range(batch.first, batch.first + batch.records):
        yield b"%b%d%b" % (head, number, tail)


def parse_start(text: str) -> LiveStart:
    """Parses an event's `id`. Raises `InvalidCursor`."""
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
