"""What it costs to keep a table of many hours: no more for each than for the hour itself."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest

from compactor.context import Compactor
from compactor.purge import purge
from compactor.report import PassReport
from compactor.rewrite import rewrite_hours
from compactor.settings import Compaction
from tailrace.logstore import ulid
from tailrace.logstore.clock import SystemClock
from tailrace.logstore.table.table import Table
from tests.compactor.files import add_files
from tests.compactor.lake import HOUR, NOON, Batch, Lake, batch
from tests.compactor.plain_engine import PlainEngine
from tests.compactor.rewrite.test_hours import meanwhile, parts


@dataclass
class Openings:
    """Storage options, asked for at each opening of a table."""

    count: int = 0

    def __call__(self) -> dict[str, str]:
        self.count += 1
        return {}


@pytest.fixture
def plain(lake: Lake) -> Lake:
    lake.session = PlainEngine()
    lake.clock.shift_ms = NOON + 10 * HOUR - SystemClock().now_ms()
    return lake


def files_of(hours: int) -> list[Batch]:
    """Five files for each hour."""
    return [
        batch("f", f"r{i}", NOON + hour * HOUR + i, 5) for hour in range(hours) for i in range(5)
    ]


def opening(lake: Lake) -> tuple[Openings, Compactor]:
    """A compactor, and how often it opened the table."""
    openings = Openings()
    return openings, replace(lake.compactor, table=Table(lake.compactor.table.uri, openings))


def rewritten(lake: Lake) -> tuple[int, PassReport]:
    openings, compactor = opening(lake)
    report = PassReport()
    lake.run(rewrite_hours(compactor, report))
    return openings.count, report


def test_each_hour_opens_the_table_once_to_see_its_commit(plain: Lake) -> None:
    sent = files_of(8)
    add_files(plain, *([one] for one in sent))
    openings, report = rewritten(plain)
    assert report.hours_rewritten == 8
    assert openings <= 8 + 2  # one to plan all of them, and one for the first
    plain.holds(sent)
    assert len(plain.snapshot().files) == 8


def test_deletions_in_each_hour_open_the_table_once_to_see_their_commit(plain: Lake) -> None:
    plain.limits = Compaction(purge_seconds=0)
    sent = files_of(8)
    add_files(plain, *([one] for one in sent))
    plain.delete("f", "r2", ulid.highest_at(NOON + 9 * HOUR))
    openings, compactor = opening(plain)
    report = PassReport()
    plain.run(purge(compactor, report))
    assert report.files_purged == 8
    # Also to see whether there is something, to look, to begin, to look again, and its note.
    assert openings.count <= 8 + 5
    plain.holds([one for one in sent if one[0].run != "r2"])


def test_what_came_since_the_hour_before_is_kept(plain: Lake) -> None:
    """Stragglers of an hour that is next: it was planned on the version before they came."""
    sent = files_of(2)
    add_files(plain, *([one] for one in sent))
    late = [batch("f", "late", NOON + HOUR + 9, 5)]
    with meanwhile(plain, "rewrite written", lambda other: add_files(other, late)):
        _, report = rewritten(plain)
    plain.holds([*sent, *late])
    assert report.hours_rewritten == 2


def test_an_hour_that_another_rewrote_meanwhile_is_planned_anew(plain: Lake) -> None:
    sent = [*files_of(1), *parts(5, salt=9)]
    add_files(plain, *([one] for one in sent))
    with meanwhile(plain, "rewrite placed", lambda other: rewritten(other)):
        _, report = rewritten(plain)
    plain.holds(sent)
    assert report.hours_rewritten == 0
