"""Which files of the table a batch is compared with: all that have its lines, and few more."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import count
from random import Random

import pyarrow.parquet as pq
import pytest

from compactor.ingest import ingest_all
from compactor.plan import (
    HOUR_MS,
    BatchBudget,
    BatchRanges,
    RunRange,
    RunRanges,
    TimeRange,
    hour_of,
    segments_of,
)
from compactor.report import PassReport
from compactor.rewrite import rewrite_hours
from compactor.settings import Compaction
from compactor.spark.engine import MergeInput, WrittenCounts
from compactor.spark.session import Session
from compactor.verify import Verified, verify
from tailrace.logstore import ulid
from tailrace.logstore.batch import RunKey
from tailrace.logstore.clock import SystemClock
from tailrace.logstore.runs.deletions import Deletion
from tailrace.logstore.table.snapshot import TableFile
from tests.compactor.files import add_files
from tests.compactor.lake import HOUR, NOON, Batch, Lake, Record, batch, records
from tests.compactor.plain_engine import PlainEngine
from tests.seeds import seeds

RUNS = 60
# The order of UTF-8 is that of code points: U+FFFD comes before U+1F600, whose UTF-16 begins D83D.
NAMES = ["a", "a.b", "ab", "é", "\ufffd", "\U0001f600", "z" * 1_023, "z" * 1_500, "z" * 4_000]


@dataclass
class Reading(PlainEngine):
    """Notes which files of the table each merge is compared with, and what is deleted."""

    held: list[list[str]] = field(default_factory=list)
    deletions: list[list[Deletion]] = field(default_factory=list)

    def merge(self, work: MergeInput, folder: str) -> WrittenCounts:
        self.held.append(list(work.held))
        self.deletions.append(list(work.deletions))
        return super().merge(work, folder)


@pytest.fixture
def reading() -> Reading:
    return Reading()


@pytest.fixture
def plain(lake: Lake, reading: Reading) -> Lake:
    lake.session = reading
    lake.limits = Compaction(settle_seconds=0)
    lake.clock.shift_ms = NOON + 3 * HOUR - SystemClock().now_ms()
    return lake


def took_in(lake: Lake) -> PassReport:
    report = PassReport()
    lake.run(ingest_all(lake.compactor, report))
    return report


def ranges_of_batches(lake: Lake, batches: Sequence[Batch]) -> BatchRanges:
    """As the ingest comes to it, by way of a segment."""
    node = f"n{len(lake.taken)}"
    lake.put(node, batches)
    listed = lake.run(segments_of(lake.store, node))
    found = lake.run(verify(lake.store, listed, BatchBudget(1 << 27)))
    (verdict,) = found.verdicts
    assert isinstance(verdict, Verified)
    return BatchRanges(verdict.time_ranges, found.run_ranges)


def rewritten_hour(lake: Lake) -> list[Batch]:
    """An hour of ten files, sorted over all, each with six of sixty runs."""
    sent = [
        batch(f"f{i % 3}", f"r{i:02}", NOON + minute * 60_000 + i, 10)
        for i in range(RUNS)
        for minute in range(4)
    ]
    add_files(lake, *(sent[start::4] for start in range(4)))
    size = sum(file.size for file in lake.snapshot().files)
    lake.limits = Compaction(settle_seconds=0, file_bytes=size // 10)
    report = PassReport()
    lake.run(rewrite_hours(lake.compactor, report))
    assert len(lake.snapshot().files) == 10
    return sent


def test_a_late_batch_is_compared_with_one_file_of_a_rewritten_hour(
    plain: Lake, reading: Reading
) -> None:
    sent = rewritten_hour(plain)
    late = batch("f1", "r07", NOON + 90_000, 3)
    plain.put("a", [late])
    took_in(plain)
    assert len(reading.held.pop()) <= 2
    new = batch("f1", "new", NOON + 90_000, 3)
    plain.put("a", [new])
    took_in(plain)
    assert len(reading.held.pop()) <= 2
    plain.holds([*sent, late, new])


def test_late_lines_among_those_of_now_are_compared_with_files_of_their_runs_alone(
    plain: Lake, reading: Reading
) -> None:
    """What comes late is mostly a line or two beside all that is written now."""
    sent = rewritten_hour(plain)
    current = [batch(f"f{i % 3}", f"r{i:02}", NOON + 2 * HOUR + i, 5) for i in range(RUNS)]
    late = [batch("f1", "r07", NOON + 90_000, 3), batch("f0", "r30", NOON + 200_000, 3)]
    again = [sent[0], *sent[-4:]]
    plain.put("a", [*current, *late, *again])
    report = took_in(plain)
    assert report.duplicates == sum(text.count(b"\n") for _, _, text in again)
    held = reading.held.pop()
    assert 1 <= len(held) <= 2 * 4
    plain.holds([*sent, *late, *current])


def test_copies_of_everything_are_found_in_all_files(plain: Lake, reading: Reading) -> None:
    sent = rewritten_hour(plain)
    plain.put("a", sent)
    assert took_in(plain).rows_out == 0
    assert len(reading.held.pop()) == 10
    plain.holds(sent)


@pytest.mark.parametrize("seed", seeds(10))
def test_every_file_with_one_of_the_lines_is_met_whatever_the_names(plain: Lake, seed: int) -> None:
    """Long names have no bounds in the log; bounds of others are lines that are there."""
    dice, salts = Random(seed), count()

    def name() -> str:
        return dice.choice(NAMES)

    def some(number: int) -> list[Batch]:
        moments = [0, 1, 59_999, 60_000, HOUR - 1]
        return [
            batch(
                dice.choice(NAMES),
                dice.choice(NAMES),
                NOON + dice.choice(moments),
                3,
                salt=next(salts),
            )
            for _ in range(number)
        ]

    content = [some(dice.randrange(1, 6)) for _ in range(5)]
    add_files(plain, *content)
    there = {file.path: lines_of(file) for file in plain.snapshot().files}
    for _ in range(3):
        again = dice.sample([one for of_file in content for one in of_file], 2)
        mine = [*some(2), *again, batch("f", "now", NOON + HOUR, 3)]
        ranges, wanted = ranges_of_batches(plain, mine), records(mine)
        met = {file.path for file in plain.snapshot().files if ranges.may_overlap(file)}
        assert {path for path, lines in there.items() if lines & wanted} <= met
    plain.put("again", [one for of_file in content for one in of_file])
    took_in(plain)
    found = plain.table()
    assert len(found) == len(set(found))


def lines_of(file: TableFile) -> set[Record]:
    rows = pq.ParquetFile(file.uri).read(["fqn", "run_id", "ulid", "message"]).to_pylist()
    return {(row["fqn"], row["run_id"], row["ulid"], row["message"]) for row in rows}


@pytest.mark.parametrize("seed", seeds(20))
def test_bounds_that_are_wider_than_the_lines_do_no_harm(seed: int) -> None:
    """A file is met if a line is within its bounds, and not if no run of the batch is."""
    dice = Random(seed)
    lines = some_lines(dice)
    run_ranges, ranges = ranges_over(lines)
    for _ in range(200):
        file = some_file(dice)
        exactly = any(_within(file, run.fqn, run.run, at) for run, at in lines)
        assert ranges.may_overlap(file) or not exactly
        rows = run_ranges.of(file.start_ms // HOUR_MS) or []
        roughly = any(
            _inside(file.fqns, fqn, fqn) and _inside(file.runs, run, run) for fqn, run, _, _ in rows
        )
        assert roughly or not ranges.may_overlap(file)


def test_beyond_so_many_runs_an_hour_has_any() -> None:
    runs = [(RunKey("f", f"r{i}"), text(HOUR + i)) for i in range(6)]
    few = [(RunKey("f", "r"), text(0))]
    run_ranges, ranges = ranges_over([*few, *runs, *few], most=5)
    assert run_ranges.of(NOON // HOUR_MS) == [("f", "r", text(0), text(0))]
    assert run_ranges.of(NOON // HOUR_MS + 1) is None
    any_run = ("x", "y")
    assert ranges.may_overlap(file_of(1, (text(HOUR), text(HOUR + 9)), any_run, any_run))
    assert not ranges.may_overlap(file_of(0, (text(0), text(9)), any_run, any_run))


@pytest.mark.parametrize("seed", seeds(20))
def test_every_deletion_that_takes_a_line_is_told(seed: int) -> None:
    """And none of a run, or of a pipeline, that has only later lines."""
    dice = Random(seed)
    lines = some_lines(dice)
    few = dice.choice([1, 3, 1_000])
    _, ranges = ranges_over(lines, most=few)
    deletions = [
        Deletion(
            dice.choice(NAMES),
            dice.choice([None, *NAMES]),
            ulid.lowest_at(NOON + dice.randrange(3 * HOUR)) if dice.random() < 0.5 else exactly,
        )
        for exactly in dice.choices([ulid.decode(at) for _, at in lines], k=100)
    ]
    told = ranges.relevant_deletions(deletions)
    taking = [one for one in deletions if any(_takes(one, run, at) for run, at in lines)]
    assert all(one in told for one in taking)
    assert told == taking or few < 1_000
    assert ranges.relevant_deletions([]) == []


def test_of_an_hour_that_may_have_any_run_its_first_moment_counts() -> None:
    _, ranges = ranges_over([(RunKey("f", f"r{i}"), text(HOUR + i)) for i in range(6)], most=3)
    hour = ulid.lowest_at(NOON + HOUR)
    deletions = [Deletion("x", "y", t) for t in (hour - 1, hour, hour + 1)]
    assert ranges.relevant_deletions(deletions) == deletions[1:]


def _takes(deletion: Deletion, run: RunKey, at: str) -> bool:
    owner = deletion.fqn, deletion.run
    return owner in [run, (run.fqn, None)] and ulid.decode(at) <= deletion.t


def test_spark_is_told_only_of_deletions_that_take_lines(plain: Lake, reading: Reading) -> None:
    """Of runs that expire there are some all the time, and their lines came long ago."""
    early, late, other = (batch("f", f"r{i}", NOON + i, 5) for i in range(3))
    for number in range(20):
        plain.delete("f", f"expired{number}", NOON + HOUR << 80)
        plain.delete(f"g{number}", None, NOON + HOUR << 80)
    plain.delete("f", "r0", early[1] + 2)
    plain.delete("f", "r1", early[1] - 1)
    plain.put("a", [early, late, other])
    report = took_in(plain)
    assert [(one.fqn, one.run) for one in reading.deletions.pop()] == [("f", "r0")]
    assert (report.deleted, report.rows_out) == (3, 12)


def text(after_noon_ms: int) -> str:
    return ulid.encode(ulid.lowest_at(NOON + after_noon_ms))


def some_lines(dice: Random) -> list[tuple[RunKey, str]]:
    """A run and a ULID for each."""
    return [
        (RunKey(dice.choice(NAMES), dice.choice(NAMES)), text(dice.randrange(3 * HOUR)))
        for _ in range(dice.randrange(1, 12))
    ]


def ranges_over(
    lines: Iterable[tuple[RunKey, str]], most: int = 1_000
) -> tuple[RunRanges, BatchRanges]:
    run_ranges, time_ranges = RunRanges(most), []
    for run, at in lines:
        value = ulid.decode(at)
        time_ranges.append(TimeRange(value, value, 1))
        run_ranges.add([RunRange(hour_of(value), run, at, at)])
    return run_ranges, BatchRanges(time_ranges, run_ranges)


def file_of(
    hour: int,
    ulids: tuple[str, str] | None,
    fqns: tuple[str, str] | None,
    runs: tuple[str, str] | None,
) -> TableFile:
    moment = datetime.fromtimestamp(NOON / 1000 + hour * 3600, UTC)
    return TableFile("p", "u", 1, 1, moment.date(), moment.hour, ulids, fqns, runs)


def some_file(dice: Random) -> TableFile:
    def names() -> tuple[str, str] | None:
        low, high = sorted(dice.choices(NAMES, k=2))
        return None if dice.random() < 0.2 else (low, high)

    hour = dice.randrange(3)
    low, high = sorted(text(hour * HOUR + dice.randrange(HOUR)) for _ in range(2))
    return file_of(hour, None if dice.random() < 0.2 else (low, high), names(), names())


def _within(file: TableFile, fqn: str, run: str, at: str) -> bool:
    return (
        file.start_ms <= ulid.time_ms(ulid.decode(at)) < file.end_ms
        and _inside(file.fqns, fqn, fqn)
        and _inside(file.runs, run, run)
        and _inside(file.ulids, at, at)
    )


def _inside(bounds: tuple[str, str] | None, low: str, high: str) -> bool:
    return bounds is None or (bounds[0] <= high and low <= bounds[1])


@pytest.mark.spark
def test_bounds_as_spark_shortens_them_hide_no_copy(warm: Lake, session: Session) -> None:
    """As another version of it may do by itself; the names here begin alike for longer."""
    names = ["p" * 40 + tail for tail in ("", "a", "b", "\U0001f600", "z" * 3_000)]
    sent = [batch(name, f"{name} {i}", NOON + i, 5) for i, name in enumerate(names)]
    conf = session.get().conf
    conf.set("parquet.statistics.truncate.length", "30")
    try:
        for some in (sent[:-1], sent[-1:]):
            warm.put("a", some)
            took_in(warm)
    finally:
        conf.unset("parquet.statistics.truncate.length")
    assert [file.fqns for file in warm.snapshot().files] == [("p" * 30, "p" * 29 + "q")] * 2
    warm.put("b", sent)
    report = took_in(warm)
    assert (report.rows_out, report.duplicates) == (0, 25)
    warm.holds(sent)
