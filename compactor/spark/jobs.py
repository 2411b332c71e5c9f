"""The Spark jobs: merge segments, rewrite the files of an hour, compare keys of files.

Every job writes each record once, and no deleted one. The identity of a record is (fqn, run_id,
ulid). If all copies of it are in one bucket (rows that one task has), one sort by it serves both
the removal of copies and the order of the file: a record whose predecessor has its identity is left
out. That is a window over one batch and its copies, so Spark's buffer is bounded by the largest
batch and not by a run, and takes a fifth less CPU than an aggregation that keeps the first of each
record.

Place and size of the files to read are known, so Spark asks the store for neither. By itself it
looks for each path (HEAD) and lists it (LIST, HEAD), one after the other in the driver, before a
task reads a byte, although the store's listing has all of that already. Spark's own index of files
is therefore filled from that listing, by the cache from which Spark takes listings. A file that is
removed meanwhile fails in its task, like one that is removed between Spark's listing and its
reading. Addresses are paths or `s3://`.

**Merge**: segments in, one sorted file per time bucket out, each record once.

Lines are shuffled once, by the task of their bucket. A search of the ULID among the bounds gives
the bucket, with as many comparisons as the number of bounds has bits. It needs no sampling pass and
no Python in the executors. Lines that the table already holds are read as keys only (`held`), from
the files that may have lines of the input (`compactor/plan.py`). They go through the same shuffle,
and come before their copies. Segments are read once. The few deleted lines go through the shuffle
as well, and are counted and left out after it: there a task counts once, however often it was
tried.

Output is `part-{bucket:05d}-….parquet` in a folder of its own, or `bucket={bucket}/part-….parquet`
if a task has several buckets, since Spark writes one file per task otherwise.

The range of a line among many is found by halving, in Spark's own expressions. Each step is a
column of its own, which Spark computes once. One expression of all of them would be a tree with as
many leaves as ranges, too large a method for Java to compile.

**Rewrite**: table files of one hour in, a few of about one size out, sorted over all.

Lines are ordered by (fqn, run_id, ulid) over all files together: each file has a range of that key,
so a reader of a run opens one file, and a run larger than a file is cut by ULID. One output file
needs one shuffle and one sort, as a merge does. For several, the ranges come from a sample of the
keys, a few percent of the bytes, read before. It chooses lines by a hash of their ULID, so it is
the same whichever task reads them. Ranges only affect how even the files are. A record's copies
have one key, so they meet in one file anyway. Output is `part-{part:05d}-….parquet` in a folder of
its own.

**Compare**: whether files have a batch of lines in common, read from their keys alone.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from queue import Empty, Queue
from typing import Any, Final, TypeAlias

import orjson
import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, Observation, SparkSession, Window
from pyspark.sql import functions as F  # noqa: N812 - the name that Spark's users know

from compactor.spark.engine import MergeInput, RewriteInput, WrittenCounts
from compactor.spark.jvm import reason
from compactor.spark.s3 import address
from tailrace.logstore import ulid
from tailrace.logstore.errors import Unavailable
from tailrace.logstore.runs.deletions import Deletion

KEY = ("fqn", "run_id", "ulid")
BUCKET = "bucket"
TASK = "task"
SCHEMA = (
    "ulid string, ts timestamp, fqn string, run_id string, pos long, level string,"
    " connector_id string, message string, attributes map<string,string>, carried boolean"
)
COLUMNS = [column.split()[0] for column in SCHEMA.split(", ")]
GONE = "gone"
_BLOCK_BYTES = 128 << 20  # has no meaning for S3; Spark cuts by `maxPartitionBytes`
PATIENCE_SECONDS = 120.0
BATCH_CHARACTERS = 21  # of 26: the last five are the line number


def read(spark: SparkSession, files: Mapping[str, int]) -> DataFrame:
    """Reads the lines of segments or table files: bytes by address, at least one file."""
    jvm: Any = spark._jvm
    gateway: Any = spark.sparkContext._gateway
    session = spark._jsparkSession
    hadoop, sources = jvm.org.apache.hadoop.fs, jvm.org.apache.spark.sql.execution.datasources
    none = getattr(getattr(jvm.scala, "None$"), "MODULE$")
    empty = jvm.PythonUtils.toScalaMap({})
    types = jvm.org.apache.spark.sql.types.StructType
    rows = types.fromDDL(SCHEMA)
    cache, paths = sources.FileStatusCache.getOrCreate(session), []
    system = hadoop.Path(address(next(iter(files)))).getFileSystem(
        session.sessionState().newHadoopConf()
    )
    for file, size in files.items():
        path = system.makeQualified(hadoop.Path(address(file)))
        statuses = gateway.new_array(hadoop.FileStatus, 1)
        statuses[0] = hadoop.FileStatus(size, False, 1, _BLOCK_BYTES, 0, path)
        cache.putLeafFiles(path, statuses)
        paths.append(path)
    found = jvm.PythonUtils.toSeq(paths)
    index = sources.InMemoryFileIndex(
        session, found, empty, jvm.scala.Some(rows), cache, none, none
    )
    cache.invalidateAll()  # the index has them, and only this call uses this part of the cache
    parquet = sources.parquet.ParquetFileFormat()
    relation = sources.HadoopFsRelation(index, types(), rows, none, parquet, empty, session)
    return DataFrame(session.baseRelationToDataFrame(relation), spark)


def write(lines: DataFrame, folder: str) -> int:
    """Writes a file `part-{bucket:05d}-….parquet` per bucket. Returns the number of written lines.

    If a task has several buckets, the file is `bucket={bucket}/part-….parquet`.
    """
    apart = [BUCKET] if TASK in lines.columns else []
    written = Observation()  # counts a task once, by its committed attempt
    counted = lines.select(COLUMNS + apart).observe(written, F.count(F.lit(1)).alias("rows"))
    counted.write.parquet(address(folder), partitionBy=apart)
    return rows_of(written)


def rows_of(observed: Observation, seconds: float = PATIENCE_SECONDS) -> int:
    """Returns the number counted as `rows` in an action that is over.

    Spark delivers it by a queue of events that drops some when it is full, so a wait for it might
    never end. Raises `Unavailable` after `seconds`.
    """
    result: Queue[int | Exception] = Queue()

    def wait() -> None:
        try:
            result.put(int(observed.get["rows"]))
        except Exception as error:  # noqa: BLE001 - raised where it is waited for
            result.put(error)

    threading.Thread(target=wait, name="spark", daemon=True).start()
    try:
        found = result.get(timeout=seconds)
    except Empty:
        raise Unavailable(
            f"Spark did not say within {seconds:g} s how many rows its tasks counted",
            hint="Try again. If that fails too, raise"
            " spark.scheduler.listenerbus.eventqueue.capacity.",
        ) from None
    if isinstance(found, Exception):
        raise found
    return found


def once(
    lines: DataFrame,
    order: Sequence[Column],
    looked_at: Callable[[DataFrame], DataFrame] = lambda lines: lines,
) -> DataFrame:
    """Keeps the first of each record in the given order; a batch is a ULID without line number.

    `looked_at` gets all sorted lines, and selects the lines that remain.

    `lines` are partitioned by their task, or by their bucket if each has a task of its own, and
    are returned sorted by bucket and record's identity, so files are written one after another.
    """
    batch = F.substring("ulid", 1, BATCH_CHARACTERS)
    place = [BUCKET, TASK] if TASK in lines.columns else [BUCKET]
    window = Window.partitionBy(*place, "fqn", "run_id", "batch").orderBy(*order)
    before = F.lag("ulid").over(window)
    marked = looked_at(lines.withColumn("batch", batch).withColumn("before", before))
    return marked.where(F.col("before").isNull() | (F.col("before") != F.col("ulid")))


def without(spark: SparkSession, lines: DataFrame, deletions: Sequence[Deletion]) -> DataFrame:
    """The lines without those at or below the deletion of their run or pipeline."""
    runs = [d for d in deletions if d.run is not None]
    pipelines = [d for d in deletions if d.run is None]
    if runs:
        lines = _anti(lines, _gone(spark, runs), ["fqn", "run_id"])
    if pipelines:
        lines = _anti(lines, _gone(spark, pipelines), ["fqn"])
    return lines


def marked(spark: SparkSession, lines: DataFrame, deletions: Sequence[Deletion]) -> DataFrame:
    """The lines with `GONE`: whether they are at or below a deletion of their run or pipeline."""
    gone = F.lit(False)
    for names in (["fqn", "run_id"], ["fqn"]):
        of_runs = len(names) > 1
        some = [d for d in deletions if (d.run is not None) == of_runs]
        if some:
            highest = _gone(spark, some).groupBy(*names).agg(F.max("t").alias(f"t{len(names)}"))
            lines = lines.join(F.broadcast(highest), names, "left")
            gone = gone | F.coalesce(F.col("ulid") <= F.col(f"t{len(names)}"), F.lit(False))
    return lines.withColumn(GONE, gone).drop("t1", "t2")


@contextmanager
def failing() -> Iterator[None]:
    """Translates the errors of a job to `Unavailable`."""
    try:
        yield
    except (PySparkException, Py4JError, ConnectionError) as error:  # the last: the JVM is gone
        raise Unavailable(
            f"Spark failed: {reason(error)}", hint="Spark's own messages are above this one."
        ) from error


def _gone(spark: SparkSession, deletions: Sequence[Deletion]) -> DataFrame:
    # From Arrow: a list would be unpickled by Python in the executors, which may not have it.
    columns = {
        "fqn": [d.fqn for d in deletions],
        "run_id": [d.run for d in deletions],
        "t": [ulid.encode(d.t) for d in deletions],
    }
    types = pa.schema([(name, pa.string()) for name in columns])
    return spark.createDataFrame(pa.table(columns, schema=types))


def _anti(lines: DataFrame, gone: DataFrame, names: Sequence[str]) -> DataFrame:
    match = lines["ulid"] <= gone["t"]
    for name in names:
        match = match & (lines[name] == gone[name])
    return lines.join(F.broadcast(gone), match, "left_anti")


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

    Returns the number of written lines.

    Raises `Unavailable` if Spark fails; then the only effect is files in `folder`.
    """
    with failing():
        lines = without(spark, read(spark, work.files), work.deletions)
        ranges = _ranges(lines, work) if work.parts > 1 else []
        return write(once(_by_ranges(lines, ranges), [F.col("ulid")]), folder)


