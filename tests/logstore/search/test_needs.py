"""What a condition needs of a message is there in each message that it holds for."""

from __future__ import annotations

import random
import re

import pytest

from tailrace.logstore.search.conditions import (
    MESSAGE,
    All,
    AnyOf,
    Attribute,
    Column,
    Compares,
    Condition,
    Contains,
    Exists,
    Field,
    Is,
    JsonField,
    LogfmtField,
    Matches,
    Not,
    StartsWith,
)
from tailrace.logstore.search.translate import (
    literals,
    may_hold,
    needed_texts,
    needs_of,
    sure_texts,
)
from tailrace.logstore.table.skip_index import Builder, SkipIndex, parse
from tests.logstore.search.evaluate import holds
from tests.seeds import seeds

WORDS = ["alpha", "beta-1", "gamma99", "Delta", "x", 'quo"ted', "back\\slash", "é" * 5]
KEYS = ["status", "user", "k"]
SPELLED = [
    "12345678",
    "12345678.0",
    "+012345678",
    "1.2345678e7",
    "1234.5678E4",
    "123456780",
    "4711",
]


def index_of(groups: list[list[str]]) -> SkipIndex:
    builder = Builder(1 << 20, len(groups))
    for messages in groups:
        builder.add(len(messages), "".join(messages).encode(), bare=True)
    return parse(builder.finish(), size=1 << 20)


def message(dice: random.Random) -> str:
    if dice.random() < 0.3:
        text = dice.choice(WORDS).replace("\\", "\\\\").replace('"', '\\"')
        return f'level=info {dice.choice(KEYS)}="{text}" {dice.choice(KEYS)}={dice.randrange(500)}'
    if dice.random() < 0.2:
        return f"{dice.choice(KEYS)}={dice.choice(SPELLED)} {dice.choice(WORDS)}"
    return " ".join(dice.choices(WORDS, k=3)) + str(dice.randrange(1_000))


def condition(dice: random.Random, depth: int = 0) -> Condition:
    if depth < 3 and dice.random() < 0.5:
        parts = tuple(condition(dice, depth + 1) for _ in range(dice.randrange(1, 4)))
        joined: list[Condition] = [All(parts), AnyOf(parts), Not(parts[0])]
        return dice.choice(joined)
    fields: list[Field] = [
        MESSAGE,
        MESSAGE,
        LogfmtField(dice.choice(KEYS)),
        Column("fqn"),
        JsonField(("k",)),
    ]
    text, field = dice.choice(WORDS)[: dice.randrange(1, 9)], dice.choice(fields)
    ignore_case = dice.random() < 0.3
    single: list[Condition] = [
        Contains(text, field, ignore_case),
        StartsWith(text, field, ignore_case),
        Is(text, field, ignore_case),
        Matches(re.escape(text) + r"\d?", field, ignore_case),
        Exists(LogfmtField(dice.choice(KEYS))),
        Exists(Attribute("stream")),
        Compares(LogfmtField(dice.choice(KEYS)), ">", 100),
        Compares(
            LogfmtField(dice.choice(KEYS)), "=", dice.choice([12345678.0, 4711.0, 123456780.0])
        ),
    ]
    return dice.choice(single)


@pytest.mark.parametrize("seed", seeds(6))
def test_no_row_group_with_a_match_lacks_what_is_needed(seed: int) -> None:
    dice = random.Random(seed)
    groups = [[message(dice) for _ in range(dice.randrange(1, 4))] for _ in range(12)]
    index, needing, left_out = index_of(groups), 0, 0
    for _ in range(150):
        asked = condition(dice)
        needs = needs_of(asked)
        if needs is None:
            continue
        needing += 1
        for group, may in zip(groups, may_hold(needs, index).tolist(), strict=True):
            rows = [{"message": text, "fqn": "alpha", "attributes": {}} for text in group]
            assert may or not any(holds(asked, row) for row in rows), (seed, asked)
            left_out += not may
    assert needing > 30
    assert left_out > 100


def test_an_index_finds_a_number_in_each_of_its_spellings_and_leaves_out_others() -> None:
    digits = "1234567812345678"  # eight on one side of each dot: such pieces are all in an index
    spelled = [digits, f"{digits}.0", f"+0{digits}", "1.234567812345678e15", "12345678.12345678E8"]
    index = index_of([[f"k={one}"] for one in [*spelled, f"{digits}0", "4711"]])
    needs = needs_of(Compares(LogfmtField("k"), "=", float(digits)))
    assert needs is not None
    assert may_hold(needs, index).tolist() == [True] * 6 + [False]


@pytest.mark.parametrize("seed", seeds(6))
def test_each_match_has_one_of_the_sure_texts_and_of_each_group_that_is_needed(seed: int) -> None:
    dice = random.Random(seed)
    messages, sure, several, matches = [message(dice) for _ in range(40)], 0, 0, 0
    for _ in range(150):
        asked = condition(dice)
        texts, needed = sure_texts(asked), needed_texts(asked)
        sure += bool(texts)
        several += len(needed) > 1
        assert all(texts)
        assert texts in needed or not texts
        for text in messages:
            if texts and holds(asked, {"message": text, "fqn": "alpha", "attributes": {}}):
                matches += 1
                for group in [texts, *needed]:
                    assert any(one in text for one in group), (asked, text)
    assert sure > 30
    assert several > 0
    assert matches > 100


