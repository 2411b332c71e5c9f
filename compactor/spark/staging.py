"""A folder that executors write to must be the driver's own, and what they wrote be there.

Executors on other machines, or on mounts that are behind, may write where the driver does not
look. So a small job is tried when Spark starts, for a clear word at once. After each job the
rows that the tasks say they wrote are compared with those found (`compactor/commit/counted.py`).
"""

from __future__ import annotations

import os
import shutil
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from logstore.errors import Unavailable

_TRIES: Final = 4  # tasks for each core, so that each executor has one
_HINT: Final = (
    "Mount the store's folder at the same path on the driver's machine and those of all"
    " executors, or keep the store on S3."
)


def try_folder(spark: SparkSession, folder: str) -> None:
    """Has executors write below `folder`, made if need be, and looks. Raises `Unavailable`."""
    tasks = int(spark.sparkContext.defaultParallelism) * _TRIES
    place = os.path.join(folder, f"try-{spark.sparkContext.applicationId}")
    try:
        os.makedirs(folder, exist_ok=True)
        spark.range(0, tasks, 1, tasks).write.parquet(place)
        check_rows(place, tasks)
    except (PySparkException, Py4JError, OSError) as error:
        raise Unavailable(f"executors cannot write to {folder}", hint=_HINT) from error
    finally:
        shutil.rmtree(place, ignore_errors=True)


def check_rows(folder: str, written: int) -> None:
    """Raises `Unavailable` unless the Parquet files in `folder` hold `written` rows."""
    found = 0
    try:
        for inner, _, names in os.walk(folder):
            for name in names:
                if name.startswith("part-"):
                    found += pq.read_metadata(os.path.join(inner, name)).num_rows
    except (OSError, pa.ArrowInvalid) as error:
        raise Unavailable(f"what executors wrote cannot be read: {error}", hint=_HINT) from error
    if found != written:
        raise Unavailable(
            f"executors wrote {written} rows, and {found} of them are in {folder}", hint=_HINT
        )
