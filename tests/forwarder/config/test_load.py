"""The configuration is read, with OpenTelemetry's keys and defaults, and errors name the key."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tailrace.forwarder.config.load import parse, read
from tailrace.forwarder.config.source import FileSource, Forwarder, default_storage
from tailrace.logstore.errors import InvalidInput

LEAST = {"targets": ["127.0.0.1:8790"], "include": ["/var/log/*.log"], "fqn": "host.logs"}


def parsed(**more: Any) -> Forwarder:
    return parse({**LEAST, **more})


def source(**more: Any) -> FileSource:
    return parsed(**more).sources[0]


def test_one_source_has_its_keys_at_the_top_and_opentelemetrys_defaults() -> None:
    only = source()
    assert (only.name, only.include, only.start_at) == ("file_log", ("/var/log/*.log",), "end")
    assert (only.poll_interval, only.force_flush_period) == (0.2, 0.5)
    assert (only.fingerprint_size, only.initial_buffer_size) == (1000, 16 << 10)
    assert (only.max_log_size, only.max_log_size_behavior) == (1 << 20, "split")
    assert (only.max_concurrent_files, only.max_batches) == (1024, 0)
    assert (only.include_file_name, only.include_file_path) == (True, False)
    assert (only.compression, only.encoding, only.on_truncate) == ("", "utf-8", "content")


def test_several_sources_stand_below_receivers() -> None:
    found = parse(
        {
            "targets": "https://logs.example",
            "receivers": {
                "file_log/app": {"include": "/a/*.log", "fqn": "app"},
                "filelog/web": {"include": ["/w/*.log"], "fqn": "web", "start_at": "beginning"},
            },
        }
    )
    assert found.targets == ("https://logs.example",)
    assert [one.name for one in found.sources] == ["app", "web"]
    assert [one.start_at for one in found.sources] == ["end", "beginning"]


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("200ms", 0.2),
        ("1m30s", 90),
        ("1.5h", 5400),
        ("7d", 604_800),
        ("0", 0),
        (0, 0),
        ("5us", 5e-6),
    ],
)
def test_durations(text: object, seconds: float) -> None:
    assert source(poll_interval=text).poll_interval == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("text", "size"),
    [(1000, 1000), ("16KiB", 16 << 10), ("1MiB", 1 << 20), ("2mb", 2_000_000), ("1.5Mi", 3 << 19)],
)
def test_sizes(text: object, size: int) -> None:
    assert source(max_log_size=text).max_log_size == size


@pytest.mark.parametrize(
    ("more", "field", "says"),
    [
        ({"inclued": []}, "inclued", "Did you mean include"),
        ({"poll_interval": 5}, "poll_interval", "has a unit"),
        ({"poll_interval": "5 parsecs"}, "poll_interval", "has a unit"),
        ({"max_log_size": "big"}, "max_log_size", "number of bytes"),
        ({"max_log_size": 0}, "max_log_size", "greater than or equal to 1"),
        ({"fingerprint_size": 15}, "fingerprint_size", "greater than or equal to 16"),
        ({"max_concurrent_files": 1}, "max_concurrent_files", "greater than or equal to 2"),
        ({"on_truncate": "ignore"}, "on_truncate", "lose lines"),
        ({"start_at": "middle"}, "start_at", "'beginning' or 'end'"),
        ({"include": []}, "", "at least one path"),
        ({"include": ["a[b"]}, "include", "not a pattern of paths"),
        ({"multiline": {}}, "multiline", "exactly one of"),
        ({"multiline": {"line_start_patern": "a"}}, "multiline.line_start_patern", "Did you mean"),
        (
            {"multiline": {"line_start_pattern": "("}},
            "multiline.line_start_pattern",
            "not a regular",
        ),
        (
            {"multiline": {"line_start_pattern": "a", "line_end_pattern": "b"}},
            "multiline",
            "exactly one of",
        ),
        ({"delete_after_read": True}, "", "start_at: beginning"),
        ({"header": {"pattern": "^#", "metadata_operators": []}}, "", "start_at: beginning"),
        ({"retry_on_failure": {"enabled": False}}, "retry_on_failure.enabled", "True"),
        (
            {"retry_on_failure": {"max_elapsed_time": "5m"}},
            "retry_on_failure.max_elapsed_time",
            "until it is acknowledged",
        ),
        ({"fqn": ""}, "", "needs fqn"),
        ({"template": "pods"}, "", "leave out fqn"),
        ({"exporters": {}}, "exporters", "`targets`"),
        ({"token": "a", "token_file": "b"}, "", "not both"),
        (
            {"ordering_criteria": {"sort_by": [{"sort_type": "numeric", "regex_key": "n"}]}},
            "ordering_criteria",
            "needs a regex",
        ),
        (
            {
                "ordering_criteria": {
                    "regex": "(?P<m>.)",
                    "sort_by": [{"sort_type": "numeric", "regex_key": "n"}],
                }
            },
            "ordering_criteria",
            "no group",
        ),
        ({"ordering_criteria": {"top_n": -1}}, "ordering_criteria.top_n", "greater than or equal"),
    ],
)
def test_what_is_wrong_is_refused_by_the_name_of_its_key(
    more: dict[str, Any], field: str, says: str
) -> None:
    with pytest.raises(InvalidInput) as raised:
        parsed(**more)
    assert raised.value.field == field
    assert says in f"{raised.value} {raised.value.hint}"
    assert raised.value.hint


@pytest.mark.parametrize(
    ("receivers", "field", "says"),
    [
        ({"otlp": {}}, "receivers.otlp", "file_log/NAME"),
        ({}, "receivers", "at least one"),
        ({"file_log/a": {"include": "/a", "storage": "x"}}, "receivers.file_log/a.storage", "top"),
        ({"file_log/a": {"fqn": "a"}}, "receivers.file_log/a.include", "missing"),
        ({"file_log/a": ["x"]}, "receivers.file_log/a", "keys and values"),
    ],
)
def test_an_error_in_a_receiver_has_its_path(receivers: Any, field: str, says: str) -> None:
    with pytest.raises(InvalidInput) as raised:
        parse({"targets": ["a:1"], "receivers": receivers})
    assert raised.value.field == field
    assert says in f"{raised.value} {raised.value.hint}"


def test_two_sources_with_one_name_are_refused() -> None:
    one = {"include": "/a", "fqn": "a"}
    with pytest.raises(InvalidInput, match="two sources a"):
        parse({"targets": ["a:1"], "receivers": {"file_log/a": one, "filelog/a": one}})


def test_a_token_is_in_no_error() -> None:
    with pytest.raises(InvalidInput) as raised:
        parsed(token=["secret-1"])
    assert "secret-1" not in str(raised.value)


def test_a_file_is_read_with_the_environments_variables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("THE_TARGET", "10.0.0.1:8790")
    path = tmp_path / "forwarder.yaml"
    path.write_text(
        "targets: ['${env:THE_TARGET}']\n"
        "include: [/var/log/app.log]\n"
        "fqn: ${NO_SUCH:-app}\n"
        "multiline:\n  line_start_pattern: '^(?<day>\\d{4})-'\n"
        "attributes: {zone: 7, canary: true}\n"
    )
    found = read(str(path))
    only = found.sources[0]
    assert (found.targets, only.fqn) == (("10.0.0.1:8790",), "app")
    assert only.multiline is not None
    assert only.multiline.line_start_pattern is not None
    assert only.multiline.line_start_pattern.search("2026-01-01") is not None
    assert only.attributes == {"zone": "7", "canary": "true"}


@pytest.mark.parametrize("content", ["", "- a", "a: [", "\xff"])
def test_a_file_that_is_no_configuration_is_refused(tmp_path: Path, content: str) -> None:
    path = tmp_path / "forwarder.yaml"
    path.write_bytes(content.encode("latin-1"))
    with pytest.raises(InvalidInput, match="the file"):
        read(str(path))
    with pytest.raises(InvalidInput, match="does not exist"):
        read(str(path) + ".not")


def test_checkpoints_have_a_place_without_being_told(monkeypatch: pytest.MonkeyPatch) -> None:
    assert parsed(storage="/somewhere").folder == "/somewhere"
    assert parsed().folder == default_storage()
    assert default_storage().endswith("tailrace/forwarder")


def test_nothing_in_it_changes_and_every_key_is_described() -> None:
    only = source()
    with pytest.raises(ValueError, match="frozen"):
        only.include = ()
    fields = {**FileSource.model_fields, **Forwarder.model_fields}
    assert [name for name, one in fields.items() if name != "name" and not one.description] == []
