"""Spark on a real S3 server: merged, killed, raced and cleaned up as in a folder."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from compactor.assignment import HOURS, open_assigner
from compactor.cleanup import clean_up, remove_orphans
from compactor.context import Compactor
from compactor.ingest import ingest_all
from compactor.purge import purge
from compactor.report import PassReport
from compactor.rewrite import plan_hours, rewrite_hours
from compactor.settings import Compaction, CompactorSettings
from compactor.spark.engine import MergeInput
from compactor.spark.jobs import merge
from compactor.spark.s3 import S3A
from compactor.spark.session import Session
from tailrace.logstore import keys, ulid
from tailrace.logstore.clock import system_entropy
from tailrace.logstore.errors import Unavailable
from tailrace.logstore.filesystem import Disk
from tests.compactor.in_bucket import objects, uploads
from tests.compactor.lake import HOUR, NOON, Lake, batch, lake_in
from tests.faults.kinds import Kind
from tests.faults.requests import Request
from tests.faults.schedule import Schedule
from tests.faults.thread import fault_proxy
from tests.servers.jars import jars_folder
from tests.servers.minio import Bucket, Minio
from tests.servers.quick_java import quick_submit

ROOT = Path(__file__).parents[2]
JOB = str(ROOT / "compactor" / "job.py")
CLASS = "REDUCED_REDUNDANCY"
HOURS_APART = 33
KEPT = {"encryption": "AES256", "storage_class": CLASS}
pytestmark = [pytest.mark.spark, pytest.mark.jars, pytest.mark.minio]


@pytest.fixture(scope="module")
def between() -> Schedule:  # what goes wrong between Spark and the server; nothing, of itself
    return Schedule()


@pytest.fixture(scope="module")
def s3_session(session: Session, minio: Minio, between: Schedule) -> Iterator[Session]:
    """A warm Spark that knows S3. The other one ends meanwhile: a process has one at a time."""
    session.stop()
    with fault_proxy(minio.endpoint_url, between) as url:
        settings = minio.bucket(**KEPT).through(url).settings
        spark = Session("1g", S3A(settings.s3, str(jars_folder())))
        yield spark
        spark.stop()


@pytest.fixture
def kept_bucket(minio: Minio) -> Bucket:
    return minio.bucket(prefix="a store", **KEPT)


@pytest.fixture
def lake(kept_bucket: Bucket, s3_session: Session, tmp_path: Path) -> Iterator[Lake]:
    with lake_in(kept_bucket, tmp_path) as made:
        made.session = s3_session
        yield made


def environment(lake: Lake) -> dict[str, str]:
    assert lake.bucket is not None
    found = {
        **os.environ,
        **lake.bucket.environment,
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "TAILRACE_COMPACTION__DRIVER_MEMORY": "1g",
        "TAILRACE_COMPACTION__JARS": str(jars_folder()),
    }
    return {name: value for name, value in found.items() if name != "PYTHONPATH"}


def start(lake: Lake, command: list[str], **more: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(lake) | more,
        cwd="/",
    )


def submitted(*flags: str) -> list[str]:
    return [str(Path(sys.executable).parent / "spark-submit"), *flags, JOB]


def finish(process: subprocess.Popen[str]) -> dict[str, Any]:
    out, errors = process.communicate(timeout=300)
    assert process.returncode == 0, errors
    return dict(orjson.loads(out.splitlines()[-1]))


@pytest.mark.in_turn(4, "merged twice")
def test_merged_twice_and_kept_as_the_settings_say(lake: Lake) -> None:
    old = [batch("f", "r", NOON + i * HOUR, 20) for i in range(3)]
    lake.put("node with space", old)
    first = lake.compact()
    assert (first.rows_out, first.files, first.commits) == (60, 3, 1)
    gone, new = batch("f", "gone", NOON, 5), batch("f", "r", NOON + 7, 20)
    lake.put("b", [old[0], new, old[2], gone])
    lake.delete("f", "gone", gone[1] | ulid.LINE_MASK)
    second = lake.compact()
    assert (second.rows_in, second.rows_out, second.duplicates) == (65, 20, 40)
    lake.holds([*old, new])
    found = objects(lake)
    assert {head.get("ServerSideEncryption") for head in found.values()} == {"AES256"}
    classed = {key for key, head in found.items() if head.get("StorageClass") == CLASS}
    assert classed == set()  # fresh files live for an hour
    assert [key for key in found if "_staging" in key] == []
    assert uploads(lake) == []


@pytest.mark.in_turn(4, "event log")
def test_sparks_event_log_in_a_bucket_is_whole(lake: Lake) -> None:
    """It is uploaded when it ends, by what Spark had open from its start."""
    assert lake.bucket is not None
    lake.put("a", [batch("f", "r", NOON, 5)])
    client, name, s3 = lake.bucket.client(), lake.bucket.name, lake.bucket.settings.s3
    client.put_object(Bucket=name, Key="events/", Body=b"")
    spark = {
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": f"s3a://{name}/events",
        "spark.eventLog.rolling.enabled": "false",
        "spark.eventLog.compress": "false",
        "spark.hadoop.fs.s3a.access.key": s3.access_key_id,
        "spark.hadoop.fs.s3a.secret.key": s3.secret_access_key.get_secret_value(),
    }
    more = {"TAILRACE_COMPACTION__SPARK": orjson.dumps(spark).decode()}
    told = finish(start(lake, [sys.executable, JOB, "--data", str(lake.data)], **more))
    assert told["rows_out"] == 5
    listed = client.list_objects_v2(Bucket=name, Prefix="events/")["Contents"]
    (log,) = [entry["Key"] for entry in listed if not entry["Key"].endswith("/")]
    body = client.get_object(Bucket=name, Key=log)["Body"].read()
    client.close()
    assert not log.endswith(".inprogress")
    assert orjson.loads(body.splitlines()[-1])["Event"] == "SparkListenerApplicationEnd"
    assert b"SparkListenerTaskEnd" in body


@pytest.mark.in_turn(4, "killed in a bucket")
def test_killed_between_steps_the_lines_are_there_once(lake: Lake) -> None:
    sent = [batch("f", f"r{i}", NOON + i * HOUR, 30) for i in range(2)]
    lake.put("a", sent)
    lake.data.mkdir(exist_ok=True)  # by which the second knows that the first is gone
    for step, placed in (("written", 0), ("placed", 2)):
        data = ["--data", str(lake.data)]
        process = start(lake, [sys.executable, JOB, *data, "--kill-at", step])
        errors = process.communicate(timeout=300)[1]
        assert process.returncode == -signal.SIGKILL, errors
        assert lake.table() == []
        assert len(lake.keys(f"{keys.TABLE}/date")) == placed
    lake.compact()
    lake.holds(sent)


@pytest.mark.in_turn(4, "packed in a bucket")
def test_packed_rewritten_purged_expired_and_vacuumed(lake: Lake) -> None:
    """Hours that are several to a task; then all of the maintenance, and nothing is left over."""
    lake.limits = Compaction(settle_seconds=0, purge_seconds=0, file_bytes=1_000)
    first = lake.clock.now_ms() // HOUR * HOUR - 2 * HOUR
    gone = batch("f", "gone", first - 9 * HOUR, 20)
    sent = [batch("f", "r", first - i * HOUR, 20) for i in range(HOURS_APART)]
    lake.put("a", [*sent, gone])
    report = lake.compact()
    assert report.files == report.batches[0].hours == HOURS_APART
    assert report.batches[0].tasks <= 4
    late = [batch("f", run, first + 7, 20) for run in ("a", "z")]
    lake.put("b", [*late, sent[3]])
    lake.delete("f", "gone", ulid.highest_at(first))
    report = lake.compact()
    assert (report.hours_rewritten, report.duplicates, report.rows_purged) == (1, 20, 20)
    assert report.files_rewritten == 3  # one without what was deleted, two of the late one's hour
    lake.holds([*sent, *late])
    lake.limits = Compaction(retention_days=1)
    assert lake.compact().hours_expired >= HOURS_APART - 23
    until = lake.snapshot().expired_ms
    lake.holds([one for one in (*sent, *late) if ulid.time_ms(one[1]) >= until])
    lake.run(remove_orphans(lake.compactor, hours=0))
    log = f"{keys.TABLE}/_delta_log/"
    there = [key for key in objects(lake) if key.startswith("table/") and not key.startswith(log)]
    assert sorted(there) == sorted(f"{keys.TABLE}/{file.path}" for file in lake.snapshot().files)
    assert uploads(lake) == []


@pytest.mark.in_turn(3)
def test_two_drivers_lease_hours(lake: Lake, tmp_path: Path) -> None:
    """Hours that another driver has are left to it, and done when it gives them back."""
    lake.limits = Compaction(settle_seconds=0, file_bytes=1_000)
    first = lake.clock.now_ms() // HOUR * HOUR - 3 * HOUR
    for again in range(2):
        lake.put(
            "a", [batch("f", run, first + again + i * HOUR, 9) for i in range(2) for run in "az"]
        )
        report = PassReport()
        lake.run(ingest_all(lake.compactor, report))
    settings = CompactorSettings(data=str(tmp_path), **lake.settings.model_dump(exclude={"data"}))
    clock, entropy = lake.clock, system_entropy()

    async def scenario() -> tuple[PassReport, PassReport]:
        opened = [open_assigner(settings, lake.store, clock, entropy, Disk()) for _ in range(2)]
        during, after = PassReport(), PassReport()
        async with opened[0] as one, opened[1] as other:
            second = replace(lake.compactor, assigner=other)
            hours = [planned.hour for planned in await plan_hours(second)]
            async with one.joined(HOURS) as assignment:
                assert await assignment.claim(hours, hours) == hours
                await rewrite_hours(second, during)
            await rewrite_hours(second, after)
        return during, after

    during, after = lake.run(scenario())
    assert (during.hours_held_elsewhere, during.hours_rewritten) == (2, 0)
    assert (after.hours_held_elsewhere, after.hours_rewritten) == (0, 2)
    lake.holds(lake.taken)


@pytest.mark.in_turn(4, "two drivers in a bucket")
def test_two_drivers_at_once_one_of_them_submitted(lake: Lake) -> None:
    sent = [batch("f", f"r{i % 3}", NOON + i * 1_000, 40) for i in range(8)]
    for i, one in enumerate(sent):
        lake.put("ab"[i % 2], [one, sent[0]])
    jars = ",".join(str(path) for path in sorted(jars_folder().iterdir()))
    # One of them may find nothing to do, and says so with `--json` alone.
    submitting = start(lake, [*submitted("--jars", jars), "--json"], **quick_submit())
    processes = [submitting, start(lake, [sys.executable, JOB, "--json"])]
    reports = [finish(process) for process in processes]
    lake.holds(sent)
    assert lake.snapshot().marks("ab") == {"a": 4, "b": 4}
    assert sum(report["rows_out"] for report in reports) == 320


def test_an_answer_that_breaks_off_costs_a_task_another_try_and_no_pass(
    lake: Lake, between: Schedule
) -> None:
    """Hadoop's connector tries no read of columns again."""

    def reads_columns(request: Request) -> bool:
        found = re.match("bytes=([0-9]+)-", request.head.value("range") or "")
        near = found is not None and int(found[1]) < 1_000  # a footer is far behind
        return near and request.method == "GET" and "/segments/" in request.path

    lake.put("a", [batch("f", "r", NOON, 2_000)])
    between.plan(Kind.CUT_RESPONSE, applies=reads_columns)
    assert lake.compact().rows_out == 2_000
    assert between.injected[Kind.CUT_RESPONSE] == 1
    lake.holds(lake.taken)


