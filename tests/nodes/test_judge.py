"""What the torture of nodes says of lines that are lost, repeated or out of order."""

from __future__ import annotations

import pytest

from logstore.batch import RunKey
from tests.nodes.torture.producers import Written

LINES = [f"run-0 p0 {number:06d} x" for number in range(6)]
OTHERS = [f"run-0 p1 {number:06d} x" for number in range(3)]


@pytest.fixture
def written() -> Written:
    return Written(RunKey("f", "run-0"), {"p0": LINES, "p1": OTHERS}, {"run-0 p2 000000 x"})


def test_all_lines_in_any_mixture_are_in_order(written: Written) -> None:
    mixed = [LINES[0], *OTHERS, *LINES[1:]]
    assert written.disorder("it", mixed) == []
    assert written.disorder("it", ["run-0 p2 000000 x", *mixed]) == [], "or it was not stored"


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (LINES + OTHERS[1:], "it lacks 1 of 9"),
        (LINES + OTHERS + OTHERS[:2], "it has too often 2 of 9"),
        ([*LINES, *OTHERS, *["run-0 p2 000000 x"] * 2], "it has too often 1 of 9"),
        ([*LINES, *OTHERS, "run-0 p3 000000 x"], "it has too often 1 of 9"),
        ([*LINES[::-1], *OTHERS], "lines of p0 are out of order"),
    ],
)
def test_what_is_wrong_is_said(written: Written, found: list[str], said: str) -> None:
    (fault,) = written.disorder("it", found)
    assert said in fault


def test_a_reader_may_get_again_only_what_was_sent_again(written: Written) -> None:
    twice = [*LINES, *OTHERS, LINES[0]]
    (fault,) = written.reader_faults("it", twice)
    assert "it has too often 1 of 9" in fault
    written.again.add(LINES[0])
    assert written.reader_faults("it", twice) == []
    assert written.repeated == 1
    assert written.reader_faults("it", [*twice, LINES[0]]) != []
