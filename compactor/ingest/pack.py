"""Packs the lines of many small segments into one file for Spark.

Spark reads a segment with four requests, however small it is, and as many segments at a time as
it has cores. On S3 it mostly waits. The driver has read each segment anyway to check it
(`verify.py`), several at once. It therefore keeps the bytes of small ones, up to a bound, and
writes their lines as one object below `table/_staging/`, which is removed after the merge. An
object that a killed driver leaves is an orphan like Spark's staged files.

Large segments are read by Spark itself: decoding and encoding them costs more than requests do.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq

from compactor.commit.placement import staging_folder
from compactor.context import Compactor
from logstore import keys
from logstore.segments.reader import open_segment
from logstore.segments.schema import DICTIONARIES
from logstore.swap import write_until_known
from logstore.table.schema import COLUMNS, PARTITIONS

SMALL_BYTES: Final = 128 << 10
_MOST_BYTES: Final = 64 << 20
_FEWEST: Final = 8  # of fewer, reading them costs no more than writing and reading another one
_GROUP_BYTES: Final = 16 << 20  # of memory, not of the file
_SCHEMA: Final = pa.schema([column for column in COLUMNS if column.name not in PARTITIONS])


@dataclass(slots=True)
class SmallSegments:
    """Bytes of checked small segments by key, as many as memory allows."""

    bodies: dict[str, bytes] = field(default_factory=dict)
    _bytes: int = 0

    def add(self, key: str, body: bytes) -> None:
        """Keeps the bytes if memory allows."""
        if len(body) <= SMALL_BYTES and self._bytes + len(body) <= _MOST_BYTES:
            self.bodies[key] = body
            self._bytes += len(body)


@asynccontextmanager
async def packed(
    compactor: Compactor, segments: Mapping[str, int], small: Mapping[str, bytes]
) -> AsyncIterator[dict[str, int]]:
    """Addresses and their bytes for Spark, with the same lines as `segments` (bytes by key).

    They are valid within the block. Raises `StoreUnavailable`, `OutcomeUnknown`.
    """
    store = compactor.store
    chosen = {key: body for key, body in small.items() if key in segments}
    if len(chosen) < _FEWEST:
        yield {store.uri(key): size for key, size in segments.items()}
        return
    body = await asyncio.to_thread(pack, chosen.values())
    key = f"{staging_folder(keys.TABLE, compactor.fresh_id())}/segments.parquet"
    # The key is this merge's alone: a second put or delete does no harm.
    await write_until_known(lambda: store.put(key, body))
    try:
        others = {store.uri(k): size for k, size in segments.items() if k not in chosen}
        yield others | {store.uri(key): len(body)}
    finally:
        await write_until_known(lambda: store.delete([key]))


def pack(bodies: Iterable[bytes]) -> bytes:
    """A Parquet file with the lines of the segments. Raises `Damaged`."""
    made = pa.BufferOutputStream()
    with pq.ParquetWriter(
        made,
        _SCHEMA,
        compression="zstd",
        compression_level=1,
        use_dictionary=DICTIONARIES,
        write_statistics=False,
    ) as writer:
        for rows in _gathered(_groups(bodies)):
            writer.write_table(rows)
    body: bytes = made.getvalue().to_pybytes()
    return body


def _groups(bodies: Iterable[bytes]) -> Iterator[pa.Table]:
    for body in bodies:
        for rows in open_segment(body).groups():
            yield rows.cast(_SCHEMA)


def _gathered(tables: Iterable[pa.Table]) -> Iterator[pa.Table]:
    """The same rows in row groups of a useful size."""
    some: list[pa.Table] = []
    size = 0
    for rows in tables:
        some.append(rows)
        size += rows.nbytes
        if size >= _GROUP_BYTES:
            yield pa.concat_tables(some)
            some, size = [], 0
    if some:
        yield pa.concat_tables(some)
