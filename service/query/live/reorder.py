"""Records held back for a window, and given in the order of their keys.

Of what comes in, records above the cursor wait; those at or below it are late and are given at
once, in the order of their positions. `release` gives what waits up to a ULID. The
cursor before and behind each piece says exactly what was given, see the package.

What waits is bounded. Beyond that the highest keys are let go, and `release` up to one of them
says that they must be read from storage.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from logstore.segments.record_keys import KEY_ORDER, distinct
from service.query.cursor import RecordKey
from service.query.hot import SCHEMA
from service.query.live.cursor import StreamCursor, behind_all

PIECE_ROWS: Final = 512
PIECE_BYTES: Final = 256 << 10
"""Of a piece, about: what is made ready for sending at once."""


@dataclass(frozen=True, slots=True, eq=False)
class Matches:
    """Records that follow one another: columns of `SCHEMA`, the cursors around them.

    On time, `last` of the cursor moves from row to row. Late, `seen` of their `node` does.
    `frames` is a cache of those who send them.
    """

    batch: pa.RecordBatch
    before: StreamCursor
    after: StreamCursor
    late: str | None = None
    frames: dict[str, bytes] = field(default_factory=dict)

    @property
    def size(self) -> int:
        """Bytes of the records."""
        return int(self.batch.nbytes)


class Overflowed(Exception):
    """More waited than may: storage has it."""


class Reorder:
    """The records of one search that wait; `cursor` is behind those that were given."""

    def __init__(self, cursor: StreamCursor, most_bytes: int) -> None:
        self.cursor = cursor
        self._most_bytes = most_bytes
        self._waiting = SCHEMA.empty_table()
        self._let_go_from: str | None = None

    def add(self, node: str, records: pa.Table, end: int) -> list[Matches]:
        """Takes the matches of a node up to the position `end`; gives those that are late."""
        before, last = self.cursor, self.cursor.last
        self.cursor = before.at(node, end)
        if records.num_rows == 0:
            return []
        is_late = pc.less_equal(records.column("ulid"), last.ulid)
        self.wait(records.filter(pc.invert(is_late)))
        late = records.filter(is_late).sort_by("pos")
        return late_pieces(late, before, node, end)

    def wait(self, records: pa.Table) -> None:
        """Lets records wait that are above the cursor."""
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

    def release(self, until: int) -> list[Matches]:
        """Gives what waits up to this ULID, in order.

        Raises `Overflowed` if that was let go; the cursor is behind it all the same.
        """
        before, last = self.cursor, max(self.cursor.last, behind_all(until))
        self.cursor = after = replace(before, last=last)
        if self._let_go_from is not None and self._let_go_from <= last.ulid:
            raise Overflowed
        count = pc.sum(pc.less_equal(self._waiting.column("ulid"), last.ulid)).as_py() or 0
        given, self._waiting = self._waiting.slice(0, count), self._waiting.slice(count)
        return pieces(given, before, after)


def pieces(records: pa.Table, before: StreamCursor, after: StreamCursor) -> list[Matches]:
    """Records in the order of their keys as pieces, the last of which ends at `after`."""
    found: list[Matches] = []
    for batch in _batches(records):
        behind = replace(before, last=RecordKey.last_of(batch))
        found.append(Matches(batch, before, behind))
        before = behind
    if found:
        found[-1] = replace(found[-1], after=after)
    return found


def late_pieces(records: pa.Table, before: StreamCursor, node: str, end: int) -> list[Matches]:
    """Late records of a node in the order of positions; the last piece has seen up to `end`."""
    found: list[Matches] = []
    for batch in _batches(records):
        behind = before.at(node, batch.column("pos")[-1].as_py() + 1)
        found.append(Matches(batch, before, behind, late=node))
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
