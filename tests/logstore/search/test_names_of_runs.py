"""A run is left out only if its names show that the condition holds for none of its records."""

from __future__ import annotations

import random

import pytest

from tailrace.logstore.batch import RunKey
from tailrace.logstore.search.conditions import (
    MESSAGE,
    All,
    AnyOf,
    Column,
    Condition,
    Contains,
    Exists,
    Is,
    Matches,
    Not,
    OneOf,
    StartsWith,
    may_hold_in,
)
from tests.logstore.search.evaluate import holds
from tests.seeds import seeds

_TEXTS = ("", "a", "b", "ab", "B", "shop/a", "shop/b")
_FIELDS = (Column("fqn"), Column("run_id"), MESSAGE, Column("level"))


def _condition(dice: random.Random, depth: int) -> Condition:
    if depth and dice.random() < 0.6:
        parts = tuple(_condition(dice, depth - 1) for _ in range(dice.randrange(0, 4)))
        return dice.choice((All, AnyOf))(parts) if dice.random() < 0.7 else Not(All(parts))
    text, field = dice.choice(_TEXTS), dice.choice(_FIELDS)
    return dice.choice(
        (
            Contains(text, field),
            Contains(text, field, ignore_case=True),
            StartsWith(text, field),
            Is(text, field),
            Is(text, field, ignore_case=True),
            OneOf((text, dice.choice(_TEXTS)), field),
            Exists(field),
            Matches("[ab]", field),
        )
    )


@pytest.mark.parametrize("seed", seeds(4))
def test_no_run_with_a_match_is_left_out(seed: int) -> None:
    dice = random.Random(seed)
    left_out = 0
    for _ in range(1000):
        condition = _condition(dice, 3)
        key = RunKey(dice.choice(_TEXTS[1:]), dice.choice(_TEXTS[1:]))
        rows = [
            {"fqn": key.fqn, "run_id": key.run, "message": message, "level": level}
            for message in ("", "a", "shop/a b")
            for level in ("INFO", None)
        ]
        if may_hold_in(condition, key):
            continue
        left_out += 1
        assert not any(holds(condition, row) for row in rows), condition
    assert left_out > 50


def test_what_names_decide_and_what_they_do_not() -> None:
    key = RunKey("shop/cart", "42")
    assert may_hold_in(None, key)
    assert not may_hold_in(StartsWith("shop/b", Column("fqn")), key)
    assert not may_hold_in(All((Contains("x"), Is("43", Column("run_id")))), key)
    assert not may_hold_in(Not(OneOf(("42", "43"), Column("run_id"))), key)
    assert may_hold_in(AnyOf((Contains("x"), Is("43", Column("run_id")))), key)
    assert may_hold_in(Is("SHOP/CART", Column("fqn"), ignore_case=True), key)
