"""Copies of a journal that is written, whose files are released and written over meanwhile."""

from __future__ import annotations

import asyncio
import os
import shutil
from pathlib import Path

import httpx
import pytest

from service.journal.file import JournalEntry, read_header, scan
from service.journal.format import BATCH
from service.journal.recovery import recover
from tailrace.backups.repository import BackupEntry, BackupFolder
from tailrace.backups.save import copy_journals
from tailrace.logstore.clock import SystemClock, system_entropy
from tailrace.logstore.filesystem import Disk, DiskFile, Mode
from tests.service.test_main import STOPS_AT_ONCE, service, settings_for
from tests.tailrace.verification.world import BASE, PLAIN

LINES = 400
TEXT = f"{'x' * 999}\n" * LINES
COPIES = 6


async def write(client: httpx.AsyncClient, taken: list[int]) -> None:
    """Posts until it is cancelled; `taken` has the number of lines that were acknowledged."""
    while True:
        answer = await client.post(f"{BASE}/p/r", content=TEXT, headers=PLAIN)
        if answer.status_code == 200:  # not while the small journal is full
            taken[0] += LINES


def lay_out(folder: BackupFolder, entries: list[BackupEntry], target: Path) -> None:
    """The copied files, where a restore puts them."""
    for entry in entries:
        path = target / entry.key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"".join(folder.open(entry)))


@pytest.mark.in_turn(3)
async def test_each_copy_is_what_a_crash_would_have_left(tmp_path: Path) -> None:
    settings = settings_for(
        tmp_path,
        journal={"file_bytes": "1MiB", "max_bytes": "16MiB"},
        flush={"segment_seconds": 0.1, "segment_bytes": "1MiB"},
    )
    disk = Disk()
    folder = BackupFolder(disk, str(tmp_path / "b"), SystemClock(), system_entropy())
    async with service(settings) as (client, _):
        taken = [0]
        writing = asyncio.create_task(write(client, taken))
        for number in range(COPIES):
            owed = taken[0]
            async with asyncio.timeout(120):
                nodes, entries = await copy_journals(disk, settings.data, folder)
            assert len(nodes) == 1
            lay_out(folder, entries, tmp_path / f"copy-{number}")
            found = recover(disk, str(tmp_path / f"copy-{number}" / "journal"))
            assert found.found == []
            assert found.torn == []
            assert found.state is not None
            assert found.next_pos >= owed
            assert found.files[0].first_pos <= found.state.confirmed.end
            async with asyncio.timeout(120):
                while taken[0] < owed + 3 * LINES:
                    await asyncio.sleep(0.01)
        writing.cancel()
        await asyncio.gather(writing, return_exceptions=True)


class Releasing(Disk):
    """A disk whose node releases the oldest file of its journal as the newest is copied first."""

    def __init__(self) -> None:
        super().__init__()
        self.opened: list[str] = []

    def open(self, path: str, mode: Mode) -> DiskFile:
        folder = Path(path).parent
        files = sorted(folder.glob("*.wal"))
        self.opened.append(Path(path).name)
        if files and path == str(files[-1]) and not list(folder.glob("*.spare")):
            spare = files[0].with_suffix(".spare")
            files[0].rename(spare)
            spare.write_bytes(b"of another life")
        return super().open(path, mode)


async def test_a_file_that_is_released_meanwhile_is_not_in_the_copy(tmp_path: Path) -> None:
    """The newest file is copied again, since it says then that those lines are in the store."""
    settings = settings_for(tmp_path, **STOPS_AT_ONCE)
    for _ in range(3):
        async with service(settings, statuses=(0, 3)) as (client, _):
            await client.post(f"{BASE}/p/r", content="a line\n", headers=PLAIN)
    oldest, *_, newest = sorted(path.name for path in (tmp_path / "data/journal").glob("*.wal"))
    disk = Releasing()
    folder = BackupFolder(Disk(), str(tmp_path / "b"), SystemClock(), system_entropy())
    _, entries = await copy_journals(disk, settings.data, folder)
    names = [entry.key for entry in entries]
    assert f"journal/{oldest}" not in names
    assert f"journal/{newest}" in names
    assert disk.opened.count(oldest) == 1
    assert disk.opened.count(newest) == 2


class GrowingFile(DiskFile):
    """A file whose last entry is written in part when its size is read for the first time."""

    def __init__(self, path: str, mode: Mode) -> None:
        super().__init__(path, mode)
        self._path = Path(path)
        self._left = self._path.read_bytes()
        os.truncate(path, len(self._left) - len("a line"))

    def size(self) -> int:
        size = super().size()
        self._path.write_bytes(self._left)
        return size


class Growing(Disk):
    """A disk whose node writes to the newest file of its journal as that file is copied."""

    def open(self, path: str, mode: Mode) -> DiskFile:
        return GrowingFile(path, mode) if path.endswith(".wal") else super().open(path, mode)


async def test_a_copy_ends_with_a_whole_entry_while_the_file_grows(tmp_path: Path) -> None:
    settings = settings_for(tmp_path, **STOPS_AT_ONCE)
    async with service(settings, statuses=(0, 3)) as (client, _):
        await client.post(f"{BASE}/p/r", content="a line\n", headers=PLAIN)
        await client.post(f"{BASE}/p/r", content="a line\n", headers=PLAIN)
    written = tmp_path / "written" / "data"
    shutil.copytree(settings.data, written)
    for path in written.glob("journal/*.wal"):
        with path.open("r+b") as file:
            file.truncate(_end_of_entries(path))
    folder = BackupFolder(Disk(), str(tmp_path / "b"), SystemClock(), system_entropy())
    _, entries = await copy_journals(Growing(), str(written), folder)
    lay_out(folder, entries, tmp_path / "copy")
    found = recover(Disk(), str(tmp_path / "copy" / "journal"))
    assert (found.found, found.torn) == ([], [])
    assert found.next_pos == 1


def _end_of_entries(path: Path) -> int:
    file = DiskFile(str(path), "read")
    try:
        items = list(scan(file, read_header(file)))
        batches = [item for item in items if isinstance(item, JournalEntry) and item.kind == BATCH]
        return batches[-1].offset + len(batches[-1].body)
    finally:
        file.close()
