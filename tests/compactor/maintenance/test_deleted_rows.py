"""What deletions take of a file, found in its keys, is what a look at each line finds."""

from __future__ import annotations

from random import Random

import pytest

from compactor.purge import PurgeHorizons, taken
from tailrace.logstore import keys, ulid
from tailrace.logstore.errors import Damaged, NotFound
from tailrace.logstore.runs.deletions import Deletion
from tests.compactor.files import add_files
from tests.compactor.lake import NOON, Batch, Lake, batch, records
from tests.compactor.plain_engine import is_deleted
from tests.seeds import seeds

NAMES = ("a", "a.b", "b", "é", "\U0001f600", "z" * 1_100)


def some(dice: Random) -> tuple[list[Batch], list[Deletion]]:
    times = [NOON + dice.randrange(60_000) for _ in range(12)]
    batches = [
        batch(dice.choice(NAMES), dice.choice(NAMES), at, dice.randrange(1, 40), salt=n)
        for n, at in enumerate(times)
    ]
    deletions = [
        Deletion(
            dice.choice(NAMES),
            dice.choice((None, *NAMES)),
            ulid.lowest_at(dice.choice(times)) | dice.getrandbits(80),
        )
        for _ in range(dice.randrange(1, 6))
    ]
    return batches, deletions


@pytest.mark.parametrize("seed", seeds(12))
def test_the_lines_and_runs_are_those_that_a_look_at_each_line_finds(lake: Lake, seed: int) -> None:
    batches, deletions = some(Random(seed))
    (file,) = add_files(lake, batches).files
    horizons = PurgeHorizons.of(deletions)
    gone = {row[:3] for row in records(batches) if is_deleted(row[:3], deletions)}
    found = lake.run(taken(lake.store, file, horizons))
    assert found.rows == len(gone)
    assert found.runs == {key[:2] for key in gone}
    assert horizons.may_take_of(file) or not gone


def test_a_file_is_left_alone_that_can_hold_nothing(lake: Lake) -> None:
    (file,) = add_files(lake, [batch("b", "r1", NOON, 3), batch("c", "r5", NOON, 3)]).files
    ever, before = ulid.highest_at(NOON + 1), ulid.highest_at(NOON - 1)
    for fqn, run, t in (
        ("a", None, ever),
        ("d", None, ever),
        ("b", "r6", ever),
        ("b", None, before),
    ):
        assert not PurgeHorizons.of([Deletion(fqn, run, t)]).may_take_of(file)
    assert PurgeHorizons.of([Deletion("b", "r3", ever)]).may_take_of(file)


def test_the_line_that_is_the_deletions_own_is_taken_and_the_next_is_not(lake: Lake) -> None:
    """Also where it is the file's first: then it is the lowest of its bounds."""
    one = batch("f", "r", NOON, 5)
    (file,) = add_files(lake, [one]).files
    for lines in range(1, 6):
        horizons = PurgeHorizons.of([Deletion("f", "r", one[1] + lines - 1)])
        assert horizons.may_take_of(file)
        assert lake.run(taken(lake.store, file, horizons)).rows == lines
    assert not PurgeHorizons.of([Deletion("f", "r", one[1] - 1)]).may_take_of(file)


@pytest.mark.parametrize("cut", [0, 3, 40, -1, -30])
def test_a_file_that_is_not_as_the_log_says_is_damaged(lake: Lake, cut: int) -> None:
    (file,) = add_files(lake, [batch("b", "r", NOON, 30)]).files
    key = f"{keys.TABLE}/{file.path}"
    body = lake.run(lake.store.get(key))[1]
    lake.put_bytes(key, body[:cut])
    horizons = PurgeHorizons.of([Deletion("b", None, ulid.highest_at(NOON))])
    with pytest.raises(Damaged):
        lake.run(taken(lake.store, file, horizons))
    lake.run(lake.store.delete([key]))
    with pytest.raises(NotFound):
        lake.run(taken(lake.store, file, horizons))
