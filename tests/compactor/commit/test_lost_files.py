"""A file of the table is gone or damaged: work that needs it waits with an alarm, the rest not."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from deltalake import DeltaTable

from compactor.ingest import ingest_all
from compactor.purge import purge
from compactor.report import PassReport
from compactor.rewrite import rewrite_hours
from compactor.spark.engine import RewriteInput, WrittenCounts
from compactor.spark.session import Session
from tailrace.logstore import keys
from tailrace.logstore.clock import SystemClock
from tailrace.logstore.errors import Unavailable
from tests.compactor.files import add_files
from tests.compactor.histories.leased import Some
from tests.compactor.lake import HOUR, NOON, Lake, batch
from tests.compactor.plain_engine import PlainEngine

FIRST = batch("f", "r1", NOON, 30)
SAME_HOUR = batch("f", "r2", NOON + 1, 30)
LATER = batch("f", "r1", NOON + HOUR, 30)
LATEST = batch("f", "r1", NOON + 2 * HOUR, 30)


@pytest.fixture(params=["plain", pytest.param("Spark", marks=pytest.mark.spark)])
def either(request: pytest.FixtureRequest, lake: Lake) -> Lake:
    """With an engine that is quick, and with the one that ships."""
    spark: Callable[[], Session] = lambda: request.getfixturevalue("session")  # noqa: E731
    lake.session = PlainEngine() if request.param == "plain" else spark()
    return lake


def taken_in(lake: Lake) -> PassReport:
    report = PassReport()
    lake.run(ingest_all(lake.compactor, report))
    return report


def taken_away(lake: Lake, path: str) -> bytes:
    """The file of the table, which is gone from now on."""
    body = lake.run(lake.store.get(f"{keys.TABLE}/{path}"))[1]
    lake.run(lake.store.delete([f"{keys.TABLE}/{path}"]))
    return body


def with_a_loss(lake: Lake) -> tuple[str, bytes]:
    """The file of `FIRST` is gone. A copy of it is the second of a node's three segments."""
    lake.put("a", [FIRST])
    taken_in(lake)
    (file,) = lake.snapshot().files
    body = taken_away(lake, file.path)
    for one in (LATER, FIRST, LATEST):
        lake.put("a", [one])
    lake.put("b", [SAME_HOUR])
    return file.path, body


def marks(lake: Lake) -> tuple[int, int]:
    snapshot = lake.snapshot()
    return snapshot.mark("a"), snapshot.mark("b")


@pytest.mark.in_turn(4)
def test_what_may_be_a_copy_of_its_lines_waits_and_nothing_else(either: Lake) -> None:
    path, body = with_a_loss(either)
    for _ in range(2):
        (alarm,) = taken_in(either).alarms
        assert alarm.startswith(f"a waits at segment 3: {path} of the table, with 30 lines of the")
        assert "hour 2026-11-21T12, is gone: put an intact copy back, or give its lines up" in alarm
        assert marks(either) == (2, 1)
    either.put_bytes(f"{keys.TABLE}/{path}", body)
    assert taken_in(either).alarms == []
    assert marks(either) == (4, 1)
    either.holds([FIRST, SAME_HOUR, LATER, LATEST])


@pytest.mark.in_turn(4)
def test_its_lines_are_given_up(either: Lake) -> None:
    """As `docs/operate/verify.md` says. What had waited is ingested."""
    path, _ = with_a_loss(either)
    assert len(taken_in(either).alarms) == 1
    told = DeltaTable(either.store.uri(keys.TABLE)).repair()
    assert told["files_removed"] == [path]
    assert taken_in(either).alarms == []
    assert marks(either) == (4, 1)
    either.holds([FIRST, SAME_HOUR, LATER, LATEST])


def test_its_hour_is_not_rewritten_and_all_others_are(either: Lake) -> None:
    hours = [
        [[batch("f", f"r{i % 2}", NOON + hour * HOUR + i, 20)] for i in range(8)]
        for hour in range(3)
    ]
    for files in hours:
        add_files(either, *files)
    lost = next(file.path for file in either.snapshot().files if file.hour == 13)
    body = taken_away(either, lost)
    either.clock.shift_ms = NOON + 5 * HOUR - SystemClock().now_ms()
    report = rewritten(either)
    assert report.hours_rewritten == 2
    (alarm,) = report.alarms
    assert alarm.startswith(f"hour 2026-11-21T13 is not rewritten: {lost} of the table, with 20")
    either.put_bytes(f"{keys.TABLE}/{lost}", body)
    assert rewritten(either).hours_rewritten == 1
    either.holds(one for files in hours for batches in files for one in batches)


