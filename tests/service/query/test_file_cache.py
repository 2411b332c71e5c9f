"""Which files of a table on S3 are kept on this machine's disk: fetched, found again, removed."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from threading import Event

import pytest

from service.query import file_cache
from tests.service.query.far_away import (
    LATELY_SECONDS,
    SIZE,
    FarAway,
    WallClock,
    cache_of,
    fetched,
    file_at,
    here,
    settled,
)
from tests.waiting import until


async def test_the_files_of_the_table_are_here_once_a_node_is_searched(tmp_path: Path) -> None:
    clock, files = WallClock(), [file_at(3), file_at(1), file_at(2)]
    away = FarAway(files)
    async with cache_of(away, tmp_path, clock) as cache:
        await settled(clock)
        assert not away.asked
        assert cache.nearest(files[0]) is files[0]
        cache.note_search()
        await fetched(cache, clock, 3)
        assert here(cache, files) == [True] * 3
        assert away.fetched == [files[1].uri, files[2].uri, files[0].uri], "the newest hour first"
        for file in files:
            near = cache.nearest(file)
            assert near == replace(file, uri=near.uri)
            assert Path(near.uri).read_bytes() == away.bodies[file.uri]
            assert Path(cache.index_place(file.path)).read_bytes() == b"index of it"
        assert cache.used_bytes == sum(p.stat().st_size for p in Path(cache.folder).iterdir())
        assert Path(cache.folder).stat().st_mode & 0o777 == 0o700


async def test_a_file_that_comes_into_the_table_is_fetched_within_a_minute(tmp_path: Path) -> None:
    clock, files = WallClock(), [file_at(1), file_at(0)]
    away = FarAway(files)
    away.files = files[:1]
    async with cache_of(away, tmp_path, clock) as cache:
        cache.note_search()
        await fetched(cache, clock, 1)
        away.files = files
        await clock.advance(61)
        await fetched(cache, clock, 2)
        assert here(cache, files) == [True, True]
        away.files.append(file_at(2))
        away.bodies[away.files[2].uri] = b"x" * SIZE
        await clock.advance(86_400)  # nobody searched for a day
        await settled(clock)
        assert cache.fetched == 2
        cache.note_search()
        await until(lambda: cache.fetched == 3)


async def test_large_files_come_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_cache, "_FETCHED_BYTES", 999)
    clock, file = WallClock(), file_at(1)
    away = FarAway([file])
    async with cache_of(away, tmp_path, clock) as cache:
        cache.note_search()
        await until(lambda: cache.fetched == 1)
        assert Path(cache.nearest(file).uri).read_bytes() == away.bodies[file.uri]


async def test_after_a_restart_all_is_still_here(tmp_path: Path) -> None:
    clock, files = WallClock(), [file_at(n) for n in range(3)]
    away = FarAway(files)
    async with cache_of(away, tmp_path, clock) as cache:
        cache.note_search()
        await fetched(cache, clock, 3)
        used = cache.used_bytes
    away.asked.clear()
    async with cache_of(away, tmp_path, WallClock()) as cache:
        assert cache.used_bytes == used
        assert all(cache.nearest(file).uri.startswith(str(tmp_path)) for file in files)
        cache.note_search()
        await asyncio.sleep(0.1)
        assert here(cache, files) == [True] * 3
    assert not away.asked


async def test_a_file_goes_within_a_minute_after_it_left_the_table(tmp_path: Path) -> None:
    clock, files = WallClock(), [file_at(1), file_at(2)]
    away = FarAway(files)
    async with cache_of(away, tmp_path, clock) as cache:
        cache.note_search()
        await fetched(cache, clock, 2)
        away.files = files[:1]
        await clock.advance(61)
        await until(lambda: not Path(cache._place(files[1].path)).exists())
        await settled(clock)
        assert here(cache, files) == [True, False]
    away.files = []
    async with cache_of(away, tmp_path, clock) as cache:  # nobody has searched it
        await until(lambda: not list(Path(cache.folder).iterdir()))
        assert cache.used_bytes == 0


async def test_the_newest_hours_are_here_when_there_is_no_room_for_all(tmp_path: Path) -> None:
    clock, files = WallClock(), [file_at(n) for n in range(5)]
    away = FarAway(files)
    away.files = files[1:]
    async with cache_of(away, tmp_path, clock, most_bytes=round(SIZE * 2.5)) as cache:
        cache.note_search()
        await fetched(cache, clock, 2)
        assert here(cache, files) == [False, True, True, False, False]
        away.files = files
        await clock.advance(61)
        await fetched(cache, clock, 3)
        assert here(cache, files) == [True, True, False, False, False]
        assert cache.failed == 0


async def test_a_file_that_is_read_comes_and_those_in_use_stay(tmp_path: Path) -> None:
    clock, files = WallClock(), [file_at(n) for n in range(3, 8)]
    away = FarAway(files)
    async with cache_of(away, tmp_path, clock, most_bytes=round(SIZE * 2.5)) as cache:
        cache.note_search()
        await fetched(cache, clock, 2)
        for file in files[:2]:
            cache.nearest(file)
        for _ in range(2):
            cache.note_read(files[4], SIZE * 0.6)
        await asyncio.sleep(0.1)
        await settled(clock)
        assert here(cache, files) == [True, True, False, False, False], "both were used just now"
        await clock.advance(LATELY_SECONDS)
        cache.nearest(files[0])
        cache.note_read(files[4], SIZE * 0.9)
        await settled(clock)
        assert cache.fetched == 2
        cache.note_read(files[4], SIZE * 0.2)
        await fetched(cache, clock, 3)
        assert here(cache, files) == [True, False, False, False, True]
        await clock.advance(LATELY_SECONDS)
        await settled(clock)
        assert here(cache, files) == [True, False, False, False, True], "it was read, though old"
    async with cache_of(away, tmp_path, clock, most_bytes=round(SIZE * 2.5)) as cache:
        cache.note_search()
        await asyncio.sleep(0.1)
        await settled(clock)
        assert here(cache, files) == [True, False, False, False, True], "that is remembered"


async def test_with_no_room_at_all_there_is_no_cache(tmp_path: Path) -> None:
    clock, file = WallClock(), file_at(1)
    away = FarAway([file])
    async with cache_of(away, tmp_path, clock) as cache:
        cache.note_search()
        await fetched(cache, clock, 1)
    async with cache_of(away, tmp_path, clock, most_bytes=0) as cache:
        assert not Path(cache.folder).exists()
        cache.note_search()
        cache.note_read(file, SIZE * 2)
        await asyncio.sleep(0.05)
        assert cache.nearest(file) is file
        assert len(away.fetched) == 1


async def test_fetching_waits_while_a_search_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_cache, "_GIVES_WAY_SECONDS", 60.0)
    clock, file, quiet = WallClock(), file_at(1), Event()
    away = FarAway([file])
    async with cache_of(away, tmp_path, clock, quiet=quiet) as cache:
        cache.note_search()
        await asyncio.sleep(0.1)
        assert not away.asked
        quiet.set()
        await until(lambda: cache.fetched == 1)
