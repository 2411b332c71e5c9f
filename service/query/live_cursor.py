"""Orders the records of a live stream over all runs, and encodes its cursor as text.

    t1.{seen}.{ulid}            after all records with this ULID
    t1.{seen}.{ulid}.{names}    after one record: names is the JSON list [fqn, run]

`seen` is a JSON object: for each node the position below which every record was examined. For a
node whose newest records could not be read again it is `[position, end, ulid, fqn, run]`: from the
position to before the end, records up to that key were returned as well. Both JSON texts are
base64url without padding.

`Reorder` holds records back for a window and returns them in the order of their keys. New records
above the cursor wait. Records at or below it are late: they are returned at once, in the order of
their positions. `release` returns waiting records up to a ULID. The cursors before and after each
piece say exactly which records were returned (see the package's docstring). The waiting records are
bounded: beyond the bound those with the highest keys are dropped, and a `release` that reaches one
of them says that they must be read from storage.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from service.query.request import RecordKey
from tailrace.logstore import ulid
from tailrace.logstore.errors import InvalidCursor, InvalidInput
from tailrace.logstore.position import decode_cursor, encode_cursor
from tailrace.logstore.segments.file_format import KEY_ORDER, distinct
from tailrace.logstore.table.schema import RECORD_SCHEMA

_PREFIX: Final = "t1"
_HIGHEST_NAME: Final = "\U0010ffff"  # no character: no name begins with it


def behind_all(value: int) -> RecordKey:
    """Returns the key after all records with this ULID."""
    return RecordKey(ulid.encode(value), _HIGHEST_NAME, "")


@dataclass(frozen=True, slots=True)
class StreamCursor:
    """Records below `seen` of their node with a key of at most `last` were returned.

    For a node in `given`, other records were returned, too: those from `seen` to before a position
    with a key of at most the one in `given`. They came by way of a node that could read them.
    """

    seen: Mapping[str, int]
    last: RecordKey
    given: Mapping[str, tuple[int, RecordKey]] = field(default_factory=dict)

    def at(self, node: str, pos: int) -> StreamCursor:
        """Returns the cursor that has seen the node's records below `pos`."""
        given = self.given
        if node in given and given[node][0] <= pos:
            given = {name: value for name, value in given.items() if name != node}
        return replace(self, seen={**self.seen, node: pos}, given=given)

    def back_to(self, node: str, pos: int) -> StreamCursor:
        """Returns the cursor that has seen the node's records below `pos` and keeps `given`."""
        given = {node: (self.seen[node], self.last), **self.given}
        return replace(self, seen={**self.seen, node: pos}, given=given)

    def encode(self) -> str:
        """Returns the text that a client passes back."""
        stem = f"{seen_text(self)}.{self.last.ulid}"
        if self.last.fqn == _HIGHEST_NAME:
            return stem
        return f"{stem}.{names_text(self.last.fqn, self.last.run)}"

    @staticmethod
    def decode(text: str, field: str = "after") -> StreamCursor:
        """Decodes a cursor's text. Raises `InvalidCursor`."""
        try:
            prefix, seen, at, *names = text.split(".")
            if prefix != _PREFIX or len(names) > 1:
                raise ValueError("another kind of cursor")
            value = ulid.parse(at)
            last = RecordKey(str(value), *_names(names[0])) if names else behind_all(int(value))
            return _decoded(decode_cursor("", seen), last)
        except (ValueError, TypeError, InvalidInput) as error:
            raise InvalidCursor(
                f"not a cursor of a live search: {text[:80]!r}",
                field=field,
                hint="Pass the id of an event as it came, or leave it out to begin now.",
            ) from error


def seen_text(cursor: StreamCursor) -> str:
    """Returns the beginning of a cursor's text: all up to the ULID."""
    value: dict[str, Any] = dict(cursor.seen)
    for node, (end, key) in cursor.given.items():
        value[node] = [cursor.seen.get(node, 0), end, *key]
    return encode_cursor(f"{_PREFIX}.", value)


def names_text(fqn: str, run: str) -> str:
    """Returns the end of a cursor's text after one record."""
    return encode_cursor("", [fqn, run])


def _decoded(value: Any, last: RecordKey) -> StreamCursor:
    if not isinstance(value, dict):
        raise TypeError("positions are an object")
    seen: dict[str, int] = {}
    given: dict[str, tuple[int, RecordKey]] = {}
    for node, place in value.items():
        if isinstance(place, list):
            pos, end, at, fqn, run = place
            if not (isinstance(fqn, str) and isinstance(run, str)):
                raise TypeError("names are strings")
            seen[node], given[node] = (
                _pos(pos),
                (_pos(end), RecordKey(str(ulid.parse(at)), fqn, run)),
            )
        else:
            seen[node] = _pos(place)
    return StreamCursor(seen, last, given)


