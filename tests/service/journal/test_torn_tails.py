"""What is said of a journal whose newest file does not read up to its end."""

from __future__ import annotations

import asyncio

from service.journal.journal import Journal
from tests.service.journal.rig import Rig, held
from tests.service.journal.test_damage import copy_with, opened, read, wals, written


def test_behind_the_last_mark_a_whole_entry_that_follows_tells_of_damage() -> None:
    lines = [b"line %d\n" % number for number in range(6)]
    fs = written(lines)
    data = bytearray(read(fs, wals(fs)[0]))
    data[data.index(lines[2])] ^= 1

    def ask(rig: Rig, journal: Journal) -> None:
        assert [text for _, _, text in held(journal)] == lines[:2]
        assert not rig.recovered.found
        (problem,) = [*journal.problems(), *rig.recovered.problems()]
        (torn,) = rig.recovered.torn
        assert torn.copy in problem
        assert f"{torn.size} bytes at {torn.offset}" in problem
        assert read(rig.fs, torn.copy) == bytes(data[torn.offset :])

    asyncio.run(opened(copy_with(fs, 0, bytes(data)), ask))


def test_the_end_of_a_write_that_was_broken_off_is_no_problem() -> None:
    lines = [b"line %d\n" % number for number in range(3)]
    fs = written(lines)
    data = read(fs, wals(fs)[0])
    for size in range(data.index(lines[1]), data.index(lines[2]) + len(lines[2])):

        def ask(rig: Rig, journal: Journal) -> None:
            assert [*journal.problems(), *rig.recovered.problems()] == []

        asyncio.run(opened(copy_with(fs, 0, data[:size]), ask))
