"""A session's JVM: whether it can still work, and ending it, also where it is dead.

A JVM is killed for its memory, and a cluster may end an application. Whoever stays starts
another one then, and pyspark has to forget the one that is gone.
"""

from __future__ import annotations

from contextlib import suppress

from py4j.protocol import Py4JError
from pyspark import SparkContext
from pyspark.sql import SparkSession

from compactor.spark.conf import submitted


def lives(spark: SparkSession) -> bool:
    """Whether its JVM answers, and Spark itself has not ended it."""
    try:
        return not spark.sparkContext._jsc.sc().isStopped()
    except (Py4JError, ConnectionError):
        return False


def end(spark: SparkSession) -> None:
    """Ends the session and, where this process started it, its JVM."""
    with suppress(Py4JError, ConnectionError):
        if lives(spark):
            spark.stop()
    spark.sparkContext._jsc = None  # else a dead one is asked
    spark.sparkContext.stop()
    end_jvm()


def end_jvm() -> None:
    """Ends the JVM that this process started, if there is one; Spark's stop leaves it running.

    Its memory is what an idle compactor gives back.
    """
    gateway = SparkContext._gateway
    if gateway is None or submitted():
        return
    with suppress(Py4JError, OSError):
        gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait()
    SparkContext._gateway = SparkContext._jvm = None


def end_dead_jvm() -> None:
    """Forgets the JVM if it does not answer any more, so that the next start is of another one."""
    gateway = SparkContext._gateway
    if gateway is None:
        return
    try:
        gateway.jvm.java.lang.System.nanoTime()
    except (Py4JError, ConnectionError):
        end_jvm()
