"""Whatever happens to a store and its compactors, the table is what a plain model says.

Segments, copies of batches, late lines, deletions, runs that expire and are forgotten, bad
segments and newer ones, consumers, days that pass; drivers that are killed between any two steps
and at each that has a name, whose store fails, whose writes' answers are lost or come late; at any
step another driver's whole pass, or several that race with each other and with all the rest,
by leases or against them. After each step all that anybody could read is compared with the
model, and in the end, nothing is left of it all but the table.

Each has some meetings that matter, too (`episodes.py`, `borders.py`). Which faults of a list are
seen by how few seeds is told by `python -m tests.compactor.histories`.

`make sim SEED=7` tells other scenarios than the first, `make sim SEED=7 COUNT=400` many.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from compactor.settings import Compaction
from tailrace.logstore import ulid
from tailrace.logstore.runs.deletions import FOR_EVER, RunRetention
from tests.compactor.histories.borders import BORDERS
from tests.compactor.histories.dated import HOUR_MS
from tests.compactor.histories.episodes import EPISODES
from tests.compactor.histories.leased import RESTARTED
from tests.compactor.histories.lossy import Loss, Losses
from tests.compactor.histories.steps import STEPS
from tests.compactor.histories.troubles import Troubles
from tests.compactor.histories.turns import Runner, Turns
from tests.compactor.histories.world import NODES, World
from tests.compactor.lake import Batch, batch
from tests.seeds import seeds, some
from tests.simulation.faulty_store import WRITES, Fault, Schedule

FQNS = ("f", "g", "svc.pipe")
RUNS = ("r1", "r2", "r3")
MINUTE_MS = 60_000
DAY_MS = 24 * HOUR_MS
PAUSES_MS = (2 * MINUTE_MS, HOUR_MS, 3 * HOUR_MS, DAY_MS, 3 * DAY_MS)
HAPPENINGS = 7
MEETINGS = (*EPISODES, *BORDERS)
ENOUGH = 400
"""Histories in which each step with a name is some driver's last."""
RARE = {"deletion removed": 8, "group settled": 4, "rebased": 4, "expired": 3}
"""How often drivers are killed where they seldom come, beside other steps."""
KILLED = Counter[str]()
HISTORIES = seeds(3)


@pytest.mark.parametrize("seed", some(HISTORIES, 3, "histories of compactors"))
def test_a_history_ends_as_the_model_says(tmp_path: Path, seed: int) -> None:
    dice = Random(seed)
    world = World(tmp_path, dice, limits=limits(dice), runs=runs(dice))
    try:
        for episode in dice.sample(MEETINGS, len(MEETINGS)):
            world.tell(episode.__name__.replace("_", " "))
            episode(world)
            if episode in EPISODES:
                happens(world)
                world.check()
        for _ in range(HAPPENINGS):
            happens(world)
            world.check()
        settle(world)
        if world.model.newer:
            world.upgrade()
            settle(world)
    except BaseException:
        print("\n".join(world.scenario))
        raise


if len(HISTORIES) >= ENOUGH and "PYTEST_XDIST_WORKER" not in os.environ:  # each counts its own
    # Not there otherwise, instead of left out: in CI nothing may be left out.
    def test_each_step_was_the_last_of_some_driver() -> None:
        print(dict(KILLED))
        assert set(STEPS) <= KILLED.keys()


def limits(dice: Random) -> Compaction:
    """Small ones, so that a little is much, and the usual ones."""
    return Compaction(
        batch_bytes=dice.choice([1, 12_000, 256 << 20]),
        file_bytes=dice.choice([8_000, 128 << 20]),
        purge_bytes=dice.choice([1, 128 << 20]),
        settle_seconds=dice.choice([0, 900]),
        retention_days=dice.choice([None, None, 2, 9]),
        retention_bytes=dice.choice([None, None, None, 60_000]),
        away_days=dice.choice([0, 0, 1, 30]),
        grace_seconds=dice.choice([60, 3600]),
        index_min_bytes=dice.choice([1, 1, None]),
    )


def runs(dice: Random) -> RunRetention:
    """For how long the service keeps them, in all and some pipelines."""
    some = [
        FOR_EVER,
        RunRetention(expiration_days=2),
        RunRetention(expiration_days=1, expiration_days_of={"svc.*": 3}),
        RunRetention(expiration_days=3, expiration_days_of={"g": 0}),
    ]
    return dice.choice(some)


def happens(world: World, depth: int = 0, turn: Callable[[], None] = lambda: None) -> None:
    """Something, and what it is follows from the world's dice; `turn` as `World.delete` has it."""
    dice = world.dice
    choices: list[tuple[float, Callable[[], object]]] = [
        (6, lambda: flush(world)),
        (1, lambda: world.put_bad(dice.choice(NODES), batches(world))),
        (0.2, lambda: world.put_newer(dice.choice(NODES), batches(world))),
        (2, lambda: delete(world, turn)),
        (3, lambda: world.pass_time(dice.choice(PAUSES_MS))),
        (1, lambda: world.texts_made(dice.choice(NODES))),
        (1, world.readers.pin),
        (1, world.sweep),
        (1, world.consume),
        (1, world.commit_nothing),
        ([12, 6, 2, 0][depth], lambda: drive(world, depth)),
        ([4, 0, 0, 0][depth], lambda: race(world)),
    ]
    dice.choices([what for _, what in choices], [weight for weight, _ in choices])[0]()


