"""Executors that are processes of their own: slow, killed, and without any Python.

An executor is halted or killed while it has a file of the job open, so in the midst of a task
whose attempt is not committed. One task reads all there is, so that the other executor has no
part of the shuffle, and can be halted with nobody waiting for more than what it writes.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from compactor.placement import STAGING
from compactor.report import PassReport
from compactor.spark.engine import SparkWishes
from compactor.spark.session import Session, check_rows, try_folder
from tailrace.logstore import ulid
from tailrace.logstore.errors import Unavailable
from tests.compactor.lake import HOUR, NOON, Lake, batch
from tests.compactor.spark.executors import Executor, executors_of, halted_while_writing, until
from tests.compactor.spark.standalone import standalone
from tests.servers.quick_java import quick_executors

HOURS, LINES, TRIES = 6, 10_000, 12
CONF = {
    "spark.executor.memory": "512m",
    "spark.cores.max": "2",
    "spark.scheduler.minRegisteredResourcesRatio": "1.0",
    "spark.scheduler.maxRegisteredResourcesWaitingTime": "120s",
    "spark.sql.files.minPartitionNum": "1",
    # Whoever has read writes no more of the files than the other, whom the tests wait for.
    "spark.shuffle.reduceLocality.enabled": "false",
    # A piece that a halted executor has is soon asked of another.
    "spark.shuffle.io.connectionTimeout": "3s",
    "spark.shuffle.io.maxRetries": "0",
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    # An executor's first task takes seconds, and is to begin to write before it is overtaken.
    "spark.speculation.minTaskRuntime": "10s",
    "spark.speculation.multiplier": "1.5",
    "spark.speculation.quantile": "0.5",
}

# Two minutes of a core: what depends on processes of executors changes seldom.
pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.in_turn(4, "a cluster")]


@pytest.fixture(scope="module")
def cluster(session: Session, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Session]:
    """Two executors. A process has one Spark, so that of the other tests is stopped."""
    session.stop()
    with (
        pytest.MonkeyPatch.context() as patch,
        standalone(2, tmp_path_factory.mktemp("workers")) as address,
    ):
        patch.setenv("PYSPARK_PYTHON", "/nowhere/python")
        patch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
        made = Session(SparkWishes("1g", address, CONF | quick_executors()))
        until(lambda: len(executors_of(application(made))) == 2)
        yield made
        made.stop()


def application(session: Session) -> str:
    return session.get().sparkContext.applicationId


@pytest.fixture
def lake(lake: Lake, cluster: Session) -> Lake:
    lake.session = cluster
    return lake


@contextmanager
def caught_writing(
    lake: Lake, cluster: Session
) -> Iterator[tuple[Executor, Future[PassReport], int]]:
    """A halted executor, the pass that it works for, and the lines that this has of each hour.

    The faster a machine, the more lines it takes. What was sent is in `lake.taken`.
    """
    staging = Path(lake.compactor.table.uri) / STAGING
    with ThreadPoolExecutor(1) as threads:
        for again in range(TRIES):
            lines = LINES * min(again + 1, 5)
            for i in range(HOURS):
                lake.put("a", [batch("f", f"r{i}", NOON + again + i * HOUR, lines)])
            report = threads.submit(lake.compact)
            with halted_while_writing(application(cluster), staging, report.done) as halted:
                if halted is not None:
                    yield halted, report, lines
                    return
    pytest.fail("the passes were over before anybody looked")


def written_twice(lake: Lake) -> bool:
    """Whether some part has two attempts, one of which may be done, in a job's working folder."""
    staging = Path(lake.compactor.table.uri) / STAGING
    with suppress(OSError):  # folders come and go
        tries = Counter(
            attempt[1]
            for folder in staging.glob("*/_temporary/0/**/*_m_*")
            if (attempt := re.fullmatch(r"(?:attempt|task)_.*_m_([0-9]+)(?:_[0-9]+)?", folder.name))
        )
        return any(count > 1 for count in tries.values())
    return False


def test_a_slow_task_is_overtaken_and_what_it_wrote_is_not_there_twice(
    lake: Lake, cluster: Session
) -> None:
    with caught_writing(lake, cluster) as (_, going, lines):
        until(lambda: written_twice(lake))  # so another executor writes the file again
    report = going.result(timeout=300)
    assert (report.rows_out, report.files) == (HOURS * lines, HOURS)
    lake.holds(lake.taken)
    lake.put("b", [batch("f", "r0", NOON + 100, 50), lake.taken[1]])
    assert lake.compact().rows_out == 50
    lake.holds(lake.taken)


def test_an_executor_killed_while_it_writes_loses_and_repeats_no_line(
    lake: Lake, cluster: Session
) -> None:
    with caught_writing(lake, cluster) as (halted, going, lines):
        halted.kill()
        report = going.result(timeout=300)
    assert (report.rows_out, report.files) == (HOURS * lines, HOURS)
    lake.holds(lake.taken)
    until(lambda: len(executors_of(application(cluster))) == 2)
    assert halted not in executors_of(application(cluster))


def test_executors_need_no_python(lake: Lake) -> None:
    gone, kept = batch("f", "r", NOON, 20), batch("f", "r", NOON + 5, 20)
    other, old = batch("f", "s", NOON, 20), batch("g", "r", NOON, 20)
    lake.put("a", [gone, kept, other, old])
    lake.delete("f", "r", gone[1] + 100)
    lake.delete("g", None, ulid.lowest_at(NOON + 1))
    report = lake.compact()
    lake.holds([kept, other])
    assert report.deleted == 40


def test_what_executors_wrote_elsewhere_is_missed(cluster: Session, tmp_path: Path) -> None:
    spark, folder = cluster.get(), tmp_path / "out"
    try_folder(spark, str(tmp_path / "tried"))
    assert list((tmp_path / "tried").iterdir()) == []
    spark.range(0, 100, 1, 4).write.parquet(str(folder))
    check_rows(str(folder), 100)
    next(folder.glob("part-*.parquet")).unlink()
    with pytest.raises(Unavailable, match="executors wrote 100 rows, and 75 of them are in"):
        check_rows(str(folder), 100)
    (tmp_path / "file").touch()
    with pytest.raises(Unavailable, match="executors cannot write to"):
        try_folder(spark, str(tmp_path / "file" / "folder"))
