"""Chunk indexes: what goes in comes out, however batches are cut; damage is found."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.logstore.batch import RecordMeta, RunKey
from tailrace.logstore.errors import Damaged, UnsupportedVersion
from tailrace.logstore.runs.chunk_index import (
    BLOCK_BYTES,
    Blocks,
    Directory,
    blocks_of,
    build_index,
    decode_tail,
    encode_tail,
    joined,
    open_piece,
)
from tests.batches import Entry, make_batches

RUN = RunKey("pipeline", "run")
START_MS = 1_750_000_000_000


def ulid(random: Random, ms: int) -> int:
    return ms << 80 | random.getrandbits(55) << 25


def built(entries: list[Entry]) -> tuple[Blocks, bytes, bytes, Directory]:
    batches = make_batches("node", entries)
    indexes = np.arange(len(batches.rows))
    text = batches.text(indexes)
    blocks = blocks_of(batches, indexes, text)
    body, directory = build_index(blocks, ["node"])
    return blocks, text, body, directory


def read(directory: Directory, body: bytes) -> Blocks:
    parts = []
    for entry in directory.entries:
        at = int(entry["at"])
        parts.append(open_piece(entry, body[at : at + int(entry["size"])])[0])
    return np.concatenate(parts)


def check_blocks(blocks: Blocks, text: bytes) -> None:
    for block in blocks:
        offset, size = int(block["offset"]), int(block["size"])
        part = text[offset : offset + size]
        assert part.endswith(b"\n")
        assert part.count(b"\n") == block["lines"]
        assert text[:offset].count(b"\n") == block["line"]
        assert block["records"] in (block["lines"], 1)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.lists(st.integers(0, 400), min_size=1, max_size=300), min_size=1, max_size=20))
def test_round_trip(sizes: list[list[int]]) -> None:
    random = Random(1)
    entries: list[Entry] = [
        (RUN, ulid(random, START_MS + n), b"".join(b"x" * size + b"\n" for size in lines))
        for n, lines in enumerate(sizes)
    ]
    blocks, text, body, directory = built(entries)
    check_blocks(blocks, text)
    tail = encode_tail(directory)
    again = decode_tail(b"before" + tail)
    assert (read(again, body) == blocks).all()
    assert again.ranges == directory.ranges


def test_large_batches_and_long_lines_are_split_at_lines() -> None:
    random = Random(2)
    lines = b"".join(b"y" * random.randrange(500) + b"\n" for _ in range(3000))
    text = lines + b"z" * 3 * BLOCK_BYTES + b"\n\n"
    blocks, whole, body, directory = built([(RUN, ulid(random, START_MS), text)])
    check_blocks(blocks, whole)
    assert len(blocks) > len(lines) // BLOCK_BYTES
    assert blocks["first"].sum() == 1
    assert np.count_nonzero(blocks["digest"]) == 1
    assert blocks["records"].sum() == text.count(b"\n")
    assert (read(directory, body) == blocks).all()


def test_records_with_newlines_have_a_block_each() -> None:
    meta = RecordMeta([4, 6, 12], [None] * 3, [None] * 3, [None] * 3)
    entry: Entry = (RUN, START_MS << 80, b"a\nb\nc\nd\ne\nf\n", None, meta)
    blocks, text, _, _ = built([entry])
    assert blocks["size"].tolist() == [4, 2, 6]
    assert blocks["lines"].tolist() == [2, 1, 3]
    assert blocks["pos"].tolist() == [0, 1, 2]
    check_blocks(blocks, text)


def test_a_batch_of_one_line_takes_less_than_25_bytes() -> None:
    random = Random(3)
    entries: list[Entry] = [
        (RUN, ulid(random, START_MS + n // 2), b"x" * random.randrange(40, 200) + b"\n")
        for n in range(20_000)
    ]
    blocks, _, body, directory = built(entries)
    assert len(body) + len(encode_tail(directory)) < 25 * len(blocks)


def test_joined_directories_go_on_counting() -> None:
    random = Random(4)
    first = built([(RUN, ulid(random, START_MS), b"a\nb\n")])
    second = built([(RUN, ulid(random, START_MS + 1), b"c\n")])
    whole = joined([first[3], second[3]])
    blocks = read(whole, first[2] + second[2])
    check_blocks(blocks, first[1] + second[1])
    assert whole.extremes()[1] == second[3].extremes()[1]


@pytest.mark.parametrize("place", [0, 20, -1, -10, -20])
def test_a_flipped_byte_of_the_tail_is_damage(place: int) -> None:
    tail = bytearray(encode_tail(built([(RUN, START_MS << 80, b"a\n")])[3]))
    tail[place] ^= 0x40
    with pytest.raises(Damaged):
        decode_tail(bytes(tail))


def test_a_flipped_byte_of_a_piece_is_damage() -> None:
    _, _, body, directory = built([(RUN, START_MS << 80, b"a\n")])
    broken = bytes([body[0] ^ 1]) + body[1:]
    with pytest.raises(Damaged):
        open_piece(directory.entries[0], broken)


def test_a_cut_tail_is_damage_and_a_newer_one_is_not_guessed_at() -> None:
    tail = encode_tail(built([(RUN, START_MS << 80, b"a\n")])[3])
    for size in range(len(tail)):
        with pytest.raises(Damaged):
            decode_tail(tail[len(tail) - size :] if size < 28 else tail[:size])
    newer = bytearray(tail)
    newer[-24] = 2
    with pytest.raises(UnsupportedVersion):
        decode_tail(bytes(newer))
