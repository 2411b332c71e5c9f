"""The Spark job: whether files have a batch of lines in common, read from their keys alone."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name that Spark's users know

from compactor.spark.lines import BATCH_CHARACTERS, failing, read


def share_batches(spark: SparkSession, some: Sequence[str], others: Sequence[str]) -> bool:
    """Whether a batch of a run has lines in `some` and in `others`, addresses of table files.

    Raises `Unavailable` when Spark fails.
    """
    with failing():
        mine, theirs = _batches(spark, some), _batches(spark, others)
        return not mine.join(theirs, ["fqn", "run_id", "batch"], "left_semi").isEmpty()


def _batches(spark: SparkSession, files: Sequence[str]) -> DataFrame:
    batch = F.substring("ulid", 1, BATCH_CHARACTERS).alias("batch")
    return read(spark, files).select("fqn", "run_id", batch).distinct()
