"""Which records of deletions go, and that none is lost that somebody writes meanwhile."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from compactor.report import Report
from compactor.settings import Compaction
from compactor.upkeep.forget import forget
from logstore import keys, ulid
from logstore.batch import RunKey
from logstore.clock import SystemClock
from logstore.runs.deletion import Deletion, decode_deletion, encode_deletion
from logstore.runs.manifest import Manifest, encode_manifest
from logstore.runs.retention import RunRetention
from logstore.table.commit import Change, commit
from tests.compactor.lake import HOUR, Lake

DAY = 24 * HOUR
RUN = RunKey("f", "r")


@pytest.fixture
def deleted(lake: Lake) -> Lake:
    """A run was deleted now, and that is done in the table; the limit is 60 days."""
    now = SystemClock().now_ms()
    lake.delete(*RUN, ulid.highest_at(now))
    table = lake.compactor.table
    done = Change(purged_ms=now + DAY)
    commit(table, table.create(), done, job="J", clock=lake.clock)
    lake.limits = Compaction(away_days=30)
    return lake


def forgotten(lake: Lake, days: float, runs: RunRetention | None = None) -> int:
    lake.clock.shift_ms = round(days * DAY)
    report, kept = Report(), runs or RunRetention(expiration_days=30)
    lake.run(forget(replace(lake.compactor, runs=kept), report))
    left = len(lake.keys(keys.DELETED))
    assert left + report.deletions_removed >= 1
    return report.deletions_removed


def manifest(lake: Lake, generation: int) -> None:
    body = encode_manifest(Manifest(RUN, state="deleted", generation=generation))
    lake.put_bytes(keys.run_manifest(RUN), body)


def test_a_record_goes_after_retention_and_absence(deleted: Lake) -> None:
    assert forgotten(deleted, 59.9) == 0
    assert forgotten(deleted, 60.1) == 1
    assert deleted.keys(keys.DELETED) == []


def test_it_stays_until_it_is_done_in_the_table(lake: Lake) -> None:
    lake.delete(*RUN, ulid.highest_at(SystemClock().now_ms()))
    assert forgotten(lake, 1_000) == 0


@pytest.mark.parametrize(
    ("days", "runs"),
    [
        (0, RunRetention(expiration_days=30)),
        (None, RunRetention(expiration_days=0)),
        (30, RunRetention(expiration_days=30, expiration_days_of={"audit.*": 0})),
        (400, RunRetention(expiration_days=30)),
        (None, RunRetention(expiration_days=30, expiration_days_of={"audit.*": 400})),
    ],
)
def test_where_lines_are_kept_longer_records_are(
    deleted: Lake, days: int | None, runs: RunRetention
) -> None:
    deleted.limits = Compaction(retention_days=days, away_days=30)
    assert forgotten(deleted, 300, runs) == 0


def test_that_of_a_pipeline_stays(deleted: Lake) -> None:
    deleted.delete("f", None, ulid.highest_at(0))
    forgotten(deleted, 1_000)
    assert deleted.keys(keys.DELETED) == [keys.deleted_pipeline("f")]


def test_it_stays_as_long_as_the_manifest_says_so(deleted: Lake) -> None:
    manifest(deleted, 5)
    assert forgotten(deleted, 100) == 0
    deleted.put_bytes(keys.run_manifest(RUN), b"{}")
    assert forgotten(deleted, 100) == 0
    deleted.run(deleted.store.delete([keys.run_manifest(RUN)]))
    assert forgotten(deleted, 100) == 1


@pytest.mark.parametrize("recorded", [False, True])
def test_a_run_that_is_deleted_anew_at_this_moment_stays_deleted(
    deleted: Lake, recorded: bool
) -> None:
    """First in the manifest, then in the record: which we removed, or which is not there yet."""
    anew = Deletion(*RUN, ulid.highest_at(SystemClock().now_ms() + 100 * DAY), ulid.encode(7))

    def deleted_anew(_step: str) -> None:
        in_manifest = encode_manifest(Manifest(RUN, state="deleted", generation=anew.t))
        put_at_once(deleted, keys.run_manifest(RUN), in_manifest)
        if recorded:
            put_at_once(deleted, anew.key, encode_deletion(anew))

    deleted.reached = deleted_anew
    assert forgotten(deleted, 100) == 0
    body = deleted.run(deleted.store.get(anew.key))[1]
    assert decode_deletion(body).t == anew.t


def put_at_once(lake: Lake, key: str, body: bytes) -> None:
    """From inside the compactor's loop."""
    path = Path(lake.store.uri(key))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(body)
