"""Settings: precedence, names, refusals, and OpenMetadata's section."""

from __future__ import annotations

from pathlib import Path

import pytest

from service.settings import Settings, load_settings
from tailrace.logstore.errors import InvalidInput
from tailrace.logstore.objects.s3.settings import S3Settings
from tailrace.logstore.settings import read_file


@pytest.fixture(autouse=True)
def empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def _file(folder: Path, text: str) -> str:
    path = folder / "tailrace.yaml"
    path.write_text(text)
    return str(path)


def test_defaults_serve_on_this_machine_only_with_a_store_in_the_data_folder(
    empty_folder: Path,
) -> None:
    settings, warnings = load_settings()
    assert (settings.server.host, settings.server.port) == ("127.0.0.1", 8790)
    assert settings.store_folder == str(empty_folder / "data" / "store")
    assert settings.node_name
    assert warnings == []


@pytest.mark.parametrize("name", ["who?", "50%", "a#b", "a\\b", "a\nb"])
def test_a_store_is_not_put_where_no_table_can_be(name: str, empty_folder: Path) -> None:
    with pytest.raises(InvalidInput, match=r"^the store's folder .* a table cannot live there"):
        load_settings({"data": name})
    settings, _ = load_settings({"data": name, "store": str(empty_folder / "my [data] *")})
    assert settings.data == name


def test_flags_go_over_environment_over_file_over_defaults(
    empty_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = _file(
        empty_folder, "flush: {segment_seconds: 1, segment_bytes: 1MiB}\nnode_id: filed\n"
    )
    monkeypatch.setenv("TAILRACE_FLUSH__SEGMENT_SECONDS", "2")
    monkeypatch.setenv("TAILRACE_NODE_ID", "from-env")
    settings, _ = load_settings({"node_id": "flagged"}, config=config)
    assert settings.flush.segment_seconds == 2
    assert settings.flush.segment_bytes == 1 << 20
    assert settings.flush.bulk_milliseconds == Settings().flush.bulk_milliseconds
    assert settings.node_id == "flagged"


def test_the_file_of_the_folder_and_the_file_of_the_environment_are_read(
    empty_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _file(empty_folder, "node_id: here\n")
    assert load_settings()[0].node_id == "here"
    (empty_folder / "other.yaml").write_text("node_id: there\n")
    monkeypatch.setenv("TAILRACE_CONFIG", "other.yaml")
    assert load_settings()[0].node_id == "there"


@pytest.mark.parametrize(
    ("text", "name", "hint"),
    [
        ("flush: {segment_secs: 1}", "flush.segment_secs", "flush.segment_seconds"),
        ("segment_seconds: 1", "segment_seconds", "flush.segment_seconds"),
        ("colour: blue", "colour", "docs/reference/settings.md"),
        ("logStorage: {prefxi: a}", "logStorage.prefxi", "prefix"),
    ],
)
def test_an_unknown_key_is_named_with_what_was_meant(
    empty_folder: Path, text: str, name: str, hint: str
) -> None:
    with pytest.raises(InvalidInput, match=f"unknown setting {name} ") as caught:
        load_settings(config=_file(empty_folder, text))
    assert caught.value.field == name
    assert hint in caught.value.hint


def test_an_unknown_variable_is_refused_but_not_those_of_kubernetes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TAILRACE_PORT", "tcp://10.0.0.1:8790")
    monkeypatch.setenv("TAILRACE_PORT_8790_TCP_ADDR", "10.0.0.1")
    monkeypatch.setenv("TAILRACE_SERVICE_HOST", "10.0.0.1")
    load_settings()
    monkeypatch.setenv("TAILRACE_FLUSH__SPEED", "1")
    with pytest.raises(InvalidInput, match="TAILRACE_FLUSH__SPEED"):
        load_settings()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("server: {port: 99999}", "server.port"),
        ("flush: {segment_seconds: -1}", "greater than 0"),
        ("flush: {segment_seconds: .inf}", "finite"),
        ("journal: {max_bytes: 64MiB}", "at least two files"),
        ("store: gs://bucket", "s3://bucket/prefix"),
        ("store: s3://bucket/a//b", "between its slashes"),
        ("store: s3://bucket/50%", "a table cannot live there: choose a prefix"),
        ("s3: {access_key_id: a}", "go together"),
        ("s3: {session_token: a}", "needs s3.access_key_id"),
        ("s3: {profile: a, access_key_id: a, secret_access_key: b}", "are alternatives"),
        ("s3: {role_external_id: a}", "need s3.role_arn"),
        ("s3: {kms_key_id: a}", "needs s3.encryption aws:kms"),
        ("s3: {storage_class: GLACIER}", "cannot be read directly"),
        ("s3: {endpoint_url: somewhere}", "s3.endpoint_url"),
        ("server: {host: 0.0.0.0}", "no rules of access"),
        ("runs: {prefix: ../up}", "runs.prefix"),
        ("logStorage: {type: s3}", "logStorage.bucketName"),
        ("logStorage: {type: gcs}", "logStorage.type"),
        ("logStorage: {enabled: maybe}", "logStorage.enabled should be true or false"),
        ("logStorage: 3", "must hold keys"),
        ("- a\n- b", "must hold keys"),
        ("a: [", "cannot be read"),
    ],
)
def test_a_value_that_cannot_be_is_refused_by_name(
    empty_folder: Path, text: str, message: str
) -> None:
    with pytest.raises(InvalidInput, match=message):
        load_settings(config=_file(empty_folder, text))


