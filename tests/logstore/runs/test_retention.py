"""How long runs of which pipeline are kept."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from tailrace.logstore.runs.deletions import FOR_EVER, RunRetention, time_text


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
    days: int, others: dict[str, float], longest: int, shortest: int
) -> None:
    kept = RunRetention(expiration_days=days, expiration_days_of=others)
    assert (kept.longest_days, kept.shortest_days) == (longest, shortest)


def test_a_copy_goes_by_its_own_patterns() -> None:
    before = RunRetention(expiration_days_of={"a.*": 1})
    assert before.days_of("a.b") == 1
    after = before.model_copy(update={"expiration_days_of": {"a.*": 7}})
    assert (after.days_of("a.b"), before.days_of("a.b")) == (7, 1)


def test_times_may_be_in_hours() -> None:
    kept = RunRetention.model_validate(
        {"expiration_days": "12h", "expiration_days_of": {"a": "36 h", "b": "7d", "c": 2}}
    )
    assert [kept.days_of(name) for name in ("x", "a", "b", "c")] == [0.5, 1.5, 7, 2]
    assert [time_text(days) for days in (0.5, 1.5, 7.0, 30)] == ["12h", "36h", "7", "30"]
    for wrong in ("h", "-1h", "12 minutes"):
        with pytest.raises(ValidationError):
            RunRetention.model_validate({"expiration_days": wrong})


@pytest.mark.parametrize(("hours", "gone"), [(11, False), (12, False), (13, True)])
def test_a_run_expires_by_the_time_of_its_last_line(hours: int, gone: bool) -> None:
    kept = RunRetention(expiration_days=0.5)
    assert kept.expires("f", 1, 1 + hours * 3_600_000) == gone
    assert not FOR_EVER.expires("f", 1, 1 << 48)


def test_no_time_is_negative() -> None:
    with pytest.raises(ValidationError):
        RunRetention(expiration_days_of={"a": -1})
    assert FOR_EVER.longest_days == 0
