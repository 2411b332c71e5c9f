"""The Spark job: segments in, one sorted file per time bucket out, each record once.

Lines are shuffled once, by the task of their bucket. A search of the ULID among the bounds gives
the bucket: as many comparisons as bounds have bits, however many there are. There is no
sampling pass and no Python in the executors.

What the table already holds is read as keys only (`held`), from the files that may have lines
of the input (`intake/reach.py`), goes through the same shuffle, and comes before its copies.

Segments are read once. Deleted lines go through the shuffle as well, few as they are, and are
counted and left out behind it: there a task counts once, however often it was tried.

Output is `part-{bucket:05d}-….parquet` in a folder of its own, or `bucket={bucket}/part-….parquet`
if a task has several buckets: Spark writes a file per task otherwise. Addresses are paths or
`s3://`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from pyspark.sql import Column, DataFrame, Observation, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name that Spark's users know

from compactor.spark.lines import (
    BUCKET,
    GONE,
    KEY,
    TASK,
    failing,
    marked,
    once,
    read,
    rows_of,
    write,
)
from compactor.spark.merge_input import MergeInput
from compactor.spark.search import bucketed
from compactor.spark.written import Written
from logstore import ulid


def merge(spark: SparkSession, work: MergeInput, folder: str) -> Written:
    """Writes the merged lines below `folder`, and counts them and those left out as deleted.

    Raises `Unavailable` when Spark fails; then nothing but files in `folder` came of it.
    """
    with failing():
        return _merge(spark, work, folder)


def _merge(spark: SparkSession, work: MergeInput, folder: str) -> Written:
    lines, deleted = read(spark, work.segments, work.sizes), Observation()
    if not work.deletions:
        return Written(write(_merged(spark, lines, work), folder))

    def left_out(lines: DataFrame) -> DataFrame:
        counted = lines.observe(deleted, F.count_if(F.col(GONE)).alias("rows"))
        return counted.where(~F.coalesce(F.col(GONE), F.lit(False)))

    rows = write(_merged(spark, marked(spark, lines, work.deletions), work, left_out), folder)
    return Written(rows, rows_of(deleted))


def _merged(
    spark: SparkSession,
    lines: DataFrame,
    work: MergeInput,
    looked_at: Callable[[DataFrame], DataFrame] = lambda lines: lines,
) -> DataFrame:
    if work.held:
        return _with_held(spark, lines, work, looked_at)
    return once(_spread(lines, work), [F.col("ulid")], looked_at)


def _with_held(
    spark: SparkSession,
    lines: DataFrame,
    work: MergeInput,
    looked_at: Callable[[DataFrame], DataFrame],
) -> DataFrame:
    """The lines that the table has not."""
    low, high = ulid.encode(work.low), ulid.encode(work.high)
    keys = read(spark, work.held, work.sizes).where(F.col("ulid").between(low, high))
    both = lines.withColumn("held", F.lit(False)).unionByName(
        keys.select(*KEY, F.lit(True).alias("held")),
        allowMissingColumns=True,
    )
    held_first = [F.col("ulid"), F.col("held").desc()]
    return once(_spread(both, work), held_first, looked_at).where(~F.col("held"))


def _spread(lines: DataFrame, work: MergeInput) -> DataFrame:
    begins = _constant(map(ulid.encode, work.bounds))
    found = bucketed(lines, F.col("ulid"), begins, len(work.bounds))
    tasks = work.tasks[-1] + 1
    if tasks == len(work.bounds):
        return found.repartitionById(tasks, BUCKET)
    task = F.get(_constant(map(str, work.tasks)).cast("array<int>"), F.col(BUCKET))
    return found.withColumn(TASK, task).repartitionById(tasks, TASK)


def _constant(texts: Iterable[str]) -> Column:
    """An array: one literal for Py4J, which Spark takes apart once, when it plans."""
    return F.split(F.lit(",".join(texts)), ",")
