"""A row group that a skip index leaves out has no match; and it leaves out most that have none."""

from __future__ import annotations

import random

import duckdb
import numpy as np
import pyarrow as pa
import pytest

from logstore.errors import Damaged, UnsupportedVersion
from logstore.table.skip_index import (
    SHARE,
    Builder,
    SkipIndex,
    as_older,
    grams_of,
    parse,
    ranges,
)
from tests.seeds import seeds
from tests.skip_indexes import silent

# A few letters, so that texts overlap; what changes its length or becomes ASCII in another case.
ALPHABET = "aabkKsiIxé/ 0İıſ\N{KELVIN SIGN}\N{ANGSTROM SIGN}ß"


def index_of(groups: list[list[str]], size: int = 1 << 20) -> SkipIndex:
    builder = Builder(size, len(groups))
    for messages in groups:
        builder.add(len(messages), "".join(messages).encode(), bare=True)
    return parse(builder.finish(), size=size)


def test_an_older_program_writes_the_same_without_a_word_of_attributes() -> None:
    builder = Builder(5_000, 1)
    builder.add(2, b"one message and another", bare=True)
    body = builder.finish()
    assert as_older(body) == silent(body) != body
    assert parse(body, size=5_000).bare
    assert parse(silent(body), size=5_000).bare is None


def words(dice: random.Random, alphabet: str, longest: int) -> str:
    return "".join(dice.choices(alphabet, k=dice.randrange(longest)))


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


@pytest.mark.parametrize("size", [0, 900, 20_000, 1_000_000])
def test_it_stays_within_its_part_of_the_file(size: int) -> None:
    dice = random.Random(2)
    groups = [[f"{dice.random()} {dice.random()}" for _ in range(300)] for _ in range(4)]
    builder = Builder(size, len(groups))
    for messages in groups:
        builder.add(len(messages), "".join(messages).encode(), bare=True)
    header = 250
    assert len(builder.finish()) <= SHARE * size + header
    assert index_of(groups, size).may_hold(grams_of(groups[2][7]))[2]


def test_long_texts_and_empty_row_groups() -> None:
    groups = [["x" * 3_000_000 + "needle in the middle" + "y" * 3_000_000], [], ["", ""]]
    index = index_of(groups)
    assert index.may_hold(grams_of("needle in the middle")).tolist() == [True, False, False]
    assert index.may_hold(grams_of("xxneedle")).tolist() == [True, False, False]
    assert index.may_hold(grams_of("needless")).tolist() == [False, False, False]


def test_what_was_damaged_is_told() -> None:
    builder = Builder(5_000, 1)
    builder.add(2, b"one message and another", bare=False)
    body = builder.finish()
    for at in range(len(body)):
        other = body[:at] + bytes([body[at] ^ 0x40]) + body[at + 1 :]
        with pytest.raises((Damaged, UnsupportedVersion)):
            parse(other, size=5_000)
    for end in range(len(body)):
        with pytest.raises(Damaged):
            parse(body[:end], size=5_000)
    with pytest.raises(Damaged, match="of a file of 5000 bytes, not of 5001"):
        parse(body, size=5_001)
    with pytest.raises(UnsupportedVersion):
        parse(b"TRSKIP02" + body[8:], size=5_000)


def test_neighbours_are_one_range() -> None:
    rows = np.array([10, 20, 5, 7, 1])
    wanted = np.array([True, True, False, True, False])
    assert list(ranges(rows, wanted)) == [(0, 29), (35, 41)]
    assert list(ranges(rows, ~wanted)) == [(30, 34), (42, 42)]
    assert list(ranges(rows, np.zeros(5, np.bool_))) == []
