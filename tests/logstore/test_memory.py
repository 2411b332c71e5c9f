"""How much memory there is: the machine's, or a container's limit."""

from __future__ import annotations

from pathlib import Path

import pytest

from tailrace.logstore import process


def test_the_memory_is_the_least_of_the_machine_and_the_limits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = [tmp_path / "memory.max", tmp_path / "limit_in_bytes"]
    monkeypatch.setattr(process, "_LIMITS", limits)
    whole = process.memory_limit()
    assert whole > 1 << 26
    limits[0].write_text("max\n")
    limits[1].write_text(f"{1 << 62}\n")
    assert process.memory_limit() == whole
    limits[1].write_text(f"{1 << 26}\n")
    assert process.memory_limit() == 1 << 26
