"""The settings of a store on S3: its server, the credentials, and how its objects are stored.

They are one section of `StoreSettings`, so the service and the compactor read the same.
Secrets are `SecretStr`: they are in no repr, no error and no log.
"""

from __future__ import annotations

from typing import Final, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, SecretStr, field_validator, model_validator

from tailrace.logstore.settings import MIB, Bytes

# Their objects are copied out for hours before they can be read.
_ARCHIVED: Final = frozenset({"GLACIER", "DEEP_ARCHIVE"})


class S3Settings(BaseModel):
    """Nothing of it matters to a store in a folder."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    endpoint_url: str = Field(
        default="",
        pattern=r"^(https?://[^/?#]+/?)?$",
        description="Address of an S3-compatible server such as MinIO; empty: AWS",
    )
    region: str = Field(
        default="",
        pattern=r"^[A-Za-z0-9-]*$",
        description="Region of the bucket; empty: from the environment, else `us-east-1`",
    )
    addressing: Literal["auto", "path", "virtual"] = Field(
        default="auto",
        description="Where requests name the bucket: in the path or the host; `auto`: the path "
        "with `s3.endpoint_url`",
    )
    access_key_id: str = Field(
        default="",
        description="Access key; empty: from the profile, the environment or the machine's role",
    )
    secret_access_key: SecretStr = Field(
        default=SecretStr(""), description="Secret of the access key"
    )
    session_token: SecretStr = Field(
        default=SecretStr(""), description="Token of a temporary access key"
    )
    profile: str = Field(default="", description="Profile of the AWS configuration files")
    role_arn: str = Field(
        default="", description="Role to assume with these credentials; it is renewed in time"
    )
    role_session_name: str = Field(
        default="tailrace", pattern=r"^[\w+=,.@-]{2,64}$", description="Name of the role's session"
    )
    role_external_id: str = Field(default="", description="External id that the role requires")
    role_source_identity: str = Field(default="", description="Source identity the role records")
    sts_endpoint_url: str = Field(
        default="",
        pattern=r"^(https?://[^/?#]+/?)?$",
        description="Where roles are assumed; empty: `s3.endpoint_url`, or AWS",
    )
    encryption: Literal["", "AES256", "aws:kms"] = Field(
        default="",
        description=(
            "Encryption of every object; empty: the bucket's default (AWS encrypts with AES256). "
            "With OpenMetadata's section the default is AES256"
        ),
    )
    kms_key_id: str = Field(
        default="", description="Key of `aws:kms`; empty: the account's key for S3"
    )
    storage_class: str = Field(
        default="",
        pattern=r"^[A-Z_]*$",
        description=(
            "Storage class of `logs.txt`, and of table files after the rewrite of their hour; "
            "empty: STANDARD_IA on AWS, STANDARD with `s3.endpoint_url`."
            " GLACIER and DEEP_ARCHIVE are refused, because their objects cannot be read directly"
        ),
    )
    connect_timeout_seconds: float = Field(
        default=5, gt=0, description="Timeout of a connection attempt"
    )
    read_timeout_seconds: float = Field(
        default=60, gt=0, description="An attempt fails after this long without an answer"
    )
    attempts: int = Field(default=4, ge=1, le=20, description="Attempts of one request")
    backoff_milliseconds: int = Field(
        default=100,
        ge=1,
        description="Pause before the second attempt; doubled for each further one up to 5 s, "
        "with jitter",
    )
    max_connections: int = Field(
        default=64, ge=1, le=4096, description="Concurrent connections to the server"
    )
    multipart_bytes: Bytes = Field(
        default=64 * MIB, ge=5 * MIB, le=5 << 30, description="Larger objects are uploaded in parts"
    )

    @field_validator("storage_class")
    @classmethod
    def _can_be_read(cls, value: str) -> str:
        if value in _ARCHIVED:
            raise ValueError(
                "archived objects cannot be read directly; use GLACIER_IR or STANDARD_IA"
            )
        return value

    @model_validator(mode="after")
    def _goes_together(self) -> Self:
        secret, token = self.secret_access_key, self.session_token
        if bool(self.access_key_id) != bool(secret.get_secret_value()):
            raise ValueError("s3.access_key_id and s3.secret_access_key go together")
        if token.get_secret_value() and not self.access_key_id:
            raise ValueError("s3.session_token needs s3.access_key_id")
        if self.profile and self.access_key_id:
            raise ValueError("s3.profile and s3.access_key_id are alternatives; set one of them")
        if not self.role_arn and (self.role_external_id or self.role_source_identity):
            raise ValueError("s3.role_external_id and s3.role_source_identity need s3.role_arn")
        if self.kms_key_id and self.encryption != "aws:kms":
            raise ValueError("s3.kms_key_id needs s3.encryption aws:kms")
        return self

    @property
    def path_style(self) -> bool:
        """Whether the bucket is in the path of an address and not in its host."""
        return self.addressing == "path" or (self.addressing == "auto" and bool(self.endpoint_url))

    @property
    def large_class(self) -> str:
        """The storage class of `logs.txt` and of rewritten table files, spelled out."""
        return self.storage_class or ("STANDARD" if self.endpoint_url else "STANDARD_IA")
