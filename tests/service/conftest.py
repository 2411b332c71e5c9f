"""What holds for all tests of the service."""

from __future__ import annotations

import shutil
from types import SimpleNamespace

import pytest

from service.runtime import free_disk


@pytest.fixture(autouse=True)
def room_on_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Copies and kept files are made, however full the disk of the tests is."""

    def empty(folder: str) -> SimpleNamespace:
        total = shutil.disk_usage(folder).total
        return SimpleNamespace(total=total, free=total)

    monkeypatch.setattr(free_disk, "disk_usage", empty)
