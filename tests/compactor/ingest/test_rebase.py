"""A batch that lost to other commits: committed all the same where that is exact, else not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from random import Random

import pytest

from compactor.assignment import Alone
from compactor.context import Compactor
from compactor.ingest import ingest_all
from compactor.purge import purge
from compactor.report import PassReport
from compactor.rewrite import replace as replace_files
from compactor.rewrite import rewrite
from compactor.settings import Compaction
from tailrace.logstore import ulid
from tailrace.logstore.clock import SystemClock
from tailrace.logstore.table.table import TableChange, commit
from tests.compactor.another_driver import elsewhere
from tests.compactor.lake import HOUR, NOON, Batch, Lake, batch
from tests.compactor.plain_engine import PlainEngine
from tests.seeds import seeds

LIMITS = Compaction(purge_seconds=0, settle_seconds=0)


class Only(Alone):
    """Some nodes are this driver's, and stay so."""

    def __init__(self, *nodes: str) -> None:
        self.nodes = nodes

    async def claim(self, nodes: object, waiting: object) -> list[str]:
        return [node for node in self.nodes if node in waiting]  # type: ignore[operator]


@pytest.fixture
def plain(lake: Lake) -> Lake:
    lake.session = PlainEngine()
    lake.limits = LIMITS
    lake.clock.shift_ms = NOON + 6 * HOUR - SystemClock().now_ms()
    return lake


@dataclass
class Race:
    """Driver one ingests what node `a` has; when it has placed its files, `meanwhile` happens."""

    lake: Lake
    meanwhile: Callable[[Race], object]
    steps: list[str] = field(default_factory=list)

    def run(self) -> PassReport:
        report = PassReport()
        self.lake.reached = self._reached
        self.lake.run(ingest_all(self._driver("a"), report))
        self.lake.reached = lambda _step: None
        return report

    def other_takes_in(self, node: str = "b") -> None:
        self.lake.run(ingest_all(self._driver(node), PassReport()))

    def _driver(self, node: str) -> Compactor:
        return replace(self.lake.compactor, assigner=Only(node))

    def _reached(self, step: str) -> None:
        self.steps.append(step)
        if step == "placed" and self.steps.count("placed") == 1:
            reached, self.lake.reached = self.lake.reached, lambda _step: None
            elsewhere(lambda: self.meanwhile(self))
            self.lake.reached = reached

    @property
    def merges(self) -> int:
        return self.steps.count("placed")


def some(run: str, count: int = 3, *, salt: int = 0) -> list[Batch]:
    return [batch("f", run, NOON + i, 5, salt=salt + i) for i in range(count)]


def test_another_nodes_lines_of_the_same_time_cost_no_second_merge(plain: Lake) -> None:
    mine, theirs = some("r"), some("s")
    plain.put("a", mine)
    plain.put("b", theirs)
    race = Race(plain, Race.other_takes_in)
    report = race.run()
    assert (race.merges, "rebased" in race.steps, report.commits) == (1, True, 1)
    plain.holds([*mine, *theirs])
    assert plain.snapshot().marks("ab") == {"a": 1, "b": 1}


def test_a_copy_of_a_batch_that_another_took_in_is_merged_again(plain: Lake) -> None:
    mine, theirs = some("r"), some("s")
    plain.put("a", mine)
    plain.put("b", [*theirs, mine[1]])
    race = Race(plain, Race.other_takes_in)
    report = race.run()
    assert (race.merges, "rebased" in race.steps) == (2, False)
    assert (report.rows_out, report.duplicates) == (10, 5)
    plain.holds([*mine, *theirs])


def test_two_takers_of_one_batch_take_it_in_once(plain: Lake) -> None:
    """A node that failed over: both believe that it is theirs."""
    mine = some("r")
    plain.put("a", mine)
    race = Race(plain, lambda race: race.other_takes_in("a"))
    report = race.run()
    assert (race.merges, report.commits, report.rows_out) == (1, 0, 0)
    assert "rebased" not in race.steps, "it is seen before the commit is tried again"
    plain.holds(mine)


def test_two_takers_of_what_the_table_has_already_are_seen_by_the_mark(plain: Lake) -> None:
    """Neither has a file, so nothing but the mark says that the other was there."""
    mine = some("r")
    plain.put("b", mine)
    Race(plain, lambda _race: None).other_takes_in()
    plain.put("a", mine)
    race = Race(plain, lambda race: race.other_takes_in("a"))
    report = race.run()
    assert (report.commits, "rebased" in race.steps) == (0, False)
    assert plain.snapshot().marks("ab") == {"a": 1, "b": 1}
    plain.holds(mine)


