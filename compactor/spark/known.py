"""Files whose place and size are known, given to Spark so that it asks the store for neither.

By itself Spark looks for each path (HEAD), lists it (LIST, HEAD), one after the other in the
driver, before a task reads a byte. The store's listing has said it all by then. So Spark's own
index of files is made of what is known, by the cache that it takes listings from. What is gone
meanwhile fails in its task, as what goes between Spark's listing and its reading does.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession

_BLOCK_BYTES: Final = 128 << 20  # of no meaning to S3; Spark cuts by `maxPartitionBytes`


def read_known(spark: SparkSession, sizes: Mapping[str, int], schema: str) -> DataFrame:
    """The rows of Parquet files, bytes by address as Spark names it; there is at least one."""
    jvm: Any = spark._jvm
    gateway: Any = spark.sparkContext._gateway
    session = spark._jsparkSession
    hadoop, sources = jvm.org.apache.hadoop.fs, jvm.org.apache.spark.sql.execution.datasources
    none = getattr(getattr(jvm.scala, "None$"), "MODULE$")
    empty = jvm.PythonUtils.toScalaMap({})
    types = jvm.org.apache.spark.sql.types.StructType
    rows = types.fromDDL(schema)
    cache, paths = sources.FileStatusCache.getOrCreate(session), []
    system = hadoop.Path(next(iter(sizes))).getFileSystem(session.sessionState().newHadoopConf())
    for address, size in sizes.items():
        path = system.makeQualified(hadoop.Path(address))
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
