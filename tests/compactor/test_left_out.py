"""Damaged segments that a pass leaves out: exit status, alarms and summary say so until decided."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from compactor.listeners import MetricsListener
from compactor.metrics import Textfile
from compactor.report import PassReport
from service.metrics.declared import CompactorFile
from tailrace.logstore import keys
from tailrace.logstore.clock import SystemClock
from tailrace.logstore.errors import InvalidInput
from tailrace.logstore.filesystem import Disk
from tailrace.logstore.segments.file_format import SCHEMA, give_up
from tests.compactor.lake import NOON, Lake, batch
from tests.compactor.plain_engine import PlainEngine
from tests.servers.quick_java import quick_submit

JOB = str(Path(__file__).parents[2] / "compactor" / "job.py")
DECIDED = "nothing to do: the table has every segment"


def flip(lake: Lake, key: str, at: int = 100) -> bytes:
    """Flips a bit of a stored object; gives the intact bytes."""
    body = lake.run(lake.store.get(key))[1]
    lake.put_bytes(key, body[:at] + bytes([body[at] ^ 1]) + body[at + 1 :])
    return body


def run(lake: Lake, command: Sequence[str], **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*command, "--data", str(lake.data)],
        capture_output=True,
        text=True,
        env={
            **os.environ,
            **environment,
            "PYSPARK_PYTHON": sys.executable,
            "PYSPARK_DRIVER_PYTHON": sys.executable,
            "TAILRACE_COMPACTION__DRIVER_MEMORY": "1g",
        },
        cwd="/",
        timeout=300,
        check=False,
    )


def tailrace(lake: Lake, *words: str) -> subprocess.CompletedProcess[str]:
    return run(lake, [sys.executable, "-m", "tailrace", *words])


def summary_of(out: str) -> dict[str, Any]:
    (line,) = [line for line in out.splitlines() if line.startswith('{"began"')]
    found: dict[str, Any] = orjson.loads(line)
    return found


@pytest.mark.spark
@pytest.mark.in_turn(4, "given up")
def test_a_damaged_segment_is_an_alarm_of_every_pass_until_its_lines_are_given_up(
    lake: Lake,
) -> None:
    kept, lost = batch("f", "r", NOON, 20), batch("f", "r", NOON + 1, 120)
    lake.put("a", [kept])
    damaged = lake.put("a", [lost])
    flip(lake, damaged)
    submit = str(Path(sys.executable).parent / "spark-submit")
    first = run(lake, [submit, JOB, "--json"], **quick_submit())
    assert first.returncode == 1, first.stderr[-2000:]
    said = summary_of(first.stdout)
    assert (said["set_aside"], said["left_out"], said["rows_out"]) == (1, 1, 20)
    assert "segment 2 of a is left out" in said["alarms"][0]
    lake.holds([kept])

    later = tailrace(lake, "compact", "--json")
    assert later.returncode == 1
    said = summary_of(later.stdout)
    assert (said["set_aside"], said["left_out"]) == (0, 1)
    assert f"tailrace verify --give-up {damaged}" in said["alarms"][0]
    assert DECIDED not in later.stderr
    assert "nothing was done: 1 damaged segment left out" in later.stderr
    given_up = tailrace(lake, "verify", "--give-up", damaged)
    assert (given_up.returncode, given_up.stdout) == (0, f"given up: {damaged}\n")
    last = tailrace(lake, "compact", "--json")
    said = summary_of(last.stdout)
    assert (last.returncode, said["alarms"], said["left_out"]) == (0, [], 0)
    assert DECIDED in last.stderr
    assert "segment-aside" not in tailrace(lake, "verify").stdout


def test_an_intact_copy_ends_the_alarm(lake: Lake) -> None:
    lake.session = PlainEngine()
    kept, lost = batch("f", "r", NOON, 20), batch("f", "r", NOON + 1, 120)
    lake.put("a", [kept])
    damaged = lake.put("a", [lost])
    intact = flip(lake, damaged)
    assert lake.compact().left_out == 1
    lake.run(give_up_and_put(lake, damaged, intact))
    assert "brought back" in tailrace(lake, "verify", "--repair").stdout
    report = lake.compact()
    assert (report.alarms, report.left_out) == ([], 0)
    assert lake.keys(keys.QUARANTINE) == []
    lake.holds([kept, lost])


async def give_up_and_put(lake: Lake, key: str, body: bytes) -> None:
    """A copy turns up after the lines were given up."""
    marker = keys.give_up_marker("a", 2)
    await lake.store.put(marker, b'{"at":"2026-11-29T12:00:00.000Z","version":"1"}')
    await lake.store.put(key, body)


@pytest.mark.in_turn(3)
def test_a_bit_in_any_column_of_a_segment_is_noticed(lake: Lake) -> None:
    lake.session = PlainEngine()
    damaged = [lake.put("a", [batch("f", "r", NOON + number, 20)]) for number in range(len(SCHEMA))]
    for column, key in enumerate(damaged):
        metadata = pq.read_metadata(pa.BufferReader(lake.run(lake.store.get(key))[1]))
        chunk = metadata.row_group(0).column(column)
        flip(lake, key, chunk.data_page_offset + chunk.total_compressed_size - 1)
    report = lake.compact()
    assert (report.left_out, report.rows_out) == (len(SCHEMA), 0)
    assert tailrace(lake, "verify").stdout.count("fault: segment-aside: ") == len(SCHEMA)


def test_only_what_is_quarantined_can_be_given_up(lake: Lake) -> None:
    lake.session = PlainEngine()
    sound = lake.put("a", [batch("f", "r", NOON, 3)])
    damaged = lake.put("a", [batch("f", "r", NOON + 1, 3)])
    flip(lake, damaged)
    lake.compact()
    refused = tailrace(lake, "verify", "--give-up", damaged, "--give-up", sound)
    assert refused.returncode != 0
    assert f"{sound} is not quarantined" in refused.stderr
    with pytest.raises(InvalidInput, match="not the key of a segment"):
        lake.run(give_up(lake.store, "segments/a", at="", version=""))
    assert lake.compact().left_out == 1  # nothing was given up


def test_many_of_them_are_some_alarms_and_a_number(lake: Lake) -> None:
    lake.session = PlainEngine()
    for seq in range(1, 31):
        lake.put_bytes(keys.segment("a", seq), b"not a segment")
    report = lake.compact()
    assert (report.left_out, len(report.alarms)) == (30, 21)
    assert report.alarms[-1] == "10 more damaged segments are left out"


def test_a_service_beside_it_says_so_until_it_is_decided(lake: Lake, tmp_path: Path) -> None:
    lake.session = PlainEngine()
    flip(lake, lake.put("a", [batch("f", "r", NOON, 3)]))
    path = str(tmp_path / "compactor.prom")
    listener, file = (
        MetricsListener(SystemClock(), Textfile(Disk(), path)),
        CompactorFile(Disk(), path),
    )

    def over(report: PassReport) -> list[str]:
        lake.run(listener.over(report))
        return file.problems()

    for _ in range(2):
        (problem,) = over(lake.compact())
        assert problem.startswith("1 damaged segments are not in the table")
    assert over(PassReport()) == []
    (problem,) = over(PassReport(alarms=["a gap"]))
    assert "the last compaction had 1 alarms" in problem
