"""What a search reads before it comes to it, so that it does not wait for the disk each time."""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from service.query import skip_indexes, text_scan
from service.query.footers import FooterRowGroup, Footers, TableFileFooter
from service.query.request import TimeRanges, TimeRangeSizes, UlidRange
from service.query.table_reads import TableReads
from service.query.text_scan import Looking, Prefilter
from tailrace.logstore import ulid
from tailrace.logstore.search.conditions import Contains
from tests.service.query.indexed import Hanging, Remote, noted_opens
from tests.service.query.scattered import ALL
from tests.service.query.test_scan_copies import copied, files_of
from tests.service.query.test_skipping import GROUP_ROWS, RARE, RUN, batch_at, put_in_table
from tests.service.query.world import HOUR_MS, NOW_MS, World, engine_of, search


class Slow(Hanging):
    """A store that gives the index of one hour, and the others when it is told to."""

    def _before(self, uri: str) -> None:
        newest = max(files_of(self.world), key=lambda file: file.start_ms)
        if uri != self.place(newest.path):
            self.given.wait()


async def three_hours(tmp_path: Path) -> World:
    """A file of each, all of whose lines match `RARE`."""
    world = World(tmp_path)
    for hour in range(3):
        at = ulid.lowest_at(NOW_MS - hour * HOUR_MS)
        put_in_table(world, [(RUN, at, f"needle-in-a-haystack of {hour}\n".encode() * GROUP_ROWS)])
    await world.index()
    return world


@pytest.mark.parametrize("remote", [False, True])
@pytest.mark.parametrize("fqn", [None, RUN.fqn])
@pytest.mark.parametrize(("limit", "read"), [(None, 3), (1, 1)])
async def test_a_search_of_all_hours_reads_ahead_what_tells_of_later_ones(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    limit: int | None,
    read: int,
    fqn: str | None,
    remote: bool,
) -> None:
    """Footers only in one pipeline: else maps tell all of it."""
    world = await three_hours(tmp_path)
    store = Remote(world)
    footers, of = set[str](), Footers.of
    opened = noted_opens(monkeypatch)

    def noting(self: Footers, path: str) -> TableFileFooter:
        footers.add(path)
        return of(self, path)

    monkeypatch.setattr(Footers, "of", noting)
    request = replace(RARE, limit=limit, fqn=fqn)
    needed = read if fqn else 0
    bucket = store.bucket if remote else None
    async with engine_of(world, sizes=TimeRangeSizes(1, 1), bucket=bucket) as engine:
        async with await engine.open(request) as running:
            batches = running._search.batches()
            await asyncio.to_thread(next, batches)  # of the first hour; the second is begun
            async with asyncio.timeout(60):
                while store.got + len(set(opened)) < read or len(footers) < needed:
                    await asyncio.sleep(0.01)
        assert (store.got, len(set(opened))) == ((read, 0) if remote else (0, read))
        if fqn:
            assert len(footers) == needed
        else:  # of the file that was read: its pages are checked first
            assert len(footers) <= 1


@pytest.mark.usefixtures("no_maps")
async def test_no_footer_waits_behind_what_is_announced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = await three_hours(tmp_path)
    calls: list[str] = []
    of, announce = Footers.of, TableFileFooter.announce

    def noting(self: Footers, path: str) -> TableFileFooter:
        calls.append("footer")
        return of(self, path)

    def noting_too(self: TableFileFooter, groups: Sequence[FooterRowGroup], most: int) -> int:
        calls.append("rows")
        return announce(self, groups, most)

    monkeypatch.setattr(Footers, "of", noting)
    monkeypatch.setattr(TableFileFooter, "announce", noting_too)
    request = replace(RARE, limit=1_000)  # without one, footers are read from other threads too
    async with engine_of(world) as engine:
        assert len((await search(engine, request))[0]) == 3 * GROUP_ROWS
    assert calls[:6] == ["footer"] * 3 + ["rows"] * 3
    assert set(calls[6:]) <= {"footer"}, "of files whose pages are checked"


@pytest.mark.usefixtures("no_maps")
async def test_the_system_is_told_which_row_groups_will_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world, rng = World(tmp_path), random.Random(3)
    lines = [f"{rng.getrandbits(64):016x} done" for _ in range(2_000)]
    lines[50], lines[1_950] = "needle-in-a-haystack is here", "needle-in-a-haystack is there"
    put_in_table(world, [batch_at(0, lines)], group_rows=100)
    await world.index()
    told = list[tuple[int, int]]()

    def noting(file: int, begin: int, size: int, _: int) -> None:
        if os.readlink(f"/proc/self/fd/{file}").endswith(".parquet"):  # not of an index
            told.append((begin, size))

    monkeypatch.setattr(os, "posix_fadvise", noting)
    request = replace(ALL, condition=Contains("needle-in-a-haystack"))
    async with engine_of(world) as engine:
        assert (await search(engine, request))[0] == world.expected(request)
        (file,) = files_of(world)
        found = pq.read_metadata(file.uri)
        for group, (begin, size) in zip((0, 19), told, strict=True):
            for n in range(found.num_columns):
                chunk = found.row_group(group).column(n)
                first = chunk.dictionary_page_offset or chunk.data_page_offset
                assert begin <= first
                assert first + chunk.total_compressed_size <= begin + size
            assert size < file.size / 10
        told.clear()
        monkeypatch.setattr(text_scan, "_MOST_ANNOUNCED", 1)
        await search(engine, request)
        assert len(told) == 1
        told.clear()
        await copied(engine, 1)
        await search(engine, request)
        assert told == []


