"""What is removed, when, and in which order. No Spark: the table is moved by hand."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from compactor.cleanup import remove_orphans, remove_segments
from compactor.report import PassReport
from compactor.settings import Compaction
from tailrace.logstore import keys, ulid
from tailrace.logstore.clock import SystemClock, system_entropy
from tailrace.logstore.filesystem import Disk
from tailrace.logstore.objects.local import LocalStore
from tailrace.logstore.runs.report import read_watermark
from tailrace.logstore.table.table import Advance, commit_segments
from tests.compactor.dated_store import DatedStore
from tests.compactor.lake import HOUR, NOON, Lake, batch
from tests.simulation.clocks import ShiftedClock
from tests.simulation.faulty_store import Crash, Fault, FaultyStore, Schedule


def consumed(lake: Lake, *, segments: int, mark: int, text: int) -> Lake:
    for i in range(segments):
        lake.put("n", [batch("f", "r", NOON + i, 3)])
    table = lake.compactor.table
    clock = SystemClock()
    commit_segments(table, table.create(), [], [Advance("n", 1, mark)], job="J", clock=clock)
    lake.watermark("n", text)
    return lake


def left(lake: Lake) -> list[int]:
    parsed = [keys.parse_segment(key) for key in lake.keys(keys.segments_of("n"))]
    return [seq for _, seq in filter(None, parsed)]


def test_segments_stay_until_the_grace_is_over(any_lake: Lake) -> None:
    lake = consumed(any_lake, segments=3, mark=3, text=3)
    assert lake.run(remove_segments(lake.compactor, PassReport())) == 0
    lake.clock.shift_ms = HOUR - 60_000
    assert lake.run(remove_segments(lake.compactor, PassReport())) == 0
    assert left(lake) == [1, 2, 3]
    lake.clock.shift_ms = HOUR + 1_000
    assert lake.run(remove_segments(lake.compactor, PassReport())) == 3
    assert left(lake) == []


def test_the_grace_counts_from_the_commit_not_from_the_upload(any_lake: Lake) -> None:
    lake = consumed(any_lake, segments=2, mark=1, text=2)
    lake.clock.shift_ms = 2 * HOUR
    assert lake.run(remove_segments(lake.compactor, PassReport())) == 1
    assert left(lake) == [2]


@dataclass
class Standing(ShiftedClock):
    """A clock that stands still."""

    at_ms: int = 0

    def now_ms(self) -> int:
        return self.at_ms


def written_ms(lake: Lake, version: int) -> int:
    """When the version was made, by the store's clock."""
    files = lake.compactor.table.log.folder.list("")
    return next(file.modified_ms for file in files if file.name == f"{version:020}.json")


def later(lake: Lake, version: int) -> None:
    """Returns when a millisecond is over that began after the version was made."""
    end = written_ms(lake, version) + 1
    while SystemClock().now_ms() <= end:
        """The machine's clock moves by itself."""


def test_segments_go_though_the_table_is_busy(any_lake: Lake) -> None:
    """There is always a commit within the grace: what was in before it counts."""
    lake = consumed(any_lake, segments=4, mark=2, text=4)
    table, clock = lake.compactor.table, SystemClock()
    for seq in (3, 4):
        later(lake, seq - 2)
        marks = [Advance("n", seq, seq)]
        commit_segments(table, table.snapshot(), [], marks, job=f"J{seq}", clock=clock)
    lake.limits = Compaction(grace_seconds=100)
    lake.clock = Standing(at_ms=written_ms(lake, 2) + 100_000 - 1)
    assert lake.run(remove_segments(lake.compactor, PassReport())) == 2
    assert left(lake) == [3, 4]
    assert lake.run(read_watermark(lake.store, "n")).low == 3
    lake.clock.at_ms += 1
    assert lake.run(remove_segments(lake.compactor, PassReport())) == 1
    assert left(lake) == [4]


def test_both_marks_must_be_past_a_segment(any_lake: Lake) -> None:
    lake = consumed(any_lake, segments=3, mark=3, text=1)
    lake.clock.shift_ms = 2 * HOUR
    assert lake.run(remove_segments(lake.compactor, PassReport())) == 1
    assert left(lake) == [2, 3]


def test_without_a_watermark_nothing_goes(lake: Lake) -> None:
    consumed(lake, segments=1, mark=1, text=0)
    lake.clock.shift_ms = 2 * HOUR
    assert lake.run(remove_segments(lake.compactor, PassReport())) == 0


