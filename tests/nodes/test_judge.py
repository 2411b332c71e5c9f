"""What the torture of nodes says of lines that are lost, repeated or out of order."""

from __future__ import annotations

import pytest

from tailrace.logstore import ulid as ulids
from tailrace.logstore.batch import RunKey
from tailrace.logstore.position import Cursor, Position
from tests.nodes.torture.producers import Given, Written

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


def test_what_a_reader_got_again_is_said_with_what_it_knew(written: Written) -> None:
    node, batch = "a-01J00000000000000000000001", 1 << 80
    written.again[LINES[0]] = ulids.encode(batch)
    knew = Cursor({node: Position("", 99)}, {node: (batch + 5, batch + (1 << 25))}).encode()
    for after, named in ((knew, "named by the cursor"), ("7", "not named by the cursor")):
        given = [Given([*LINES, *OTHERS], None, 2, "9"), Given([LINES[0]], after, 3, knew)]
        faults = written.reader_faults("it", given)
        assert faults[0].startswith("it has too often 1 of 9")
        assert faults[1].startswith("it: 'run-0 p0 000000 x' again: batch")
        assert f", {named}; visit 3, behind " in faults[1]
        assert f"up to {node} ? 99 (2); it came first at visit 2, behind 0, up to 9" in faults[1]


def test_a_reader_lacks_what_it_was_not_given(written: Written) -> None:
    (fault,) = written.reader_faults("it", [Given(LINES, None), Given(OTHERS[1:], "7")])
    assert "it lacks 1 of 9" in fault
