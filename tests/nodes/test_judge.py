"""What the torture of nodes says of lines that are lost, repeated or out of order."""

from __future__ import annotations

import pytest

from logstore import ulid as ulids
from logstore.batch import RunKey
from logstore.position import MOST_NEWEST, MOST_NODES, Cursor, Position
from tests.nodes.torture.producers import LEFT, Given, Written, may_have_seen_more

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


NODE, BATCH = "a-01J00000000000000000000001", 1 << 80
NEWEST = tuple(BATCH + (number << 25) for number in range(1, MOST_NEWEST + 1))


def cursor(newest: tuple[int, ...]) -> str:
    return Cursor({NODE: Position("", 99)}, {NODE: newest}).encode()


def other_nodes(seen: str) -> str:
    """A cursor that names batches of as many nodes as it can, and has seen one more."""
    newest = {f"n{number}": NEWEST[:1] for number in range(MOST_NODES)}
    positions = dict.fromkeys([*newest, seen], Position("", 99))
    return Cursor(positions, newest).encode()


@pytest.mark.parametrize(
    ("sent_again", "after", "silent", "known"),
    [
        (True, cursor(NEWEST), [NODE], False),
        (False, cursor(NEWEST), [NODE], True),  # nobody but the node itself repeats it
        (True, cursor(NEWEST), [], True),  # the node that had it first answers
        (True, cursor(NEWEST), ["b"], True),  # another node is away
        (True, cursor(NEWEST), [LEFT], False),
        (True, cursor(NEWEST[1:]), [LEFT], True),
        (True, cursor(NEWEST[1:]), [NODE], True),  # all that was seen of it is named
        (True, cursor((BATCH, *NEWEST[1:])), [NODE], True),  # it is named itself
        (True, other_nodes(NODE), [NODE], False),  # there is no room for this node's
        (True, other_nodes("b"), [NODE], True),  # nothing of this node was seen
        (True, "7", [NODE], True),  # a line of a chunk
        (True, None, [NODE], True),
    ],
)
def test_a_line_comes_again_only_where_nobody_can_know_it(
    written: Written, sent_again: bool, after: str | None, silent: list[str], known: bool
) -> None:
    if sent_again:
        written.again[LINES[0]] = ulids.encode(BATCH)
    given = [Given([*LINES, *OTHERS], None), Given([LINES[0]], after, silent)]
    faults = written.reader_faults("it", given)
    assert len(faults) == 2 * known
    if known:
        assert faults[0].startswith("it has too often 1 of 9")
        assert faults[1].startswith("it: 'run-0 p0 000000 x' again: batch")
    assert written.repeated == (not known)


@pytest.mark.parametrize(
    ("named", "more"),
    [
        ({}, set()),
        ({NODE: MOST_NEWEST - 1}, set()),
        ({NODE: MOST_NEWEST}, {NODE}),
        (dict.fromkeys("bcde", 20), set()),
        ({"b": 2, **dict.fromkeys("cde", 24)}, {"c", "d", "e"}),
        ({f"n{number}": 1 for number in range(MOST_NODES)}, {NODE}),
    ],
)
def test_of_which_nodes_a_reader_may_have_seen_more(named: dict[str, int], more: set[str]) -> None:
    newest = {node: NEWEST[:count] for node, count in named.items()}
    assert may_have_seen_more(Cursor({NODE: Position("", 99)}, newest)) == more


def test_a_reader_lacks_what_it_was_not_given(written: Written) -> None:
    (fault,) = written.reader_faults("it", [Given(LINES, None), Given(OTHERS[1:], cursor(NEWEST))])
    assert "it lacks 1 of 9" in fault
