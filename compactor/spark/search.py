"""Which of many ranges a line is in, found by halving, in Spark's own expressions.

Each step is a column of its own, which Spark computes once. One expression of all of them would
be a tree with as many leaves as ranges, too large a method for Java to compile.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the name that Spark's users know

from compactor.spark.lines import BUCKET


def bucketed(lines: DataFrame, key: Column, begins: Column, number: int) -> DataFrame:
    """With the index, in `BUCKET`, of the last range that begins at or below the key.

    `begins` is an array of `number` such keys, rising; the first is not looked at, since all
    lines are in some range.
    """
    found = lines.withColumn(BUCKET, F.lit(0))
    for bit in reversed(range((number - 1).bit_length())):
        higher = F.col(BUCKET) + (1 << bit)
        is_there = key >= F.get(begins, higher)  # null beyond the last
        found = found.withColumn(BUCKET, F.when(is_there, higher).otherwise(F.col(BUCKET)))
    return found
