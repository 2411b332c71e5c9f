"""A store that is older than the journal, or another one: it lacks segments that were stored."""

from __future__ import annotations

import asyncio
import re
import shutil
from pathlib import Path
from typing import Any

import httpx
import pytest

from service.journal.state import Cut, JournalState
from service.settings import Settings
from service.shipping.missing import consumed_seq, find_missing
from tailrace.logstore import keys
from tailrace.logstore.batch import RunKey
from tailrace.logstore.clock import SystemClock, system_entropy
from tailrace.logstore.errors import InvalidInput
from tailrace.logstore.filesystem import Disk
from tailrace.logstore.keys import decode
from tailrace.logstore.objects.local import LocalStore
from tailrace.logstore.runs.report import Watermark
from tailrace.verification.verifier import give_up_segments
from tests.service.test_main import service, settings_for
from tests.tailrace.verification.world import BASE, BULK, PLAIN, Verified, look

LINES = "".join(f"{number}\n" for number in range(600))


def settings_in(folder: Path, **sections: Any) -> Settings:
    return settings_for(folder, flush={"segment_seconds": 3600}, **sections)


async def post(client: httpx.AsyncClient, run: str, text: str, **headers: str) -> None:
    answer = await client.post(f"{BASE}/{run}", content=text, headers={**PLAIN, **headers})
    assert answer.status_code == 200, answer.text


async def close(client: httpx.AsyncClient, run: str) -> None:
    assert (await client.post(f"{BASE}/{run}/close")).json()["state"] == "closed"


async def text_of(client: httpx.AsyncClient, run: str) -> str:
    answer = await client.get(f"{BASE}/{run}/download")
    return answer.text if answer.status_code == 200 else ""


async def problems_when(client: httpx.AsyncClient, pattern: str) -> list[str]:
    """The node's problems, once one of them matches."""
    async with asyncio.timeout(60):
        while True:
            found = (await client.get("/health/ready")).json().get("problems", [])
            if any(re.search(pattern, problem) for problem in found):
                return list(found)
            await asyncio.sleep(0.05)


async def ready(client: httpx.AsyncClient) -> None:
    """Returns when the node has no problem."""
    async with asyncio.timeout(60):
        while (await client.get("/health/ready")).json().get("problems"):
            await asyncio.sleep(0.05)


def replace_by_older(store: Path) -> None:
    shutil.rmtree(store)
    shutil.copytree(f"{store}.older", store)


async def note_open_run(folder: Path, fqn: str, run: str) -> None:
    """Leaves the marker of a run that the node wrote when the older state was the newest."""
    store = LocalStore(str(folder), Disk(), SystemClock(), system_entropy())
    (node,) = [decode(name) or "" async for name in store.folders(keys.SEGMENTS)]
    await store.put(keys.active("pipeline-logs", RunKey(fqn, run), node), b"")


async def verified(settings: Settings, folder: Path) -> Verified:
    return await asyncio.to_thread(look, settings, folder / "spill")


async def first_life(settings: Settings) -> None:
    async with service(settings) as (client, _):
        await post(client, "p/before", LINES)
        await close(client, "p/before")
        await post(client, "p/open", "an open run\n")


@pytest.mark.in_turn(3, "missing segments")
async def test_lines_that_the_journal_has_released_are_named_until_they_are_given_up(
    tmp_path: Path,
) -> None:
    """The store was copied, then a run was written and closed, then the folder was copied."""
    settings = settings_in(tmp_path)
    store = Path(settings.store_folder)
    await first_life(settings)
    shutil.copytree(store, f"{store}.older")
    async with service(settings) as (client, _):
        await post(client, "p/after", LINES)
        await close(client, "p/after")
    journal = Path(settings.data) / "journal"
    async with service(settings), asyncio.timeout(60):  # releases the file that had them
        while len(list(journal.glob("*.wal"))) > 1:
            await asyncio.sleep(0.05)
    replace_by_older(store)
    await note_open_run(store, "p", "open")

    before = (await verified(settings, tmp_path)).one("segment-lost")
    assert before.lines == 600
    assert "600 lines from position 601 to 1200 are gone" in before.detail

    async with service(settings) as (client, _):
        (problem,) = await problems_when(client, "missing in the store")
        assert "600 lines from position 601 to 1200 are gone" in problem
        assert "p/open" in problem
        await post(client, "p/before", "goes on\n", **BULK)
        assert await text_of(client, "p/before") == LINES + "goes on\n"
        named = re.search(r"--give-up (\S+)", problem)
        assert named is not None
    assert (await verified(settings, tmp_path)).one("segment-lost").lines == 600

    await give_up_segments(settings, [named[1]])
    with pytest.raises(InvalidInput, match="names no missing segments"):
        await give_up_segments(settings, [named[1]])
    async with service(settings) as (client, _):
        await ready(client)


