"""OpenMetadata's section where its server's YAML nests it, with its variables.

`SECTION` has the keys, variables and defaults of `conf/openmetadata.yaml` (release 1.12),
`EXAMPLE` those of `conf/openmetadata-s3-logs.yaml`.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from compactor.settings import load_settings as load_compactor
from service.settings import Settings, load_settings
from tailrace.logstore.errors import InvalidInput

SECTION = """
pipelineServiceClientConfiguration:
  enabled: ${PIPELINE_SERVICE_CLIENT_ENABLED:-true}
  className: ${PIPELINE_SERVICE_CLIENT_CLASS_NAME:-"org.openmetadata.service.clients.NoopClient"}
  hostIp: ${PIPELINE_SERVICE_CLIENT_HOST_IP:-""}
  logStorageConfiguration:
    type: ${PIPELINE_SERVICE_CLIENT_LOG_TYPE:-"default"} # Possible values are "default", "s3"
    enabled: ${PIPELINE_SERVICE_CLIENT_LOG_ENABLED:-false}
    bucketName: ${PIPELINE_SERVICE_CLIENT_LOG_BUCKET_NAME:-""}
    prefix: ${PIPELINE_SERVICE_CLIENT_LOG_PREFIX:-""}
    enableServerSideEncryption: ${PIPELINE_SERVICE_CLIENT_LOG_SSE_ENABLED:-false}
    sseAlgorithm: ${PIPELINE_SERVICE_CLIENT_LOG_SSE_ALGORITHM:-"AES256"} # "AES256" or "aws:kms"
    kmsKeyId: ${PIPELINE_SERVICE_CLIENT_LOG_KMS_KEY_ID:-""}
    awsConfig:
      enabled: ${PIPELINE_SERVICE_CLIENT_AWS_IAM_AUTH_ENABLED:-false}
      awsAccessKeyId: ${PIPELINE_SERVICE_CLIENT_LOG_AWS_ACCESS_KEY_ID:-""}
      awsSecretAccessKey: ${PIPELINE_SERVICE_CLIENT_LOG_AWS_SECRET_ACCESS_KEY:-""}
      awsRegion: ${PIPELINE_SERVICE_CLIENT_LOG_REGION:-""}
      awsSessionToken: ${PIPELINE_SERVICE_CLIENT_LOG_AWS_SESSION_TOKEN:-""}
      endPointURL: ${PIPELINE_SERVICE_CLIENT_LOG_AWS_ENDPOINT_URL:-""}
  parameters:
    username: ${AIRFLOW_USERNAME:-admin}
    runAsUser: ${K8S_RUN_AS_USER:-1000}
    extraEnvVars: ${K8S_EXTRA_ENV_VARS:-[]}
"""
EXAMPLE = """
pipelineServiceClientConfiguration:
  logStorageConfiguration:
    type: ${LOG_STORAGE_TYPE:-s3}
    bucketName: ${LOG_STORAGE_S3_BUCKET:-pipeline-logs}
    region: ${LOG_STORAGE_S3_REGION:-us-east-1}
    prefix: ${LOG_STORAGE_S3_PREFIX:-pipeline-logs}
    enableServerSideEncryption: ${LOG_STORAGE_S3_SSE_ENABLED:-true}
    storageClass: ${LOG_STORAGE_S3_STORAGE_CLASS:-STANDARD_IA}
    expirationDays: ${LOG_STORAGE_S3_EXPIRATION_DAYS:-30}
    awsConfig:
      awsAccessKeyId: ${AWS_ACCESS_KEY_ID:-}
      awsSecretAccessKey: ${AWS_SECRET_ACCESS_KEY:-}
"""
OTHERS = """
clusterName: ${OPENMETADATA_CLUSTER_NAME:-openmetadata}
server:
  rootPath: '/api/*'
  applicationConnectors:
    - type: http
      bindHost: ${SERVER_HOST:-0.0.0.0}
      port: ${SERVER_PORT:-8585}
database:
  driverClass: ${DB_DRIVER_CLASS:-com.mysql.cj.jdbc.Driver}
  url: jdbc:${DB_SCHEME:-mysql}://${DB_HOST:-localhost}/${OM_DATABASE:-openmetadata_db}
migrationConfiguration:
  nativePath: "./bootstrap/sql/migrations/native"
authorizerConfiguration:
  adminPrincipals: ${AUTHORIZER_ADMIN_PRINCIPALS:-[admin]}
  allowedEmailRegistrationDomains: ${AUTHORIZER_ALLOWED_REGISTRATION_DOMAIN:-["all"]}
elasticsearch:
  searchType: ${SEARCH_TYPE:- "elasticsearch"}
