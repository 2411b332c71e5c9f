"""More meetings that every history has: something ends exactly at a line, a moment, a segment.

Each is looked at as `episodes.py` says. Runs have names of their own, so that what other meetings
delete is not in the way.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from tests.compactor.histories.consumers import keep_one
from tests.compactor.histories.dated import HOUR_MS
from tests.compactor.histories.lossy import Loss, Losses
from tests.compactor.histories.troubles import Troubles
from tests.compactor.histories.world import DAY_MS, NODES, World
from tests.compactor.lake import Batch, batch

_MINUTE_MS: Final = 60_000


def lines_come_again(world: World) -> None:
    """One that ends a file, and alone; then one whose deletion is done, when files have it not."""
    one, other = _one(world, 3), _one(world, 3)
    last = _one(world, 1, salt=1 << 20)
    world.put("a", [one, other, last])
    world.drive()
    world.put("b", [last])
    world.drive()
    _delete(world, one)
    world.pass_time(2 * HOUR_MS)
    world.drive()
    _delete(world, other)  # at the moment at which the first was noted as done
    world.check()
    world.put("b", [one])
    world.drive()


def a_file_is_about_to_expire(world: World) -> None:
    """Nobody takes a deleted line out of it; the deletion is made twice, and not done so long."""
    if not world.retention_days:
        return
    one = _one(world, 2, world.clock.ms - round(world.retention_days * DAY_MS) + HOUR_MS // 2)
    world.put("a", [one])
    world.drive()
    for _ in range(2):
        _delete(world, one)
        world.pass_time(2 * _MINUTE_MS)
        _delete(world, _one(world, 1))
        world.pass_time(2 * _MINUTE_MS)
        world.drive()


def runs_are_forgotten(world: World) -> None:
    """One that was deleted up to long ago and then later, at once and when that is done.

    And one whose manifest says the same as its record.
    """
    long_ago = world.clock.ms - 40 * DAY_MS
    (name, old, _), (_, new, _) = _one(world, 1, long_ago), _one(world, 1)
    world.delete(name.fqn, name.run, old)
    world.delete(name.fqn, name.run, new)
    _delete(world, _one(world, 1, long_ago))
    world.drive()
    world.delete(name.fqn, name.run, new + 1)
    world.pass_time(2 * _MINUTE_MS)
    world.drive()
    world.drive()
    world.sweep()


def a_group_keeps_one(world: World) -> None:
    """Of older segments of a node the first, and has all others; it is late by less than a day."""
    for _ in range(2):
        world.put("a", [_one(world, 1)])
    for node in NODES:
        world.texts_made(node)
    world.drive()
    world.pass_time(6 * HOUR_MS)
    world.tell(world.run(keep_one(world.store, world.clock, world.dice, "late", "a")))
    world.check()  # what is seen of it now is what it is judged by
    world.pass_time(20 * HOUR_MS)
    world.drive()


def others_commit_and_answers_are_lost(world: World) -> None:
    """A pass knows its own commits, and no others for its own: it says what it did."""
    world.drive()
    others, lost = Troubles(), dict.fromkeys(range(1, 30), Loss.LOST)
    others.on["placed"] = world.commit_nothing
    for met in (others, Troubles(losses=Losses(lost))):
        world.put("a", [_one(world, 1)])
        before = world.taken_in()
        report = world.drive(met)
        if report is not None:
            taken = world.taken_in() - before
            assert report.segments == taken, f"{report.segments} said, {taken} done"


BORDERS: Final[tuple[Callable[[World], None], ...]] = (
    lines_come_again,
    a_file_is_about_to_expire,
    runs_are_forgotten,
    a_group_keeps_one,
    others_commit_and_answers_are_lost,
)


def _one(world: World, lines: int, at_ms: int | None = None, *, salt: int | None = None) -> Batch:
    """A batch of a run of its own; of one moment that with the highest salt is the last."""
    at, number = world.clock.ms if at_ms is None else at_ms, world.dice.randrange(1 << 20)
    return batch("f", f"one-{number}", at, lines, salt=number if salt is None else salt)


def _delete(world: World, one: Batch) -> None:
    """Its first line."""
    (fqn, run), first, _ = one
    world.delete(fqn, run, first)
