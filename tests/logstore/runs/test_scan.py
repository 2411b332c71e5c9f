"""The index of a streamed text depends on the text alone, and finds every line of it."""

from __future__ import annotations

import tracemalloc
from random import Random

import numpy as np
import pytest

from service.run_log.openmetadata import Scanned, TextScan
from tailrace.logstore import ulid as ulids
from tailrace.logstore.batch import digest
from tailrace.logstore.runs.chunk_index import decode_tail, open_piece

FIRST = ulids.lowest_at(1_700_000_000_000)


def scanned(pieces: list[bytes]) -> Scanned:
    scan = TextScan("w", FIRST)
    for piece in pieces:
        scan.add(piece)
    return scan.end("id")


def pieces_of(text: bytes, random: Random) -> list[bytes]:
    cuts = sorted(random.randrange(len(text) + 1) for _ in range(random.randrange(12)))
    return [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]


def random_text(random: Random) -> bytes:
    longest = random.choice([3, 200, 100_000])
    count = random.choice([1, 900])
    lines = [b"a" * random.randrange(longest) + b"\n" for _ in range(count)]
    return b"".join(lines)[: 4 << 20].rsplit(b"\n", 1)[0] + b"\n"


@pytest.mark.parametrize("seed", range(20))
def test_every_block_is_whole_lines_and_where_it_says(seed: int) -> None:
    random = Random(seed)
    text = random_text(random)
    found = scanned([text])
    assert scanned(pieces_of(text, random)) == found
    chunk = found.chunk
    assert (chunk.bytes, chunk.lines) == (len(text), text.count(b"\n"))
    assert (chunk.first, chunk.index_bytes) == (FIRST, len(found.index))
    directory = decode_tail(found.index[-chunk.tail_bytes :])
    byte = line = number = 0
    for entry in directory.entries:
        at = int(entry["at"])
        blocks, writers = open_piece(entry, found.index[at : at + int(entry["size"])])
        for block in blocks:
            part = text[byte : byte + int(block["size"])]
            assert (int(block["offset"]), int(block["line"]), int(block["pos"])) == (
                byte,
                line,
                line,
            )
            assert part.endswith(b"\n")
            assert int(block["lines"]) == int(block["records"]) == part.count(b"\n")
            assert int(block["digest"]) == digest(part)
            ulid = int(block["ulid_hi"]) << 64 | int(block["ulid_lo"])
            assert ulid == FIRST + (number << ulids.LINE_BITS)
            assert writers[int(block["writer"])] == "w"
            byte, line, number = byte + len(part), line + int(block["lines"]), number + 1
    assert (byte, number) == (len(text), chunk.blocks)
    assert chunk.writers == {"w": (0, line)}


def test_blocks_are_small_but_for_long_lines() -> None:
    text = b"x" * 99 + b"\n"
    found = scanned([text * 100_000])
    directory = decode_tail(found.index[-found.chunk.tail_bytes :])
    blocks, _ = open_piece(directory.entries[0], found.index[: directory.body_bytes])
    assert int(blocks["size"].max()) <= 33 << 10


def test_many_pieces_of_the_index() -> None:
    piece = (b"y" * 33_000 + b"\n") * 30
    found = scanned([piece] * 300)
    directory = decode_tail(found.index[-found.chunk.tail_bytes :])
    assert len(directory.entries) == 3
    assert found.chunk.blocks == 9000
    assert np.array_equal(directory.entries["blocks"], [4096, 4096, 808])
    assert found.chunk.bytes == len(piece) * 300
    assert found.chunk.last == FIRST + (8999 << ulids.LINE_BITS)


def test_a_line_longer_than_memory_allows_is_not_held() -> None:
    piece = bytes([120]) * (1 << 20)
    scan = TextScan("w", FIRST)
    tracemalloc.start()
    try:
        for _ in range(64):
            scan.add(piece)
        scan.add(b"\nz\n")
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 16 << 20
    assert scan.end("id").chunk.lines == 2


def test_it_knows_whether_the_last_line_has_ended() -> None:
    scan = TextScan("w", FIRST)
    known = [scan.ended]
    for piece in (b"a\nb", b"", b"\n"):
        scan.add(piece)
        known.append(scan.ended)
    assert known == [True, False, False, True]
