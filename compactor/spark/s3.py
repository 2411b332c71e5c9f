"""S3 for Spark: `s3a://` addresses, the settings of Hadoop's connector, and its jars.

**Connector.** Files are made by the magic committer: a task uploads its file in parts and leaves
the upload open, and the driver completes it when the job is done. Nothing is renamed, since on S3
that would be a slow copy, and a file exists whole or not at all. A killed job leaves uploads that
no process completes; the clean-up aborts them.

The connector renews an assumed role at AWS. If our jars lack its code for that (a private server
that issues roles), or that code cannot do what is required (a source identity), the keys are taken
from botocore, and Spark restarts once they were renewed.

Secrets never go into Spark's own configuration: its launcher puts that on a command line, where
every user of the machine can read it. They are set in the running session.

**Jars.** Spark needs some 22 MB of jars to read and write S3. They come from one of three places:

- `compaction.jars` names a folder that holds them: no other place is searched;
- otherwise Spark fetches them at its first start from the Maven repository that it is configured
  for, and keeps them in its own cache;
- `spark-submit` has started its JVM before this program runs, so its own flags must name them:
  `--properties-file deploy/spark/s3.conf`, or `--jars`.

`python -m compactor.spark.s3 FOLDER` fills such a folder, for images and for machines that reach no
repository. `requirements/jars.sha256` has the checksums of the tested jars. Hadoop's connector
requires the AWS SDK as one bundle of 640 MB, and Spark's cloud module the connectors of other
clouds. Both are left out, and so is Hadoop's client, which Spark has. The parts of the SDK that S3
needs are named instead.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

from tailrace.logstore.errors import InvalidInput, Unavailable
from tailrace.logstore.objects.s3.credentials import Credentials
from tailrace.logstore.objects.s3.settings import S3Settings

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
    """The launcher's configuration: the jars of `folder`, or those to fetch if it is empty.

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
            f"{folder} holds no jars", hint=f"Fill it: python -m compactor.spark.s3 {folder}"
        )
    return {"spark.jars": ",".join(os.path.join(os.path.abspath(folder), n) for n in names)}


