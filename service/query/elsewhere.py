"""What other nodes hold of a search: records of their journals that are in no confirmed segment.

They are asked after this node's journal is pinned and before segments are listed, so records that
move meanwhile are found twice and never missed. A node that is silent, or holds more than one
answer may have, is named in the report, and the reply is partial.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc

from logstore import ulid as ulids
from service.query.hot import SCHEMA, HotRecords
from service.query.request import QueryRequest
from service.query.tiles import Tile, hour_of

_MS = 80
_LOWEST_BITS = (1 << _MS) - 1


@dataclass(frozen=True, slots=True)
class FoundElsewhere:
    """Records of other nodes with the columns of `SCHEMA`; who has answered, and who is silent."""

    records: pa.Table = field(default_factory=SCHEMA.empty_table)
    nodes: Sequence[str] = ()
    silent: Sequence[str] = ()


AskOthers = Callable[[QueryRequest], Awaitable[FoundElsewhere]]
"""Asks the other nodes for what they hold. Raises `Unavailable`."""


class HotOfAll:
    """The journals of this node and of others as one, like `HotRecords`."""

    def __init__(self, own: HotRecords | HotOfAll, elsewhere: pa.Table) -> None:
        self._own = own
        self._elsewhere = elsewhere.combine_chunks()

    def weights(self, bounds: Tile) -> Mapping[int, int]:
        """Bytes by hour, within the bounds; of other nodes half each at both ends of their time."""
        weights = dict(self._own.weights(bounds))
        part = self._within(bounds)
        if part.num_rows:
            ends = pc.min_max(part.column("ulid")).as_py()
            for edge in (ends["min"], ends["max"]):
                hour = hour_of(ulids.decode(edge))
                weights[hour] = weights.get(hour, 0) + part.nbytes // 2
        return weights

    def size(self, tile: Tile) -> int:
        """Bytes in the tile; 0 if there is nothing."""
        part = self._within(tile)
        return self._own.size(tile) + (int(part.nbytes) if part.num_rows else 0)

    def records(self, tile: Tile) -> Iterator[pa.RecordBatch]:
        """Records of the tile's milliseconds, a slice at a time."""
        yield from self._own.records(tile)
        yield from self._within(tile).to_batches()

    def _within(self, tile: Tile) -> pa.Table:
        if self._elsewhere.num_rows == 0:
            return self._elsewhere
        low = ulids.encode(tile.low >> _MS << _MS)
        high = ulids.encode(tile.high | _LOWEST_BITS)
        column = self._elsewhere.column("ulid")
        return self._elsewhere.filter(
            pc.and_(pc.greater_equal(column, low), pc.less_equal(column, high))
        )