def test_low_is_raised_before_the_first_goes(lake: Lake) -> None:
    consumed(lake, segments=3, mark=3, text=3)
    lake.limits = Compaction(grace_seconds=0)
    lake.clock.shift_ms = 1_000
    seen: list[tuple[str, int, list[int]]] = []

    def look(step: str) -> None:
        path = Path(lake.store.uri(keys.watermark("n")))
        low = int(path.read_text().split('"low":')[1].split(",")[0])
        folder = Path(lake.store.uri(keys.segments_of("n")[:-1]))
        names = sorted(folder.glob("*.parquet")) if folder.exists() else []
        seen.append((step, low, [int(name.stem) for name in names]))

    lake.reached = look
    lake.run(remove_segments(lake.compactor, PassReport()))
    assert seen == [
        ("low raised", 4, [1, 2, 3]),
        ("segment removed", 4, []),
    ]
    assert lake.run(read_watermark(lake.store, "n")).seq == 3


@pytest.mark.in_turn(3)
def test_many_go_in_a_request(any_lake: Lake) -> None:
    """A few requests for two hundred of them: on S3 a delete of each took as many round trips."""
    lake = consumed(any_lake, segments=200, mark=200, text=200)
    lake.put_bytes(keys.quarantine_marker("n", 7), b"{}")
    lake.limits = Compaction(grace_seconds=0, retention_days=1)
    lake.clock.shift_ms = 3 * 24 * HOUR
    counting = FaultyStore(lake.store, Schedule.none())
    assert lake.run(remove_segments(replace(lake.compactor, store=counting), PassReport())) == 200
    assert len([call for call in counting.calls if call.startswith("delete")]) == 2
    assert (left(lake), lake.keys(keys.QUARANTINE)) == ([], [])


def test_what_a_crash_leaves_between_others_goes_next_time(lake: Lake) -> None:
    """A store may delete some of a request, in any order, before the compactor is killed."""
    consumed(lake, segments=4, mark=4, text=4)
    lake.limits = Compaction(grace_seconds=0)
    lake.clock.shift_ms = 1_000
    gone = [keys.segment("n", seq) for seq in (1, 3)]

    def killed(step: str) -> None:
        if step == "low raised":
            for key in gone:
                Path(lake.store.uri(key)).unlink()
            raise Crash("some were deleted")

    lake.reached = killed
    with pytest.raises(Crash):
        lake.run(remove_segments(lake.compactor, PassReport()))
    lake.reached = lambda _step: None
    assert left(lake) == [2, 4]
    assert lake.run(remove_segments(lake.compactor, PassReport())) == 2
    assert left(lake) == []


def test_a_segment_that_is_set_aside_stays_for_repair(any_lake: Lake) -> None:
    lake = consumed(any_lake, segments=3, mark=3, text=3)
    lake.put_bytes(keys.quarantine_marker("n", 2), b"{}")
    lake.clock.shift_ms = 2 * HOUR
    assert lake.run(remove_segments(lake.compactor, PassReport())) == 2
    assert left(lake) == [2]


class Recording(LocalStore):
    """A store that writes down what it deletes."""

    deleted: list[str]

    async def delete(self, keys: Sequence[str]) -> None:
        self.deleted += keys
        await super().delete(keys)


def test_of_a_segment_that_is_set_aside_the_marker_goes_first(lake: Lake) -> None:
    """Killed in between, the segment would else be missing and still be quarantined."""
    consumed(lake, segments=2, mark=2, text=2)
    lake.put_bytes(keys.quarantine_marker("n", 1), b"{}")
    lake.limits = Compaction(retention_days=10)
    lake.clock.shift_ms = 12 * 24 * HOUR
    store = Recording(lake.settings.store_folder, Disk(), lake.clock, system_entropy())
    store.deleted = []
    lake.store = store
    assert lake.run(remove_segments(lake.compactor, PassReport())) == 2
    assert store.deleted == [
        keys.give_up_marker("n", 1),
        keys.quarantine_marker("n", 1),
        keys.segment("n", 1),
        keys.segment("n", 2),
    ]


