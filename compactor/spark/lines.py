"""Reads and writes lines with Spark; every job writes each record once, and no deleted one.

The identity of a record is (fqn, run_id, ulid). Where all copies of it are in one bucket (rows that
one task has), one sort by it serves both the removal of copies and the order of the file: a
record whose predecessor has its identity is left out. That is a window over one batch and
its copies, so what Spark buffers is bounded by the largest batch and not by a run, and
takes a fifth less CPU than an aggregation that keeps the first of each record.

Place and size of the files to read are known, so Spark asks the store for neither. By itself
it looks for each path (HEAD) and lists it (LIST, HEAD), one after the other in the driver, before
a task reads a byte, although the store's listing has all of that already. Spark's own index of
files is therefore filled from that listing, by the cache from which Spark takes listings. A file
that is removed meanwhile fails in its task, as one that is removed between Spark's listing and its
reading does.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from queue import Empty, Queue
from typing import Any

import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, Observation, SparkSession, Window
from pyspark.sql import functions as F  # noqa: N812 - the name that Spark's users know

from compactor.spark.jvm import reason
from compactor.spark.s3a import address
from logstore import ulid
from logstore.errors import Unavailable
from logstore.runs.deletions import Deletion

KEY = ("fqn", "run_id", "ulid")
BUCKET = "bucket"
TASK = "task"
SCHEMA = (
    "ulid string, ts timestamp, fqn string, run_id string, pos long, level string,"
    " connector_id string, message string, attributes map<string,string>, carried boolean"
)
COLUMNS = [column.split()[0] for column in SCHEMA.split(", ")]
GONE = "gone"
_BLOCK_BYTES = 128 << 20  # of no meaning to S3; Spark cuts by `maxPartitionBytes`
PATIENCE_SECONDS = 120.0
BATCH_CHARACTERS = 21  # of 26: the last five are the line number


def read(spark: SparkSession, files: Mapping[str, int]) -> DataFrame:
    """The lines of segments or table files, bytes by address; there is at least one."""
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
    cache.invalidateAll()  # the index has them, and this part of the cache is nobody else's
    parquet = sources.parquet.ParquetFileFormat()
    relation = sources.HadoopFsRelation(index, types(), rows, none, parquet, empty, session)
    return DataFrame(session.baseRelationToDataFrame(relation), spark)


def write(lines: DataFrame, folder: str) -> int:
    """A file `part-{bucket:05d}-….parquet` per bucket; gives the number of lines written.

    Where a task has several buckets, it is `bucket={bucket}/part-….parquet`.
    """
    apart = [BUCKET] if TASK in lines.columns else []
    written = Observation()  # counts a task once, that of the attempt that was committed
    counted = lines.select(COLUMNS + apart).observe(written, F.count(F.lit(1)).alias("rows"))
    counted.write.parquet(address(folder), partitionBy=apart)
    return rows_of(written)


def rows_of(observed: Observation, seconds: float = PATIENCE_SECONDS) -> int:
    """The number counted as `rows` in an action that is over.

    Spark delivers it by a queue of events that drops some when it is full, so waiting for it might
    never end. Raises `Unavailable` after that many seconds.
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
            hint="Try again. If it goes on, raise spark.scheduler.listenerbus.eventqueue.capacity.",
        ) from None
    if isinstance(found, Exception):
        raise found
    return found


def once(
    lines: DataFrame,
    order: Sequence[Column],
    looked_at: Callable[[DataFrame], DataFrame] = lambda lines: lines,
) -> DataFrame:
    """The first of each record in the given order; the batch is a ULID without its line number.

    `looked_at` gets all lines after they are sorted, and selects those that remain.

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
    """Translates what a job may raise to `Unavailable`."""
    try:
        yield
    except (PySparkException, Py4JError, ConnectionError) as error:  # the last: the JVM is gone
        raise Unavailable(
            f"Spark failed: {reason(error)}", hint="Its own messages stand above this one."
        ) from error


def _gone(spark: SparkSession, deletions: Sequence[Deletion]) -> DataFrame:
    # From Arrow: a list would be unpickled by Python in the executors, which need have none.
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
