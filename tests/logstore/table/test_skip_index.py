"""A row group that a skip index leaves out has no match; and it leaves out most that have none."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from pathlib import Path

import duckdb
import numpy as np
import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tailrace.logstore.errors import Damaged, UnsupportedVersion
from tailrace.logstore.table import line_map, skip_index
from tailrace.logstore.table.skip_index import (
    LENGTHS,
    PAGE_BYTES,
    SHARE,
    Builder,
    SkipIndex,
    grams_of,
    head_bytes,
    parse,
    parse_head,
    ranges,
)
from tests.logstore.table.pages.mapped import made
from tests.logstore.table.pages.test_maps import lines_of, write
from tests.seeds import seeds
from tests.skip_indexes import with_header

# A few letters, so that texts overlap; what changes its length or becomes ASCII in another case.
ALPHABET = "aabkKsiIxé/ 0İıſ\N{KELVIN SIGN}\N{ANGSTROM SIGN}ß"


def body_of(groups: list[list[str]], size: int = 1 << 20) -> bytes:
    builder = Builder(size, len(groups))
    for messages in groups:
        builder.add(len(messages), "".join(messages).encode(), bare=True)
    return builder.finish()


def index_of(groups: list[list[str]], size: int = 1 << 20) -> SkipIndex:
    return parse(body_of(groups, size), size=size)


def words(dice: random.Random, alphabet: str, longest: int) -> str:
    return "".join(dice.choices(alphabet, k=dice.randrange(longest)))


@pytest.mark.in_turn(4)
@pytest.mark.parametrize("seed", seeds(8))
def test_no_row_group_with_a_match_is_left_out(seed: int) -> None:
    dice = random.Random(seed)
    alphabet = dice.choice([ALPHABET, "0123456789", "abcdefghijklmnopqrstuvwxyzIKS0123456789-_ "])
    groups = [[words(dice, alphabet, 40) for _ in range(20)] for _ in range(8)]
    index = index_of(groups, dice.choice([4_000, 40_000, 1 << 20]))
    for _ in range(30):
        message = dice.choice(dice.choice(groups)) if dice.random() < 0.8 else ""
        start = dice.randrange(len(message) + 1)
        text = message[start : start + dice.randrange(20)] or words(dice, alphabet, 12)
        found = index.may_hold(grams_of(text))
        assert not (found < [any(text in m for m in group) for group in groups]).any(), (seed, text)
        text = "".join(dice.choice((c, c.lower(), c.swapcase())) for c in text)
        found = index.may_hold(grams_of(text, ignore_case=True))
        assert not (found < folded(groups, text)).any(), (seed, text)


def folded(groups: list[list[str]], text: str) -> list[bool]:
    """Which groups hold the text by either of the two ways in which a search ignores case."""
    messages = pa.table(
        {"g": np.repeat(np.arange(len(groups)), [len(group) for group in groups]),
         "m": [message for group in groups for message in group]}
    )  # fmt: skip
    database = duckdb.connect()
    database.register("messages", messages)
    held = database.execute(
        "SELECT bool_or(contains(lower(m), lower($t)) OR regexp_matches(m, regexp_escape($t), 'i'))"
        " FROM messages GROUP BY g ORDER BY g",
        {"t": text},
    )
    return [row[0] for row in held.fetchall()]


def test_most_row_groups_without_a_match_are_left_out() -> None:
    dice = random.Random(1)
    hexadecimal = "0123456789abcdef"
    groups = [
        [f"request {words(dice, hexadecimal, 9):0>8} took {n} ms\n" for n in range(1_000)]
        for _ in range(50)
    ]
    groups[17][3] = "request deadbeefcafe was REFUSED by the gatekeeper\n"
    index = index_of(groups, size=50 * 40_000)
    for text in ("deadbeefcafe", "REFUSED", "refused", "gatekeeper", "was REF"):
        found = index.may_hold(grams_of(text))
        assert found[17]
        assert found.sum() <= 5, text
    assert index.may_hold(grams_of("GATEKEEPER", ignore_case=True)).sum() <= 5
    assert index.may_hold(grams_of("request ")).all()


def test_a_text_that_is_too_short_says_nothing() -> None:
    index = index_of([["a message"], ["another"]])
    assert grams_of("ano").empty
    assert index.may_hold(grams_of("ano")).all()
    assert grams_of("kiss", ignore_case=True).empty
    assert not grams_of("kiss").empty


@pytest.mark.parametrize("size", [0, 900, 20_000, 1_000_000, 20_000_000])
def test_it_stays_within_its_part_of_the_file(size: int) -> None:
    dice = random.Random(2)
    groups = [[f"{dice.random()} {dice.random()}" for _ in range(9_000)] for _ in range(4)]
    header = 250
    body = body_of(groups, size)
    assert len(body) <= SHARE * size + (PAGE_BYTES if size > 10_000_000 else header)
    assert parse(body, size=size).may_hold(grams_of(groups[2][7]))[2]


def counted(body: bytes, size: int) -> tuple[SkipIndex, list[tuple[int, int]]]:
    """The index, and what is read of it."""
    read: list[tuple[int, int]] = []

    def noted(at: int, count: int) -> bytes:
        read.append((at, count))
        return body[at : at + count]

    return SkipIndex(parse_head(body[: head_bytes(body)], size=size), noted), read


def test_a_search_reads_a_page_for_each_piece_of_its_text() -> None:
    dice = random.Random(5)
    groups = [[f"{dice.random()} {dice.random()}" for _ in range(9_000)] for _ in range(19)]
    groups[11][5] = "here is deadbeef, in one of them"
    body = body_of(groups, size=30_000_000)
    index, read = counted(body, 30_000_000)
    grams = grams_of("deadbeef")
    announced = list(index.pages(grams))
    assert index.may_hold(grams).tolist() == [n == 11 for n in range(19)]
    assert read == announced
    assert 2 <= len(read) <= 5 + 3  # pieces of four and of six bytes, as far as they are stored
    assert all(at % PAGE_BYTES == 0 and size == PAGE_BYTES for at, size in read)
    assert len(body) > 100 * PAGE_BYTES


def test_it_stops_reading_once_no_row_group_is_left() -> None:
    groups = [["abcdefgh" * 20], ["stuvwxyz" * 20]]
    index, read = counted(body_of(groups, size=1 << 20), 1 << 20)
    text = grams_of("abcdefghstuvwxyz" * 20)
    assert not index.may_hold(text).any()
    assert len(read) < len(list(index.pages(text)))


@pytest.mark.parametrize("number", [1, 8, 9, 511, 4_088, 4_089])
def test_any_number_of_row_groups(number: int) -> None:
    groups = [[f"line {n:05}x"] for n in range(number)]
    index = index_of(groups, size=1 << 28)
    for n in {0, 7, number // 2, number - 1} & set(range(number)):
        found = index.may_hold(grams_of(f" {n:05}x"))
        assert found[n]
        assert len(found) == number
        # More row groups than bits of a byte of each slot fit in a page: nothing is left out.
        assert found.sum() <= (number / 20 + 1 if number <= 4_088 else number)


def test_long_texts_and_empty_row_groups() -> None:
    groups = [["x" * 3_000_000 + "needle in the middle" + "y" * 3_000_000], [], ["", ""]]
    index = index_of(groups)
    assert index.may_hold(grams_of("needle in the middle")).tolist() == [True, False, False]
    assert index.may_hold(grams_of("xxneedle")).tolist() == [True, False, False]
    assert index.may_hold(grams_of("needless")).tolist() == [False, False, False]


def read_whole(body: bytes, size: int) -> None:
    parse(body, size=size).check()


@pytest.mark.parametrize("size", [5_000, 80_000])
def test_what_was_damaged_is_told(size: int) -> None:
    body = body_of([["one message", "and another", "x" * 3_000]], size)
    read_whole(body, size)
    for at in range(len(body)):
        other = body[:at] + bytes([body[at] ^ 0x40]) + body[at + 1 :]
        with pytest.raises((Damaged, UnsupportedVersion)):
            read_whole(other, size)
    for end in range(len(body)):
        with pytest.raises(Damaged):
            read_whole(body[:end], size)
    with pytest.raises(Damaged, match=f"of a file of {size} bytes, not of {size + 1}"):
        parse(body, size=size + 1)
    for version in (b"TRSKIP01", b"TRSKIP99"):
        with pytest.raises(UnsupportedVersion):
            parse(version + body[8:], size=size)


def test_no_page_stands_for_another() -> None:
    groups, size = [[str(random.Random(n).random()) for n in range(9_000)]], 10_000_000
    body, other = body_of(groups, size), body_of([["other", *groups[0]]], size)
    begin = head_bytes(body)
    assert begin == head_bytes(other)
    one, two = body[-2 * PAGE_BYTES : -PAGE_BYTES], body[-PAGE_BYTES:]
    for changed in (
        body[: -2 * PAGE_BYTES] + two + one,
        body[: -2 * PAGE_BYTES] + one + one,
        body[:begin] + other[begin:],
    ):
        with pytest.raises(Damaged):
            read_whole(changed, size)
    read_whole(body[: -2 * PAGE_BYTES] + one + two, size)


def test_an_index_with_other_filters_is_none() -> None:
    body = with_header(body_of([["a message"]]), lambda header: header | {"filters": []})
    with pytest.raises(Damaged, match="other filters"):
        parse(body, size=1 << 20)


def test_neighbours_are_one_range() -> None:
    rows = np.array([10, 20, 5, 7, 1])
    wanted = np.array([True, True, False, True, False])
    assert list(ranges(rows, wanted)) == [(0, 29), (35, 41)]
    assert list(ranges(rows, ~wanted)) == [(30, 34), (42, 42)]
    assert list(ranges(rows, np.zeros(5, np.bool_))) == []


def test_maps_are_where_the_documentation_says(tmp_path: Path) -> None:
    """Read by hand from `docs/reference/formats.md`."""
    path = write(tmp_path / "a.parquet", lines_of(3), row_group_size=70)
    size, groups = 1 << 20, pq.read_metadata(path).num_row_groups
    maps = [made(path, group) for group in range(groups)]
    maps[1] = None
    builder = Builder(size, groups)
    for lines in maps:
        builder.add(70, b"text", bare=True, lines=lines)
    body = builder.finish()
    index = parse(body, size=size)
    begin = 20 + int.from_bytes(body[16:20], "little")
    header = orjson.loads(body[20:begin])
    begin += sum(8 + one["slots"] // 8 * groups for one in header["filters"])
    for group, lines in enumerate(maps):
        stored = header["maps"][group]
        found = index.lines(group)
        if lines is None:
            assert (stored, found) == (0, None)
            continue
        assert body[begin + 8 : begin + stored] == lines.encoded()
        assert found is not None
        assert found.encoded() == lines.encoded()
        begin += stored
    assert begin == len(body)


def test_indexes_agree_that_say_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    maps = [made(write(tmp_path / f"{seed}.parquet", lines_of(seed))) for seed in (3, 4)]

    def of(text: str = "text", rows: int = 70, bare: bool = True, which: int = 0) -> SkipIndex:
        builder = Builder(1 << 20, 1)
        builder.add(rows, text.encode(), bare=bare, lines=maps[which])
        return parse(builder.finish(), size=1 << 20)

    one = of()
    for other in (of(text="other"), of(text="x" * 3_000), of(rows=71), of(bare=False), of(which=1)):
        assert not one.agrees(other)
        assert not other.agrees(one)
    monkeypatch.setattr(line_map, "_ZSTANDARD_LEVEL", 19)
    assert one.agrees(of())
    monkeypatch.setattr(skip_index, "_MAPS_SHARE", 0)  # no room for one that was larger
    assert one.agrees(of())
    assert of().agrees(one)


def test_a_coloured_row_group_is_marked_and_found_as_it_is_stored_and_seen() -> None:
    def of(*groups: tuple[str, str]) -> SkipIndex:
        builder = Builder(1 << 20, len(groups))
        for text, seen in groups:
            builder.add(1, text.encode(), bare=True, seen=seen.encode())
        return parse(builder.finish(), size=1 << 20)

    coloured = ("step \x1b[32mdeploy\x1b[0m failed", "step deploy failed")
    index = of(("step test failed", ""), coloured)
    assert index.head.coloured == {1}
    assert of(("plain", "")).head.coloured == set()
    for text in ("deploy failed", "[32mdeploy"):
        assert index.may_hold(grams_of(text)).tolist() == [False, True]
    assert of(coloured).agrees(of(coloured))
    assert not of(coloured).agrees(of((coloured[1], "")))


@pytest.mark.parametrize("share", [0, 0.001, 0.01])
def test_maps_stay_within_their_part_of_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, share: float
) -> None:
    monkeypatch.setattr(skip_index, "_MAPS_SHARE", share)
    path = write(tmp_path / "a.parquet", lines_of(3), row_group_size=20)
    groups = pq.read_metadata(path).num_row_groups
    builder = Builder(1 << 20, groups)
    for group in range(groups):
        builder.add(20, b"", bare=True, lines=made(path, group))
    index = parse(builder.finish(), size=1 << 20)
    assert sum(size for _, size in index.head.maps) <= share * (1 << 20)
    index.check()
    assert (index.lines(0) is None) == (share == 0)


def pieces_of(message: bytes, gram: int) -> Iterator[bytes]:
    """Those of a filter, by hand from `docs/reference/formats.md`."""
    for start in range(len(message)):
        length = 8 if gram == 6 and re.match(rb"[0-9]{6}", message[start:]) else gram
        piece = message[start : start + length]
        digits, word = (
            len(re.findall(rb"[0-9]", piece)),
            re.fullmatch(rb"[a-z0-9\x80-\xff]*", piece),
        )
        common = digits >= 2 if gram == 4 else digits and not word
        if len(piece) == length and (not common or hash_of(piece) & 0xC00 == 0):
            yield piece


def hash_of(piece: bytes) -> int:
    factor = 0x9E3779B97F4A7C15 << (64 - 8 * len(piece))
    return int.from_bytes(piece, "little") * factor % 2**64 >> 32


def test_bits_are_where_the_documentation_says() -> None:
    """Read by hand from `docs/reference/formats.md`."""
    size, groups = (
        200_000,
        [["first row group"], ["another 1234567890:12"], ["ünd a third 12.34:56"]],
    )
    body = body_of(groups, size)
    end = 20 + int.from_bytes(body[16:20], "little")
    for one in orjson.loads(body[20:end])["filters"]:
        in_page = (4_096 - 8) // 3 * 8
        assert one["slots"] <= in_page
        page = body[end : (end := end + 8 + one["slots"] // 8 * 3)]
        taken = {
            (hash_of(piece) * one["space"] >> 32, number)
            for number, (message,) in enumerate(groups)
            for piece in pieces_of(message.encode(), one["gram"])
        }
        assert len(taken) > 25
        for slot in range(one["slots"]):
            for number in range(3):
                bit = slot * 3 + number
                assert page[8 + bit // 8] >> bit % 8 & 1 == ((slot, number) in taken)
    assert end == len(body)


def test_pieces_of_a_text_are_those_of_the_documentation() -> None:
    """Also of a text that is hashed in parts, whose borders lie anywhere in a piece."""
    dice = random.Random(3)
    for _ in range(6):
        alphabet = dice.choice(["0123456789", "0123456789.: ab", "abcdefgh0123é"])
        message = words(dice, alphabet, 60).encode()
        gap = dice.choice([20, (1 << 18) - len(message) - dice.randrange(70)]) * b"x"
        found = grams_of((message + gap + message).decode()).hashes
        for gram, hashes in zip(LENGTHS, found, strict=True):
            parts = (message + gap[:20], gap[:20] + message)
            pieces = [piece for part in parts for piece in pieces_of(part, gram)]
            assert set(hashes) == set(map(hash_of, pieces))
