"""What holds for all tests of the service."""

from __future__ import annotations

import pytest

from service.runtime import spare_disk


@pytest.fixture(autouse=True)
def room_on_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Copies and kept files are made, however full the disk of the tests is."""
    monkeypatch.setattr(spare_disk, "_FREE_SHARE", 0.0)
    monkeypatch.setattr(spare_disk, "_FREE_BYTES", 0)
