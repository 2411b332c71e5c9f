"""The Spark jobs: merge segments, rewrite the files of an hour, compare keys of files.

**Merge**: segments in, one sorted file per time bucket out, each record once.

Lines are shuffled once, by the task of their bucket. A search of the ULID among the bounds gives
the bucket: as many comparisons as bounds have bits, however many there are. There is no
sampling pass and no Python in the executors.

What the table already holds is read as keys only (`held`), from the files that may have lines
of the input (`compactor/ingest/prune.py`), goes through the same shuffle, and comes before its
copies.

Segments are read once. Deleted lines go through the shuffle as well, few as they are, and are
counted and left out behind it: there a task counts once, however often it was tried.

Output is `part-{bucket:05d}-….parquet` in a folder of its own, or
`bucket={bucket}/part-….parquet` if a task has several buckets: Spark writes a file per task
otherwise. Addresses are paths or `s3://`.

Which of many ranges a line is in is found by halving, in Spark's own expressions. Each step is
a column of its own, which Spark computes once. One expression of all of them would be a tree
with as many leaves as ranges, too large a method for Java to compile.

**Rewrite**: table files of one hour in, a few of about one size out, sorted over all.

Lines are ordered by (fqn, run_id, ulid) over all files together: each file has a range of
that key, so whoever reads a run opens one file, and a run larger than a file is cut by ULID.
Where one file is to come out, that is one shuffle and one sort, as for a merge. For several,
the ranges come from a sample of the keys, a few percent of the bytes, read before: choosing
lines by a hash of their ULID, it is the same whichever task reads them. Ranges only say
how even the files are. A record's copies have one key, so they meet in one file anyway.

Output is `part-{part:05d}-….parquet` in a folder of its own. Addresses are paths or `s3://`.

**Compare**: whether files have a batch of lines in common, read from their keys alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, TypeAlias

import orjson
from pyspark.sql import Column, DataFrame, Observation, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name that Spark's users know

from compactor.spark.engine import MergeInput, RewriteInput, Written
from compactor.spark.lines import (
    BATCH_CHARACTERS,
    BUCKET,
    GONE,
    KEY,
    TASK,
    failing,
    marked,
    once,
    read,
    rows_of,
    without,
    write,
)
from logstore import ulid


def share_batches(spark: SparkSession, some: Mapping[str, int], others: Mapping[str, int]) -> bool:
    """Whether a batch of a run has lines in `some` and in `others`: bytes by table file.

    Raises `Unavailable` when Spark fails.
    """
    with failing():
        mine, theirs = _batches(spark, some), _batches(spark, others)
        return not mine.join(theirs, ["fqn", "run_id", "batch"], "left_semi").isEmpty()


def _batches(spark: SparkSession, files: Mapping[str, int]) -> DataFrame:
    batch = F.substring("ulid", 1, BATCH_CHARACTERS).alias("batch")
    return read(spark, files).select("fqn", "run_id", batch).distinct()


_SAMPLES: Final = 1_000  # keys for each file: their sizes differ by some percent

Key: TypeAlias = tuple[str, ...]


def rewrite(spark: SparkSession, work: RewriteInput, folder: str) -> int:
    """Writes the lines of `work.files` below `folder`, each once, without the deleted ones.

    Gives the number of lines written.

    Raises `Unavailable` when Spark fails; then nothing but files in `folder` came of it.
    """
    with failing():
        lines = without(spark, read(spark, work.files), work.deletions)
        ranges = _ranges(lines, work) if work.parts > 1 else []
        return write(once(_by_ranges(lines, ranges), [F.col("ulid")]), folder)


def cuts(keys: Sequence[Key], parts: int) -> list[Key]:
    """The lowest key of each part but the first, rising, at most `parts` - 1.

    `keys` are a sample. One that stands for more than a part begins one part only.
    """
    ordered = sorted(keys)
    chosen = [ordered[len(ordered) * part // parts] for part in range(1, parts)] if ordered else []
    return sorted(set(chosen))


def _ranges(lines: DataFrame, work: RewriteInput) -> list[Key]:
    one_in = max(work.rows // (_SAMPLES * work.parts), 1)
    sample = lines.select(*KEY).where(F.pmod(F.xxhash64("ulid"), F.lit(one_in)) == 0)
    return cuts([tuple(key) for key in orjson.loads(_text(sample))], work.parts)


def _text(keys: DataFrame) -> str:
    """All keys as JSON; collecting rows would leave a socket of pyspark's open each time."""
    listed = F.collect_list(F.array(*KEY))
    found: Any = keys.agg(F.to_json(listed))
    text: str = found._jdf.head().getString(0)
    return text


