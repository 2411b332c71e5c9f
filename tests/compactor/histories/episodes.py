"""Meetings that every history has, in an order of its own: dice come to them once in hundreds.

Each is a pass that something happens to at the very step where it matters. What follows from it
is looked at as after any other pass.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from tests.compactor.histories.dated import HOUR_MS
from tests.compactor.histories.lossy import Loss, Losses
from tests.compactor.histories.troubles import Troubles
from tests.compactor.histories.world import DAY_MS, NODES, World
from tests.compactor.lake import Batch, batch

_MINUTE_MS: Final = 60_000
_LINES: Final = 5


def another_takes_in_the_same(world: World) -> None:
    """Between a merge and its commit."""
    world.put("a", [_fresh(world)])
    _met(world, "written", world.drive)


def another_brings_a_copy(world: World) -> None:
    """Of the same batch, in a segment of another node."""
    world.drive()
    one = _fresh(world)
    world.put("a", [one])
    world.put("b", [one])
    met = Troubles(left=[node for node in NODES if node != "a"])
    met.on["written"] = lambda: world.drive(Troubles(left=["a"]))
    world.drive(met)


def its_lines_are_deleted(world: World) -> None:
    """To the line, and another notes the deletion as done, before a merge is committed."""
    one = _fresh(world)
    world.put("c", [one])

    def others() -> None:
        _delete(world, one, _LINES - 1)
        world.pass_time(2 * _MINUTE_MS)
        world.drive(Troubles(left=NODES))

    _met(world, "written", others)


def lines_leave_the_files(world: World) -> None:
    """All but the last of a run's, then of another run the very first."""
    some = [_fresh(world, run=f"r{number}") for number in (1, 2)]
    world.put("a", some)
    world.drive()
    _delete(world, some[0], _LINES - 2)
    _delete(world, some[1], 0)
    world.pass_time(2 * HOUR_MS)
    world.drive()


def another_rewrites_the_same_hour(world: World) -> None:
    """Between a rewriting and its commit."""
    at = world.clock.ms
    for number in range(2):
        world.put("a", [_fresh(world, at_ms=at + number)])
        world.drive()
    world.pass_time(3 * HOUR_MS)
    _met(world, "rewrite placed", world.drive)


def answers_are_lost(world: World) -> None:
    """Of all commits: a pass finds its own, and says what it did."""
    world.drive()
    world.put("b", [_fresh(world)])
    before = _taken_in(world)
    report = world.drive(Troubles(losses=Losses(dict.fromkeys(range(1, 30), Loss.LOST))))
    if report is not None:
        taken = _taken_in(world) - before
        assert report.segments == taken, f"{report.segments} said, {taken} done"


def a_group_is_somewhat_late(world: World) -> None:
    """It has begun, and keeps a segment for some hours: old ones wait, and it is not evicted."""
    world.put("a", [_fresh(world)])
    for _ in range(3):
        world.consume()
    for node in NODES:
        world.texts_made(node)
    world.drive()
    world.pass_time(20 * HOUR_MS)
    world.put("a", [_fresh(world)])
    world.drive()


def runs_are_forgotten(world: World) -> None:
    """One whose manifest is there, one whose lines may still come, one that is not done."""
    one = _fresh(world)
    world.put("a", [one])
    world.drive()
    _delete(world, one, _LINES - 1)
    world.drive()
    world.pass_time(DAY_MS + HOUR_MS)
    _delete(world, _fresh(world, at_ms=world.clock.ms - 40 * DAY_MS), 0)
    world.drive()
    world.sweep()


EPISODES: Final = (
    another_takes_in_the_same,
    another_brings_a_copy,
    its_lines_are_deleted,
    lines_leave_the_files,
    another_rewrites_the_same_hour,
    answers_are_lost,
    a_group_is_somewhat_late,
    runs_are_forgotten,
)


def _met(world: World, step: str, others: Callable[[], object]) -> None:
    met = Troubles()
    met.on[step] = others
    world.drive(met)


def _fresh(world: World, *, run: str = "r1", at_ms: int | None = None) -> Batch:
    at = world.clock.ms if at_ms is None else at_ms
    return batch("f", run, at, _LINES, salt=world.dice.randrange(1 << 20))


def _delete(world: World, one: Batch, line: int) -> None:
    (fqn, run), first, _ = one
    world.delete(fqn, run, first + line)


def _taken_in(world: World) -> int:
    snapshot = world.versions.newest()
    return sum(snapshot.mark(node) for node in world.model.segments)
