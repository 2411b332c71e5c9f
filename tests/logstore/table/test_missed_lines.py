"""No search misses a line because of a skip index: it never leaves out what a plain scan finds."""

from __future__ import annotations

import random
import re
from collections.abc import Iterable, Sequence
from itertools import islice

import numpy as np
import orjson
import pytest
import xxhash

from benchmarks.id_lines import lines
from tailrace.logstore.colours import SEQUENCE
from tailrace.logstore.table.skip_index import Builder, SkipIndex, grams_of, parse
from tests.seeds import seeds

SIZES = [3_000, 40_000, 1 << 20]  # of the file: a small sample of the pieces, and all of them
WIDE = ["größe", "ÜBER", "Straße 123456789", "数据库连接超时", "İstanbul", "ſtop", "20\u212a", "🎉"]
PART = 1 << 18  # bytes of messages that are hashed at a time


def groups_of(seed: int) -> list[list[str]]:
    """Messages of row groups: with ids, in both cases, in UTF-8, coloured."""
    dice, made = random.Random(seed), lines(seed)
    groups = [list(islice(made, 12)) for _ in range(6)]
    for group in groups:
        group[1] = group[1].upper()
        group[2] += f" {dice.choice(WIDE)} {dice.choice(WIDE)}{dice.randrange(10**12)}"
        group[3] = group[3].replace(" ", " \x1b[32m", 1) + "\x1b[0m 4711"
        group[4] = f"{dice.randrange(10**40)}{dice.choice(WIDE)}"
    return groups


def seen(message: str) -> str:
    return re.sub(SEQUENCE, "", message)


def body_of(groups: Sequence[Sequence[str]], size: int) -> bytes:
    builder = Builder(size, len(groups))
    for messages in groups:
        shown = "".join(map(seen, messages)) if any("\x1b" in one for one in messages) else ""
        builder.add(len(messages), "".join(messages).encode(), bare=True, seen=shown.encode())
    return builder.finish()


def folded(text: str) -> str:
    """Both ways in which a search ignores case: by DuckDB's `lower`, and by RE2."""
    return text.lower().replace("\u212a", "k").replace("ſ", "s").replace("ı", "i")


def missed(
    index: SkipIndex, groups: Sequence[Sequence[str]], texts: Iterable[str], *, ignore_case: bool
) -> list[str]:
    """The texts for which the index leaves out a row group that a plain scan does not."""
    fold = folded if ignore_case else str
    # Messages are apart, as in a scan of one after the other.
    stored = [
        "\0".join([fold(one) for text in group for one in {text, seen(text)}]) for group in groups
    ]
    found = []
    for text in texts:
        may = index.may_hold(grams_of(text, ignore_case=ignore_case))
        has = np.array([fold(text) in group for group in stored])
        assert has.any()
        if (has & ~may).any():
            found.append(text)
    return found


def cut(message: str) -> list[str]:
    """All parts of a message."""
    ends = range(len(message) + 1)
    return [message[begin:end] for begin in ends for end in ends[begin + 1 :]]


def chosen(groups: Sequence[Sequence[str]], dice: random.Random) -> Sequence[str]:
    """Parts of messages: all of a short piece of each group, and long ones cut at random."""
    found: list[str] = []
    for group in groups:
        message = dice.choice([*group, *map(seen, group)])
        at = dice.randrange(len(message))
        found += cut(message[at : at + 26])
        for one in group:
            begin, end = sorted(dice.choices(range(len(one) + 1), k=2))
            found += [one[begin:end]] if begin < end else []
    return found


@pytest.mark.parametrize("seed", seeds(3))
@pytest.mark.parametrize("size", SIZES)
def test_no_part_of_a_message_is_missed(seed: int, size: int) -> None:
    groups, dice = groups_of(seed), random.Random(seed)
    index = parse(body_of(groups, size), size=size)
    texts = chosen(groups, dice)
    assert missed(index, groups, texts, ignore_case=False) == []
    other = [text.swapcase() if dice.random() < 0.7 else text.upper() for text in texts]
    whole = "\0".join(folded(one) for group in groups for one in group)
    known = [text for text in other if folded(text) in whole]
    assert len(known) > len(texts) / 2
    assert missed(index, groups, known, ignore_case=True) == []


def test_no_part_is_missed_where_texts_are_hashed_in_parts() -> None:
    made = lines(7)
    text = "".join(islice(made, 6_000))[: 2 * PART + 3]
    groups = [[text], ["another"]]
    index = parse(body_of(groups, 1 << 22), size=1 << 22)
    borders = (PART, 2 * PART, len(text) - 3)
    texts = [
        text[begin : begin + length]
        for border in borders
        for begin in range(border - 12, border + 3)
        for length in range(4, 20)
    ]
    assert missed(index, groups, texts, ignore_case=False) == []


@pytest.mark.parametrize("number", [0, 1])
def test_a_filter_that_lacks_a_slot_is_noticed(number: int) -> None:
    """The same test fails of each of the filters, if a fourth of its bits is lost."""
    groups, size = groups_of(1), SIZES[-1]
    index = parse(lacking(body_of(groups, size), number), size=size)
    index.check()
    assert missed(index, groups, chosen(groups, random.Random(1)), ignore_case=False) != []


def lacking(body: bytes, number: int) -> bytes:
    """An index without some bits of one of its filters, whose pages have sums of these bits."""
    end = 20 + int.from_bytes(body[16:20], "little")
    header = orjson.loads(body[20:end])
    digest = int.from_bytes(body[8:16], "little")
    pages = []
    for which, one in enumerate(header["filters"]):
        size = 8 + one["slots"] // 8 * len(header["rows"])
        assert size <= 4_096, "a filter of one page"
        bits = body[end + 8 : end + size]
        if which == number:
            bits = bytes([byte & 0xEE for byte in bits])
        pages.append(
            xxhash.xxh3_64_intdigest(bits, (digest + end) % 2**64).to_bytes(8, "little") + bits
        )
        end += size
    return body[: 20 + int.from_bytes(body[16:20], "little")] + b"".join(pages)
