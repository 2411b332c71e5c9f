"""Skip indexes on this machine: searches read the pages that they need."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import cast

import numpy as np
import pytest

from service.query import skip_indexes
from service.query.skip_indexes import IndexFiles
from tailrace.logstore import keys
from tailrace.logstore.errors import Damaged
from tailrace.logstore.search.conditions import AnyOf, Contains
from tailrace.logstore.search.translate import Needs, needs_of
from tailrace.logstore.table import skip_index
from tailrace.logstore.table.skip_index import PAGE_BYTES, Builder, head_bytes
from tailrace.logstore.table.snapshot import TableFile
from tests.service.query.indexed import noted_opens
from tests.service.query.test_skipping import alike, altered, rare_word
from tests.service.query.world import World
from tests.simulation.hand_clock import HandClock

OTHER = cast(Needs, needs_of(Contains("request")))
NEEDS = cast(Needs, needs_of(AnyOf((Contains("needle-in"), Contains("nowhere")))))


@pytest.fixture
async def there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[World, TableFile, Path]:
    """A file with an index of several pages, and where that is."""
    monkeypatch.setattr(skip_index, "_FILTERS_SHARE", 0.3)
    world = World(tmp_path)
    file = await rare_word(world)
    return world, file, Path(world.store.uri(keys.skip_index(file.path)))


def indexes_of(world: World, clock: HandClock, budget: int = 1 << 20) -> IndexFiles:
    return IndexFiles(lambda path: world.store.uri(keys.skip_index(path)), clock, budget)


async def test_one_that_is_made_or_mended_is_used(there: tuple[World, TableFile, Path]) -> None:
    world, file, path = there
    body, clock = path.read_bytes(), HandClock()
    indexes = indexes_of(world, clock)
    path.unlink()
    assert indexes.which([file], NEEDS) == {}
    assert indexes.damaged == 0
    path.write_bytes(altered(body))
    for _ in range(3):
        assert indexes.which([file], NEEDS) == {}
    assert indexes.damaged == 1
    path.write_bytes(body)
    assert indexes.which([file], NEEDS) == {}
    await clock.advance(61)
    found = indexes.which([file], NEEDS)[file.path]
    assert found.groups.sum() == 2
    assert found.rows.sum() == file.rows


async def test_what_was_read_is_not_read_again(there: tuple[World, TableFile, Path]) -> None:
    """The file of the table stays as it is, so what an index said of it stays right."""
    world, file, path = there
    indexes = indexes_of(world, HandClock())
    found = indexes.which([file], NEEDS)[file.path]
    assert found.groups.sum() == 2
    path.unlink()
    assert indexes.which([file], NEEDS)[file.path].groups.tolist() == found.groups.tolist()
    assert indexes.which([file], OTHER) == {}


IN_ALL = ("first of all of them", "second in all of them")


def index_with(file: TableFile, groups: int, needle_in: int) -> bytes:
    """An index of so many row groups, one has `needle-in-a-haystack`, all have `IN_ALL`.

    The header of one with another is another.
    """
    dice, builder = random.Random(3), Builder(file.size, groups)
    for number in range(groups):
        text = (
            dice.randbytes(4_000)
            + "".join(IN_ALL).encode()
            + b"needle-in-a-haystack" * (number == needle_in)
        )
        builder.add(needle_in, text, bare=True)
    return builder.finish()


async def test_nothing_of_an_index_is_mixed_with_another(
    there: tuple[World, TableFile, Path],
) -> None:
    world, small, path = there
    file = replace(small, size=30_000_000)
    indexes = indexes_of(world, HandClock())
    for needle_in, text in zip((3, 7), IN_ALL, strict=True):
        path.write_bytes(index_with(file, 100, needle_in))
        needs = cast(Needs, needs_of(Contains(text)))  # of which not all pages were read
        assert indexes.which([file], needs)[file.path].groups.all()
        found = indexes.which([file], NEEDS)[file.path].groups
        assert np.flatnonzero(found).tolist() == [needle_in]
    assert indexes.damaged == 0


async def test_a_header_of_several_pages(there: tuple[World, TableFile, Path]) -> None:
    world, file, path = there
    path.write_bytes(index_with(file, 3_000, 1_234))
    assert head_bytes(path.read_bytes()) > 2 * PAGE_BYTES
    found = indexes_of(world, HandClock()).which([file], NEEDS)[file.path]
    assert found.groups[1_234]
    assert len(found.rows) == 3_000


async def test_two_searches_that_come_upon_damage_count_it_once(
    there: tuple[World, TableFile, Path],
) -> None:
    world, file, _ = there
    clock = HandClock()
    indexes = indexes_of(world, clock)
    for now, damaged in ((0, 1), (0, 1), (61, 2)):
        await clock.advance(now - clock.monotonic())
        indexes._skip_for_now(file.path, Damaged("it is not as it was"))
        assert indexes.damaged == damaged


async def test_what_does_not_read_is_no_index(there: tuple[World, TableFile, Path]) -> None:
    world, file, path = there
    indexes = indexes_of(world, HandClock())
    path.unlink()
    path.mkdir()
    assert indexes.which([file], NEEDS) == {}
    assert indexes.damaged == 1


async def test_what_was_read_is_kept_within_the_budget(
    there: tuple[World, TableFile, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    world, file, _ = there
    files = await alike(world, file, 4)
    opened = noted_opens(monkeypatch)
    alone = indexes_of(world, HandClock())
    alone.which([file], NEEDS)
    room = alone._known.bytes
    opened.clear()
    indexes = indexes_of(world, HandClock(), budget=3 * room)
    for n, count in ((0, 1), (1, 2), (2, 3), (0, 3), (1, 3), (2, 3), (3, 4), (1, 4), (0, 5)):
        assert indexes.which([files[n]], NEEDS)
        assert len(opened) == count
    assert len(indexes.which(files, NEEDS)) == 4
    none_fits = indexes_of(world, HandClock(), budget=room // 2)
    for _ in range(2):
        assert len(none_fits.which(files, NEEDS)) == 4


async def test_many_files_are_not_open_at_once(
    there: tuple[World, TableFile, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    world, file, _ = there
    files = await alike(world, file, 10)
    monkeypatch.setattr(skip_indexes, "_FILES_AT_ONCE", 3)
    most = 0
    now, opened = 0, skip_indexes._open

    @contextmanager
    def counting(path: str) -> Iterator[int]:
        nonlocal now, most
        with opened(path) as number:
            now += 1
            most = max(most, now)
            yield number
            now -= 1

    monkeypatch.setattr(skip_indexes, "_open", counting)
    assert len(indexes_of(world, HandClock()).which(files, NEEDS)) == 10
    assert most == 3
    assert now == 0


async def test_pages_are_announced_before_the_first_is_read(
    there: tuple[World, TableFile, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    world, file, _ = there
    (other,) = await alike(world, file, 1)
    indexes = indexes_of(world, HandClock())
    calls: list[str] = []
    pread, advise = os.pread, os.posix_fadvise

    def read(number: int, size: int, at: int) -> bytes:
        calls.append("header" if at == 0 else "read")
        return pread(number, size, at)

    def announce(number: int, at: int, size: int, advice: int) -> None:
        assert size <= PAGE_BYTES
        calls.append("announce")
        advise(number, at, size, advice)

    monkeypatch.setattr(os, "pread", read)
    monkeypatch.setattr(os, "posix_fadvise", announce)
    assert len(indexes.which([file, other], NEEDS)) == 2
    announced, read_ = calls.count("announce"), calls.count("read")
    assert calls == ["header", *["announce"] * (announced // 2)] * 2 + ["read"] * read_
    assert announced >= read_ >= 4
    calls.clear()
    assert len(indexes.ahead([file, other], NEEDS)) == 2
    assert calls == []
