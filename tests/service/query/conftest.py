"""What holds for all tests of searches."""

from __future__ import annotations

import pytest

from tailrace.logstore.table import skip_index


@pytest.fixture(autouse=True)
def room_for_maps(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tests' files are so small that the maps of their lines would be too large a part."""
    monkeypatch.setattr(skip_index, "_MAPS_SHARE", 100)


@pytest.fixture
def no_maps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Indexes have none: what the index leaves of a file is decoded, or is DuckDB's."""
    monkeypatch.setattr(skip_index, "_MAPS_SHARE", 0)
