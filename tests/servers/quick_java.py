"""JVMs that live for a test: Java is told not to compile well what runs for seconds.

Of the CPU time of a Spark that starts and makes small jobs, more than a third is the second
compiler's, which pays where the same code runs for minutes. What Spark does is the same. Said by
variables of spark-submit, so that no word of Java's about it is on anybody's standard error.
"""

from __future__ import annotations

from typing import Final

_OPTIONS: Final = "-XX:TieredStopAtLevel=1"
# Spark, pyspark's or spark-submit's; the program that makes their command line.
QUICK: Final = {"SPARK_SUBMIT_OPTS": _OPTIONS, "SPARK_LAUNCHER_OPTS": _OPTIONS}