def lose_rows(lake: Lake, left: int) -> None:
    """Of a file that a task has written and nobody placed yet: it is cut to so many, or goes."""
    (bucket,) = filter(None, [lake.bucket])
    client, staging = bucket.client(), f"{bucket.prefix}/{keys.TABLE}/_staging/"
    listed = client.list_objects_v2(Bucket=bucket.name, Prefix=staging)["Contents"]
    key = min(entry["Key"] for entry in listed if "/part-" in entry["Key"])
    if left:
        body = client.get_object(Bucket=bucket.name, Key=key)["Body"].read()
        cut = pa.BufferOutputStream()
        pq.write_table(pq.read_table(pa.BufferReader(body)).slice(0, left), cut)
        client.put_object(Bucket=bucket.name, Key=key, Body=cut.getvalue().to_pybytes())
    else:
        client.delete_object(Bucket=bucket.name, Key=key)
    client.close()


@pytest.mark.in_turn(4, "lost rows in a bucket")
@pytest.mark.parametrize("left", [0, 19])
def test_rows_that_are_lost_before_the_commit_refuse_it(lake: Lake, left: int) -> None:
    """Of an ingest, of an hour that is rewritten, and of a purge."""
    first = lake.clock.now_ms() // HOUR * HOUR - 3 * HOUR
    lake.limits = Compaction(settle_seconds=0, purge_seconds=0)

    def loses(step: str, work: Callable[[Compactor, PassReport], Awaitable[object]]) -> None:
        lost: list[str] = []

        def reached(name: str) -> None:
            if name == step and not lost:
                lost.append(name)
                lose_rows(lake, left)

        lake.reached, before = reached, lake.snapshot()
        with pytest.raises(Unavailable, match=r"wrote [0-9]+ rows, and its files hold") as error:
            lake.run(work(lake.compactor, PassReport()))
        assert "table/_staging/" in error.value.hint
        wrote, held = map(int, re.findall(r"\b[0-9]+\b", str(error.value).partition("wrote")[2]))
        assert lost
        assert held < wrote
        assert lake.snapshot().version <= max(before.version, 0)  # the first makes the table
        lake.reached = lambda _step: None

    lake.put("a", [batch("f", "r", first + i * HOUR, 20) for i in range(2)])
    loses("written", ingest_all)
    for again in range(5):
        lake.put("a", [batch("f", f"r{again}", first + i * HOUR + 7, 20) for i in range(2)])
        lake.run(ingest_all(lake.compactor, PassReport()))
    loses("rewrite written", rewrite_hours)
    lake.clock.shift_ms = 120_000
    lake.delete("f", "r", ulid.highest_at(first + HOUR))
    loses("rewrite written", purge)
    lake.compact()
    lake.holds([one for one in lake.taken if one[0].run != "r"])


