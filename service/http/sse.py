"""Server-sent events: how text and its cursor look on the wire.

    id: <cursor>                      what `Last-Event-ID` and `after` take
    event: logs | complete | error    upstream's Python client ends on these names; a reader that
                                      asked for unnamed events does not get this line
    data: <one LogStreamEvent>        one line of JSON, extra fields forbidden

With `format=text` each line is an event of its own, without a name:

    id: <cursor before the group>+<lines of the group so far>, or <cursor>, or as in `line_ids`
    data: <the line>

With `format=ndjson` each record is an event of its own, an object as `/query` has it; ids
count lines here as well, so that each is a place in every format.

    event: silent                     these nodes do not answer, and their newest lines come once
    data: {"nodes": […]}              they do; none: all answer again. In JSON `: silent {…}`.
                                      `"store": true`: the object store does not answer, and what
                                      comes are lines that nodes hold

    event: again                      the object store answers, and has lines before some that came:
    data: {}                          what follows begins before those. In JSON an empty replay

No line of a log can begin or end a frame. In JSON everything that any client takes
for a line end is escaped (Python's `splitlines` takes more than the standard does). In
text they are shown as escapes (`\r`, `\v`, `\f`, `\0`, `\x1c`, `\x85`, `\u2028`), but for a `\r` at
the end, which goes. Backslashes of the line that stand before one of these letters, or before such
a character, are doubled: an odd number of them before a letter ends in an escape.

`watching` is a reader's stay: from its registration at the tail until it leaves or is done.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc

from logstore.batch import RunKey
from service.http.text import shown
from service.query.output import lines
from service.runtime.counters import HttpCounters
from service.tail import Tail, Watcher

HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),
]


@contextmanager
def watching(tail: Tail, key: RunKey, counters: HttpCounters) -> Iterator[Watcher]:
    """A watcher of the run while the block runs."""
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
    rb"\\+(?=[rvf0xu\r\x0b\x0c\x1c\x1d\x1e\x00]|\xc2\x85|\xe2\x80[\xa8\xa9])"
)
"""Backslashes that would be read as a part of an escape."""


def event(kind: str, run: str, cursor: str | None, *, named: bool = True, **fields: Any) -> bytes:
    """One event of the JSON form; `fields` are the fields of a LogStreamEvent that are set."""
    value: dict[str, Any] = {"eventType": kind, "runId": run, **fields}
    if cursor is not None:
        value["after"] = cursor
    head = b"" if cursor is None else b"id: %b\n" % cursor.encode()
    return b"%b%b%b" % (head, b"event: %b\n" % kind.encode() if named else b"", data(value))


def data(value: dict[str, Any]) -> bytes:
    """A JSON object as the end of an event."""
    return json_data(orjson.dumps(value))


def json_data(text: bytes) -> bytes:
    """Encoded JSON as the end of an event."""
    return b"data: %b\n\n" % one_line(text)


def one_line(text: bytes) -> bytes:
    """Encoded JSON without what any client takes for a line end, but for `\n`."""
    for separator, escape in _JSON_ESCAPES:
        if separator in text:
            text = text.replace(separator, escape)
    return text


def text_lines(
    text: bytes, before: str, cursor: str, skipped: int = 0, ids: Sequence[bytes] | None = None
) -> bytes:
    """Lines as one event each.

    The group follows `before`, and `skipped` lines of it are left out. `ids` are of all its lines.
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
    """Records as one event each; those of the first `skipped` lines are left out.

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
    """The data of an event `silent`."""
    return {"nodes": list(nodes)} | ({"store": True} if store else {})


AGAIN = b"event: again\ndata: {}\n\n"


def silent(nodes: Sequence[str], *, store: bool, named: bool) -> bytes:
    """Which nodes do not answer; none: all answer again. Without an id: it is no place in a run.

    `store`: the object store does not answer either.

    In the JSON form, not `named`, it is a comment: upstream takes every event for one of its own.
    """
    body = orjson.dumps(silence(nodes, store=store))
    return b"event: silent\ndata: %b\n\n" % body if named else b": silent %b\n\n" % body


def text_complete() -> bytes:
    """The last event of the text form."""
    return b"event: complete\ndata: \n\n"
