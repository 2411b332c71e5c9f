"""What an operator may get wrong in the compactor's settings."""

from __future__ import annotations

from pathlib import Path

import pytest

from compactor.settings import load_settings
from tailrace.logstore.errors import InvalidInput


def _file(folder: Path, text: str) -> str:
    file = folder / "settings.yaml"
    file.write_text(text)
    return str(file)


@pytest.mark.parametrize(
    ("text", "name", "hint"),
    [
        ("compaction: {retention_day: 3}", "compaction.retention_day", "compaction.retention_days"),
        ("s3: {endpoint: a}", "s3.endpoint", "s3.endpoint_url"),
    ],
)
def test_a_key_that_nobody_knows_is_refused(
    tmp_path: Path, text: str, name: str, hint: str
) -> None:
    with pytest.raises(InvalidInput, match=f"unknown setting {name} in the settings") as caught:
        load_settings({}, _file(tmp_path, text))
    assert caught.value.field == name
    assert hint in caught.value.hint


def test_so_is_a_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TAILRACE_COMPACTION__BATCH_BYTE", "1")
    with pytest.raises(InvalidInput, match=r"compaction.batch_byte \(TAILRACE_COMPACTION__BATCH"):
        load_settings({}, None)


def test_what_only_the_service_knows_is_left_to_it(tmp_path: Path) -> None:
    text = "compaction: {enabled: false, every_seconds: 9, batch_bytes: 5}\nflush: {segment: 1}"
    settings = load_settings({}, _file(tmp_path, text + "\nruns: {idle_seconds: 5}"))
    assert settings.compaction.batch_bytes == 5
