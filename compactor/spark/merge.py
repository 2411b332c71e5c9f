"""The Spark job: segments in, one sorted file per time bucket out, each record once.

Lines are shuffled once, by bucket. A comparison of the ULID with the bounds gives the
bucket; there is no sampling pass and no Python in the executors.

What the table already holds is read as keys only (`held`), from the files whose ULID
bounds meet the input's, goes through the same shuffle, and comes before its copies.

Output is `part-{bucket:05d}-….parquet` in a folder of its own. Addresses are paths or `s3://`.
"""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name that Spark's users know

from compactor.spark.lines import BUCKET, KEY, failing, once, read, without, write
from compactor.spark.merge_input import MergeInput
from logstore import ulid


def merge(spark: SparkSession, work: MergeInput, folder: str) -> int:
    """Writes the merged lines below `folder` and gives the number of those left out as deleted.

    Raises `Unavailable` when Spark fails; then nothing but files in `folder` came of it.
    """
    with failing():
        return _merge(spark, work, folder)


def _merge(spark: SparkSession, work: MergeInput, folder: str) -> int:
    lines = read(spark, work.segments)
    kept = without(spark, lines, work.deletions)
    deleted = lines.count() - kept.count() if work.deletions else 0
    if work.held:
        merged = _with_held(spark, kept, work)
    else:
        merged = once(_spread(kept, work.bounds), [F.col("ulid")])
    write(merged, folder)
    return deleted


def _with_held(spark: SparkSession, lines: DataFrame, work: MergeInput) -> DataFrame:
    """The lines that the table has not."""
    low, high = ulid.encode(work.low), ulid.encode(work.high)
    keys = read(spark, work.held).where(F.col("ulid").between(low, high))
    both = lines.withColumn("held", F.lit(False)).unionByName(
        keys.select(*KEY, F.lit(True).alias("held")),
        allowMissingColumns=True,
    )
    held_first = [F.col("ulid"), F.col("held").desc()]
    return once(_spread(both, work.bounds), held_first).where(~F.col("held"))


def _spread(lines: DataFrame, bounds: Sequence[int]) -> DataFrame:
    texts = [ulid.encode(bound) for bound in bounds]
    bucket = _bucket(F.col("ulid"), texts, 0, len(texts) - 1)
    return lines.withColumn(BUCKET, bucket).repartitionById(len(texts), BUCKET)


def _bucket(column: Column, bounds: Sequence[str], low: int, high: int) -> Column:
    """The index of the last bound at or below the column, by halving."""
    if low == high:
        return F.lit(low)
    middle = (low + high + 1) // 2
    below = _bucket(column, bounds, low, middle - 1)
    return F.when(column < bounds[middle], below).otherwise(_bucket(column, bounds, middle, high))
