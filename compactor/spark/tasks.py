"""How far the job under way is, for people who watch."""

from __future__ import annotations

from py4j.protocol import Py4JError
from pyspark.sql import SparkSession


def tasks_of(spark: SparkSession) -> tuple[int, int] | None:
    """Tasks done, and all tasks, of the stages under way; None if there are none, or no Spark."""
    done = known = 0
    try:
        tracker = spark.sparkContext.statusTracker()
        for stage in tracker.getActiveStageIds():
            info = tracker.getStageInfo(stage)
            if info is not None:
                done += info.numCompletedTasks
                known += info.numTasks
    except (Py4JError, OSError):  # it is being stopped: then nothing is under way
        return None
    return (done, known) if known else None
