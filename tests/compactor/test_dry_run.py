"""A dry run: what it says comes true, it changes nothing, and it needs no Java."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import orjson
import pytest

from compactor.dry_run import DryRun, dry_run
from compactor.report import PassReport
from compactor.settings import Compaction
from tailrace.logstore import keys
from tailrace.logstore.batch import RunKey
from tailrace.logstore.runs.deletions import RunRetention
from tailrace.logstore.runs.manifest import Manifest, encode_manifest
from tests.compactor.lake import HOUR, NOON, Lake, batch
from tests.compactor.plain_engine import PlainEngine


@pytest.fixture
def plain(lake: Lake) -> Lake:
    """A store whose compactor merges without Spark."""
    lake.session = PlainEngine()
    return lake


def content(lake: Lake) -> dict[str, bytes]:
    """Every file below the data folder."""
    return {str(p): p.read_bytes() for p in lake.data.rglob("*") if p.is_file()}


def foreseen(lake: Lake) -> DryRun:
    before = content(lake)
    preview = lake.run(dry_run(lake.compactor))
    assert content(lake) == before
    return preview


def came_true(preview: DryRun, report: PassReport) -> None:
    """The pass did as was said, but for how many cores its engine had."""
    said = [(b.segments, b.bytes, b.rows, b.hours) for b in preview.batches]
    assert [(b.segments, b.bytes, b.rows, b.hours) for b in report.batches] == said


def test_it_foresees_what_the_pass_then_does(plain: Lake) -> None:
    uploaded = []
    for i in range(6):
        sent = [batch("f", f"r{i}", NOON + i * HOUR // 2, 30), batch("f", "late", NOON - HOUR, 5)]
        uploaded.append(plain.put("ab"[i % 2], sent))
    sizes = [(plain.data / "store" / key).stat().st_size for key in uploaded]
    plain.limits = Compaction(batch_bytes=sum(sizes[:3]))
    preview = foreseen(plain)
    assert (preview.version, preview.lag.segments, preview.lag.bytes) == (-1, 6, sum(sizes))
    assert {(n.node, n.mark, n.segments) for n in preview.nodes} == {("a", 0, 3), ("b", 0, 3)}
    assert len(preview.batches) >= 2
    report = plain.compact()
    came_true(preview, report)
    assert report.lag is not None
    assert report.lag.segments == 0
    after = foreseen(plain)
    assert (after.batches, after.nodes, after.lag.segments) == ((), (), 0)


def test_it_foresees_where_much_text_ends_a_batch(plain: Lake) -> None:
    for i in range(7):
        plain.put("ab"[i % 2], [batch("f", f"r{i}", NOON + i, 30)])
    plain.limits = Compaction(bucket_bytes=10)  # 5 KB of text a batch, of which a segment has 2
    preview = foreseen(plain)
    assert [one.segments for one in preview.batches] == [2, 2, 2, 1]
    came_true(preview, plain.compact())


def test_it_says_what_would_be_rewritten_and_what_would_expire(plain: Lake) -> None:
    plain.clock.shift_ms = NOON - plain.clock.now_ms()  # the hour is not over yet
    for i in range(4):
        plain.put("a", [batch("f", f"r{i}", NOON + i, 30)])
        plain.compact()
    assert foreseen(plain).rewrites == ()
    plain.clock.shift_ms += 48 * HOUR
    preview = foreseen(plain)
    assert [(one.hour, one.files) for one in preview.rewrites] == [("2026-11-21T12", 4)]
    assert preview.expiry.hours == 0
    plain.limits = Compaction(retention_days=1)
    assert foreseen(plain).expiry.rows == 120
    plain.delete("f", "r0", 1 << 127)
    assert foreseen(plain).deletions == 1


def test_it_says_which_runs_the_service_would_remove(plain: Lake) -> None:
    kept, old, late = RunKey("f", "kept"), RunKey("f", "old"), RunKey("f", "late")
    now = plain.clock.now_ms()
    for key, last_ms in ((kept, now - HOUR), (old, now - 3 * HOUR), (late, now - 4 * HOUR)):
        # Whenever they arrived.
        manifest = Manifest(key, last_ms=last_ms, flushed_ms=now)
        plain.put_bytes(keys.run_manifest(key), encode_manifest(manifest))
    assert foreseen(plain).runs.count == 0
    looking = replace(plain.compactor, runs=RunRetention(expiration_days=2 / 24))
    preview = plain.run(dry_run(looking))
    assert [run for _, run, _ in preview.runs.oldest] == ["late", "old"]
    assert preview.runs.count == 2
    assert "2 runs would expire:\n  f/late: last line at 20" in preview.text()


def test_it_warns_of_what_would_wait_or_be_set_aside(plain: Lake) -> None:
    plain.put("a", [batch("f", "r", NOON, 3)])
    plain.put("a", [batch("f", "r", NOON + 1, 3)], seq=3)
    plain.put_bytes(keys.segment("b", 1), b"not a segment")
    plain.limits = Compaction(gap_alarm_seconds=0)
    plain.clock.shift_ms = 1_000
    preview = foreseen(plain)
    assert [(b.segments, b.rows) for b in preview.batches] == [(2, 3)]
    damaged, gap = sorted(preview.alarms)
    assert damaged.startswith("segment 1 of b would be left out, because it is damaged")
    assert gap.startswith("segment 2 of a is missing")
    assert "ALARM segment 2 of a is missing" in preview.text()
    came_true(preview, plain.compact())


def _dry(*words: str) -> subprocess.CompletedProcess[str]:
    return _ran("tailrace", "compact", "--dry-run", *words)


def _ran(module: str, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", module, *words],
        capture_output=True,
        text=True,
        env={**os.environ, "JAVA_HOME": "/nowhere"},
        timeout=300,
        check=False,
    )


@pytest.mark.in_turn(3)
def test_the_command_prints_it_without_java(lake: Lake) -> None:
    lake.put("a", [batch("f", "r", NOON, 3)])
    before = content(lake)
    people, program = _dry("--data", str(lake.data)), _dry("--data", str(lake.data), "--json")
    assert content(lake) == before
    assert (people.returncode, program.returncode) == (0, 0)
    assert people.stdout.startswith("No table yet.\n1 segments wait, ")
    assert "  a: 1 after segment 0, " in people.stdout
    assert "  1: 1 segments, " in people.stdout
    assert orjson.loads(program.stdout)["batches"][0]["rows"] == 3


@pytest.mark.parametrize("flags", [["--dry-run"], []])
def test_a_store_that_is_not_there_is_not_made(tmp_path: Path, flags: list[str]) -> None:
    done = _ran("compactor.job", "--data", str(tmp_path / "nowhere"), *flags)
    assert done.returncode == 2
    assert "there is no store at" in done.stderr
    assert list(tmp_path.iterdir()) == []