def drive(world: World, depth: int) -> None:
    """A pass, somewhat later than what was before it."""
    world.pass_time(world.dice.choice([0, MINUTE_MS, HOUR_MS]))
    tried(world, troubles(world, depth + 1))


def tried(world: World, met: Troubles) -> None:
    """A pass with these troubles, if it comes to them."""
    world.drive(met)
    if met.dead and met.steps and met.steps[-1] == met.killed_on:
        KILLED[met.killed_on] += 1


def race(world: World) -> None:
    """Two or three passes at once, and all that happens otherwise beside them."""

    dice = world.dice
    apart, free = dice.random() < 0.5, dice.sample(NODES, len(NODES))

    def driver(turn: Callable[[], None]) -> None:
        met = troubles(world, 3)
        if apart:  # each has a node of its own, and all have the same hours
            mine = free.pop()
            met.leases, met.left = None, [node for node in NODES if node != mine]
        met.turn = turn
        tried(world, met)

    def others(turn: Callable[[], None]) -> None:
        for _ in range(dice.randrange(6)):
            turn()
            happens(world, 3, turn)

    flush(world)
    world.tell("a race begins")
    some: list[Runner] = [driver] * dice.choice([2, 2, 3])
    Turns(dice).race([*some, others])
    world.tell("it is over")


def settle(world: World) -> None:
    """Nothing comes any more, and drivers die at most: what is left to be done is done."""
    for node in world.model.segments:
        world.texts_made(node)
    world.sweep()
    busy = world.dice.random() < 0.5
    for _ in range(4):
        world.pass_time(26 * HOUR_MS)
        if busy:
            world.commit_nothing()
        if world.dice.random() < 0.5:
            tried(world, Troubles(leases=RESTARTED, killed_on=last_step(world.dice)))
        assert world.drive(Troubles(leases=RESTARTED)) is not None
    version = world.versions.number()
    report = world.drive()
    assert report is not None
    assert world.versions.number() == version
    world.check_settled()
    waiting = [f"{node} waits at segment {seq}:" for node, seq in world.model.newer.items()]
    left_out = [
        f"segment {seq} of {node} is left out, because it is damaged:"
        for node, seq in world.aside()
    ]
    assert sorted(alarm.split(":")[0] + ":" for alarm in report.alarms) == sorted(
        [*waiting, *left_out]
    )


def flush(world: World) -> None:
    for _ in range(world.dice.randrange(1, 4)):
        world.put(world.dice.choice(NODES), batches(world))


def batches(world: World) -> list[Batch]:
    """New ones, of now or late, and copies of some that were sent before."""
    dice = world.dice
    ago = dice.choice([HOUR_MS // 2, HOUR_MS, HOUR_MS, 2 * HOUR_MS, 2 * DAY_MS])
    fresh = [
        batch(
            dice.choice(FQNS),
            dice.choice(RUNS),
            world.clock.ms - dice.randrange(ago),
            dice.randrange(1, 12),
            salt=dice.randrange(1 << 20),
        )
        for _ in range(dice.randrange(1, 5))
    ]
    return fresh + dice.sample(world.sent, min(len(world.sent), dice.randrange(3)))


def delete(world: World, turn: Callable[[], None]) -> None:
    """Of a run or a whole pipeline what there was at some time."""
    dice = world.dice
    until = ulid.highest_at(world.clock.ms - dice.choice([0, HOUR_MS, DAY_MS]))
    fqn, run = dice.choice(FQNS), dice.choice(RUNS)
    if world.sent and dice.random() < 0.5:
        (fqn, run), first, text = dice.choice(world.sent)
        until = first + dice.choice([text.count(b"\n") - 1, 0, ulid.LINE_MASK])  # at a line of it
    world.delete(fqn, run if dice.random() < 0.8 else None, until, turn)


def last_step(dice: Random) -> str:
    """At which a driver is killed, if it comes there."""
    return dice.choices(STEPS, [RARE.get(step, 1) for step in STEPS])[0]


def troubles(world: World, depth: int) -> Troubles:
    """What goes wrong in a pass: mostly one thing."""
    dice = world.dice
    met = Troubles(left=dice.sample(NODES, dice.choice([0, 1, 2])))
    if dice.random() < 0.4:
        met.leases = dice.choice(["one", "other", RESTARTED])
    kind = dice.randrange(9)
    if kind == 0:
        met.killed_at = dice.choice([1, 2, 3, 4, 5, 6, 8, 10, 14])
    elif kind in (1, 5):
        met.killed_on = last_step(dice)
    elif kind == 2:
        met.store = Schedule({dice.randrange(1, 150): dice.choice(list(Fault))})
    elif kind == 3:
        lost = {dice.randrange(1, 20): dice.choice(list(Fault)) for _ in range(2)}
        met.store = Schedule(lost, applies=lambda call: call.split(" ")[0] in WRITES)
    elif kind == 4:
        lost_commit = dice.choice(list(Loss))
        planned = {dice.randrange(1, 4) + n: lost_commit for n in range(dice.randrange(1, 4))}
        met.losses = Losses(planned)
    if depth < 3 and (kind >= 6 or dice.random() < 0.3):
        for step in dice.sample(range(1, 9), dice.randrange(1, 4)):
            met.meanwhile[step] = lambda: happens(world, depth)
    return met
