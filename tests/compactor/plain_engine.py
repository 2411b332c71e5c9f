"""An engine in plain Python: what Spark's jobs give, line by line and without a JVM.

It starts in no time, so that tests go through thousands of histories. `spark/test_plain_engine.py`
holds it to what Spark does with the same input.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow.fs import FileSystem

from compactor.spark.engine import MergeInput, RewriteInput, WrittenCounts
from tailrace.logstore import ulid
from tailrace.logstore.errors import Unavailable
from tailrace.logstore.runs.deletions import Deletion
from tailrace.logstore.table.schema import COLUMNS, PARTITIONS, ROW_GROUP_ROWS

Row: TypeAlias = "dict[str, Any]"
Key: TypeAlias = tuple[str, str, str]

_SCHEMA = pa.schema([field for field in COLUMNS if field.name not in PARTITIONS])


@dataclass
class PlainEngine:
    """`Engine` over local files, or over those of `bucket`."""

    parallel: int = 2
    running: bool = True
    bucket: FileSystem | None = None

    def cores(self) -> int:
        return self.parallel

    def merge(self, work: MergeInput, folder: str) -> WrittenCounts:
        rows = list(self._rows(work.segments))
        kept = [row for row in rows if not is_deleted(key_of(row), work.deletions)]
        with _there():
            held = {key_of(row) for row in self._rows(work.held)}
        bounds = [ulid.encode(bound) for bound in work.bounds]
        buckets: dict[int, list[Row]] = {index: [] for index in range(len(bounds))}
        for row in _once(kept):
            if key_of(row) not in held:
                buckets[max(bisect_right(bounds, row["ulid"]) - 1, 0)].append(row)
        self._write(buckets, folder)
        return WrittenCounts(sum(map(len, buckets.values())), len(rows) - len(kept))

    def rewrite(self, work: RewriteInput, folder: str) -> int:
        with _there():
            rows = list(_once(self._rows(work.files)))
        kept = [row for row in rows if not is_deleted(key_of(row), work.deletions)]
        size = max(-(-len(kept) // work.parts), 1)
        parts = {start // size: kept[start : start + size] for start in range(0, len(kept), size)}
        self._write(parts, folder)
        return len(kept)

    def share_batches(self, some: Mapping[str, int], others: Mapping[str, int]) -> bool:
        with _there():
            mine, theirs = (
                {batch_of(row) for row in self._rows(files)} for files in (some, others)
            )
            apart = mine.isdisjoint(theirs)
        return not apart

    def stop(self) -> None:
        """Nothing runs."""

    def _write(self, parts: dict[int, list[Row]], folder: str) -> None:
        if self.bucket is None:
            Path(folder).mkdir(parents=True)
        for index, rows in parts.items():
            path = f"{folder}/part-{index:05d}-plain.parquet"
            write_part(rows, _within(path) if self.bucket else path, self.bucket)

    def _rows(self, paths: Iterable[str]) -> Iterator[Row]:
        for path in paths:
            source = self.bucket.open_input_file(_within(path)) if self.bucket else path
            file = pq.ParquetFile(source, page_checksum_verification=True)
            for row in file.read(_SCHEMA.names).to_pylist(maps_as_pydicts=None):
                yield dict.fromkeys(_SCHEMA.names) | row


@contextmanager
def _there() -> Iterator[None]:
    """A file that is not there, or damaged, is the engine's failure, as it is Spark's."""
    try:
        yield
    except (OSError, pa.ArrowException) as error:
        raise Unavailable(f"the engine failed: {error}") from error


def write_part(rows: Sequence[Row], path: str, bucket: FileSystem | None = None) -> None:
    """The rows as a Parquet file."""
    table = pa.Table.from_pylist(list(rows), _SCHEMA)
    pq.write_table(
        table,
        path,
        compression="zstd",
        row_group_size=ROW_GROUP_ROWS,
        write_page_checksum=True,
        filesystem=bucket,
    )


def key_of(row: Row) -> Key:
    """What makes it the same record as another."""
    return row["fqn"], row["run_id"], row["ulid"]


def batch_of(row: Row) -> Key:
    """Which batch of which run it is of."""
    return row["fqn"], row["run_id"], row["ulid"][:21]


def is_deleted(key: Key, deletions: Iterable[Deletion]) -> bool:
    """Whether one of the deletions says so."""
    fqn, run, text = key
    return any(
        deletion.fqn == fqn and deletion.run in (None, run) and ulid.decode(text) <= deletion.t
        for deletion in deletions
    )


def _within(uri: str) -> str:
    """A path of pyarrow's in a bucket."""
    return uri.partition("://")[2]


def _once(rows: Iterable[Row]) -> list[Row]:
    """Each record once, sorted."""
    first: dict[Key, Row] = {}
    for row in rows:
        first.setdefault(key_of(row), row)
    return [first[key] for key in sorted(first)]
