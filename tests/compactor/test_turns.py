"""What breaks off in a pass holds back nothing else, and is what the pass ends with."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import orjson
import pytest

from compactor.report import PassReport
from compactor.runner import once
from compactor.settings import Compaction
from tailrace.logstore import keys
from tailrace.logstore.clock import SystemClock
from tailrace.logstore.errors import Damaged, StoreUnavailable
from tailrace.logstore.objects.local import LocalStore
from tailrace.logstore.objects.store import ObjectInfo
from tests.compactor.files import add_files
from tests.compactor.lake import HOUR, Lake, batch
from tests.compactor.plain_engine import PlainEngine

ROOT = Path(__file__).parents[2]
DAY = 24 * HOUR
JOB = str(ROOT / "compactor" / "job.py")
NOW = SystemClock().now_ms() // HOUR * HOUR  # the command has no other clock
OLD = batch("f", "old", NOW - 5 * DAY, 5)
CONSUMED, NEW, TABLED = (batch("f", run, NOW, 5) for run in ("consumed", "new", "tabled"))


@pytest.fixture
def due(lake: Lake) -> Lake:
    """An hour is expired, a segment is consumed, and one is to be ingested."""
    lake.session, real = PlainEngine(), lake.session
    lake.limits = Compaction(grace_seconds=0)
    lake.put("a", [CONSUMED])
    lake.compact()
    add_files(lake, [OLD], [TABLED])
    lake.watermark("a", 1)
    lake.put("a", [NEW])
    lake.session = real
    return lake


def test_spark_that_does_not_start_holds_back_no_maintenance(due: Lake) -> None:
    """The command itself, on a machine without Java, ends as it did, and has cleaned up."""
    command = [sys.executable, JOB, "--data", str(due.data)]
    found = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        cwd=ROOT,
        env={
            **os.environ,
            "JAVA_HOME": "/nowhere",
            "TAILRACE_COMPACTION__GRACE_SECONDS": "0",
            "TAILRACE_COMPACTION__RETENTION_DAYS": "3",
        },
    )
    assert found.returncode == 3, found.stderr
    report = orjson.loads(found.stdout.splitlines()[-1])
    assert report["error"].startswith("Spark does not start")
    assert (report["segments"], report["hours_expired"], report["segments_removed"]) == (0, 1, 1)
    assert due.keys(keys.SEGMENTS) == [keys.segment("a", 2)]
    assert "ingesting failed" in found.stderr


class Partly(LocalStore):
    """A store that does not list what is deleted."""

    def list(self, prefix: str, *, after: str = "") -> AsyncIterator[ObjectInfo]:
        if prefix == keys.DELETED:
            raise StoreUnavailable("no list of deletions")
        return super().list(prefix, after=after)


class Torn(Partly):
    """A store whose list of segments that were given up is damaged, too."""

    def list(self, prefix: str, *, after: str = "") -> AsyncIterator[ObjectInfo]:
        if prefix.startswith(keys.QUARANTINE):
            raise Damaged("a torn list")
        return super().list(prefix, after=after)


def test_maintenance_that_breaks_off_holds_back_no_other(due: Lake) -> None:
    """What is deleted is not known: nothing is ingested and purged, but hours expire."""
    due.limits = Compaction(grace_seconds=0, retention_days=3)
    due.session = PlainEngine()
    due.store.__class__ = Partly
    report = PassReport()
    with pytest.raises(StoreUnavailable, match="no list of deletions"):
        due.run(once(due.compactor, report))
    assert (report.segments, report.hours_expired, report.segments_removed) == (0, 1, 1)
    assert report.alarms == []  # all that broke off says the same


def test_what_needs_a_person_is_raised_and_the_rest_is_told(due: Lake) -> None:
    due.limits = Compaction(grace_seconds=0, retention_days=3)
    due.session = PlainEngine()
    due.store.__class__ = Torn
    report = PassReport()
    with pytest.raises(Damaged, match="a torn list"):
        due.run(once(due.compactor, report))
    assert report.alarms == [
        "ingesting failed as well: no list of deletions",
        "the purge failed as well: no list of deletions",
    ]
    assert report.hours_expired == 1


def test_a_damaged_watermark_holds_back_the_segments_of_its_node_alone(due: Lake) -> None:
    due.put_bytes(keys.watermark("a"), b"?")
    due.limits = Compaction(grace_seconds=0, retention_days=3)
    due.session = PlainEngine()
    report = PassReport()
    due.run(once(due.compactor, report))
    assert (report.hours_expired, report.segments_removed) == (1, 0)
    (alarm,) = report.alarms
    assert alarm.startswith("no segment of a is removed: ")


def test_after_it_was_mended_all_is_done(due: Lake) -> None:
    """A pass that broke off has left nothing half."""
    due.limits = Compaction(grace_seconds=0, retention_days=3)
    due.session = PlainEngine()
    due.store.__class__ = Partly
    with pytest.raises(StoreUnavailable):
        due.compact()
    due.store.__class__ = LocalStore
    due.compact()
    due.holds([CONSUMED, NEW, TABLED])
