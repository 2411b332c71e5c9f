"""Whatever happens to a store and its compactors, the table is what a plain model says.

Segments, copies of batches, late lines, deletions, bad segments, days that pass; drivers that
are killed between any two steps, whose store fails, whose commits' answers are lost or come
late; and at any step another driver's whole pass. After each step all that anybody could
read is compared with the model, and in the end, nothing is left of it all but the table.

`make sim SEED=7` tells other stories than the first, `make sim SEED=7 COUNT=1000` many.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from compactor.settings import Compaction
from logstore import ulid
from tests.compactor.histories.dated import HOUR_MS
from tests.compactor.histories.lossy import Loss, Losses
from tests.compactor.histories.world import NODES, Troubles, World
from tests.compactor.lake import Batch, batch
from tests.faulty_store import Fault, Schedule
from tests.seeds import seeds

FQNS = ("f", "g", "svc.pipe")
RUNS = ("r1", "r2", "r3")
MINUTE_MS = 60_000
DAY_MS = 24 * HOUR_MS
PAUSES_MS = (2 * MINUTE_MS, HOUR_MS, 3 * HOUR_MS, DAY_MS, 3 * DAY_MS)
STEPS = 22


@pytest.mark.parametrize("seed", seeds(5))
def test_a_history_ends_as_the_model_says(tmp_path: Path, seed: int) -> None:
    dice = Random(seed)
    world = World(tmp_path, dice, limits=limits(dice))
    try:
        for _ in range(STEPS):
            happens(world)
            world.check()
        settle(world)
    except BaseException:
        print("\n".join(world.story))
        raise


def limits(dice: Random) -> Compaction:
    """Small ones, so that a little is much, and the usual ones."""
    return Compaction(
        batch_bytes=dice.choice([1, 12_000, 256 << 20]),
        file_bytes=dice.choice([8_000, 128 << 20]),
        purge_bytes=dice.choice([1, 128 << 20]),
        settle_seconds=dice.choice([0, 900]),
        retention_days=dice.choice([None, None, 2, 9]),
        retention_bytes=dice.choice([None, None, None, 60_000]),
    )


def happens(world: World, depth: int = 0) -> None:
    """Something, and what it is follows from the world's dice."""
    dice = world.dice
    choices: list[tuple[int, Callable[[], object]]] = [
        (6, lambda: flush(world)),
        (1, lambda: world.put_bad(dice.choice(NODES), batches(world))),
        (2, lambda: delete(world)),
        (3, lambda: world.pass_time(dice.choice(PAUSES_MS))),
        (1, lambda: world.texts_made(dice.choice(NODES))),
        (1, world.pin),
        (12 if depth == 0 else 6 if depth == 1 else 0, lambda: drive(world, depth)),
    ]
    dice.choices([what for _, what in choices], [weight for weight, _ in choices])[0]()


def drive(world: World, depth: int) -> None:
    """A pass, somewhat later than what was before it."""
    world.pass_time(world.dice.choice([0, MINUTE_MS, HOUR_MS]))
    world.drive(troubles(world, depth + 1))


def settle(world: World) -> None:
    """Nothing goes wrong any more, and nothing comes: what is left to be done is done."""
    for node in world.model.segments:
        world.texts_made(node)
    for _ in range(4):
        world.pass_time(26 * HOUR_MS)
        assert world.drive() is not None
    version = world.table.snapshot().version
    assert world.drive() is not None
    assert world.table.snapshot().version == version
    world.check_settled()
    assert world.left_segments() == world.kept_aside()


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


def delete(world: World) -> None:
    """Of a run or a whole pipeline what there was at some time."""
    dice = world.dice
    until = ulid.highest_at(world.clock.ms - dice.choice([0, HOUR_MS, DAY_MS]))
    if world.sent and dice.random() < 0.5:
        until = dice.choice(world.sent)[1] | ulid.LINE_MASK
    run = dice.choice(RUNS) if dice.random() < 0.8 else None
    world.delete(dice.choice(FQNS), run, until)


def troubles(world: World, depth: int) -> Troubles:
    """What goes wrong in a pass: mostly one thing."""
    dice = world.dice
    met = Troubles(left=dice.sample(NODES, dice.choice([0, 1, 2])))
    kind = dice.randrange(6)
    if kind == 0:
        met.killed_at = dice.choice([1, 2, 3, 4, 5, 6, 8, 10, 14])
    elif kind == 1:
        met.store = Schedule({dice.randrange(1, 150): dice.choice(list(Fault))})
    elif kind == 2:
        lost = dice.choice(list(Loss))
        met.losses = Losses({dice.randrange(1, 4) + n: lost for n in range(dice.randrange(1, 4))})
    if kind >= 3 or dice.random() < 0.3:
        for step in dice.sample(range(1, 9), dice.randrange(1, 4)):
            met.meanwhile[step] = lambda: happens(world, depth)
    return met
