"""Whoever judges a tortured store sees what is wrong with it. The engine is plain Python."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from random import Random

import pyarrow.parquet as pq
import pytest

from compactor.settings import Compaction
from tailrace.logstore import keys, ulid
from tailrace.logstore.table.schema import describe, read_footer
from tailrace.logstore.table.snapshot import TableFile
from tailrace.logstore.table.table import TableChange, commit
from tests.compactor.lake import HOUR, Lake, Record
from tests.compactor.plain_engine import PlainEngine, Row, is_deleted, key_of, write_part
from tests.compactor.torture.checker import Checker, is_as_demanded, vacuumed
from tests.compactor.torture.simulation import KEPT_DAYS, Simulation

LIMITS = Compaction(grace_seconds=0, purge_seconds=0, retention_days=KEPT_DAYS, settle_seconds=0)
MINUTE = 60_000
_PASSES = 5


@dataclass
class Acknowledgements:
    """A scenario of which nothing is left to do; `before` are the rows ahead of its deletions."""

    lake: Lake
    simulation: Simulation = field(init=False)
    before: list[Row] = field(init=False)

    def __post_init__(self) -> None:
        self.lake.session, self.lake.limits = PlainEngine(), LIMITS
        # No version may say that a deletion is done which came after it, and the last one says so
        # of the first: of what was stored a minute before.
        self.lake.clock.shift_ms = -4 * MINUTE
        self.simulation = Simulation(self.lake, Random(1), lines=3)
        for _ in range(3):
            self.simulation.write()
        self.lake.compact()
        self.before = [row for file in self.lake.snapshot().files for row in rows_of(file)]
        for self.lake.clock.shift_ms in (-2 * MINUTE, 10 * MINUTE):
            self.simulation.delete()
        self.lake.clock.shift_ms = 0
        for _ in range(_PASSES):
            self.lake.compact()
            if self.left_to_do() is None:
                break

    def checker(self) -> Checker:
        """One who sees the store for the first time."""
        return Checker(self.lake, self.simulation.model)

    def wrong(self) -> str | None:
        return self.checker().wrong()

    def left_to_do(self) -> str | None:
        return is_as_demanded(self.lake, self.simulation.model)

    def deleted(self, number: int) -> Row:
        """A row that the deletion of that number takes."""
        deletions = self.simulation.model.deletions.values()
        gone = [one for one, _ in deletions if one.fqn != "old"][number]
        return next(row for row in self.before if is_deleted(key_of(row), [gone]))

    def newest(self) -> TableFile:
        return max(self.lake.snapshot().files, key=lambda file: (file.end_ms, file.path))

    def add(
        self, rows: Sequence[Row], *removed: TableFile, expired_ms: int | None = None
    ) -> TableFile:
        """A version with a file of the rows, all of one hour, instead of those removed."""
        table = self.lake.compactor.table
        snapshot = table.snapshot()
        moment = datetime.fromtimestamp(ulid.time_ms(ulid.decode(rows[0]["ulid"])) / 1000, UTC)
        path = f"{moment:date=%Y-%m-%d/hour=%H}/{snapshot.version}-00000.parquet"
        target = Path(table.uri) / path
        write_part(rows, str(target))
        made = describe(
            read_footer(str(target)),
            path=path,
            size=target.stat().st_size,
            modified_ms=self.lake.clock.now_ms(),
        )
        change = TableChange(files=[made], removed=removed, expired_ms=expired_ms)
        commit(table, snapshot, change, job="by hand", clock=self.lake.clock)
        return next(file for file in table.snapshot().files if file.path == path)

    def replace(self, change: Callable[[list[Row]], Sequence[Row]]) -> TableFile:
        """The newest file is another one now, which it gives."""
        file = self.newest()
        return self.add(change(rows_of(file)), file)


@dataclass
class ReadLake(Lake):
    """It notes which files of the table are read."""

    read: list[str] = field(default_factory=list)

    def content(self, file: TableFile) -> list[Record]:
        self.read.append(file.path)
        return super().content(file)


def rows_of(file: TableFile) -> list[Row]:
    found: list[Row] = pq.ParquetFile(file.uri).read().to_pylist(maps_as_pydicts=None)
    return found


@pytest.fixture
def told(lake: Lake) -> Acknowledgements:
    return Acknowledgements(lake)


def test_of_a_whole_store_nothing_is_said(told: Acknowledgements) -> None:
    assert told.wrong() is None
    assert told.left_to_do() is None
    assert vacuumed(told.lake) is None


DAMAGES = pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda rows: rows[:-1], "lost: 1, "),
        (lambda rows: [*rows, rows[-1]], "there twice: 1, "),
        (lambda rows: [*rows[:-1], rows[-1] | {"message": "another"}], "from no segment"),
        (lambda rows: rows[::-1], "a file of the table is not as it must be"),
    ],
    ids=["lost", "doubled", "changed", "out of order"],
)


@pytest.mark.in_turn(3)
@DAMAGES
def test_lines_that_are_not_as_they_were_sent(
    told: Acknowledgements, change: Callable[[list[Row]], Sequence[Row]], said: str
) -> None:
    told.replace(change)
    assert said in (told.wrong() or "")


@pytest.mark.in_turn(3)
@DAMAGES
def test_lines_that_were_not_as_they_were_sent_for_one_version(
    told: Acknowledgements, change: Callable[[list[Row]], Sequence[Row]], said: str
) -> None:
    """A query may have met it, though the newest version is whole."""
    rows = rows_of(told.newest())
    damaged = told.replace(change)
    told.add(rows, damaged)
    assert told.left_to_do() is None
    assert (told.wrong() or "").startswith(f"version {told.lake.snapshot().version - 1}: {said}")


def test_an_older_version_is_judged_once(told: Acknowledgements) -> None:
    rows = rows_of(told.newest())
    damaged = told.replace(lambda rows: rows[:-1])
    checker = told.checker()
    assert "lost: 1, " in (checker.wrong() or "")
    told.add(rows, damaged)
    assert checker.wrong() is None


def test_files_of_older_versions_are_read_once(told: Acknowledgements) -> None:
    lake = ReadLake(told.lake.data)
    checker = Checker(lake, told.simulation.model)
    assert checker.wrong() is None
    assert len(lake.read) == len(set(lake.read)) > len(lake.snapshot().files)
    lake.read.clear()
    told.replace(lambda rows: rows)
    assert checker.wrong() is None
    assert sorted(lake.read) == sorted(file.path for file in lake.snapshot().files)


def test_a_line_that_two_files_have(told: Acknowledgements) -> None:
    told.add(rows_of(told.newest())[:1])
    assert "there twice: 1, " in (told.wrong() or "")
    assert "0 lines are lost" in (told.left_to_do() or "")


def test_a_deleted_line_that_came_back(told: Acknowledgements) -> None:
    told.add([told.deleted(0)])
    assert ": deleted, purged by" in (told.wrong() or "")


def test_a_line_of_the_last_deletion_of_all_that_came_back(told: Acknowledgements) -> None:
    """The table never says that it is done: what is newer may have been stored in that moment."""
    told.add([told.deleted(1)])
    assert told.wrong() is None
    assert "1 too many" in (told.left_to_do() or "")


def test_hours_that_are_gone_before_their_time(told: Acknowledgements) -> None:
    file, soon = told.newest(), told.lake.clock.now_ms() - KEPT_DAYS * 24 * HOUR + HOUR
    told.add(rows_of(file), file, expired_ms=soon)
    assert "younger than" in (told.wrong() or "")


def test_a_file_that_a_reader_of_an_older_version_misses(told: Acknowledgements) -> None:
    lake = told.lake
    needed = {f"{keys.TABLE}/{file.path}" for file in lake.snapshot().files}
    older = sorted(set(lake.keys(f"{keys.TABLE}/date=")) - needed)
    lake.run(lake.store.delete(older[:1]))
    assert f" lacks ['{older[0]}']" in (told.wrong() or "")


def test_segments_that_are_left(told: Acknowledgements) -> None:
    told.lake.put_bytes(keys.segment("a", 1), b"anything")
    assert "1 segments are left" in (told.left_to_do() or "")


def test_segments_that_were_not_taken_in(told: Acknowledgements) -> None:
    told.simulation.write()
    assert "ingested up to" in (told.left_to_do() or "")


@pytest.mark.parametrize("name", ["_delta_log/strange", "_other/file"])
def test_what_the_vacuum_leaves(told: Acknowledgements, name: str) -> None:
    told.lake.put_bytes(f"{keys.TABLE}/{name}", b"anything")
    assert "left over" in (vacuumed(told.lake) or "")


def test_a_file_of_the_table_that_is_gone(told: Acknowledgements) -> None:
    lake = told.lake
    lake.run(lake.store.delete([f"{keys.TABLE}/{told.newest().path}"]))
    assert "missing: ['" in (vacuumed(lake) or "")
