"""The Spark job: segments in, one sorted file per time bucket out, each record once.

Lines are shuffled once, by bucket. A comparison of the ULID with the bounds gives the
bucket; there is no sampling pass and no Python in the executors. Inside a bucket one sort
by (fqn, run_id, ulid) serves both the removal of duplicates and the order of the file: a
record whose predecessor has its identity is left out. That is a window over one batch and
its copies, so what Spark buffers is bounded by the largest batch and not by a run, and
takes a fifth less CPU than an aggregation that keeps the first of each record.

What the table already holds is read as keys only (`held`), from the files whose ULID
bounds meet the input's, goes through the same shuffle, and comes before its copies.

Output is `part-{bucket:05d}-….parquet` in a folder of its own. Addresses are paths or `s3://`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F  # noqa: N812 - the name that Spark's users know

from compactor.spark.merge_input import MergeInput
from compactor.spark.s3a import address
from logstore import ulid
from logstore.errors import Unavailable
from logstore.runs.deletion import Deletion

KEY = ("fqn", "run_id", "ulid")
_SCHEMA = (
    "ulid string, ts timestamp, fqn string, run_id string, pos long, level string,"
    " connector_id string, message string, attributes map<string,string>"
)
_COLUMNS = [column.split()[0] for column in _SCHEMA.split(", ")]
_BATCH_CHARACTERS = 21  # of 26: the last five are the line number


def merge(spark: SparkSession, work: MergeInput, folder: str) -> int:
    """Writes the merged lines below `folder` and gives the number of those left out as deleted.

    Raises `Unavailable` when Spark fails; then nothing but files in `folder` came of it.
    """
    try:
        return _merge(spark, work, folder)
    except (PySparkException, Py4JError) as error:
        raise Unavailable(
            f"Spark failed: {_reason(error)}", hint="Its own messages stand above this one."
        ) from error


def _merge(spark: SparkSession, work: MergeInput, folder: str) -> int:
    lines = _read(spark, work.segments)
    kept = _without(spark, lines, work.deletions)
    deleted = lines.count() - kept.count() if work.deletions else 0
    if work.held:
        merged = _with_held(spark, kept, work)
    else:
        merged = _once(kept, work.bounds, [F.col("ulid")])
    merged.select(_COLUMNS).write.parquet(address(folder))
    return deleted


def _read(spark: SparkSession, files: Sequence[str]) -> DataFrame:
    return spark.read.schema(_SCHEMA).parquet(*(_no_pattern(address(file)) for file in files))


def _no_pattern(path: str) -> str:
    """The path as Spark finds exactly it: what it is given is a pattern (Hadoop's globs)."""
    return re.sub(r"([\\*?\[\]{}])", r"\\\1", path)


def _reason(error: PySparkException | Py4JError) -> str:
    # Some of them fail to put themselves into words.
    try:
        return str(error).partition("\n")[0] or type(error).__name__
    except Exception:  # noqa: BLE001
        return type(error).__name__


def _once(lines: DataFrame, bounds: Sequence[int], order: Sequence[Column]) -> DataFrame:
    """The first of each record in the given order; the batch is a ULID without its line number."""
    batch = F.substring("ulid", 1, _BATCH_CHARACTERS)
    window = Window.partitionBy("fqn", "run_id", "batch", "bucket").orderBy(*order)
    before = F.lag("ulid").over(window)
    marked = _spread(lines, bounds).withColumn("batch", batch).withColumn("before", before)
    return marked.where(F.col("before").isNull() | (F.col("before") != F.col("ulid")))


def _with_held(spark: SparkSession, lines: DataFrame, work: MergeInput) -> DataFrame:
    """The lines that the table has not."""
    low, high = ulid.encode(work.low), ulid.encode(work.high)
    keys = _read(spark, work.held).where(F.col("ulid").between(low, high))
    both = lines.withColumn("held", F.lit(False)).unionByName(
        keys.select(*KEY, F.lit(True).alias("held")),
        allowMissingColumns=True,
    )
    held_first = [F.col("ulid"), F.col("held").desc()]
    return _once(both, work.bounds, held_first).where(~F.col("held"))


def _spread(lines: DataFrame, bounds: Sequence[int]) -> DataFrame:
    texts = [ulid.encode(bound) for bound in bounds]
    bucket = _bucket(F.col("ulid"), texts, 0, len(texts) - 1)
    return lines.withColumn("bucket", bucket).repartitionById(len(texts), "bucket")


def _bucket(column: Column, bounds: Sequence[str], low: int, high: int) -> Column:
    """The index of the last bound at or below the column, by halving."""
    if low == high:
        return F.lit(low)
    middle = (low + high + 1) // 2
    below = _bucket(column, bounds, low, middle - 1)
    return F.when(column < bounds[middle], below).otherwise(_bucket(column, bounds, middle, high))


def _without(spark: SparkSession, lines: DataFrame, deletions: Sequence[Deletion]) -> DataFrame:
    """The lines without those at or below the deletion of their run or pipeline."""
    runs = [(d.fqn, d.run, ulid.encode(d.t)) for d in deletions if d.run is not None]
    pipelines = [(d.fqn, ulid.encode(d.t)) for d in deletions if d.run is None]
    if runs:
        gone = spark.createDataFrame(runs, "fqn string, run_id string, t string")
        lines = _anti(lines, gone, ["fqn", "run_id"])
    if pipelines:
        lines = _anti(lines, spark.createDataFrame(pipelines, "fqn string, t string"), ["fqn"])
    return lines


def _anti(lines: DataFrame, gone: DataFrame, names: Sequence[str]) -> DataFrame:
    match = lines["ulid"] <= gone["t"]
    for name in names:
        match = match & (lines[name] == gone[name])
    return lines.join(F.broadcast(gone), match, "left_anti")