def rewritten(lake: Lake) -> PassReport:
    report = PassReport()
    lake.run(rewrite_hours(lake.compactor, report))
    return report


class Failing(PlainEngine):
    """Whatever it is told to do."""

    def merge(self, work: object, folder: str) -> WrittenCounts:
        raise Unavailable("it does not work today")

    def rewrite(self, work: object, folder: str) -> int:
        raise Unavailable("it does not work today")


def test_an_engine_that_fails_though_all_is_there_ends_the_pass(lake: Lake) -> None:
    lake.session = PlainEngine()
    lake.put("a", [FIRST])
    taken_in(lake)
    lake.session = Failing()
    lake.put("a", [FIRST])
    with pytest.raises(Unavailable, match="today"):
        taken_in(lake)
    add_files(lake, *[[batch("g", "r", NOON + i, 20)] for i in range(8)])
    with pytest.raises(Unavailable, match="today"):
        rewritten(lake)


def test_gone_between_a_merge_and_its_commit_it_stops_only_what_needs_it(either: Lake) -> None:
    """Another driver brought a copy of the batch meanwhile, in a file that then went."""
    either.put("a", [FIRST])
    either.put("b", [FIRST])
    engine, bodies = either.session, list[tuple[str, bytes]]()
    either.limits = either.limits.model_copy(update={"batch_bytes": 1})

    def others(step: str) -> None:
        if step == "written" and not bodies:
            bodies.append(("", b""))
            thread = threading.Thread(target=meanwhile)
            thread.start()
            thread.join()

    def meanwhile() -> None:
        other = Lake(either.data, session=PlainEngine(), limits=either.limits)
        made = other.compactor
        object.__setattr__(made, "assigner", Some(["a"]))
        other.run(ingest_all(made, PassReport()))
        (file,) = other.snapshot().files
        bodies[0] = (file.path, taken_away(other, file.path))

    either.reached = others
    report = taken_in(either)
    either.reached = lambda _step: None
    path, body = bodies[0]
    (alarm,) = report.alarms
    assert alarm.startswith(f"a waits at segment 1: {path} of the table, with 30 lines of the")
    either.put("c", [LATER])
    assert len(taken_in(either).alarms) == 1
    assert either.snapshot().marks(["a", "b", "c"]) == {"a": 0, "b": 1, "c": 1}
    either.put_bytes(f"{keys.TABLE}/{path}", body)
    assert taken_in(either).alarms == []
    either.holds([FIRST, LATER])
    assert either.session is engine


class TakenAway(PlainEngine):
    """Somebody removes a file just as it is to be rewritten."""

    lost: Callable[[], object] | None = None

    def rewrite(self, work: RewriteInput, folder: str) -> int:
        if self.lost is not None:
            lost, self.lost = self.lost, None
            lost()
        return super().rewrite(work, folder)


def test_gone_just_as_it_is_purged_all_other_files_are(lake: Lake) -> None:
    lake.session = engine = TakenAway()
    add_files(lake, [FIRST, SAME_HOUR], [LATER, batch("f", "r2", NOON + HOUR + 1, 30)])
    lake.clock.shift_ms = 120_000
    path, _ = sorted(file.path for file in lake.snapshot().files)
    store = Path(lake.settings.store_folder)
    body = (store / keys.TABLE / path).read_bytes()
    engine.lost = (store / keys.TABLE / path).unlink
    lake.delete("f", "r1", LATEST[1])
    report = PassReport()
    lake.run(purge(lake.compactor, report))
    assert len(report.alarms) == 1
    assert report.alarms[0].startswith(f"hour 2026-11-21T12 is not purged: {path} of the table")
    assert report.rows_purged == 30
    assert lake.snapshot().purged_ms == 0
    lake.put_bytes(f"{keys.TABLE}/{path}", body)
    lake.run(purge(lake.compactor, PassReport()))
    lake.holds([SAME_HOUR, batch("f", "r2", NOON + HOUR + 1, 30)])
