"""JVMs that live for a test: Java is told not to compile well what runs for seconds.

Of the CPU time of a Spark that starts and makes small jobs, more than a third is the second
compiler's, which pays where the same code runs for minutes. Executors, which read the driver's
classes, start from the driver's archive of them as well: a pass on two takes a third of the CPU
time. What Spark does is the same. Said by variables of spark-submit, so that no word of Java's
about it is on anybody's standard error.
"""

from __future__ import annotations

from typing import Final

from compactor.spark.class_archive import archive_file

_OPTIONS: Final = "-XX:TieredStopAtLevel=1"
QUICK: Final = {
    "SPARK_SUBMIT_OPTS": _OPTIONS,  # Spark, pyspark's or spark-submit's
    "SPARK_LAUNCHER_OPTS": _OPTIONS,  # the program that makes their command line
    "SPARK_DAEMON_JAVA_OPTS": _OPTIONS,  # masters and workers
}


def quick_executors() -> dict[str, str]:
    """Spark's configuration for executors of this machine: no variable reaches them."""
    options = [_OPTIONS, "-XX:+UseSerialGC"]
    archive = archive_file()
    if archive is not None and archive.is_file():
        options += [f'"-XX:SharedArchiveFile={archive}"', "-Xlog:cds*=off"]
    return {"spark.executor.extraJavaOptions": " ".join(options)}
