"""The table on a real S3 server: commits by conditional puts, with lost and doubled answers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tailrace.logstore.clock import SystemClock
from tailrace.logstore.errors import OutcomeUnknown, PreconditionFailed, StoreUnavailable
from tailrace.logstore.objects.s3.credentials import Credentials
from tailrace.logstore.objects.s3.settings import S3Settings
from tailrace.logstore.table.schema import JOB
from tailrace.logstore.table.snapshot import TableSnapshot
from tailrace.logstore.table.table import (
    Advance,
    Table,
    commit_segments,
    open_table,
    storage_options,
)
from tests.faults.kinds import Kind
from tests.faults.requests import Request
from tests.faults.schedule import Schedule
from tests.faults.thread import fault_proxy
from tests.servers.minio import ACCESS_KEY, KMS_KEY, SECRET_KEY, Bucket, Minio

# It cannot happen to a put of an object, or only lasts long.
NOT_HERE = (Kind.ERROR_IN_200, Kind.STALL)
FAULTS = [kind for kind in Kind if kind not in NOT_HERE]
OF_READING = [kind for kind in FAULTS if kind not in (Kind.CONFLICT, Kind.RETRIED)]
KEY = {"access_key_id": "somebody", "secret_access_key": "s3cret"}
minio = pytest.mark.minio


def ingest(table: Table, planned: TableSnapshot, seq: int, job: str) -> TableSnapshot:
    advances = [Advance("n", seq, seq)]
    return commit_segments(table, planned, [], advances, job=job, clock=SystemClock())


def take_in_first_of(table: Table, count: int = 1) -> None:
    snapshot = table.create()
    for seq in range(1, count + 1):
        snapshot = ingest(table, snapshot, seq, f"J{seq}")


@pytest.fixture(scope="module")
def taken_in_once(minio: Minio) -> Bucket:
    """A table with one segment, for tests that only read it."""
    bucket = minio.bucket()
    take_in_first_of(open_table(bucket.settings))
    return bucket


@pytest.fixture(scope="module")
def beyond_a_checkpoint(minio: Minio) -> Bucket:
    """A table with 21 segments, and a checkpoint after twenty, for tests that only read it."""
    bucket = minio.bucket()
    take_in_first_of(open_table(bucket.settings), 21)
    return bucket


def jobs(table: Table) -> Counter[str]:
    delta = table.snapshot().delta
    assert delta is not None
    return Counter(commit[JOB] for commit in delta.history() if JOB in commit)


def is_commit(request: Request) -> bool:
    return request.method == "PUT" and "/_delta_log/" in request.path


@minio
def test_a_stale_snapshot_is_refused_by_the_server(bucket: Bucket) -> None:
    table = open_table(bucket.settings)
    planned = table.create()
    assert ingest(table, planned, 1, "A").mark("n") == 1
    with pytest.raises(PreconditionFailed):
        ingest(table, planned, 1, "B")
    assert jobs(table) == {"A": 1}


@minio
def test_of_racing_drivers_one_takes_a_segment_in(bucket: Bucket) -> None:
    table = open_table(bucket.settings)
    table.create()
    last, drivers = 4, 3

    def drive(name: int) -> int:
        won, tries = 0, 0
        while (snapshot := table.snapshot()).mark("n") < last:
            tries += 1
            try:
                ingest(table, snapshot, snapshot.mark("n") + 1, f"{name}/{tries}")
            except PreconditionFailed:
                continue
            won += 1
        return won

    with ThreadPoolExecutor(drivers) as pool:
        assert sum(pool.map(drive, range(drivers))) == last
    assert sum(jobs(table).values()) == last
    assert table.snapshot().version == last


@minio
@pytest.mark.parametrize("kind", FAULTS)
def test_whatever_becomes_of_the_answer_it_is_in_once(bucket: Bucket, kind: Kind) -> None:
    """The proxy is a thread of this process: it answers while the commit is looked for."""
    schedule = Schedule(delay_seconds=0.01)
    schedule.plan(kind, applies=is_commit)
    table = open_table(bucket.settings)
    table.create()
    with fault_proxy(bucket.endpoint_url, schedule) as url:
        faulty = open_table(bucket.through(url).settings)
        assert ingest(faulty, faulty.snapshot(), 1, "J").mark("n") == 1
    assert schedule.injected[kind] == 1
    assert jobs(table) == {"J": 1}


@minio
def test_a_store_that_takes_no_commit_leaves_it_unknown(bucket: Bucket) -> None:
    schedule = Schedule()
    table = open_table(bucket.settings)
    with fault_proxy(bucket.endpoint_url, schedule) as url:
        faulty = open_table(bucket.through(url, attempts=2).settings)
        planned = faulty.create()
        schedule.plan(Kind.RESET, times=100, applies=is_commit)
        with pytest.raises(OutcomeUnknown) as caught:
            ingest(faulty, planned, 1, "J")
        schedule.refuse(Kind.RESET)
        with pytest.raises(StoreUnavailable):
            faulty.snapshot()
    assert "\x1b" not in str(caught.value)
    assert "\n" not in str(caught.value)
    assert jobs(table) == {}


@minio
@pytest.mark.parametrize("kind", OF_READING)
@pytest.mark.parametrize("asked", ["?list-type=2", "_last_checkpoint", "00000001.json"])
def test_one_fault_of_a_request_keeps_nobody_from_reading(
    taken_in_once: Bucket, kind: Kind, asked: str
) -> None:
    """A listing's or a 404's body that broke off was not asked for again."""
    schedule = Schedule(delay_seconds=0.01)
    with fault_proxy(taken_in_once.endpoint_url, schedule) as url:
        schedule.plan(kind, applies=lambda request: asked in request.head.request_line()[1])
        table = open_table(taken_in_once.through(url).settings)
        snapshot = table.snapshot()
        assert (snapshot.version, snapshot.mark("n"), snapshot.files) == (1, 1, ())
    assert schedule.injected[kind] == 1


@pytest.mark.in_turn(4)
@minio
def test_the_marks_of_a_hundred_nodes_are_a_list_and_each_commit_once(bucket: Bucket) -> None:
    """It was as many requests for every node, each time it was asked for one."""
    take_in_first_of(open_table(bucket.settings), 38)
    schedule = Schedule()
    with fault_proxy(bucket.endpoint_url, schedule) as url:
        opened = open_table(bucket.through(url).settings).snapshot()
        before = schedule.requests
        marks = opened.marks(["n", *(f"n{i}" for i in range(100))])
        assert (marks["n"], marks["n7"], opened.purged_ms) == (38, 0, 0)
        commits = 38 - 20  # since the checkpoint, which is two or three pieces
        assert schedule.requests - before <= 1 + 4 + commits


@pytest.mark.in_turn(3)
@minio
@pytest.mark.parametrize("kind", OF_READING)
@pytest.mark.parametrize("asked", ["?list-type=2", "00000021.json", ".checkpoint.parquet"])
def test_one_fault_of_a_request_keeps_nobody_from_the_marks_of_a_time(
    beyond_a_checkpoint: Bucket, kind: Kind, asked: str
) -> None:
    """Asked through a thread of this process, which answers while this one waits."""
    bucket = beyond_a_checkpoint
    later = SystemClock().now_ms() + 60_000
    schedule = Schedule(delay_seconds=0.01)
    with fault_proxy(bucket.endpoint_url, schedule) as url:
        faulty = open_table(bucket.through(url).settings)
        newest = faulty.snapshot().version
        schedule.plan(kind, applies=lambda request: asked in request.head.request_line()[1])
        assert faulty.log.version_at(later, newest) == 21
        assert faulty.log.transactions(21) == {"segments/n": 21}
    assert schedule.injected[kind] == 1
    assert open_table(bucket.settings).marks_at(later, ["n"]) == {"n": 21}


@minio
def test_a_store_that_breaks_off_every_answer_is_unavailable(bucket: Bucket) -> None:
    schedule = Schedule()
    take_in_first_of(open_table(bucket.settings))
    with fault_proxy(bucket.endpoint_url, schedule) as url:
        schedule.refuse(Kind.CUT_RESPONSE)
        table = open_table(bucket.through(url, attempts=2).settings)
        with pytest.raises(StoreUnavailable):
            table.snapshot()
        with pytest.raises(StoreUnavailable):
            table.log.version_at(0, 1)


@minio
@pytest.mark.parametrize(
    ("encryption", "seen"),
    [
        ({"encryption": "AES256"}, "AES256"),
        ({"encryption": "aws:kms", "kms_key_id": KMS_KEY}, "aws:kms"),
    ],
)
def test_the_log_is_encrypted_and_of_the_usual_class(
    minio: Minio, encryption: dict[str, Any], seen: str
) -> None:
    bucket = minio.bucket(storage_class="REDUCED_REDUNDANCY", **encryption)
    table = open_table(bucket.settings)
    ingest(table, table.create(), 1, "J")
    client = bucket.client()
    listed = client.list_objects_v2(Bucket=bucket.name)["Contents"]
    heads = [client.head_object(Bucket=bucket.name, Key=entry["Key"]) for entry in listed]
    client.close()
    assert [head.get("ServerSideEncryption") for head in heads] == [seen, seen]
    assert [head.get("StorageClass") for head in heads] == [None, None]


@minio
def test_given_keys_are_not_mixed_with_the_environments(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {
        "AWS_ACCESS_KEY_ID": "another",
        "AWS_SECRET_ACCESS_KEY": "another",
        "AWS_SESSION_TOKEN": "another",
        "AWS_REGION": "eu-north-1",
    }.items():
        monkeypatch.setenv(name, value)
    table = open_table(bucket.through(bucket.endpoint_url, region="us-east-1").settings)
    assert table.create().version == 0


@minio
def test_the_environments_keys_do_if_none_are_given(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", ACCESS_KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET_KEY)
    settings = bucket.through(bucket.endpoint_url, access_key_id="", secret_access_key="").settings
    assert open_table(settings).create().version == 0


def options(**s3: Any) -> dict[str, str]:
    settings = S3Settings.model_validate(s3)
    return storage_options(settings, Credentials(settings))


def test_options_follow_the_settings() -> None:
    there = options(**KEY, endpoint_url="http://minio:9000/", attempts=3, region="eu-west-1")
    assert there["aws_endpoint_url"] == "http://minio:9000"
    assert there["aws_allow_http"] == "true"
    assert there["aws_virtual_hosted_style_request"] == "false"
    assert (there["max_retries"], there["aws_region"]) == ("2", "eu-west-1")
    aws = options(**KEY)
    assert aws["aws_virtual_hosted_style_request"] == "true"
    assert "aws_endpoint_url" not in aws
    assert "aws_allow_http" not in aws
    assert aws["aws_conditional_put"] == "etag"


def test_keys_are_asked_for_at_each_opening() -> None:
    asked: list[int] = []

    def renewed() -> dict[str, str]:
        asked.append(1)
        return {}

    table = Table("/nowhere/that/is", renewed)
    opened: Callable[[], TableSnapshot] = table.snapshot
    assert (opened().version, opened().version, len(asked)) == (-1, -1, 2)
