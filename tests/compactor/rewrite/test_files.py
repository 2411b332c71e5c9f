"""Files of an hour through Spark: one range of keys each, whatever one run has of the lines."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from compactor.report import PassReport
from compactor.rewrite import rewrite_hours
from compactor.settings import Compaction
from compactor.spark.engine import RewriteInput
from compactor.spark.jobs import cuts, rewrite
from compactor.spark.session import Session
from tailrace.logstore import ulid
from tailrace.logstore.clock import SystemClock
from tailrace.logstore.errors import Unavailable
from tailrace.logstore.table.snapshot import TableFile
from tests.compactor.files import add_files
from tests.compactor.lake import HOUR, NOON, Lake, batch


def keys_of(file: TableFile) -> list[tuple[str, str, str]]:
    rows = pq.ParquetFile(file.uri).read(["fqn", "run_id", "ulid"]).to_pylist()
    return [(row["fqn"], row["run_id"], row["ulid"]) for row in rows]


@pytest.mark.in_turn(4)
@pytest.mark.spark
def test_a_run_with_nearly_all_lines_is_cut_by_time(warm: Lake) -> None:
    big = [batch("f", "big", NOON + i * 60_000, 400) for i in range(10)]
    small = [batch("f", f"r{i}", NOON + i, 40) for i in range(10)]
    files = [[big[i], small[i]] for i in range(10)]
    copy, gone = files[3], batch("g", "gone", NOON, 40)
    sizes = [file.size for file in add_files(warm, *files, [*copy, gone]).files]
    warm.limits = Compaction(file_bytes=sum(sizes) // 4)
    warm.delete("g", None, ulid.highest_at(NOON))
    warm.clock.shift_ms = NOON + 6 * HOUR - SystemClock().now_ms()
    report = PassReport()
    warm.run(rewrite_hours(warm.compactor, report))
    warm.holds([*big, *small])
    made = sorted(warm.snapshot().files, key=lambda file: file.path)
    assert (report.hours_rewritten, len(made)) == (1, 4)
    ranges = [(keys[0], keys[-1]) for keys in map(keys_of, made)]
    assert ranges == sorted(ranges)
    assert all(high < low for (_, high), (low, _) in pairwise(ranges))
    assert all(500 < file.rows < 1_800 for file in made)
    assert sum(file.runs == ("big", "big") for file in made) >= 2
    session, each = warm.session, [{file.uri: file.size} for file in made]
    assert not session.share_batches(each[0], each[-1])
    assert session.share_batches(each[0], each[0] | each[1])


@pytest.mark.spark
def test_a_spark_that_fails_is_unavailable(session: Session, tmp_path: Path) -> None:
    work = RewriteInput({str(tmp_path / "gone.parquet"): 9}, 1, 2, [])
    with pytest.raises(Unavailable, match=r"Spark failed: .*gone"):
        rewrite(session.get(), work, str(tmp_path / "out"))


def test_ranges_are_even_and_a_key_that_is_everywhere_begins_one() -> None:
    keys = [("f", "r", f"{i:03}") for i in range(100)]
    assert cuts(keys[::-1], 4) == [keys[25], keys[50], keys[75]]
    assert cuts([keys[0]] * 99 + [keys[1]], 4) == [keys[0]]
    assert cuts([], 4) == []
    assert cuts(keys, 1) == []