def _by_ranges(lines: DataFrame, ranges: Sequence[Key]) -> DataFrame:
    begins = _structs([("",) * len(KEY), *ranges])
    parts = len(ranges) + 1
    found = bucketed(lines, F.struct(*KEY), begins, parts)
    return found.repartitionById(parts, BUCKET)


def _structs(keys: Sequence[Key]) -> Column:
    """An array of structs: one literal for Py4J, which Spark takes apart once, when it plans."""
    schema = f"array<struct<{','.join(f'{name}:string' for name in KEY)}>>"
    text = orjson.dumps([dict(zip(KEY, key, strict=True)) for key in keys]).decode()
    return F.from_json(F.lit(text), schema)


def bucketed(lines: DataFrame, key: Column, begins: Column, number: int) -> DataFrame:
    """Adds the index, in `BUCKET`, of the last range that begins at or below the key.

    `begins` is an array of `number` such keys, rising; the first is ignored, since all
    lines are in some range.
    """
    found = lines.withColumn(BUCKET, F.lit(0))
    for bit in reversed(range((number - 1).bit_length())):
        higher = F.col(BUCKET) + (1 << bit)
        is_there = key >= F.get(begins, higher)  # null beyond the last
        found = found.withColumn(BUCKET, F.when(is_there, higher).otherwise(F.col(BUCKET)))
    return found


def merge(spark: SparkSession, work: MergeInput, folder: str) -> Written:
    """Writes the merged lines below `folder`, and counts them and those left out as deleted.

    Raises `Unavailable` when Spark fails; then nothing but files in `folder` came of it.
    """
    with failing():
        return _merge(spark, work, folder)


def _merge(spark: SparkSession, work: MergeInput, folder: str) -> Written:
    lines, deleted = read(spark, work.segments), Observation()
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
    return once(_by_buckets(lines, work), [F.col("ulid")], looked_at)


def _with_held(
    spark: SparkSession,
    lines: DataFrame,
    work: MergeInput,
    looked_at: Callable[[DataFrame], DataFrame],
) -> DataFrame:
    """The lines that the table does not have."""
    low, high = ulid.encode(work.low), ulid.encode(work.high)
    keys = read(spark, work.held).where(F.col("ulid").between(low, high))
    both = lines.withColumn("held", F.lit(False)).unionByName(
        keys.select(*KEY, F.lit(True).alias("held")),
        allowMissingColumns=True,
    )
    held_first = [F.col("ulid"), F.col("held").desc()]
    return once(_by_buckets(both, work), held_first, looked_at).where(~F.col("held"))


def _by_buckets(lines: DataFrame, work: MergeInput) -> DataFrame:
    begins = _texts(map(ulid.encode, work.bounds))
    found = bucketed(lines, F.col("ulid"), begins, len(work.bounds))
    tasks = work.tasks[-1] + 1
    if tasks == len(work.bounds):
        return found.repartitionById(tasks, BUCKET)
    task = F.get(_texts(map(str, work.tasks)).cast("array<int>"), F.col(BUCKET))
    return found.withColumn(TASK, task).repartitionById(tasks, TASK)


def _texts(texts: Iterable[str]) -> Column:
    """An array: one literal for Py4J, which Spark takes apart once, when it plans."""
    return F.split(F.lit(",".join(texts)), ",")
