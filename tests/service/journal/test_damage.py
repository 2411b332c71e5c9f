"""Bytes that are not what was written: a tail torn at any byte, a flip of any byte."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable

import pytest

from service.journal import format as wal
from service.journal.journal import Journal
from service.journal.recovery import recover
from service.journal.state import Cut
from tailrace.logstore.batch import RunKey
from tailrace.logstore.errors import UnsupportedVersion
from tailrace.logstore.filesystem import FileSystem
from tests.service.journal.rig import NODE, RUN, Rig, held, journal_settings, put
from tests.simulation.powercut import PowerCutFileSystem

SETTINGS = journal_settings(file_bytes=1 << 20, fast_sync_seconds=3600)


def read(fs: FileSystem, path: str) -> bytes:
    file = fs.open(path, "read")
    try:
        return file.pread(file.size(), 0)
    finally:
        file.close()


def write(fs: FileSystem, path: str, data: bytes) -> None:
    if fs.stat(path) is not None:
        fs.unlink(path)
    file = fs.open(path, "create")
    file.write([data])
    file.sync()
    file.close()
    fs.sync_folder(path.rpartition("/")[0])


def wals(fs: FileSystem) -> list[str]:
    return sorted(
        f"/data/journal/{name}" for name, _ in fs.scan("/data/journal") if name.endswith(".wal")
    )


async def opened(fs: FileSystem, ask: Callable[[Rig, Journal], None]) -> None:
    """Starts, checks, appends, starts again."""
    rig = Rig(fs=fs, settings=SETTINGS)
    journal = rig.open()
    ask(rig, journal)
    before = held(journal)
    pos = journal.next_pos
    assert await put(journal, b"afterwards\n", 1 << 100) == pos
    await journal.close()
    journal = rig.open()
    assert held(journal) == [*before, (pos, 1 << 100, b"afterwards\n")]
    await journal.close()


def written(lines: list[bytes], *, starts: int = 1) -> PowerCutFileSystem:
    """A folder with these lines, spread over so many starts; then a cut and a close."""
    fs = PowerCutFileSystem()

    async def main() -> None:
        rig = Rig(fs=fs, settings=SETTINGS)
        share = len(lines) // starts
        for start in range(starts):
            journal = rig.open()
            for line in lines[start * share : (start + 1) * share]:
                await put(journal, line, rig.next_ulid())
            if start == starts - 1:
                await journal.record_cut(1, 0)
                await journal.record_close(RUN)
            await journal.close()

    asyncio.run(main())
    return fs


def copy_with(fs: FileSystem, number: int, data: bytes) -> PowerCutFileSystem:
    """The folder with one file replaced."""
    copy = PowerCutFileSystem()
    copy.make_folders("/data/journal")
    for at, path in enumerate(wals(fs)):
        write(copy, path, data if at == number else read(fs, path))
    return copy


def test_a_newest_file_cut_at_every_byte_keeps_all_whole_entries() -> None:
    lines = [b"line %d\n" % number for number in range(6)]
    fs = written(lines)
    data = read(fs, wals(fs)[0])
    ends = [data.index(line) + len(line) for line in lines]
    for size in range(ends[2], len(data)):
        whole = [line for line, end in zip(lines, ends, strict=True) if end <= size]

        def ask(rig: Rig, journal: Journal, size: int = size, whole: list[bytes] = whole) -> None:
            assert [text for _, _, text in held(journal)] == whole
            assert journal.next_pos == len(whole)
            assert not rig.recovered.found
            kept = sum(torn.size for torn in rig.recovered.torn) + journal.files[0].size
            assert kept == size

        asyncio.run(opened(copy_with(fs, 0, data[:size]), ask))


@pytest.mark.in_turn(3)
def test_a_flip_of_every_byte_of_an_older_file_is_reported_and_invents_nothing() -> None:
    lines = [b"line %d\n" % number for number in range(8)]
    fs = written(lines, starts=2)
    data = read(fs, wals(fs)[0])
    for at in range(len(data)):
        flipped = bytearray(data)
        flipped[at] ^= 1 << (at % 8)

        def ask(rig: Rig, journal: Journal) -> None:
            texts = [text for _, _, text in held(journal)]
            assert rig.recovered.found
            assert [line for line in lines if line in texts] == texts
            assert len(texts) >= len(lines) - 1
            assert texts[-4:] == lines[4:]
            assert journal.next_pos == 8
            assert journal.state.cuts == [Cut(1, 0, 8)]
            assert RUN in journal.state.closes

        asyncio.run(opened(copy_with(fs, 0, bytes(flipped)), ask))


@pytest.mark.in_turn(4)
def test_a_flip_of_every_byte_of_the_newest_file_is_reported_and_stops_nothing() -> None:
    lines = [b"line %d\n" % number for number in range(8)]
    fs = written(lines, starts=2)
    data = read(fs, wals(fs)[1])
    for at in range(len(data)):
        flipped = bytearray(data)
        flipped[at] ^= 1 << (at % 8)

        def ask(rig: Rig, journal: Journal) -> None:
            texts = [text for _, _, text in held(journal)]
            assert rig.recovered.found or rig.recovered.torn
            assert texts[:4] == lines[:4]
            assert [line for line in lines if line in texts] == texts
            assert len(texts) >= len(lines) - 1
            assert journal.state.node == NODE

        asyncio.run(opened(copy_with(fs, 1, bytes(flipped)), ask))


def test_damage_loses_its_entry_and_nothing_else() -> None:
    lines = [b"%04d " % number + b"x" * 9_000 + b"\n" for number in range(100)]
    fs = written(lines)
    data = bytearray(read(fs, wals(fs)[0]))
    victims = [data.index(b"%04d " % number) for number in (5, 40)]
    for at in victims:
        data[at] ^= 255

    def ask(rig: Rig, journal: Journal) -> None:
        texts = [text for _, _, text in held(journal)]
        lost = [line for line in lines if line not in texts]
        assert [line for line in lines if line in texts] == texts
        assert len(rig.recovered.found) == 2
        assert lost == [lines[5], lines[40]]
        assert [(found.first, found.lines, found.exact) for found in rig.recovered.found] == [
            (5, 1, True),
            (40, 1, True),
        ]
        for found in rig.recovered.found:
            kept = read(rig.fs, found.copy)
            assert kept == bytes(data[found.offset : found.offset + found.size])

    asyncio.run(opened(copy_with(fs, 0, bytes(data)), ask))


def test_a_lost_block_costs_the_entries_in_it() -> None:
    lines = [b"%04d " % number + b"x" * 9_000 + b"\n" for number in range(120)]
    fs = written(lines)
    data = bytearray(read(fs, wals(fs)[0]))
    data[250_000:270_000] = bytes(20_000)

    def ask(rig: Rig, journal: Journal) -> None:
        texts = [text for _, _, text in held(journal)]
        (found,) = rig.recovered.found
        assert found.exact
        assert found.lines == len(lines) - len(texts) <= 4
        assert texts[0] == lines[0]
        assert texts[-1] == lines[-1]
        assert [line for line in lines if line in texts] == texts

    asyncio.run(opened(copy_with(fs, 0, bytes(data)), ask))


def test_lost_positions_at_the_end_are_not_given_out_again() -> None:
    lines = [b"%04d " % number + b"x" * 900 + b"\n" for number in range(600)]
    fs = written(lines)
    data = read(fs, wals(fs)[0])
    victim, last = data.index(b"0100 "), data.index(b"0300 ")
    pattern = bytes((wal.MARK,)) + wal.decode_header(data).secret
    mark = data.index(pattern, last) - wal.PREFIX.size
    lost = data[:victim] + b"!" * (mark - victim) + data[mark : mark + wal.MARK_BYTES]

    def ask(rig: Rig, journal: Journal) -> None:
        (found,) = rig.recovered.found
        assert found.exact
        assert found.lines == journal.next_pos - 100
        assert len(held(journal)) == 100
        assert journal.next_pos in (300, 301)

    asyncio.run(opened(copy_with(fs, 0, lost), ask))


def test_a_payload_that_looks_like_entries_and_marks_is_text() -> None:
    """Also where the length of its own entry is damaged, and it is searched for the next one."""
    fake = wal.sealed(wal.encode_json(wal.CLOSE, {"fqn": "x", "run": "y", "pos": 0}), b"guessed!")
    mark = wal.encode_mark(b"guessed!", 0, 1 << 40, 9)
    lines = [b"first\n", fake + mark + fake + b"\n", b"last\n"]
    fs = written(lines)
    data = bytearray(read(fs, wals(fs)[0]))
    head = data.index(lines[1]) - len(RUN.fqn + RUN.run) - wal.BATCH_HEAD.size - wal.PREFIX.size
    data[head : head + 4] = b"?" * 4

    def ask(_: Rig, journal: Journal) -> None:
        assert RunKey("x", "y") not in journal.state.closes
        assert [text for _, _, text in held(journal)] == [lines[0], lines[2]]

    asyncio.run(opened(copy_with(fs, 0, bytes(data)), ask))


@pytest.mark.parametrize(
    "body",
    [
        bytes((wal.CLOSE,)) + b"{",
        bytes((wal.CLOSE,)) + b"[]",
        bytes((wal.CUT,)) + b'{"node":1}',
        bytes((wal.STATE,)) + b"null",
        bytes((wal.BATCH,)) + b"short",
        bytes((wal.BATCH,)) + b"\xff" * 100,
        bytes((99,)) + b"{}",
        bytes((0,)),
    ],
)
def test_an_entry_that_makes_no_sense_is_quarantined_though_its_checksum_fits(body: bytes) -> None:
    fs = written([b"one\n"])
    path = wals(fs)[0]
    data = read(fs, path)
    entry = wal.sealed(body, wal.decode_header(data).secret)
    data += entry
    copy = copy_with(fs, 0, data)

    def ask(rig: Rig, journal: Journal) -> None:
        assert [text for _, _, text in held(journal)] == [b"one\n"]
        (found,) = rig.recovered.found
        assert read(copy, found.copy) == entry
        assert RUN in journal.state.closes

    asyncio.run(opened(copy, ask))


def test_files_that_are_no_journal_are_quarantined_or_removed() -> None:
    fs = written([b"one\n"])
    path = wals(fs)[0]
    folder = "/data/journal"
    write(fs, f"{folder}/ZZZ.wal", b"")
    write(fs, f"{folder}/ZZY.wal", read(fs, path))
    write(fs, f"{folder}/7ZZZZZZZZZZZZZZZZZZZZZZZZZ.wal", b"\0" * 5000)
    write(fs, f"{folder}/7ZZZZZZZZZZZZZZZZZZZZZZZZZ.wal.new", b"half")
    write(fs, f"{folder}/01J00000000000000000000000.idx", b"stale")

    def ask(rig: Rig, journal: Journal) -> None:
        assert [text for _, _, text in held(journal)] == [b"one\n"]
        assert len(rig.recovered.found) == 3
        assert all(fs.stat(found.copy) is not None for found in rig.recovered.found)
        names = [name for name, is_folder in fs.scan(folder) if not is_folder]
        assert not [name for name in names if name.endswith(".new") or name.startswith("01J0")]

    asyncio.run(opened(fs, ask))


def test_a_newer_format_stops_the_start_and_a_flipped_version_does_not() -> None:
    fs = written([b"one\n"])
    path = wals(fs)[0]
    data = bytearray(read(fs, path))
    struct.pack_into("<I", data, 8, wal.VERSION + 1)

    def ask(rig: Rig, journal: Journal) -> None:
        assert [text for _, _, text in held(journal)] == [b"one\n"]
        assert rig.recovered.found

    asyncio.run(opened(copy_with(fs, 0, bytes(data)), ask))
    length = struct.unpack_from("<I", data, 12)[0]
    struct.pack_into("<I", data, length - 4, wal._checksum(bytes(data[: length - 4])))
    with pytest.raises(UnsupportedVersion):
        recover(copy_with(fs, 0, bytes(data)), "/data/journal")


def test_an_older_file_that_is_gone_is_reported() -> None:
    fs = written([b"%d\n" % number for number in range(6)], starts=3)
    fs.unlink(wals(fs)[1])

    def ask(rig: Rig, journal: Journal) -> None:
        assert [text for _, _, text in held(journal)] == [b"0\n", b"1\n", b"4\n", b"5\n"]
        reasons = [found.reason for found in rig.recovered.found]
        assert reasons == ["2 lines before this file are gone"]

    asyncio.run(opened(fs, ask))


def journal_with_cuts(cuts: int) -> PowerCutFileSystem:
    """Two files: each line is cut as a segment of its own, the first is confirmed."""
    fs = PowerCutFileSystem()

    async def main() -> None:
        rig = Rig(fs=fs, settings=SETTINGS)
        for start in range(2):
            journal = rig.open()
            for number in range(cuts):
                await put(journal, b"%d\n" % number, rig.next_ulid())
                last = journal.state.last_cut()
                await journal.record_cut(last.seq + 1, last.end)
            if start == 0:
                journal.confirm(journal.state.cuts[0])
                await journal.record_close(RUN)
            await journal.close()

    asyncio.run(main())
    return fs


def test_without_the_newest_state_the_older_one_and_its_changes_say_the_same() -> None:
    def ask(rig: Rig, journal: Journal) -> None:
        assert rig.recovered.found
        assert journal.state.confirmed == Cut(1, 0, 1)
        assert journal.state.cuts == [Cut(n, n - 1, n) for n in range(2, 7)]
        assert journal.state.closes == {RUN: 3}

    fs = journal_with_cuts(3)
    asyncio.run(_with_third_start(fs))
    asyncio.run(opened(resealed(fs, 2, b'"base"', b'"bass"'), ask))


async def _with_third_start(fs: PowerCutFileSystem) -> None:
    journal = Rig(fs=fs, settings=SETTINGS).open()
    await journal.close()


def test_one_lost_cut_is_known_by_its_neighbours() -> None:
    def ask(_: Rig, journal: Journal) -> None:
        assert journal.state.cuts == [Cut(n, n - 1, n) for n in range(2, 7)]

    fs = journal_with_cuts(3)
    asyncio.run(_with_third_start(fs))
    damaged = resealed(fs, 1, b'"cut":[5,4,5]', b'"cut":"?????"')
    asyncio.run(opened(resealed(damaged, 2, b'"base"', b'"bass"'), ask))


def test_if_nobody_knows_how_lines_were_cut_no_segment_is_claimed() -> None:
    def ask(_: Rig, journal: Journal) -> None:
        assert journal.state.cuts == []
        assert journal.state.confirmed == Cut(0, 0, 0)
        assert journal.state.closes == {RUN: 3}
        assert len(held(journal)) == 6

    fs = journal_with_cuts(3)
    asyncio.run(_with_third_start(fs))
    damaged = resealed(fs, 1, b'"cut":[4,3,4]', b'"cut":"?????"')
    damaged = resealed(damaged, 1, b'"cut":[5,4,5]', b'"cut":"?????"')
    asyncio.run(opened(resealed(damaged, 2, b'"base"', b'"bass"'), ask))


def test_without_any_state_the_lines_of_a_file_begin_a_journal_again() -> None:
    fs = journal_with_cuts(3)
    fs.unlink(wals(fs)[0])

    def ask(_: Rig, journal: Journal) -> None:
        assert journal.state.node == NODE
        assert journal.state.cuts == []
        assert journal.state.confirmed == Cut(0, 3, 3)
        assert [pos for pos, _, _ in held(journal)] == [3, 4, 5]

    asyncio.run(opened(resealed(fs, 0, b'"base"', b'"bass"'), ask))


def resealed(fs: PowerCutFileSystem, number: int, old: bytes, new: bytes) -> PowerCutFileSystem:
    """The folder with one entry of a file changed, and its checksum as well."""
    data = bytearray(read(fs, wals(fs)[number]))
    at = data.rindex(old)
    data[at : at + len(old)] = new
    header = wal.decode_header(bytes(data))
    offset = header.size
    while True:
        length, _ = wal.PREFIX.unpack_from(data, offset)
        body = offset + wal.PREFIX.size
        if at < body + length:
            secret = wal.NO_SECRET if offset == header.size else header.secret
            entry = wal.sealed(bytes(data[body : body + length]), secret)
            data[offset : body + length] = entry
            return copy_with(fs, number, bytes(data))
        offset = body + length