def cuts(keys: Sequence[Key], parts: int) -> list[Key]:
    """The lowest key of each part but the first, rising, at most `parts` - 1.

    `keys` are a sample. A key that represents more than a part begins one part only.
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
    """An array of structs: one literal for Py4J, which Spark parses once, when it plans."""
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
        is_there = key >= F.get(begins, higher)  # null after the last
        found = found.withColumn(BUCKET, F.when(is_there, higher).otherwise(F.col(BUCKET)))
    return found


def merge(spark: SparkSession, work: MergeInput, folder: str) -> WrittenCounts:
    """Writes the merged lines below `folder`, and counts them and those left out as deleted.

    Raises `Unavailable` if Spark fails; then the only effect is files in `folder`.
    """
    with failing():
        return _merge(spark, work, folder)


def _merge(spark: SparkSession, work: MergeInput, folder: str) -> WrittenCounts:
    lines, deleted = read(spark, work.segments), Observation()
    if not work.deletions:
        return WrittenCounts(write(_merged(spark, lines, work), folder))

    def left_out(lines: DataFrame) -> DataFrame:
        counted = lines.observe(deleted, F.count_if(F.col(GONE)).alias("rows"))
        return counted.where(~F.coalesce(F.col(GONE), F.lit(False)))

    rows = write(_merged(spark, marked(spark, lines, work.deletions), work, left_out), folder)
    return WrittenCounts(rows, rows_of(deleted))


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
    """Keeps the lines that the table does not have."""
    low, high = ulid.encode(work.low), ulid.encode(work.high)
    keys = read(spark, work.held).where(F.col("ulid").between(low, high))
    both = lines.withColumn("held", F.lit(False)).unionByName(
        keys.select(*KEY, F.lit(True).alias("held")), allowMissingColumns=True
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
    """An array: one literal for Py4J, which Spark parses once, when it plans."""
    return F.split(F.lit(",".join(texts)), ",")