@pytest.mark.parametrize(("limit", "begun"), [(None, [2, 3, 3]), (2 * GROUP_ROWS, [1, 2])])
async def test_the_next_time_range_is_begun_before_lines_of_one_are_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: int | None, begun: list[int]
) -> None:
    world, looked = await three_hours(tmp_path), list[Looking]()
    begin = Prefilter.begin

    def noting(self: Prefilter, reads: TableReads, time_range: UlidRange) -> Looking:
        looked.append(begin(self, reads, time_range))
        return looked[-1]

    monkeypatch.setattr(Prefilter, "begin", noting)
    async with (
        engine_of(world, sizes=TimeRangeSizes(1, 1)) as engine,
        await engine.open(replace(RARE, limit=limit)) as running,
    ):
        assert [len(looked) for _ in running._search.batches()] == begun


async def test_lines_do_not_wait_for_the_index_of_the_next_time_range(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(skip_indexes, "_WAIT_SECONDS", 60)
    world = await three_hours(tmp_path)
    store = Slow(world)
    async with (
        engine_of(world, sizes=TimeRangeSizes(1, 1), bucket=store.bucket) as engine,
        await engine.open(RARE) as running,
    ):
        batches = running.batches()
        async with asyncio.timeout(30):
            found = await anext(batches)
        store.given.set()
        given = found.num_rows + sum([batch.num_rows async for batch in batches])
        assert given == len(world.expected(RARE))


async def test_a_search_that_ends_early_looks_for_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world, cancelled = await three_hours(tmp_path), list[Looking]()
    cancel = Looking.cancel

    def noting(self: Looking) -> None:
        cancelled.append(self)
        cancel(self)

    async with (
        engine_of(world, sizes=TimeRangeSizes(1, 1)) as engine,
        await engine.open(RARE) as running,
    ):
        batches = running._search.batches()
        next(batches)
        monkeypatch.setattr(Looking, "cancel", noting)
        batches.close()
        assert len(cancelled) == 1  # the second hour's


@pytest.mark.parametrize(("text", "expected"), [("needle-in-a-haystack", 2), ("done in", 4)])
async def test_a_time_range_has_the_hours_of_which_indexes_leave_little(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, expected: int
) -> None:
    world, rng = World(tmp_path), random.Random(3)
    for hour in range(4):
        lines = [f"{rng.getrandbits(64):016x} done in {n}" for n in range(1_000)]
        lines[50 * hour + 7] = "needle-in-a-haystack is here, done in 7"
        at = ulid.lowest_at(NOW_MS - hour * HOUR_MS)
        put_in_table(world, [(RUN, at, "\n".join(lines).encode() + b"\n")], group_rows=50)
    sizes = [file.size for file in await world.index()]
    taken, take = list[UlidRange | None](), TimeRanges.take

    def noting(self: TimeRanges, budget: int) -> UlidRange | None:
        taken.append(take(self, budget))
        return taken[-1]

    monkeypatch.setattr(TimeRanges, "take", noting)
    request = replace(ALL, condition=Contains(text))
    room = min(sizes) // 6  # for what is read of three files, or for none
    async with engine_of(world, sizes=TimeRangeSizes(room, room)) as engine:
        assert (await search(engine, request))[0] == world.expected(request)
    assert len([time_range for time_range in taken if time_range is not None]) == expected


async def test_of_what_has_a_map_the_system_is_not_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world, told = await three_hours(tmp_path), list[int]()
    announce = TableFileFooter.announce

    def noting(self: TableFileFooter, groups: Sequence[FooterRowGroup], most: int) -> int:
        told.extend(group.number for group in groups)
        return announce(self, groups, most)

    monkeypatch.setattr(TableFileFooter, "announce", noting)
    async with engine_of(world) as engine:
        assert (await search(engine, RARE))[0] == world.expected(RARE)
    assert told == []


@pytest.mark.parametrize(
    ("busy_rows", "asked"),
    [(GROUP_ROWS, [1, 1, 1]), (2 * GROUP_ROWS, [1, 2]), (1 << 20, [1, 4])],
)
async def test_a_time_range_is_as_large_as_gives_so_many_matches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, busy_rows: int, asked: list[int]
) -> None:
    world, budgets = await three_hours(tmp_path), list[int]()
    size = max(file.size for file in files_of(world))
    take = TimeRanges.take

    def noting(self: TimeRanges, budget: int) -> UlidRange | None:
        budgets.append(budget)
        return take(self, budget)

    monkeypatch.setattr(TimeRanges, "take", noting)
    sizes = TimeRangeSizes(size, 8 * size, busy_rows=busy_rows)
    async with engine_of(world, sizes=sizes) as engine:
        assert (await search(engine, RARE))[0] == world.expected(RARE)
    assert [budget // size for budget in budgets[: len(asked)]] == asked
