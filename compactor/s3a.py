"""S3 as Spark knows it: `s3a://` addresses and the settings of Hadoop's connector.

Files come to be by the magic committer: a task uploads its file in parts and leaves the
upload open, the driver completes it when the job is done. Nothing is renamed, which on S3
would be a copy through nobody's memory but everybody's time, and a file is there whole or
not at all. What a killed job leaves is uploads that nobody completes; the clean-up aborts them.

Secrets never go into Spark's own configuration: its launcher puts that on a command line,
where every user of the machine reads it. They are set in the running session.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from compactor.jars import jars_conf
from logstore.errors import InvalidInput
from logstore.objects.s3_credentials import Credentials
from logstore.objects.s3_settings import S3Settings

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
}
_ENCRYPTION: Final = {"AES256": "AES256", "aws:kms": "SSE-KMS"}


def address(uri: str) -> str:
    """The place as Spark names it: `s3a://` for `s3://`; a path stays as it is."""
    return f"s3a{uri[2:]}" if uri.startswith("s3://") else uri


@dataclass(frozen=True, slots=True)
class S3A:
    """What Spark must be told of a store on S3; `jars` is a folder, or empty: they are fetched."""

    settings: S3Settings
    jars: str = ""

    def needed(self) -> dict[str, str]:
        """Spark's configuration, without secrets. Raises `InvalidInput`."""
        settings = self.settings
        wanted = {
            "fs.s3a.endpoint": settings.endpoint_url.rstrip("/"),
            "fs.s3a.endpoint.region": Credentials(settings).region,
            "fs.s3a.path.style.access": str(settings.path_style).lower(),
            "fs.s3a.connection.establish.timeout": f"{settings.connect_timeout_seconds:g}s",
            "fs.s3a.connection.timeout": f"{settings.read_timeout_seconds:g}s",
            "fs.s3a.attempts.maximum": str(settings.attempts),
            "fs.s3a.encryption.algorithm": _ENCRYPTION.get(settings.encryption, ""),
            "fs.s3a.encryption.key": settings.kms_key_id,
            "fs.s3a.auth.profile.name": settings.profile,
        }
        found = {f"{_HADOOP}{name}": value for name, value in (wanted | self._who()).items()}
        return _COMMITTER | {name: value for name, value in found.items() if value}

    def launch(self) -> dict[str, str]:
        """Where the launcher finds the jars. Raises `InvalidInput`."""
        return jars_conf(self.jars)

    def secrets(self) -> dict[str, str]:
        """For the Hadoop configuration of the running session."""
        settings = self.settings
        return {
            "fs.s3a.access.key": settings.access_key_id,
            "fs.s3a.secret.key": settings.secret_access_key.get_secret_value(),
            "fs.s3a.session.token": settings.session_token.get_secret_value(),
        }

    def _who(self) -> dict[str, str]:
        settings = self.settings
        if not settings.role_arn:
            return {"fs.s3a.aws.credentials.provider": self._provider()}
        if settings.role_source_identity:
            raise InvalidInput(
                "Spark's connector cannot give a source identity when it assumes a role",
                field="s3.role_source_identity",
                hint="Assume the role outside, and give the compactor a profile or a key of it.",
            )
        sts = settings.sts_endpoint_url or settings.endpoint_url
        return {
            "fs.s3a.aws.credentials.provider": f"{_PROVIDERS}auth.AssumedRoleCredentialProvider",
            "fs.s3a.assumed.role.credentials.provider": self._provider(),
            "fs.s3a.assumed.role.arn": settings.role_arn,
            "fs.s3a.assumed.role.session.name": settings.role_session_name,
            "fs.s3a.assumed.role.external.id": settings.role_external_id,
            "fs.s3a.assumed.role.sts.endpoint": sts.rstrip("/"),
            "fs.s3a.assumed.role.sts.endpoint.region": Credentials(settings).region,
        }

    def _provider(self) -> str:
        if self.settings.session_token.get_secret_value():
            return f"{_PROVIDERS}TemporaryAWSCredentialsProvider"
        if self.settings.access_key_id:
            return f"{_PROVIDERS}SimpleAWSCredentialsProvider"
        return (
            f"{_PROVIDERS}auth.ProfileAWSCredentialsProvider" if self.settings.profile else _CHAIN
        )