def test_a_store_is_a_folder_or_a_place_on_s3(empty_folder: Path) -> None:
    assert Settings(store="here").store_place == str(empty_folder / "here")
    assert Settings(store="here").bucket is None
    for address in ("s3://bucket/a/b", "s3a://bucket//a/b/"):
        settings = Settings(store=address)
        assert settings.bucket == ("bucket", "a/b")
        assert settings.store_place == "s3://bucket/a/b"
    assert Settings(store="s3://bucket").store_place == "s3://bucket"


def test_the_class_of_large_objects_depends_on_the_server() -> None:
    assert S3Settings().large_class == "STANDARD_IA"
    assert S3Settings(endpoint_url="http://localhost:9000").large_class == "STANDARD"
    assert S3Settings(storage_class="ONEZONE_IA").large_class == "ONEZONE_IA"


def test_secrets_are_not_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TAILRACE_S3__ACCESS_KEY_ID", "somebody")
    monkeypatch.setenv("TAILRACE_S3__SECRET_ACCESS_KEY", "s3cret")
    settings, _ = load_settings()
    assert settings.s3.secret_access_key.get_secret_value() == "s3cret"
    assert "s3cret" not in repr(settings) + str(settings.model_dump())
    monkeypatch.setenv("TAILRACE_S3__PROFILE", "prod")  # together they are refused
    with pytest.raises(InvalidInput, match="are alternatives") as caught:
        load_settings()
    assert "s3cret" not in str(caught.value)


def test_a_secret_of_the_wrong_type_is_not_told(empty_folder: Path) -> None:
    config = _file(empty_folder, "s3: {access_key_id: somebody, secret_access_key: 12345}")
    with pytest.raises(InvalidInput, match=r"s3\.secret_access_key") as caught:
        load_settings(config=config)
    assert "12345" not in str(caught.value)


def test_a_named_file_must_exist() -> None:
    with pytest.raises(InvalidInput, match=r"nowhere\.yaml does not exist"):
        read_file("nowhere.yaml")


def test_insecure_allows_it() -> None:
    settings, _ = load_settings({"server": {"host": "0.0.0.0", "insecure": True}})
    assert settings.server.host == "0.0.0.0"


def test_tls_is_refused_where_nodes_would_ask_one_another_without_it() -> None:
    nodes = {"secret": "a secret of some length"}
    with pytest.raises(InvalidInput, match="without TLS") as caught:
        load_settings({"nodes": nodes, "server": {"tls_certificate": "chain.pem"}})
    assert "Put a proxy with TLS" in caught.value.hint


@pytest.mark.parametrize(
    "name", ["logStorageConfiguration", "LogStorageConfiguration", "logStorage"]
)
def test_openmetadatas_section_is_understood(empty_folder: Path, name: str) -> None:
    config = _file(
        empty_folder,
        f"""
{name}:
  type: default
  enabled: true
  prefix: om-logs
  streamTimeoutHours: 2
  cleanupIntervalMinutes: 7
  partialFlushIntervalMinutes: 3
  earlyFlushWatermarkBytes: 1000
  expirationDays: 0
  maxConcurrentStreams: 5
  pendingFlushAlertAfterFailures: 4
  asyncBufferSizeMB: 5
runs:
  expiration_days: 9
""",
    )
    settings, warnings = load_settings(config=config)
    runs = settings.runs
    assert (runs.prefix, runs.stream_timeout_minutes, runs.cleanup_interval_minutes) == (
        "om-logs",
        120,
        7,
    )
    assert (runs.partial_flush_interval_minutes, runs.early_flush_watermark_bytes) == (3, 1000)
    assert (runs.max_concurrent_streams, runs.pending_flush_alert_after_failures) == (5, 4)
    assert runs.expiration_days == 9, "our own name wins"
    assert warnings == [f"{name}.asyncBufferSizeMB is ignored: the journal is the buffer"]


def test_settings_cannot_be_changed() -> None:
    settings, _ = load_settings()
    with pytest.raises(ValueError, match="frozen"):
        settings.flush.segment_seconds = 1


@pytest.mark.parametrize(("days", "warned"), [(0, False), (1, True), (6, True), (7, False)])
def test_an_expiry_that_open_runs_reach_is_warned_of(days: int, warned: bool) -> None:
    _, warnings = load_settings({"runs": {"expiration_days": days}})
    assert [f"expiration_days is {days}" in warning for warning in warnings] == [True] * warned


def test_retention_by_patterns_of_pipelines_is_read_from_file_and_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text("runs: {expiration_days_of: {'audit.*': 365, 'scratch.*': 1}}")
    settings, warnings = load_settings(config=str(file))
    assert settings.runs.expiration_days_of == {"audit.*": 365, "scratch.*": 1}
    assert ["scratch.*" in warning for warning in warnings] == [True]
    monkeypatch.setenv("TAILRACE_RUNS__EXPIRATION_DAYS_OF", '{"a": 0}')
    assert load_settings()[0].runs.longest_days == 0
    monkeypatch.setenv("TAILRACE_RUNS__EXPIRATION_DAYS_OF", '{"a": -1}')
    with pytest.raises(InvalidInput, match="expiration_days_of"):
        load_settings()