def fetch(folder: str) -> int:
    """Fills the folder, made if needed. Returns the number of jars. Raises `Unavailable`."""
    from pyspark import SparkConf
    from pyspark.errors import PySparkRuntimeError
    from pyspark.java_gateway import launch_gateway

    from compactor.spark.jvm import end_gateway

    launch: Any = launch_gateway  # it has no types
    os.makedirs(folder, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        conf = SparkConf(loadDefaults=False).set("spark.jars.ivy", scratch)
        try:  # its launcher fetches them before the JVM runs; the JVM itself is not needed
            gateway = launch(conf.setAll(list(jars_conf("").items())))
        except PySparkRuntimeError as error:
            raise Unavailable(f"the jars cannot be fetched: {error}") from error
        end_gateway(gateway)
        found = os.listdir(os.path.join(scratch, "jars"))
        for name in found:
            shutil.move(os.path.join(scratch, "jars", name), os.path.join(folder, name))
    return len(found)


_HADOOP: Final = "spark.hadoop."
_PROVIDERS: Final = "org.apache.hadoop.fs.s3a."
_CHAIN: Final = "software.amazon.awssdk.auth.credentials.DefaultCredentialsProvider"
FILE_SYSTEM: Final = "org.apache.hadoop.fs.s3a.S3AFileSystem"
COMMITTER: Final = "org.apache.spark.internal.io.cloud.PathOutputCommitProtocol"

_COMMITTER: Final = {
    "spark.sql.sources.commitProtocolClass": COMMITTER,
    "spark.sql.parquet.output.committer.class": (
        "org.apache.spark.internal.io.cloud.BindingParquetOutputCommitter"
    ),
    f"{_HADOOP}mapreduce.outputcommitter.factory.scheme.s3a": (
        "org.apache.hadoop.fs.s3a.commit.S3ACommitterFactory"
    ),
    f"{_HADOOP}fs.s3a.committer.name": "magic",
    # Other drivers write below the same table.
    f"{_HADOOP}fs.s3a.committer.abort.pending.uploads": "false",
    # Only this job uses the folder, and removes it when its files are placed. So Spark need not
    # check its parents, record each upload in its own object, or remove those at the end.
    f"{_HADOOP}fs.s3a.performance.flags": "mkdir",
    f"{_HADOOP}fs.s3a.committer.magic.track.commits.in.memory.enabled": "true",
    f"{_HADOOP}fs.s3a.committer.magic.cleanup.enabled": "false",
}
_SECRETS: Final = ("fs.s3a.access.key", "fs.s3a.secret.key", "fs.s3a.session.token")
_SHORTEST_CONNECT_SECONDS: Final = 15.0  # Hadoop accepts no less, and warns at each start
_ENCRYPTION: Final = {"AES256": "AES256", "aws:kms": "SSE-KMS"}


def address(uri: str) -> str:
    """The address in Spark's form: `s3a://` for `s3://`; a path stays as it is."""
    return f"s3a{uri[2:]}" if uri.startswith("s3://") else uri


@dataclass(frozen=True)
class S3A:
    """Spark's configuration for a store on S3; with an empty `jars` folder, jars are fetched."""

    settings: S3Settings
    jars: str = ""

    @cached_property
    def credentials(self) -> Credentials:
        """The credentials of the store."""
        return Credentials(self.settings)

    @property
    def borrows(self) -> bool:
        """Whether Spark gets keys that expire."""
        settings = self.settings
        elsewhere = settings.sts_endpoint_url or settings.endpoint_url
        return bool(settings.role_arn and (elsewhere or settings.role_source_identity))

    def needed(self) -> dict[str, str]:
        """Spark's configuration, without secrets. Raises `InvalidInput`."""
        settings = self.settings
        connecting = max(settings.connect_timeout_seconds, _SHORTEST_CONNECT_SECONDS)
        wanted = {
            "fs.s3a.endpoint": settings.endpoint_url.rstrip("/"),
            "fs.s3a.endpoint.region": self.credentials.region,
            "fs.s3a.path.style.access": str(settings.path_style).lower(),
            "fs.s3a.connection.establish.timeout": f"{connecting:g}s",
            "fs.s3a.connection.timeout": f"{settings.read_timeout_seconds:g}s",
            "fs.s3a.attempts.maximum": str(settings.attempts),
            "fs.s3a.encryption.algorithm": _ENCRYPTION.get(settings.encryption, ""),
            "fs.s3a.encryption.key": settings.kms_key_id,
            "fs.s3a.auth.profile.name": settings.profile,
        }
        found = {f"{_HADOOP}{name}": value for name, value in (wanted | self._who()).items()}
        return _COMMITTER | {name: value for name, value in found.items() if value}

    def launch(self) -> dict[str, str]:
        """The launcher's configuration for the jars. Raises `InvalidInput`."""
        return jars_conf(self.jars)

    def secrets(self) -> dict[str, str]:
        """Secrets for the Hadoop configuration of the running session.

        Raises `StoreUnavailable`.
        """
        if self.borrows:
            key = self.credentials.frozen()
            found = key.access_key_id, key.secret_access_key, key.session_token
        else:
            settings = self.settings
            secret, token = settings.secret_access_key, settings.session_token
            found = settings.access_key_id, secret.get_secret_value(), token.get_secret_value()
        return dict(zip(_SECRETS, found, strict=True))

    def _who(self) -> dict[str, str]:
        settings = self.settings
        if not settings.role_arn or self.borrows:
            return {"fs.s3a.aws.credentials.provider": self._provider()}
        return {
            "fs.s3a.aws.credentials.provider": f"{_PROVIDERS}auth.AssumedRoleCredentialProvider",
            "fs.s3a.assumed.role.credentials.provider": self._provider(),
            "fs.s3a.assumed.role.arn": settings.role_arn,
            "fs.s3a.assumed.role.session.name": settings.role_session_name,
            "fs.s3a.assumed.role.external.id": settings.role_external_id,
        }

    def _provider(self) -> str:
        if self.borrows or self.settings.session_token.get_secret_value():
            return f"{_PROVIDERS}TemporaryAWSCredentialsProvider"
        if self.settings.access_key_id:
            return f"{_PROVIDERS}SimpleAWSCredentialsProvider"
        return (
            f"{_PROVIDERS}auth.ProfileAWSCredentialsProvider" if self.settings.profile else _CHAIN
        )


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python -m compactor.spark.s3 FOLDER")
    sys.stdout.write(f"{fetch(sys.argv[1])} jars in {sys.argv[1]}\n")
