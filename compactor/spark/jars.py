"""The jars by which Spark reads and writes S3, some 22 MB, and three ways to get them.

- `compaction.jars` names a folder that holds them: no other place is searched;
- else Spark fetches them at its first start from the Maven repository that it is configured for,
  and keeps them in its own cache;
- `spark-submit` has started its JVM before this program runs, so its own flags must name
  them: `--properties-file deploy/spark/s3.conf`, or `--jars`.

`python -m compactor.spark.jars FOLDER` fills such a folder, for images and for machines that reach
no repository. `requirements/jars.sha256` has the checksums of the tested jars.

Hadoop's connector requires the AWS SDK as one bundle of 640 MB, and Spark's cloud module
the connectors of other clouds. Both are left out, and so is Hadoop's client, which Spark has. The
parts of the SDK that S3 needs are named instead.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from typing import Any, Final

from logstore.errors import InvalidInput, Unavailable

_SDK: Final = "2.29.52"
PACKAGES: Final = (
    "org.apache.spark:spark-hadoop-cloud_2.13:4.1.1",
    f"software.amazon.awssdk:s3:{_SDK}",
    f"software.amazon.awssdk:s3-transfer-manager:{_SDK}",
    f"software.amazon.awssdk:sts:{_SDK}",
)
LEFT_OUT: Final = (
    "software.amazon.awssdk:bundle",
    "com.google.cloud.bigdataoss:gcs-connector",
    "org.apache.hadoop:hadoop-azure",
    "org.apache.hadoop:hadoop-azure-datalake",
    "org.apache.hadoop:hadoop-cloud-storage",
    "org.apache.hadoop:hadoop-huaweicloud",
    "org.apache.hadoop:hadoop-client-api",
    "org.apache.hadoop:hadoop-client-runtime",
)
SUBMIT: Final = "spark-submit --properties-file deploy/spark/s3.conf compactor/job.py"


def jars_conf(folder: str) -> dict[str, str]:
    """The launcher's configuration: the jars of `folder`, or what to fetch if it is empty.

    Raises `InvalidInput` if the folder holds no jars.
    """
    if not folder:
        return {
            "spark.jars.packages": ",".join(PACKAGES),
            "spark.jars.excludes": ",".join(LEFT_OUT),
        }
    try:
        names = sorted(name for name in os.listdir(folder) if name.endswith(".jar"))
    except OSError as error:
        raise InvalidInput(f"the folder of jars cannot be read: {error}") from error
    if not names:
        raise InvalidInput(
            f"{folder} holds no jars", hint=f"Fill it: python -m compactor.spark.jars {folder}"
        )
    return {"spark.jars": ",".join(os.path.join(os.path.abspath(folder), n) for n in names)}


def fetch(folder: str) -> int:
    """Fills the folder, made if need be, and gives the number of jars. Raises `Unavailable`."""
    from pyspark import SparkConf
    from pyspark.errors import PySparkRuntimeError
    from pyspark.java_gateway import launch_gateway

    launch: Any = launch_gateway  # it has no types
    os.makedirs(folder, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        conf = SparkConf(loadDefaults=False).set("spark.jars.ivy", scratch)
        try:  # its launcher fetches them before the JVM stands; the JVM itself is not needed
            gateway = launch(conf.setAll(list(jars_conf("").items())))
        except PySparkRuntimeError as error:
            raise Unavailable(f"the jars cannot be fetched: {error}") from error
        gateway.shutdown()
        gateway.proc.stdin.close()
        gateway.proc.wait()
        found = os.listdir(os.path.join(scratch, "jars"))
        for name in found:
            shutil.move(os.path.join(scratch, "jars", name), os.path.join(folder, name))
    return len(found)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python -m compactor.spark.jars FOLDER")
    sys.stdout.write(f"{fetch(sys.argv[1])} jars in {sys.argv[1]}\n")
