"""What the cache of table files does where S3, the disk or an earlier process failed."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import pytest

from service.metrics.declared import MetricSources
from service.metrics.http import HTTP
from service.query import file_cache
from service.runtime import free_disk
from tailrace.logstore import keys
from tests.service.query.far_away import (
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

if TYPE_CHECKING:
    from service.node import Node
    from service.query.engine import QueryEngine

MOVE_IN_FILE_CACHES = {
    *("tailrace_file_cache_bytes", "tailrace_file_cache_fetched", "tailrace_file_cache_failed"),
}


async def test_what_a_killed_process_left_goes(tmp_path: Path) -> None:
    folder, file = tmp_path / "cache", file_at(1)
    folder.mkdir()
    for name in ("incoming-abc", f"gone.parquet{keys.INDEX_SUFFIX}", "old.parquet.skip2"):
        (folder / name).write_bytes(b"x")
    away, clock = FarAway([file]), WallClock()
    async with cache_of(away, tmp_path, clock) as cache:
        cache.note_search()
        await fetched(cache, clock, 1)
        assert len(list(folder.iterdir())) == 2
        assert here(cache, [file]) == [True]


async def test_a_file_that_was_cut_while_the_node_stood_is_fetched_again(tmp_path: Path) -> None:
    clock, file = WallClock(), file_at(1)
    away = FarAway([file])
    async with cache_of(away, tmp_path, clock) as cache:
        cache.note_search()
        await fetched(cache, clock, 1)
    os.truncate(tmp_path / "cache" / os.path.basename(cache._place(file.path)), SIZE - 1)
    async with cache_of(away, tmp_path, clock) as cache:
        assert cache.nearest(file) is file
        cache.note_search()
        await until(lambda: cache.fetched == 1)
        assert Path(cache.nearest(file).uri).read_bytes() == away.bodies[file.uri]


async def test_when_the_disk_is_short_the_cache_shrinks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, files = WallClock(), [file_at(n) for n in range(3)]
    away = FarAway(files)
    spare = [1 << 30]
    monkeypatch.setattr(file_cache, "spare_bytes", lambda _: spare[0])
    async with cache_of(away, tmp_path, clock) as cache:
        cache.note_search()
        await fetched(cache, clock, 3)
        spare[0] = -SIZE // 2
        await clock.advance(61)
        await settled(clock)
        assert here(cache, files) == [True, True, False]
    monkeypatch.undo()
    monkeypatch.setattr(free_disk, "_FREE_BYTES", 1 << 60)
    async with cache_of(away, tmp_path, clock) as cache:
        await until(lambda: not list(Path(cache.folder).iterdir()))
        cache.note_search()
        await settled(clock)
        assert away.fetched == [file.uri for file in files]


async def test_an_index_that_is_made_later_comes_later(tmp_path: Path) -> None:
    clock, file = WallClock(), file_at(1)
    away = FarAway([file])
    index = away.index_of(file.path)
    body = away.bodies.pop(index)
    async with cache_of(away, tmp_path, clock) as cache:
        cache.note_search()
        await fetched(cache, clock, 1)
        assert not cache.has_index(file)
        assert cache.nearest(file).uri.startswith(str(tmp_path))
        away.bodies[index] = body
        await clock.advance(61)
        await settled(clock)
        assert cache.has_index(file)
        assert cache.used_bytes == SIZE + len(body)
        await clock.advance(61)
        await settled(clock)
    assert away.asked.count(index) == 2


async def test_an_index_that_nobody_makes_is_not_asked_for_forever(tmp_path: Path) -> None:
    clock, file = WallClock(), file_at(1)
    away = FarAway([file])
    index = away.index_of(file.path)
    del away.bodies[index]
    async with cache_of(away, tmp_path, clock) as cache:
        cache.note_search()
        for _ in range(20):
            await settled(clock)
            await clock.advance(61)
        await settled(clock)
    assert away.asked.count(index) == 10


async def test_what_s3_does_not_give_is_asked_for_again(tmp_path: Path) -> None:
    clock, files = WallClock(), [file_at(1), file_at(2)]
    away = FarAway(files)
    away.down = True
    async with cache_of(away, tmp_path, clock) as cache:
        cache.note_search()
        await until(lambda: cache.failed == 1)
        await settled(clock)
        assert not list(Path(cache.folder).iterdir())
        away.down = False
        await clock.advance(61)
        await until(lambda: cache.fetched == 2)


async def test_its_metrics(tmp_path: Path) -> None:
    clock, away = WallClock(), FarAway([file_at(1)])
    async with cache_of(away, tmp_path, clock) as cache:
        engine = cast("QueryEngine", SimpleNamespace(files=cache))
        sources = MetricSources(cast("Node", SimpleNamespace()), engine)
        metrics = [metric for metric in HTTP if metric.name in MOVE_IN_FILE_CACHES]
        assert [str(metric.read(sources)) for metric in metrics] == ["0", "0", "0"]
        away.down = True
        cache.note_search()
        await until(lambda: cache.failed == 1)
        away.down = False
        await settled(clock)
        await clock.advance(61)
        await fetched(cache, clock, 1)
        shown = {metric.name: metric.read(sources) for metric in metrics}
        assert shown.keys() == MOVE_IN_FILE_CACHES
        assert set(shown.values()) == {cache.used_bytes, 1}


async def test_a_file_that_is_not_what_the_table_says_holds_up_no_other(tmp_path: Path) -> None:
    clock, files = WallClock(), [file_at(1), file_at(2), file_at(3)]
    away = FarAway(files)
    away.bodies[files[0].uri] = away.bodies[files[0].uri][:-1]
    del away.bodies[files[1].uri]
    async with cache_of(away, tmp_path, clock) as cache:
        cache.note_search()
        await until(lambda: cache.failed == 1)
        await settled(clock)
        for _ in range(3):
            await clock.advance(61)
            await settled(clock)
        assert here(cache, files) == [False, False, True]
        assert cache.failed == 1
        assert away.fetched.count(files[0].uri) == 1, "it is tried once an hour"
        away.bodies[files[0].uri] = b"x" * SIZE
        await clock.advance(3601)
        await until(lambda: cache.fetched == 2)


async def test_closing_waits_for_no_server_and_leaves_nothing_half(tmp_path: Path) -> None:
    clock, file = WallClock(), file_at(1)
    away = FarAway([file])
    away.answers.clear()
    async with cache_of(away, tmp_path, clock) as cache:
        cache.note_search()
        await until(lambda: bool(away.asked))
        cache.close()
        assert not cache.fetched
        away.answers.set()
        await until(lambda: not list(Path(cache.folder).iterdir()))
        assert not cache.fetched


async def test_what_somebody_removes_comes_again(tmp_path: Path) -> None:
    clock, files = WallClock(), [file_at(1), file_at(2)]
    away = FarAway(files)
    async with cache_of(away, tmp_path, clock) as cache:
        cache.note_search()
        await fetched(cache, clock, 2)
        shutil.rmtree(cache.folder)
        await clock.advance(61)
        await fetched(cache, clock, 4)
        assert here(cache, files) == [True, True]
        os.remove(cache._place(files[1].path))
        await clock.advance(61)
        await fetched(cache, clock, 5)
        assert here(cache, files) == [True, True]
        assert cache.failed == 0


async def test_there_are_not_too_many_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_cache, "_MOST_FILES", 2)
    clock, files = WallClock(), [file_at(n) for n in range(4)]
    away = FarAway(files)
    away.files = files[1:]
    async with cache_of(away, tmp_path, clock) as cache:
        cache.note_search()
        await fetched(cache, clock, 2)
        away.files = files
        await clock.advance(61)
        await fetched(cache, clock, 3)
        assert here(cache, files) == [True, True, False, False]
