"""How long runs of which pipeline are kept."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from logstore.runs.retention import FOR_EVER, RunRetention


def test_the_first_pattern_that_matches_counts() -> None:
    kept = RunRetention(expiration_days=30, expiration_days_of={"a.b": 3, "a.*": 365, "*.b": 1})
    names = ("a.b", "a.c", "x.b", "x.c", "A.c")
    assert [kept.days_of(name) for name in names] == [3, 365, 1, 30, 30]


@pytest.mark.parametrize(
    ("days", "others", "longest", "shortest"),
    [
        (30, {}, 30, 30),
        (30, {"a": 365, "b": 1}, 365, 1),
        (30, {"a": 0}, 0, 30),
        (0, {"a": 7}, 0, 7),
        (0, {}, 0, 0),
    ],
)
def test_for_ever_is_the_longest(
    days: int, others: dict[str, int], longest: int, shortest: int
) -> None:
    kept = RunRetention(expiration_days=days, expiration_days_of=others)
    assert (kept.longest_days, kept.shortest_days) == (longest, shortest)


def test_no_time_is_negative() -> None:
    with pytest.raises(ValidationError):
        RunRetention(expiration_days_of={"a": -1})
    assert FOR_EVER.longest_days == 0
