"""The Spark session: started at the first need, so that an idle pass costs no JVM.

What correctness needs is set here whatever the command line says. The rest are defaults
that `spark-submit --conf` overrides.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from compactor.jars import SUBMIT
from compactor.spark.merge_input import MergeInput
from compactor.spark.s3a import COMMITTER, FILE_SYSTEM, S3A
from logstore.errors import Unavailable

if TYPE_CHECKING:  # importing pyspark takes longer than finding out that nothing is to do
    from pyspark import SparkConf
    from pyspark.sql import SparkSession

_NO_JAVA: Final = "Compaction needs Java 17 or newer, found by JAVA_HOME or PATH."
_NO_JARS: Final = (
    "Compaction on S3 needs Java 17 or newer, and jars that Spark fetches at its first start;"
    " its own messages stand above this one. `python -m compactor.jars FOLDER` fetches them"
    " once, for `compaction.jars`."
)
_NO_PYSPARK: Final = "Install pyspark 4.1.1 beside this program."

# Hours are UTC, times are microseconds (Spark's own default, INT96, is read by few), and
# a conversion that fails is an error, not a null.
_NEEDED: Final = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.parquet.compression.codec": "zstd",
    "spark.sql.ansi.enabled": "true",
    # One file per bucket: coalescing would put two hours into one file.
    "spark.sql.adaptive.coalescePartitions.enabled": "false",
    # It would look for a name with brackets as it stands and warn at length.
    "spark.sql.streaming.fileStreamSink.ignoreMetadata": "true",
    "spark.sql.files.ignoreCorruptFiles": "false",
    "spark.sql.files.ignoreMissingFiles": "false",
    "spark.hadoop.mapreduce.fileoutputcommitter.marksuccessfuljobs": "false",
}
_DEFAULTS: Final = {
    "spark.app.name": "tailrace-compactor",
    "spark.master": "local[*]",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.adaptive.enabled": "true",
    "spark.driver.extraJavaOptions": "-XX:+UseParallelGC",
    "spark.sql.sources.parallelPartitionDiscovery.threshold": "10000",
    # Rows of a batch and its copies that a window holds before it goes by way of a sorter.
    "spark.sql.windowExec.buffer.in.memory.threshold": "65536",
    # A dictionary of messages or ULIDs never pays; level 1 is as small on sorted logs.
    "spark.hadoop.parquet.compression.codec.zstd.level": "1",
    "spark.hadoop.parquet.enable.dictionary#message": "false",
    "spark.hadoop.parquet.enable.dictionary#ulid": "false",
}


class Session:
    """One Spark session that can be stopped and started again: the `Engine` that ships."""

    def __init__(self, driver_memory: str, s3a: S3A | None = None) -> None:
        self._driver_memory = driver_memory
        self._s3a = s3a
        self._spark: SparkSession | None = None
        self._secrets: dict[str, str] = {}

    @property
    def running(self) -> bool:
        """Whether there is a JVM to stop."""
        return self._spark is not None

    def get(self) -> SparkSession:
        """The session, started if need be. Raises `Unavailable` where Spark cannot run."""
        secrets = self._s3a.secrets() if self._s3a else {}
        if secrets != self._secrets:  # the first time, or the keys of a role were renewed
            self.stop()
        if self._spark is None:
            self._spark = _start(self._driver_memory, self._s3a, secrets)
            self._secrets = secrets
        return self._spark

    def cores(self) -> int:
        """As `Engine.cores`."""
        return int(self.get().sparkContext.defaultParallelism)

    def merge(self, work: MergeInput, folder: str) -> int:
        """As `Engine.merge`."""
        spark = self.get()
        from compactor.spark.merge import merge  # imports pyspark, which is there by now

        return merge(spark, work, folder)

    def stop(self) -> None:
        """Ends the session and, where this process started it, its JVM."""
        if self._spark is None:
            return
        from pyspark import SparkContext

        self._spark.stop()
        self._spark = None
        gateway = SparkContext._gateway
        if gateway is not None and not _submitted():
            # stop() leaves the JVM running, and its memory is what an idle compactor gives back.
            gateway.shutdown()
            gateway.proc.stdin.close()
            gateway.proc.wait()
            SparkContext._gateway = SparkContext._jvm = None


def _submitted() -> bool:
    """Whether spark-submit started this process, beside a JVM of its own."""
    return "PYSPARK_GATEWAY_PORT" in os.environ


def _start(driver_memory: str, s3a: S3A | None, secrets: Mapping[str, str]) -> SparkSession:
    try:
        from pyspark.errors import PySparkRuntimeError
        from pyspark.sql import SparkSession
    except ImportError as error:
        raise Unavailable(f"Spark does not start: {error}", hint=_NO_PYSPARK) from error
    try:
        conf = _conf(driver_memory, s3a)
        spark = SparkSession.builder.config(conf=conf).getOrCreate()
    except PySparkRuntimeError as error:
        hint = _NO_JAVA if s3a is None else _NO_JARS
        raise Unavailable(f"Spark does not start: {error}", hint=hint) from error
    spark.sparkContext.setLogLevel("WARN")
    if s3a is not None:
        _tell_s3(spark, secrets)
    return spark


def _conf(driver_memory: str, s3a: S3A | None) -> SparkConf:
    from pyspark import SparkConf, SparkContext

    if _submitted():
        # Connects to spark-submit's JVM, so that SparkConf sees what its flags said.
        SparkContext._ensure_initialized()
    conf = SparkConf()
    for name, value in _DEFAULTS.items():
        conf.setIfMissing(name, value)
    needed = _NEEDED | (s3a.needed() if s3a else {})
    if not _submitted():
        conf.setIfMissing("spark.driver.memory", driver_memory)
        needed |= s3a.launch() if s3a else {}
    return conf.setAll(list(needed.items()))


def _tell_s3(spark: SparkSession, secrets: Mapping[str, str]) -> None:
    """Gives the session its secrets, once its classes are found to be there."""
    jvm: Any = spark.sparkContext._jvm
    loader = jvm.java.lang.Thread.currentThread().getContextClassLoader()
    for name in (FILE_SYSTEM, COMMITTER):
        # Asked as a file: pyspark recurses without end over a class that is not found.
        if loader.getResource(name.replace(".", "/") + ".class") is None:
            spark.stop()
            raise Unavailable(
                f"this Spark has no {name}, and cannot read S3 without it",
                hint=f"Let spark-submit fetch what is missing: {SUBMIT}",
            )
    jvm.org.apache.hadoop.fs.FileSystem.closeAll()  # a JVM of spark-submit may know older keys
    hadoop: Any = spark.sparkContext._jsc.hadoopConfiguration()
    for name, value in secrets.items():
        hadoop.set(name, value)