"""
NAME = "pipelineServiceClientConfiguration.logStorageConfiguration"
S3 = {
    "TYPE": "s3",
    "BUCKET_NAME": "2024",
    "PREFIX": "om-logs/",
    "SSE_ENABLED": "TRUE",
    "SSE_ALGORITHM": "aws:kms",
    "KMS_KEY_ID": "0123",
    "AWS_ACCESS_KEY_ID": "0017",
    "AWS_SECRET_ACCESS_KEY": "1_000",
    "REGION": "eu-west-1",
    "AWS_ENDPOINT_URL": "http://minio:9000",
}


@pytest.fixture(autouse=True)
def empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def _loaded(text: str) -> tuple[Settings, list[str]]:
    Path("tailrace.yaml").write_text(text)
    return load_settings()


def _say(monkeypatch: pytest.MonkeyPatch, values: dict[str, str]) -> None:
    for name, value in values.items():
        monkeypatch.setenv(f"PIPELINE_SERVICE_CLIENT_LOG_{name}", value)


def test_its_defaults_leave_ours() -> None:
    settings, warnings = _loaded(SECTION)
    assert settings.model_dump() == Settings().model_dump()
    parent = "pipelineServiceClientConfiguration"
    others = ", ".join(f"{parent}.{key}" for key in ("enabled", "className", "parameters"))
    on_s3 = ", ".join(
        f"{NAME}.{key}" for key in ("enableServerSideEncryption", "sseAlgorithm", "awsConfig")
    )
    a_folder = "the store is a folder, with `type: s3` it would be a bucket"
    assert warnings == [
        f"{others} are ignored: only {NAME} has a meaning here",
        f"{NAME}.enabled is ignored: this service keeps every log that it is sent",
        f"{on_s3} are ignored: {a_folder}",
    ]


def test_its_variables_are_read_as_text(monkeypatch: pytest.MonkeyPatch) -> None:
    _say(monkeypatch, S3)
    settings, _ = _loaded(SECTION)
    s3 = settings.s3
    assert settings.bucket == ("2024", "")
    assert settings.runs.prefix == "om-logs"
    assert (s3.encryption, s3.kms_key_id, s3.region) == ("aws:kms", "0123", "eu-west-1")
    assert (s3.access_key_id, s3.secret_access_key.get_secret_value()) == ("0017", "1_000")
    assert s3.endpoint_url.rstrip("/") == "http://minio:9000"
    assert s3.session_token.get_secret_value() == ""
    assert load_compactor({}, None).s3 == s3


def test_a_variable_that_is_set_to_nothing_is_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    _say(monkeypatch, {"TYPE": "", "SSE_ALGORITHM": ""})
    settings, warnings = _loaded(SECTION)
    assert settings.model_dump() == Settings().model_dump()
    assert "sseAlgorithm" not in warnings[-1]


def test_its_example_for_s3(monkeypatch: pytest.MonkeyPatch) -> None:
    settings, warnings = _loaded(EXAMPLE)
    assert settings.bucket == ("pipeline-logs", "")
    assert (settings.s3.region, settings.s3.storage_class) == ("us-east-1", "STANDARD_IA")
    assert (settings.s3.encryption, settings.runs.expiration_days) == ("AES256", 30)
    assert warnings == []
    monkeypatch.setenv("LOG_STORAGE_S3_EXPIRATION_DAYS", "90")
    assert _loaded(EXAMPLE)[0].runs.expiration_days == 90


def test_of_its_own_file_only_the_section_is_read(
    empty_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _say(monkeypatch, S3)
    file = empty_folder / "openmetadata.yaml"
    file.write_text(OTHERS + SECTION)
    settings, warnings = load_settings({"server": {"port": 1}}, config=str(file))
    assert settings.bucket == ("2024", "")
    assert (settings.server.host, settings.server.port) == ("127.0.0.1", 1)
    assert warnings[0] == f"of OpenMetadata's own file only {NAME} is read"
    assert load_compactor({}, str(file)).bucket == ("2024", "")


def test_its_own_file_without_the_section_is_a_file_that_says_nothing() -> None:
    settings, warnings = _loaded(OTHERS + "pipelineServiceClientConfiguration: {enabled: true}")
    assert settings.model_dump() == Settings().model_dump()
    assert warnings == [f"of OpenMetadata's own file only {NAME} is read"]


def test_beside_the_section_stand_our_own_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PORT", "8791")
    settings, _ = _loaded(SECTION + "server: {port: '${PORT}'}\nstore: s3://ours\n")
    assert (settings.server.port, settings.store_place) == (8791, "s3://ours")


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        (
            SECTION + "clusterName: mine\n",
            "unknown setting clusterName",
            "docs/reference/settings.md",
        ),
        (SECTION.replace("kmsKeyId", "kmsKey"), f"unknown setting {NAME}.kmsKey ", "kmsKeyId"),
        (
            EXAMPLE.replace("awsAccessKeyId", "accessKeyId"),
            f"unknown setting {NAME}.awsConfig.accessKeyId ",
            "awsAccessKeyId",
        ),
        (
            EXAMPLE.replace(":-pipeline-logs", ""),
            rf"{NAME}.bucketName needs \$\{{LOG_STORAGE_S3_BUCKET\}}, which is not set",
            "Set the variable",
        ),
        (
            EXAMPLE.replace("ACCESS_KEY_ID:-}", "ACCESS_KEY_ID}"),
            rf"{NAME}.awsConfig.awsAccessKeyId needs \$\{{AWS_ACCESS_KEY_ID\}}",
            "Set the variable",
        ),
        ("pipelineServiceClientConfiguration: 3", "must hold keys and values", ""),
        (f"{NAME.replace('.', ': {')}: 3}}", f"{NAME} must hold keys and values", ""),
        ("? [a]\n: b", "cannot be read", ""),
    ],
)
def test_what_cannot_be_is_refused_by_name(text: str, message: str, hint: str) -> None:
    with pytest.raises(InvalidInput, match=message) as caught:
        _loaded(text)
    assert hint in caught.value.hint
