"""Version 2 of the journal: attributes of a whole batch. Files of version 1 are read."""

from __future__ import annotations

import asyncio
import struct

import pytest

from service.journal import format as wal
from service.journal.format import encode_attributes
from service.journal.journal import Journal
from tailrace.logstore.batch import digest, has_record_meta
from tailrace.logstore.errors import Damaged
from tests.service.journal.rig import NODE, RUN, Rig, held, put, texts
from tests.service.journal.test_damage import copy_with, opened, read, wals, written
from tests.service.journal.test_positions import FILE, SECRET


def test_files_of_the_version_before_are_read() -> None:
    """Version 1 had no flags, and is the same in everything else."""
    fs = written([b"one\n", b"two\n"])
    data = bytearray(read(fs, wals(fs)[0]))
    struct.pack_into("<I", data, 8, 1)
    length = struct.unpack_from("<I", data, 12)[0]
    struct.pack_into("<I", data, length - 4, wal._checksum(bytes(data[: length - 4])))

    def ask(rig: Rig, journal: Journal) -> None:
        assert [text for _, _, text in held(journal)] == [b"one\n", b"two\n"]
        assert not rig.recovered.found

    asyncio.run(opened(copy_with(fs, 0, bytes(data)), ask))


def test_a_header_that_is_cut_anywhere_is_damaged() -> None:
    header = wal.encode_header(file=FILE, secret=SECRET, first_pos=0, node=NODE)
    assert wal.decode_header(header).size == len(header)
    for size in range(len(header)):
        with pytest.raises(Damaged):
            wal.decode_header(header[:size])


def test_a_file_of_another_kind_has_no_header_though_its_checksum_is_right() -> None:
    head = wal.encode_header(file=FILE, secret=SECRET, first_pos=0, node=NODE)[:-4]
    other = bytes([head[0] ^ 1]) + head[1:]
    with pytest.raises(Damaged, match="it has no header"):
        wal.decode_header(other + struct.pack("<I", wal._checksum(other)))


async def test_attributes_of_all_lines_of_a_batch_come_back() -> None:
    rig = Rig()
    journal = rig.open()
    shared = {"k": "ü", "": "\0"}
    meta = encode_attributes(shared)
    checksum = digest(b"a\nb\n")
    _, done = journal.append(
        RUN, rig.next_ulid(), b"a\nb\n", records=2, lines=2, digest=checksum, meta=meta
    )
    await done
    await put(journal, b"c\n", rig.next_ulid())
    for again in range(2):
        with journal.pin() as pin:
            assert texts(pin) == [b"a\nb\n", b"c\n"]
            batches = pin.batches()
            assert [batches.constant_attributes(i) for i in range(2)] == [shared, None]
            assert [batches.meta(i) for i in range(2)] == [None, None]
            assert has_record_meta(batches.rows).tolist() == [False, False]
            assert list(pin.damaged(0, 9)) == []
        await journal.close()
        if not again:
            journal = rig.open()