def test_a_segment_that_is_set_aside_goes_when_its_lines_would_have_expired(any_lake: Lake) -> None:
    lake = consumed(any_lake, segments=3, mark=3, text=3)
    lake.put_bytes(keys.quarantine_marker("n", 2), b"{}")
    lake.limits = Compaction(retention_days=10)
    lake.clock.shift_ms = 11 * 24 * HOUR - 60_000
    lake.run(remove_segments(lake.compactor, PassReport()))
    assert left(lake) == [2]
    lake.clock.shift_ms += 120_000
    assert lake.run(remove_segments(lake.compactor, PassReport())) == 1
    assert (left(lake), lake.keys(keys.QUARANTINE)) == ([], [])


def test_what_dead_jobs_left_goes_after_a_day(lake: Lake) -> None:
    consumed(lake, segments=1, mark=1, text=1)
    now = lake.clock.now_ms()
    old, young = (ulid.encode(ulid.lowest_at(now - hours * HOUR)) for hours in (25, 23))
    for job in (old, young):
        lake.put_bytes(f"table/_staging/{job}/part-00000-x.parquet", b"x")
    stale = "table/date=2026-11-21/hour=12/orphan.parquet"
    lake.put_bytes(stale, b"x")
    moment = now / 1000 - 25 * 3_600
    os.utime(lake.store.uri(stale), (moment, moment))
    lake.put_bytes("table/date=2026-11-21/hour=12/fresh.parquet", b"x")
    log = "table/_delta_log/"
    for name, age in (("00000000000000000007.json#1", 25), ("x.json.tmp", 25), ("y.json#2", 1)):
        lake.put_bytes(log + name, b"x")
        os.utime(lake.store.uri(log + name), (now / 1000 - age * 3_600,) * 2)
    assert lake.run(remove_orphans(lake.compactor)) == 4
    assert [key for key in lake.keys(log) if "#" in key or "tmp" in key] == [f"{log}y.json#2"]
    kept = [key for key in lake.keys("table/") if "_delta_log" not in key]
    assert kept == [
        f"table/_staging/{young}/part-00000-x.parquet",
        "table/date=2026-11-21/hour=12/fresh.parquet",
    ]


def test_a_machine_whose_clock_is_ahead_removes_nothing_before_its_time(lake: Lake) -> None:
    """Else it took what others are about to commit, and segments that queries read."""
    now, ahead = lake.clock.now_ms(), 48 * HOUR
    lake.clock.shift_ms = -ahead
    consumed(lake, segments=1, mark=1, text=1)
    lake.clock.shift_ms = 0
    machine = replace(lake.compactor, store=DatedStore(lake, now - ahead))
    job = ulid.encode(ulid.lowest_at(now - ahead - HOUR))
    staged, log = f"table/_staging/{job}/part-00000-x.parquet", "table/_delta_log/"
    for key, age in (
        ("table/date=2026-11-21/hour=12/placed.parquet", 1),
        ("table/date=2026-11-21/hour=12/orphan.parquet", 26),
        (staged, 1),
        (f"{log}x.json.tmp", 1),
        (f"{log}y.json.tmp", 25),
    ):
        lake.put_bytes(key, b"x")
        os.utime(lake.store.uri(key), ((now - ahead) / 1000 - age * 3_600,) * 2)
    assert lake.run(remove_orphans(machine)) == 2
    assert lake.keys("table/date") == ["table/date=2026-11-21/hour=12/placed.parquet"]
    assert lake.keys("table/_staging") == [staged]
    assert [key for key in lake.keys(log) if "tmp" in key] == [f"{log}x.json.tmp"]


@pytest.mark.parametrize("step", range(1, 3))
def test_of_a_segment_that_is_set_aside_no_marker_stays_whenever_the_compactor_dies(
    lake: Lake, step: int
) -> None:
    """The marker goes first: nobody would look for one whose segment is gone."""
    consumed(lake, segments=2, mark=2, text=2)
    lake.put_bytes(keys.quarantine_marker("n", 1), b"{}")
    lake.limits = Compaction(retention_days=10)
    lake.clock.shift_ms = 12 * 24 * HOUR
    store = lake.store
    schedule = Schedule(
        {step: Fault.CRASH_BEFORE}, applies=lambda call: call.startswith("delete segments/")
    )
    lake.store = FaultyStore(store, schedule)
    with pytest.raises(Crash):
        lake.run(remove_segments(lake.compactor, PassReport()))
    lake.store = store
    lake.run(remove_segments(lake.compactor, PassReport()))
    assert (left(lake), lake.keys(keys.QUARANTINE)) == ([], [])
