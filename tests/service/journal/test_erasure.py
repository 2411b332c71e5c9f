"""Deleted lines leave the journal's files, wherever in them they are; other lines stay."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from service.journal.journal import Journal
from tailrace.logstore.batch import RunKey
from tailrace.logstore.errors import JournalFull
from tailrace.logstore.filesystem import Disk
from tests.openmetadata.server import FQN, OTHER, RUN, Server, play
from tests.service.journal.rig import Rig, held, journal_settings, put
from tests.simulation.powercut import PowerCutFileSystem

SETTINGS = journal_settings(
    file_bytes=20_000, max_bytes=1 << 24, min_free_bytes=0, fast_sync_seconds=3600
)
GONE, KEPT = RunKey("f", "gone"), RunKey("f", "kept")
MARKER = b"MARKER-7d1f"
DELETED = {(GONE.fqn, GONE.run)}


def rig_on(folder: Path) -> Rig:
    return Rig(fs=Disk(), folder=str(folder), settings=SETTINGS)


def found(folder: Path) -> list[str]:
    """The files that have the marker, without the part of their names that differs."""
    return sorted(p.suffix for p in folder.rglob("*") if p.is_file() and MARKER in p.read_bytes())


async def write(rig: Rig, journal: Journal, key: RunKey, size: int) -> None:
    """Lines of a run with so many bytes."""
    for _ in range(size // 1_000):
        text = (MARKER if key == GONE else b"kept") + b" " + b"x" * 980 + b"\n"
        await put(journal, text, rig.next_ulid(), run=key)


async def ship(journal: Journal) -> None:
    """All that is held is in the store and in runs."""
    last = journal.state.last_cut()
    cut = await journal.record_cut(last.seq + 1, last.end)
    journal.confirm(cut)
    journal.release(cut.end)
    await journal.synced(journal.next_pos + 1)
    await asyncio.sleep(0)


async def test_the_newest_file_ends_and_goes_once_its_lines_are_stored(tmp_path: Path) -> None:
    rig = rig_on(tmp_path)
    journal = rig.open()
    await write(rig, journal, GONE, 2_000)
    await write(rig, journal, KEPT, 2_000)
    before = held(journal)
    await journal.end_file_of(DELETED)
    assert held(journal) == before, "nothing goes that is not stored"
    assert found(tmp_path) == [".wal"]
    await write(rig, journal, KEPT, 2_000)
    await ship(journal)
    assert found(tmp_path) == []
    await journal.close()
    again = rig.open()
    assert len(held(again)) == 2
    await again.close()


async def test_spares_and_the_rest_of_a_file_that_was_one(tmp_path: Path) -> None:
    rig = rig_on(tmp_path)
    journal = rig.open()
    for _ in range(3):  # a spare, and a file that was one
        await write(rig, journal, GONE, 22_000)
        await ship(journal)
    await write(rig, journal, KEPT, 1_000)
    await ship(journal)
    assert ".spare" in found(tmp_path)
    assert ".wal" in found(tmp_path)
    await journal.end_file_of(DELETED)
    await ship(journal)
    assert found(tmp_path) == []
    for _ in range(2):  # files are written over again
        await write(rig, journal, KEPT, 22_000)
        await ship(journal)
    assert list(tmp_path.glob("*.spare"))
    await journal.close()


async def test_an_older_file_that_a_reader_holds_goes_with_the_reader(tmp_path: Path) -> None:
    rig = rig_on(tmp_path)
    journal = rig.open()
    await write(rig, journal, GONE, 22_000)
    with journal.pin():
        await ship(journal)
        await journal.end_file_of(DELETED)
        assert found(tmp_path) != []
    assert found(tmp_path) == []
    await journal.close()


async def test_runs_that_it_does_not_have_begin_no_file() -> None:
    rig = Rig(settings=SETTINGS)
    journal = rig.open()
    await write(rig, journal, KEPT, 2_000)
    files = len(journal.files)
    await journal.end_file_of({("f", "unknown"), ("g", None)})
    assert len(journal.files) == files
    await journal.end_file_of({("f", None)})
    assert len(journal.files) == files + 1
    await journal.close()


async def test_a_full_disk_lets_the_file_go_on_and_it_ends_later() -> None:
    fs = PowerCutFileSystem()
    rig = Rig(fs=fs, settings=SETTINGS)
    journal = rig.open()
    await write(rig, journal, GONE, 2_000)
    room = fs.free_bytes("/")
    fs.capacity_bytes -= room
    with pytest.raises(JournalFull):
        await journal.end_file_of(DELETED)
    assert len(held(journal)) == 2
    fs.capacity_bytes += room
    await journal.end_file_of(DELETED)
    await ship(journal)
    assert held(journal) == []
    await journal.close()


def test_a_burst_of_deletions_begins_one_file() -> None:
    runs = [f"run-{number}" for number in range(30)]

    async def scenario(server: Server) -> None:
        for run in runs:
            await server.append("line\n", run)
        files = len(server.node.writer.journal.state.files)
        for run in runs:
            await server.delete(run)
            await server.passes(seconds=1)
        await server.passes(minutes=10)
        assert len(server.node.writer.journal.state.files) == files + 1

    play(scenario)


@pytest.mark.parametrize("run", [RUN, None])
def test_an_idle_node_has_no_byte_of_a_deleted_run_after_some_minutes(run: str | None) -> None:
    """A whole service on a simulated disk, where nobody writes any more."""

    async def scenario(server: Server) -> None:
        text = MARKER.decode()
        await server.append(f"{text} 1\n")
        await server.append("another run\n", OTHER if run else RUN, FQN if run else "other")
        await server.passes(minutes=5)
        await server.append(f"{text} 2\n")
        await server.delete(run)
        await server.passes(minutes=5)
        left = [path for path, body in server.fs.contents("/data/journal") if MARKER in body]
        assert left == []
        assert await server.text(*((OTHER, FQN) if run else (RUN, "other"))) == "another run\n"
        await server.restart()
        assert await server.runs() == ([OTHER] if run else [])

    play(scenario)
