"""JVMs that live for a test: Java is told not to compile well what runs for seconds.

Of the CPU time of a Spark that starts and makes small jobs, more than a third is the second
compiler's, which pays where the same code runs for minutes. Executors, masters and workers, whose
classes are mostly the driver's, start from the driver's archive of them as well: a pass on two
executors takes a third of the CPU time. What Spark does is the same. Said by variables of
spark-submit, so that no word of Java's about it is on anybody's standard error.
"""

from __future__ import annotations

from typing import Final

from compactor.spark.session import archive_file

_OPTIONS: Final = "-XX:TieredStopAtLevel=1"
QUICK: Final = {
    "SPARK_SUBMIT_OPTS": _OPTIONS,  # Spark, pyspark's or spark-submit's
    "SPARK_LAUNCHER_OPTS": _OPTIONS,  # the program that makes their command line
}


def quick_executors() -> dict[str, str]:
    """Spark's configuration for executors of this machine: no variable reaches them."""
    return {"spark.executor.extraJavaOptions": _with_archive()}


def quick_submit() -> dict[str, str]:
    """Variables for `spark-submit`, whose JVM is the driver's and knows nothing of our archive."""
    return {"SPARK_SUBMIT_OPTS": _with_archive()}


def quick_daemons() -> dict[str, str]:
    """Variables for masters and workers."""
    return {"SPARK_DAEMON_JAVA_OPTS": _with_archive()}


def _with_archive() -> str:
    options = [_OPTIONS, "-XX:+UseSerialGC"]
    archive = archive_file()
    if archive is not None and archive.is_file():
        options += [f'"-XX:SharedArchiveFile={archive}"', "-Xlog:cds*=off"]
    return " ".join(options)