def test_spark_asks_for_no_segment_what_is_known(lake: Lake, between: Schedule) -> None:
    """It looked for each and listed it before a task read it: seven requests for a small one.

    Of eight and more small ones it knows nothing: the driver gives it one file of their lines.
    """
    asked: Counter[str] = Counter()

    def note(request: Request) -> bool:
        where = request.head.request_line()[1].replace("%2F", "/")
        if "/segments/" in where:
            asked["LIST" if "prefix" in request.query else request.method] += 1
        return False

    between.plan(Kind.DELAY, applies=note)
    for i in range(7):
        lake.put("a", [batch("f", f"r{i}", NOON + i, 5)])
    assert lake.compact().rows_out == 35
    assert asked == {"HEAD": 7, "GET": 21}
    asked.clear()
    for i in range(8):
        lake.put("a", [batch("f", f"s{i}", NOON + i, 5)])
    assert lake.compact().rows_out == 40
    assert not asked
    between.calm()
    lake.holds(lake.taken)


def test_a_failure_of_spark_is_an_error_with_a_reason(lake: Lake, s3_session: Session) -> None:
    gone = MergeInput({lake.store.uri("segments/a/gone.parquet"): 9}, {}, [0], [0], [], 0, 1)
    with pytest.raises(Unavailable, match=r"Spark failed: .*gone"):
        merge(s3_session.get(), gone, lake.store.uri("table/_staging/out"))


