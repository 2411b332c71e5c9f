"""JVMs that live for a test: Java is told not to compile well what runs for seconds.

Of the CPU time of a Spark that starts and makes small jobs, more than a third is the second
compiler's, which pays where the same code runs for minutes. What Spark does is the same. Variables
of spark-submit set it, so that Java writes nothing about it to standard error.
"""

from __future__ import annotations

from typing import Final

_OPTIONS: Final = "-XX:TieredStopAtLevel=1"
_JVM: Final = f"{_OPTIONS} -XX:+UseSerialGC"
QUICK: Final = {
    "SPARK_SUBMIT_OPTS": _OPTIONS,  # Spark, pyspark's or spark-submit's
    "SPARK_LAUNCHER_OPTS": _OPTIONS,  # the program that makes their command line
}


def quick_executors() -> dict[str, str]:
    """Spark's configuration for executors of this machine: no variable reaches them."""
    return {"spark.executor.extraJavaOptions": _JVM}


def quick_submit() -> dict[str, str]:
    """Variables for `spark-submit`, whose JVM is the driver's."""
    return {"SPARK_SUBMIT_OPTS": _JVM}


def quick_daemons() -> dict[str, str]:
    """Variables for masters and workers."""
    return {"SPARK_DAEMON_JAVA_OPTS": _JVM}