@pytest.mark.parametrize(
    ("asked", "texts"),
    [
        (Contains("ab"), ("ab",)),
        (Contains(""), ()),
        (Contains("ab", ignore_case=True), ()),
        (Contains("ab", Column("fqn")), ()),
        (All((Contains("ab"), Contains("abc"), Not(Contains("abcd")))), ("abc",)),
        (AnyOf((Contains("ab"), Contains("c"), Contains("ab"))), ("ab", "c")),
        (AnyOf((Contains("ab"), Exists(MESSAGE))), ()),
        (AnyOf(tuple(Contains(str(n)) for n in range(9))), ()),
        (AnyOf(()), ()),
        (All(()), ()),
        (Matches(r"a\d+bcd"), ("bcd",)),
        (Matches("abc", ignore_case=True), ()),
        (Matches("(?i)abc"), ()),
        (Compares(LogfmtField("ms"), ">", 5), ("ms=",)),
        (Not(Contains("ab")), ()),
        (None, ()),
    ],
)
def test_the_longest_sure_texts_are_taken(asked: Condition | None, texts: tuple[str, ...]) -> None:
    assert sure_texts(asked) == texts


def test_of_all_parts_each_says_what_it_needs() -> None:
    a, b, c = (Contains(text) for text in "abc")
    assert needed_texts(All((a, Not(b), All((AnyOf((b, c)), a))))) == [("a",), ("b", "c"), ("a",)]
    assert needed_texts(AnyOf((All((a, b)), c))) == [("a", "c")]
    assert needed_texts(Not(a)) == []


@pytest.mark.parametrize(
    ("asked", "needed"),
    [
        (Contains("abc"), False),
        (Contains("abcd"), True),
        (Contains("abcd", Column("fqn")), False),
        (Not(Contains("abcd")), False),
        (All((Contains("abcd"), Not(Contains("efgh")))), True),
        (AnyOf((Contains("abcd"), Contains("e"))), False),
        (AnyOf(()), False),
        (Is("abcd", JsonField(("k",))), False),
        (Is("a", LogfmtField("user")), True),
        (Matches("abcd|efgh"), False),
        (Matches("abcd[|]e"), True),
        (None, False),
    ],
)
def test_what_says_something_for_certain(asked: Condition | None, needed: bool) -> None:
    assert (needs_of(asked) is not None) == needed


def matching(dice: random.Random, depth: int = 0) -> tuple[str, str]:
    """A regular expression, and a text that it matches."""
    made = [piece(dice, depth) for _ in range(dice.randrange(1, 5))]
    return "".join(pattern for pattern, _ in made), "".join(text for _, text in made)


def piece(dice: random.Random, depth: int) -> tuple[str, str]:
    pattern, text = atom(dice, depth)
    repeat, least = dice.choice(
        [("", 1), ("", 1), ("", 1), ("*", 0), ("+", 1), ("?", 0), ("{2}", 2), ("{0,2}", 0),
         ("{1,}", 1), ("+?", 1), ("*?", 0)]
    )  # fmt: skip
    return pattern + repeat, text * least


def atom(dice: random.Random, depth: int) -> tuple[str, str]:
    kind = dice.randrange(9 if depth < 3 else 6)
    if kind < 3:
        character = dice.choice("abcé -_1")
        return character, character
    if kind < 6:
        return dice.choice([(r"\.", "."), (r"\d", "7"), ("[ab]", "b"), ("[^]x]", "a"), (".", "z"),
                            (r"\|", "|"), ("[[:digit:]|]", "|"), (r"[\]a]", "]")])  # fmt: skip
    inner, text = matching(dice, depth + 1)
    if kind == 6:
        return f"(?:{inner}|{matching(dice, depth + 1)[0]})", text
    return f"({'?P<name>' if depth == 0 and kind == 7 else ''}{inner})", text


@pytest.mark.parametrize("seed", seeds(3))
def test_a_match_has_the_literals_of_its_expression(seed: int) -> None:
    dice, certain = random.Random(seed), 0
    for _ in range(2_000):
        pattern, text = matching(dice)
        for literal in literals(pattern):
            certain += 1
            assert literal in text, (pattern, text)
    assert certain > 1_000


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        (r"blk_-?\d*77\d*99 ", ["blk_", "77", "99 "]),
        ("abc|def", []),
        ("(abc|def)ghi", ["ghi"]),
        ("(?i)abc", []),
        ("(?i:abc)def", []),
        ("a{00}bcd", ["bcd"]),
        (r"\x41bc", []),
        (r"\pLbc", []),
        (r"\Qa.c\E", []),
        ("colou?r", ["colo", "r"]),
        ("x(?P<n>abc)def", ["x", "def"]),
    ],
)
def test_what_is_outside_of_groups_and_not_optional(pattern: str, found: list[str]) -> None:
    assert literals(pattern) == found
