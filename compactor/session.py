"""The Spark session: started at the first need, so that an idle pass costs no JVM.

What correctness needs is set here whatever the command line says. The rest are defaults
that `spark-submit --conf` overrides.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

from logstore.errors import Unavailable

if TYPE_CHECKING:  # importing pyspark takes longer than finding out that nothing is to do
    from pyspark import SparkConf
    from pyspark.sql import SparkSession

_NO_JAVA: Final = "Compaction needs Java 17 or newer, found by JAVA_HOME or PATH."
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
    """One Spark session that can be stopped and started again."""

    def __init__(self, driver_memory: str) -> None:
        self._driver_memory = driver_memory
        self._spark: SparkSession | None = None

    @property
    def running(self) -> bool:
        """Whether there is a JVM to stop."""
        return self._spark is not None

    def get(self) -> SparkSession:
        """The session, started if need be. Raises `Unavailable` where Spark cannot run."""
        if self._spark is None:
            self._spark = _start(self._driver_memory)
        return self._spark

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


def _start(driver_memory: str) -> SparkSession:
    try:
        from pyspark.errors import PySparkRuntimeError
        from pyspark.sql import SparkSession
    except ImportError as error:
        raise Unavailable(f"Spark does not start: {error}", hint=_NO_PYSPARK) from error
    try:
        spark = SparkSession.builder.config(conf=_conf(driver_memory)).getOrCreate()
    except PySparkRuntimeError as error:
        raise Unavailable(f"Spark does not start: {error}", hint=_NO_JAVA) from error
    spark.sparkContext.setLogLevel("WARN")
    return spark


def _conf(driver_memory: str) -> SparkConf:
    from pyspark import SparkConf, SparkContext

    if _submitted():
        # Connects to spark-submit's JVM, so that SparkConf sees what its flags said.
        SparkContext._ensure_initialized()
    conf = SparkConf()
    for name, value in _DEFAULTS.items():
        conf.setIfMissing(name, value)
    if not _submitted():
        conf.setIfMissing("spark.driver.memory", driver_memory)
    return conf.setAll(list(_NEEDED.items()))