@pytest.mark.in_turn(4)
def test_submitted_without_the_jars_it_says_how(lake: Lake) -> None:
    lake.put("a", [batch("f", "r", NOON, 1)])
    process = start(lake, submitted(), **quick_submit())
    out = process.communicate(timeout=300)[0]  # where spark-submit puts all that we say
    assert process.returncode == 3
    assert "spark-submit --properties-file deploy/spark/s3.conf compactor/job.py" in out
    assert "Traceback" not in out


def test_a_wrong_key_is_a_store_that_refuses_and_is_not_told(lake: Lake) -> None:
    lake.put("a", [batch("f", "r", NOON, 1)])
    process = subprocess.run(
        [sys.executable, JOB],
        env=environment(lake) | {"TAILRACE_S3__SECRET_ACCESS_KEY": "another-secret"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert process.returncode == 3
    assert "another-secret" not in process.stdout + process.stderr


@pytest.mark.in_turn(3)
def test_what_a_killed_job_left_is_gone_a_day_later(lake: Lake) -> None:
    lake.put("a", [batch("f", "r", NOON, 3)])
    lake.compact()
    bucket = lake.bucket
    assert bucket is not None
    now = lake.clock.now_ms()
    dead, alive = (ulid.encode(ulid.lowest_at(now - hours * HOUR)) for hours in (25, 1))
    client = bucket.client()
    for job in (dead, alive):
        staging = f"{bucket.prefix}/{keys.TABLE}/_staging/{job}"
        for key in ("/", "/__magic_job-1/", "/__magic_job-1/tasks/a.pending"):
            client.put_object(Bucket=bucket.name, Key=staging + key)
    key = f"{bucket.prefix}/{keys.TABLE}/_staging/{dead}/part-00000-x.parquet"
    client.create_multipart_upload(Bucket=bucket.name, Key=key)
    client.close()
    report = PassReport()
    lake.run(clean_up(lake.compactor, report))
    assert (report.orphans_removed, report.writes_swept, len(uploads(lake))) == (4, 0, 1)
    assert {key.split("/")[2] for key in objects(lake) if "_staging" in key} == {alive}
    lake.clock.shift_ms = 25 * HOUR
    lake.run(clean_up(lake.compactor, report))
    assert (report.writes_swept, uploads(lake)) == (1, [])
    lake.holds(lake.taken)
