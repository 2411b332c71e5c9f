"""The interface to the heavy jobs, their inputs, and Spark's configuration.

A job has plain values as input and a folder of Parquet files as output, so any program that reads
and writes those may implement it, and planning a job needs no Spark. `compactor.spark.session` is
the implementation that ships; tests that run thousands of histories have one that starts in no
time. All calls block, and belong in a thread.

Spark's configuration has settings that correctness requires, and defaults that may be changed.
`NEEDED` overrides flags and settings. `compaction.spark` overrides `DEFAULTS`, and the flags of
`spark-submit` override both.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from tailrace.logstore.runs.deletions import Deletion
from tailrace.logstore.table.schema import ROW_GROUP_BYTES, ROW_GROUP_ROWS


@dataclass(frozen=True, slots=True)
class RewriteInput:
    """Table files of one hour, bytes by address, to be rewritten as `parts` files.

    `rows` is their number of lines as far as is known. Lines of `deletions` are left out.
    """

    files: Mapping[str, int]
    rows: int
    parts: int
    deletions: Sequence[Deletion]


@dataclass(frozen=True, slots=True)
class MergeInput:
    """One merge.

    `segments` are bytes of segments by address, `held` of table files that may hold the same
    records, `bounds` the lowest ULID of each bucket, `tasks` the task of each, from 0 on and
    rising, `low` and `high` the input's ULIDs.
    """

    segments: Mapping[str, int]
    held: Mapping[str, int]
    bounds: Sequence[int]
    tasks: Sequence[int]
    deletions: Sequence[Deletion]
    low: int
    high: int


@dataclass(frozen=True, slots=True)
class WrittenCounts:
    """The row counts of a merge, from the task attempts that were committed.

    `rows` are lines that are in its files, `deleted` lines that were left out as deleted.
    """

    rows: int
    deleted: int = 0


class SparkEngine(Protocol):
    """Runs jobs, one at a time."""

    @property
    def running(self) -> bool:
        """Whether the engine runs and can be stopped."""
        ...

    def cores(self) -> int:
        """The number of tasks that run at once; starts the engine if needed.

        Raises `Unavailable`.
        """
        ...

    def merge(self, work: MergeInput, folder: str) -> WrittenCounts:
        """Writes the merged lines below `folder`, each once, sorted by (fqn, run_id, ulid).

        Makes one file `part-{bucket:05d}-….parquet` for each of `work.bounds`, or
        `bucket={bucket}/part-….parquet`; a bucket without lines may have a file or not. Leaves out
        deleted lines and those of `work.held`. Raises `Unavailable`; then the only effect is files
        in `folder`.
        """
        ...

    def rewrite(self, work: RewriteInput, folder: str) -> int:
        """Writes the lines of `work.files` below `folder`, each once, without deleted ones.

        Writes at most `work.parts` files `part-{part:05d}-….parquet`, each sorted by (fqn, run_id,
        ulid) and with its own range of that key. Returns the number of written lines. Raises
        `Unavailable`, as `merge`.
        """
        ...

    def share_batches(self, some: Mapping[str, int], others: Mapping[str, int]) -> bool:
        """Whether a batch of a run has lines in `some` and in `others`: bytes by table file.

        Raises `Unavailable`.
        """
        ...

    def stop(self) -> None:
        """Releases its resources. The next call starts it again."""
        ...


NEEDED: Final = {
    # Hours are UTC, times are microseconds (Spark's own default, INT96, is read by few), and
    # a conversion that fails is an error, not a null.
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.parquet.compression.codec": "zstd",
    "spark.sql.ansi.enabled": "true",
    # One file per bucket: coalescing would put two hours into one file, and a file that is
    # cut at some number of rows would be two files of one name.
    "spark.sql.adaptive.coalescePartitions.enabled": "false",
    "spark.sql.files.maxRecordsPerFile": "0",
    # The bounds of a file show its hour, and whether a batch must be compared with it.
    "spark.hadoop.parquet.column.statistics.enabled": "true",
    "spark.hadoop.parquet.statistics.truncate.length": "2147483647",
    # Readers skip row groups, and an index of words is by row group. How large a group has
    # become is checked after ten lines, then at the latest every thousand: lines may have 8 MiB.
    "spark.hadoop.parquet.block.row.count.limit": str(ROW_GROUP_ROWS),
    "spark.hadoop.parquet.block.size": str(ROW_GROUP_BYTES),
    "spark.hadoop.parquet.page.size.row.check.min": "10",
    "spark.hadoop.parquet.page.size.row.check.max": "1000",
    # Exactly one attempt of a task commits, however often it is retried or speculated. Files of an
    # attempt are invisible before its commit.
    "spark.hadoop.outputCommitCoordination.enabled": "true",
    "spark.hadoop.mapreduce.fileoutputcommitter.algorithm.version": "1",
    "spark.hadoop.mapreduce.fileoutputcommitter.marksuccessfuljobs": "false",
    # Spark would look for a name with brackets literally and warn at length.
    "spark.sql.streaming.fileStreamSink.ignoreMetadata": "true",
    # Damage that decompresses to other values fails the task, before it gets a new checksum.
    "spark.hadoop.parquet.page.verify-checksum.enabled": "true",
    "spark.hadoop.parquet.page.write-checksum.enabled": "true",
    "spark.sql.files.ignoreCorruptFiles": "false",
    "spark.sql.files.ignoreMissingFiles": "false",
}
DEFAULTS: Final = {
    "spark.app.name": "tailrace-compactor",
    # A task is retried as on a cluster: one interrupted answer of S3 must not end a pass.
    "spark.master": "local[*, 4]",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.adaptive.enabled": "true",
    "spark.driver.extraJavaOptions": "-XX:+UseParallelGC",
    "spark.sql.sources.parallelPartitionDiscovery.threshold": "10000",
    # Rows of a batch and its copies that a window holds before it uses a sorter.
    "spark.sql.windowExec.buffer.in.memory.threshold": "65536",
    # A dictionary of messages, ULIDs, times or positions never pays: they hardly repeat within a
    # row group. Level 1 is as small on sorted logs.
    "spark.hadoop.parquet.compression.codec.zstd.level": "1",
    "spark.hadoop.parquet.enable.dictionary#message": "false",
    "spark.hadoop.parquet.enable.dictionary#ulid": "false",
    "spark.hadoop.parquet.enable.dictionary#ts": "false",
    "spark.hadoop.parquet.enable.dictionary#pos": "false",
    # Bounds of messages and attributes allow no skipping, and are copied into each footer.
    "spark.hadoop.parquet.column.statistics.enabled#message": "false",
    "spark.hadoop.parquet.column.statistics.enabled#attributes.key_value.key": "false",
    "spark.hadoop.parquet.column.statistics.enabled#attributes.key_value.value": "false",
}


@dataclass(frozen=True, slots=True)
class SparkWishes:
    """The settings for Spark: heap of the driver, master if not the usual one, and more.

    With `json_log` the whole log of Spark is logged, as lines of JSON; otherwise only problems. A
    JVM that uses no processor time for `frozen_seconds` is killed.
    """

    driver_memory: str
    master: str = ""
    more: Mapping[str, str] = field(default_factory=dict)
    json_log: bool = False
    frozen_seconds: float = 300.0

    def defaults(self) -> dict[str, str]:
        """The configuration for keys that `spark-submit` was not given."""
        master = {"spark.master": self.master} if self.master else {}
        return DEFAULTS | dict(self.more) | master


def is_here(master: str | None) -> bool:
    """Whether tasks run in the driver's own process."""
    return master is not None and (master == "local" or master.startswith("local["))


def submitted() -> bool:
    """Whether spark-submit started this process and its own JVM."""
    return "PYSPARK_GATEWAY_PORT" in os.environ
