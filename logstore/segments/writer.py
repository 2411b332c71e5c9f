"""Encodes batches as the bytes of a segment.

Rows are sorted by ULID, one slice of about 8 MiB of text is one row group, and only one
slice is in memory beside the bytes that are ready. Equal batches, numbers and carry give
equal bytes. The layout is `schema`, `footer` and `seal`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from logstore.batch import Batches, Rows, RunKey
from logstore.colours import is_coloured
from logstore.segments import footer as footers
from logstore.segments import seal
from logstore.segments.carry import Carry
from logstore.segments.columns import record_batches
from logstore.segments.footer import Footer, SegmentRun
from logstore.segments.schema import DICTIONARIES, ENCODINGS, SCHEMA, STATISTICS
from logstore.segments.slices import Limits

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class EncodedSegment:
    """An encoded segment. `text_bytes` is the size of its messages with newlines."""

    body: bytes
    footer: Footer
    text_bytes: int

    @property
    def rows(self) -> int:
        """The number of records."""
        return self.footer.rows

    @property
    def low(self) -> str:
        """The ULID of its first row, empty without rows."""
        return self.footer.low

    @property
    def high(self) -> str:
        """The ULID of its last row, empty without rows."""
        return self.footer.high


def encode_segment(
    batches: Batches,
    *,
    node: str,
    seq: int,
    carry: Carry,
    ranges: Sequence[tuple[int, int]] | None = None,
    limits: Limits | None = None,
    threads: bool = False,
) -> EncodedSegment:
    """Encodes the batches as segment `seq` of `node`.

    `ranges` are the journal's, as [first, end) of `pos`; without them, the one from the
    first to the last batch. `carry` is updated when all is encoded. With `threads`, the rows of
    a slice are made in one while another one writes those before it, which takes two slices of
    memory. Raises `Damaged` if a text does not match its batch.
    """
    sink = pa.BufferOutputStream()
    tally = _Tally()
    made = record_batches(batches, carry, save=True, limits=limits)
    with _parquet_writer(sink) as writer:
        for batch in _ahead(made) if threads else made:
            # Rows of a group go down in one piece: a group is what a reader takes at once.
            writer.write_table(pa.Table.from_batches([batch]), row_group_size=batch.num_rows)
            tally.add(batch)
        about = tally.footer(node, seq, _ranges(batches.rows) if ranges is None else ranges)
        writer.add_key_value_metadata(footers.encode(about))
    return EncodedSegment(seal.sealed(memoryview(sink.getvalue())), about, tally.text_bytes)


def _ahead(items: Iterator[T]) -> Iterator[T]:
    """The items; while one is used, the next one is made in a thread."""
    with ThreadPoolExecutor(1, thread_name_prefix="ahead") as thread:
        following = thread.submit(next, items, None)
        while (item := following.result()) is not None:
            following = thread.submit(next, items, None)
            yield item


def _parquet_writer(sink: pa.BufferOutputStream) -> pq.ParquetWriter:
    return pq.ParquetWriter(
        sink,
        SCHEMA,
        compression="zstd",
        compression_level=1,
        use_dictionary=DICTIONARIES,
        column_encoding=ENCODINGS,
        write_statistics=STATISTICS,
        write_page_checksum=True,
        coerce_timestamps="us",
    )


def _ranges(rows: Rows) -> list[tuple[int, int]]:
    if len(rows) == 0:
        return []
    return [(int(rows["pos"].min()), int((rows["pos"] + rows["records"]).max()))]


class _Tally:
    """The numbers of the footer, gathered row group by row group."""

    def __init__(self) -> None:
        self.text_bytes = 0
        self._rows = 0
        self._low = self._high = ""
        self._checksums: list[str] = []
        self._runs: dict[RunKey, SegmentRun] = {}
        self._coloured = False

    def add(self, batch: pa.RecordBatch) -> None:
        """Counts a row group."""
        ulid = batch.column("ulid")
        self._low = self._low or ulid[0].as_py()
        self._high = ulid[-1].as_py()
        self._add_runs(batch)
        self._checksums.append(footers.rows_checksum(batch))
        self._rows += batch.num_rows
        _, text = footers.text_buffers(batch.column("message"))
        self.text_bytes += len(text) + batch.num_rows
        self._coloured = self._coloured or is_coloured(text.tobytes())

    def _add_runs(self, batch: pa.RecordBatch) -> None:
        fqn, run = batch.column("fqn"), batch.column("run_id")
        fqns, runs = fqn.dictionary.to_pylist(), run.dictionary.to_pylist()
        pair = fqn.indices.to_numpy().astype(np.int64) * len(runs) + run.indices.to_numpy()
        order = np.argsort(pair, kind="stable")
        heads = np.flatnonzero(np.diff(pair[order], prepend=-1))
        pos = batch.column("pos").to_numpy()[order]
        shares = zip(
            pair[order][heads].tolist(),
            np.diff(heads, append=len(pair)).tolist(),
            np.minimum.reduceat(pos, heads).tolist(),
            np.maximum.reduceat(pos, heads).tolist(),
            strict=True,
        )
        for code, rows, first, last in shares:
            key = RunKey(fqns[code // len(runs)], runs[code % len(runs)])
            self._add_run(SegmentRun(key, rows, first, last, (len(self._checksums),)))

    def _add_run(self, more: SegmentRun) -> None:
        known = self._runs.get(more.key)
        if known is not None:
            more = SegmentRun(
                more.key,
                known.rows + more.rows,
                min(known.first, more.first),
                max(known.last, more.last),
                known.groups + more.groups,
            )
        self._runs[more.key] = more

    def footer(self, node: str, seq: int, ranges: Sequence[tuple[int, int]]) -> Footer:
        """The footer of all row groups."""
        runs = tuple(sorted(self._runs.values(), key=lambda run: run.key))
        pairs = tuple((first, end) for first, end in ranges)
        checksums = tuple(self._checksums)
        return Footer(
            node=node,
            seq=seq,
            ranges=pairs,
            rows=self._rows,
            low=self._low,
            high=self._high,
            checksums=checksums,
            runs=runs,
            coloured=self._coloured,
        )