def _pos(value: Any) -> int:
    if type(value) is not int or not 0 <= value < 1 << 62:
        raise ValueError("a position is a number")
    return value


def _names(text: str) -> tuple[str, str]:
    fqn, run = decode_cursor("", text)
    if not (isinstance(fqn, str) and isinstance(run, str)):
        raise TypeError("names are strings")
    return fqn, run


# --- Records that wait for their window ---------------------------------------------------------


PIECE_ROWS: Final = 512
PIECE_BYTES: Final = 256 << 10
"""Approximate size of a piece, which is encoded for sending at once."""


@dataclass(frozen=True, slots=True, eq=False)
class MatchedRecords:
    """Consecutive records: columns of `RECORD_SCHEMA`, and the cursors before and after them.

    If the records are on time, `last` of the cursor moves from row to row. If they are late, `seen`
    of their `node` does. `frames` is a cache for the senders of the records.
    """

    batch: pa.RecordBatch
    before: StreamCursor
    after: StreamCursor
    late: str | None = None
    frames: dict[str, bytes] = field(default_factory=dict)

    @property
    def size(self) -> int:
        """Returns the bytes of the records."""
        return int(self.batch.nbytes)


class Overflowed(Exception):
    """More records waited than fit; they must be read from storage."""


class Reorder:
    """The waiting records of one search; `cursor` is after the returned ones."""

    def __init__(self, cursor: StreamCursor, most_bytes: int) -> None:
        self.cursor = cursor
        self._most_bytes = most_bytes
        self._waiting = RECORD_SCHEMA.empty_table()
        self._let_go_from: str | None = None

    def add(self, node: str, records: pa.Table, end: int) -> list[MatchedRecords]:
        """Takes the matches of a node up to the position `end`; returns the late ones."""
        before, last = self.cursor, self.cursor.last
        self.cursor = before.at(node, end)
        if records.num_rows == 0:
            return []
        is_late = pc.less_equal(records.column("ulid"), last.ulid)
        self.wait(records.filter(pc.invert(is_late)))
        late = records.filter(is_late).sort_by("pos")
        return late_pieces(late, before, node, end)

    def wait(self, records: pa.Table) -> None:
        """Lets records above the cursor wait."""
        if records.num_rows == 0:
            return
        waiting = distinct(pa.concat_tables([self._waiting, records]).sort_by(KEY_ORDER))
        if self._let_go_from is not None:
            waiting = waiting.slice(0, _count_below(waiting, self._let_go_from))
        if waiting.nbytes > self._most_bytes:
            kept = waiting.num_rows * self._most_bytes // (2 * waiting.nbytes)
            self._let_go_from = waiting.column("ulid")[kept].as_py()
            waiting = waiting.slice(0, _count_below(waiting, self._let_go_from))
        self._waiting = waiting.combine_chunks()

    def release(self, until: int) -> list[MatchedRecords]:
        """Returns waiting records up to this ULID, in order.

        Raises `Overflowed` if some of them were dropped; the cursor moves after them all the same.
        """
        before, last = self.cursor, max(self.cursor.last, behind_all(until))
        self.cursor = after = replace(before, last=last)
        if self._let_go_from is not None and self._let_go_from <= last.ulid:
            raise Overflowed
        count = pc.sum(pc.less_equal(self._waiting.column("ulid"), last.ulid)).as_py() or 0
        given, self._waiting = self._waiting.slice(0, count), self._waiting.slice(count)
        return pieces(given, before, after)


def pieces(records: pa.Table, before: StreamCursor, after: StreamCursor) -> list[MatchedRecords]:
    """Returns records in the order of their keys as pieces, the last of which ends at `after`."""
    found: list[MatchedRecords] = []
    for batch in _batches(records):
        behind = replace(before, last=RecordKey.last_of(batch))
        found.append(MatchedRecords(batch, before, behind))
        before = behind
    if found:
        found[-1] = replace(found[-1], after=after)
    return found


def late_pieces(
    records: pa.Table, before: StreamCursor, node: str, end: int
) -> list[MatchedRecords]:
    """Returns late records of a node in the order of positions; the last piece has seen `end`."""
    found: list[MatchedRecords] = []
    for batch in _batches(records):
        behind = before.at(node, batch.column("pos")[-1].as_py() + 1)
        found.append(MatchedRecords(batch, before, behind, late=node))
        before = behind
    if found:
        found[-1] = replace(found[-1], after=before.at(node, end))
    return found


def _batches(records: pa.Table) -> list[pa.RecordBatch]:
    if records.num_rows == 0:
        return []
    rows = records.num_rows * PIECE_BYTES // max(records.nbytes, 1)
    found: list[pa.RecordBatch] = records.combine_chunks().to_batches(min(max(rows, 1), PIECE_ROWS))
    return found


def _count_below(records: pa.Table, text: str) -> int:
    return pc.sum(pc.less(records.column("ulid"), text)).as_py() or 0