async def test_lines_that_the_journal_has_are_stored_again_and_deletions_done_again(
    tmp_path: Path,
) -> None:
    settings = settings_in(tmp_path)
    store = Path(settings.store_folder)
    async with service(settings) as (client, _):
        await post(client, "p/gone", LINES, **BULK)
        await close(client, "p/gone")
    shutil.copytree(store, f"{store}.older")
    async with service(settings) as (client, _):
        for part in range(3):
            await post(client, "p/after", f"{part}\n", **BULK)
        await close(client, "p/after")
        assert (await client.delete(f"{BASE}/p/gone")).status_code == 200
    replace_by_older(store)

    assert (await verified(settings, tmp_path)).one("segment-lost").lines == 0
    async with service(settings) as (client, _):
        async with asyncio.timeout(60):
            while "tailrace_forks_total 1" not in (await client.get("/metrics")).text:
                await asyncio.sleep(0.05)
        await close(client, "p/after")
        assert await text_of(client, "p/after") == "0\n1\n2\n"
        async with asyncio.timeout(60):
            while await text_of(client, "p/gone"):
                await asyncio.sleep(0.05)
        assert (await client.get("/health/ready")).json().get("problems", []) == []
    assert not (await verified(settings, tmp_path)).faults
    async with service(settings) as (client, _):
        assert await text_of(client, "p/after") == "0\n1\n2\n"
        assert "tailrace_forks_total 0" in (await client.get("/metrics")).text


async def test_a_store_that_never_had_anything_lacks_nothing(tmp_path: Path) -> None:
    settings = settings_in(tmp_path)
    async with service(settings):
        pass
    shutil.rmtree(settings.store_folder)
    async with service(settings) as (client, _):
        await post(client, "p/r", "a line\n", **BULK)
        assert "tailrace_forks_total 0" in (await client.get("/metrics")).text
    assert not (await verified(settings, tmp_path)).faults


@pytest.mark.parametrize(
    ("mark", "table", "consumed"),
    [
        (Watermark(), 0, 0),
        (Watermark(seq=5, pos=50, low=4, version="v"), 0, 3),  # nobody compacts
        (Watermark(seq=5, pos=50, low=1, version="v"), 7, 5),
        (Watermark(seq=7, pos=70, low=7, version="v"), 9, 7),
        (Watermark(), 7, 7),  # somebody removed the watermark
    ],
)
def test_what_may_have_been_removed(mark: Watermark, table: int, consumed: int) -> None:
    assert consumed_seq(mark, table) == consumed


async def test_a_segment_that_is_consumed_and_removed_during_the_look_is_not_missing(
    tmp_path: Path,
) -> None:
    store = LocalStore(str(tmp_path), Disk(), SystemClock(), system_entropy())
    marks = [(Watermark(seq=3, pos=30, low=3, version="v"), 3)] * 3
    marks[0] = (Watermark(seq=2, pos=20, low=1, version="v"), 2)

    async def read() -> tuple[Watermark, int]:
        return marks.pop(0)

    assert await find_missing(store, "n", Cut(3, 20, 30), read) is None


async def test_segments_behind_a_hole_are_counted_from_the_hole(tmp_path: Path) -> None:
    store = LocalStore(str(tmp_path), Disk(), SystemClock(), system_entropy())
    for seq in (3, 5):
        await store.put(keys.segment("n", seq), b"not read")

    async def read() -> tuple[Watermark, int]:
        return Watermark(seq=2, pos=20, low=3, version="v"), 2

    found = await find_missing(store, "n", Cut(7, 60, 70), read)
    assert found is not None
    assert (found.first, found.last, found.pos, found.end) == (4, 7, None, 70)
    assert (found.holding(65).lost, found.holding(0).lost) == (None, 0)


def test_a_new_incarnation_ships_confirmed_lines_again_in_pieces() -> None:
    """A file at a time: one segment of all of them might not fit into memory."""
    state = JournalState("n", confirmed=Cut(8, 70, 80), cuts=[Cut(9, 80, 95)])
    state.reincarnate("m", 25, [10, 20, 40, 60, 90])
    assert state.confirmed == Cut(0, 25, 25)
    assert state.cuts == [Cut(1, 25, 40), Cut(2, 40, 60), Cut(3, 60, 80), Cut(4, 80, 95)]
