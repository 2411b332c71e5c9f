"""Meetings that every history has, in an order of its own: dice come to them once in hundreds.

Each is a pass that something happens to at the very step where it matters. What follows from it
is looked at as after any other pass.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from tests.compactor.histories.dated import HOUR_MS
from tests.compactor.histories.troubles import Troubles
from tests.compactor.histories.world import NODES, World
from tests.compactor.lake import Batch, batch

_MINUTE_MS: Final = 60_000
_LINES: Final = 5


def another_takes_in_the_same(world: World) -> None:
    """Between a merge and its commit; then a copy, which makes no file, and what is behind it."""
    one = _fresh(world)
    world.put("a", [one])
    _met(world, "written", world.drive)
    world.put("a", [one])

    def others() -> None:
        world.put("a", [_fresh(world)])
        world.drive()

    _met(world, "written", others)


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


EPISODES: Final = (
    another_takes_in_the_same,
    another_brings_a_copy,
    its_lines_are_deleted,
    lines_leave_the_files,
    another_rewrites_the_same_hour,
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
