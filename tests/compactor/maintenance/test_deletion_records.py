"""Which records of deletions go, and that none is lost that somebody writes meanwhile."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import count

import pytest

from compactor.cleanup import remove_deletion_records
from compactor.report import PassReport
from compactor.settings import Compaction
from service.run_log.backlog import Deletions
from service.runtime.health import ClockSkew
from tailrace.logstore import keys, ulid
from tailrace.logstore.batch import RunKey
from tailrace.logstore.clock import SystemClock
from tailrace.logstore.errors import OutcomeUnknown, Unavailable
from tailrace.logstore.objects.store import ObjectStore
from tailrace.logstore.runs.deletions import Deletion, RunRetention, deletions_above
from tailrace.logstore.runs.manifest import Manifest, encode_manifest
from tailrace.logstore.table.table import TableChange, commit
from tests.compactor.lake import HOUR, Lake
from tests.simulation.faulty_store import Crash, Fault, FaultyStore, Schedule

DAY = 24 * HOUR
RUN = RunKey("f", "r")


@pytest.fixture
def deleted(lake: Lake) -> Lake:
    """A run was deleted now, and that is done in the table; the limit is 60 days."""
    now = SystemClock().now_ms()
    lake.delete(*RUN, ulid.highest_at(now))
    table = lake.compactor.table
    done = TableChange(purged_ms=now + DAY)
    commit(table, table.create(), done, job="J", clock=lake.clock)
    lake.limits = Compaction(away_days=30)
    return lake


def forgotten(lake: Lake, days: float, runs: RunRetention | None = None) -> int:
    lake.clock.shift_ms = round(days * DAY)
    report, kept = PassReport(), runs or RunRetention(expiration_days=30)
    lake.run(remove_deletion_records(replace(lake.compactor, runs=kept), report))
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


def test_of_a_run_deleted_again_only_the_last_record_stays_as_long_as_the_manifest(
    deleted: Lake,
) -> None:
    for days in (0.1, 0.2):
        deleted.delete(*RUN, ulid.highest_at(SystemClock().now_ms() + round(days * DAY)))
    manifest(deleted, 5)
    last = deleted.keys(keys.DELETED)[-1]
    assert forgotten(deleted, 60.15) == 2
    assert deleted.keys(keys.DELETED) == [last]
    assert forgotten(deleted, 100) == 0
    deleted.run(deleted.store.delete([keys.run_manifest(RUN)]))
    assert forgotten(deleted, 100) == 1


def test_many_go_with_few_requests(deleted: Lake) -> None:
    for number in range(40):
        deleted.delete("f", f"r{number}", ulid.highest_at(0))
    store = FaultyStore(deleted.store, Schedule.none())
    forget_in(deleted, store)
    assert deleted.keys(keys.DELETED) == []
    assert [call.split()[0] for call in store.calls].count("delete") == 1


@dataclass
class Meanwhile(Schedule):
    """The run is deleted anew just before a step of the forgetting, which then has a fault."""

    lake: Lake
    at: int
    fault: Fault | None
    anew: Deletion

    def __post_init__(self) -> None:
        super().__init__({})

    def next(self, call: str) -> Fault | None:
        self.steps += 1
        if self.steps != self.at:
            return None
        self.fired = 1
        body = encode_manifest(Manifest(RUN, state="deleted", generation=self.anew.t))
        with ThreadPoolExecutor(1) as another:
            store = self.lake.store
            another.submit(asyncio.run, store.put(keys.run_manifest(RUN), body)).result()
            another.submit(
                asyncio.run, Deletions(store, ClockSkew(None)).record(self.anew)
            ).result()
        return self.fault


FAULTS = (None, *Fault)


@pytest.mark.parametrize("fault", FAULTS, ids=str)
def test_a_run_that_is_deleted_anew_at_any_step_stays_deleted(
    deleted: Lake, fault: Fault | None
) -> None:
    """Also if the compactor is killed there, and if the store deletes once more, and late."""
    (record,) = deleted.keys(keys.DELETED)
    body = deleted.run(deleted.store.get(record))[1]
    anew = Deletion(*RUN, ulid.highest_at(SystemClock().now_ms() + 100 * DAY), ulid.encode(7))
    for at in count(1):
        deleted.run(deleted.store.delete([*deleted.keys(keys.DELETED), keys.run_manifest(RUN)]))
        deleted.put_bytes(record, body)
        meanwhile = Meanwhile(deleted, at, fault, anew)
        store = FaultyStore(deleted.store, meanwhile)
        with suppress(Crash, Unavailable, OutcomeUnknown):
            forget_in(deleted, store)
        if not meanwhile.fired:
            break
        assert anew.t in recorded(deleted)
        for call in store.calls:
            if call.startswith("delete "):
                deleted.run(deleted.store.delete(call.split()[1:]))
        assert anew.t in recorded(deleted)
    assert at > 4
    assert recorded(deleted) == set()


def forget_in(lake: Lake, store: ObjectStore) -> None:
    """A hundred days later, by a compactor that has looked at nothing yet."""
    lake.clock.shift_ms = 100 * DAY
    kept = RunRetention(expiration_days=30)
    lake.run(remove_deletion_records(replace(lake.compactor, store=store, runs=kept), PassReport()))


def recorded(lake: Lake) -> set[int]:
    return {one.t for one in lake.run(deletions_above(lake.store, 0))}
