"""The audit log: synced before a call begins, and bounded for what is refused."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from service.access.audit import REFUSALS, AuditLog
from tailrace.logstore.errors import Unavailable
from tailrace.logstore.filesystem import Disk
from tests.servers.small_disks import small_disk
from tests.simulation.clocks import ManualClock


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


async def test_a_line_is_there_when_its_call_begins(tmp_path: Path) -> None:
    path = tmp_path / "audit.log"
    audit = AuditLog(str(path), Disk(private=True), ManualClock())
    await audit.write("admin", who="a\nb", path="x" * 2000)
    [line] = lines(path)
    assert (line["event"], line["who"], len(line["path"])) == ("admin", "a\nb", 1000)
    assert path.stat().st_mode & 0o077 == 0
    path.rename(tmp_path / "old")
    await audit.write("admin", who="c")
    assert [line["who"] for line in lines(path)] == ["c"]
    await audit.close()


async def test_without_it_nothing_begins(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    audit = AuditLog(str(folder / "audit.log"), Disk(), ManualClock())
    with pytest.raises(Unavailable, match="cannot be written"):
        await audit.write("admin")
    assert audit.problem
    folder.mkdir()
    await audit.write("admin")
    assert audit.problem == ""
    await audit.close()


async def test_refusals_are_bounded_and_those_left_out_are_counted(tmp_path: Path) -> None:
    clock = ManualClock()
    audit = AuditLog(str(tmp_path / "audit.log"), Disk(), clock)
    for _ in range(1000):
        audit.refused(status=401)
    clock.pass_seconds(1)
    audit.refused(status=403)
    await audit.close()
    found = lines(tmp_path / "audit.log")
    assert [line["event"] for line in found] == [
        *["refused"] * REFUSALS,
        "refusals-left-out",
        "refused",
    ]
    assert found[REFUSALS]["count"] == 1000 - REFUSALS


@pytest.mark.small_disks
async def test_a_line_that_a_full_disk_tore_is_cut_and_what_was_lost_is_counted(
    tmp_path: Path,
) -> None:
    with small_disk(tmp_path / "disk") as disk:
        path = disk.folder / "audit.log"
        audit = AuditLog(str(path), Disk(private=True), ManualClock())
        await audit.write("admin", who="before")
        disk.fill()
        for _ in range(100):  # the page of the file that is allocated takes some more
            with suppress(Unavailable):
                await audit.write("admin", who="x" * 900)
        assert audit.problem == "No space left on device"
        lost = 101 - len(lines(path))
        disk.empty()
        await audit.write("admin", who="after")
        assert audit.problem == ""
        await audit.close()
        *_, told, last = lines(path)
        assert (told["event"], told["count"]) == ("lines-lost", lost)
        assert last["who"] == "after"


@pytest.mark.parametrize("torn", ['{"time":"2026', "x" * 200_000])
async def test_half_a_line_of_a_crash_is_cut_before_the_next(tmp_path: Path, torn: str) -> None:
    path = tmp_path / "audit.log"
    audit = AuditLog(str(path), Disk(private=True), ManualClock())
    await audit.write("admin", who="before")
    with path.open("a") as file:
        file.write(torn)
    await audit.write("admin", who="after")
    await audit.close()
    before, cut, after = lines(path)
    assert (before["who"], after["who"]) == ("before", "after")
    assert (cut["event"], cut["bytes"]) == ("torn-line-cut", len(torn))
