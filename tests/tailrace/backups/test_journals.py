"""Copies of a journal that is written, whose files are released and written over meanwhile."""

from __future__ import annotations

import asyncio
from pathlib import Path

import httpx
import pytest

from logstore.clock import SystemClock, system_entropy
from logstore.disk import Disk
from service.journal.recovery import recover
from tailrace.backups.journals import copy_journals
from tailrace.backups.repository import BackupEntry, BackupFolder
from tests.service.test_main import service, settings_for
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


@pytest.mark.in_turn(2)
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