def test_hours_that_expire_while_lines_are_merged_are_looked_at_again(plain: Lake) -> None:
    """Who said that they are gone has not seen the files of this batch."""
    mine = some("r")
    plain.put("a", mine)

    def expired(race: Race) -> None:
        table, clock = race.lake.compactor.table, SystemClock()
        commit(table, table.snapshot(), TableChange(expired_ms=NOON), job="OTHER", clock=clock)

    race = Race(plain, expired)
    race.run()
    assert (race.merges, "rebased" in race.steps) == (2, False)
    plain.holds(mine)


def test_lines_deleted_while_they_were_merged_do_not_slip_past_the_purge(plain: Lake) -> None:
    """The table says that the deletion is done, so nobody would look for its lines again."""
    before, mine, other = some("old"), some("r"), some("s", salt=50)
    plain.put("b", before)
    Race(plain, lambda _race: None).other_takes_in()
    plain.put("a", [*mine, *other])

    def deleted(race: Race) -> None:
        lake = race.lake
        lake.delete("f", "r", ulid.highest_at(NOON + HOUR))
        lake.run(purge(lake.compactor, PassReport()))

    shift, plain.clock.shift_ms = plain.clock.shift_ms, 3_600_000  # stored well before it is listed
    race = Race(plain, deleted)
    race.run()
    plain.clock.shift_ms = shift
    assert plain.snapshot().purged_ms > 0
    assert (race.merges, "rebased" in race.steps) == (2, False)
    plain.holds([*before, *other])


def test_what_was_held_and_is_rewritten_meanwhile_is_no_reason_to_merge_again(
    plain: Lake,
) -> None:
    held = some("r", 4)
    for one in held:
        plain.put("b", [one])
        Race(plain, lambda _race: None).other_takes_in()
    mine = some("r", 2, salt=50)
    plain.put("a", [*mine, *held])

    async def rewritten(compactor: Compactor) -> None:
        snapshot = compactor.table.snapshot()
        made = await rewrite(compactor, snapshot, snapshot.files, [], PassReport(), level=1)
        change = TableChange(made, removed=snapshot.files, same_lines=True)
        await replace_files(compactor, snapshot, change)

    race = Race(plain, lambda race: race.lake.run(rewritten(race.lake.compactor)))
    race.run()
    assert (race.merges, "rebased" in race.steps) == (1, True)
    plain.holds([*held, *mine])


@pytest.mark.in_turn(4)
@pytest.mark.parametrize("seed", seeds(5))
def test_random_races_end_as_the_model_says(plain: Lake, seed: int) -> None:
    """Two drivers, copies across nodes, deletions, purges: each record once, or gone."""
    dice = Random(seed)
    sent: list[Batch] = []
    gone: set[str] = set()
    rebased = merges = 0

    def fresh() -> list[Batch]:
        return [
            batch("f", f"r{dice.randrange(6)}", NOON + dice.randrange(2 * HOUR), 4,
                  salt=dice.randrange(1 << 20))
            for _ in range(dice.randrange(1, 4))
        ]  # fmt: skip

    for _round in range(6):
        for node in "ab":
            new = fresh()
            plain.put(node, new + dice.sample(sent, min(len(sent), dice.choice([0, 0, 1, 2]))))
            sent += new
        victim = f"r{dice.randrange(6)}" if dice.random() < 0.3 else None

        def meanwhile(race: Race, victim: str | None = victim) -> None:
            if dice.random() < 0.8:
                race.other_takes_in()
            if victim is not None:
                gone.add(victim)
                race.lake.delete("f", victim, ulid.highest_at(NOON + 3 * HOUR))
                race.lake.run(purge(race.lake.compactor, PassReport()))

        race = Race(plain, meanwhile)
        race.run()
        rebased += "rebased" in race.steps
        merges += race.merges
        Race(plain, lambda _race: None).other_takes_in()
    plain.run(purge(plain.compactor, PassReport()))
    kept = [one for one in sent if one[0].run not in gone]
    found = plain.table()
    assert len(found) == len(set(found))
    plain.holds(kept)
    assert merges >= 6
