"""How much of a disk is to spare."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from service.runtime import free_disk
from service.runtime.free_disk import spare_bytes

GIB = 1 << 30


@pytest.mark.parametrize(
    ("total", "free", "spare"),
    [
        (100 * GIB, 30 * GIB, 20 * GIB),
        (100 * GIB, 10 * GIB, 0),
        (100 * GIB, 7 * GIB, -3 * GIB),
        (5 * GIB, 3 * GIB, 2 * GIB),
    ],
)
def test_a_tenth_and_a_gibibyte_stay_free(
    monkeypatch: pytest.MonkeyPatch, total: int, free: int, spare: int
) -> None:
    disk = SimpleNamespace(total=total, free=free)
    monkeypatch.setattr(free_disk, "disk_usage", {"/data": disk}.__getitem__)
    assert spare_bytes("/data") == spare
