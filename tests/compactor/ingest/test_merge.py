"""Segments through Spark into the table, beside a plain model of it."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import duckdb
import orjson
import pyarrow.parquet as pq
import pytest

from compactor.settings import Compaction
from compactor.spark.engine import MergeInput
from compactor.spark.jobs import merge
from compactor.spark.session import Session
from tailrace.logstore import keys, ulid
from tailrace.logstore.batch import RecordMeta, RunKey
from tailrace.logstore.errors import Unavailable
from tailrace.logstore.segments.detect import Carry
from tailrace.logstore.segments.writer import encode_segment
from tailrace.logstore.table.schema import COLUMNS
from tests.batches import Entry, make_batches
from tests.compactor.lake import HOUR, NOON, Batch, Lake, batch

pytestmark = pytest.mark.spark


def test_a_record_is_in_the_table_once_whatever_came_twice(warm: Lake) -> None:
    one, two, three = (batch("f", "r", NOON + i, 20) for i in range(3))
    warm.put("a", [one, two])
    warm.put("b", [two, three])
    warm.put("a", [three])
    report = warm.compact()
    warm.holds([one, two, three])
    assert (report.segments, report.rows_in, report.rows_out) == (3, 100, 60)
    assert (report.duplicates, report.deleted, report.files) == (40, 0, 1)
    assert warm.snapshot().marks(["a", "b"]) == {"a": 2, "b": 1}


def test_what_the_table_already_holds_is_not_taken_in_again(warm: Lake) -> None:
    old = [batch("f", "r", NOON + i * 60_000, 20) for i in range(4)]
    warm.put("a", old)
    warm.compact()
    new = batch("f", "r", NOON + 30_000, 20)
    warm.put("b", [old[0], new, old[3]])
    report = warm.compact()
    warm.holds([*old, new])
    assert (report.rows_in, report.rows_out, report.duplicates) == (60, 20, 40)


def test_a_folder_may_be_named_like_a_pattern(session: Session, tmp_path: Path) -> None:
    lake = Lake(tmp_path / "my data [x] {a,b} *" / "data")
    lake.session = session
    old, new = (batch("f", "r", NOON + i, 20) for i in range(2))
    lake.put("a", [old])
    lake.compact()
    lake.put("b", [old, new])
    report = lake.compact()
    lake.holds([old, new])
    assert report.duplicates == 20


def test_a_failure_of_spark_is_an_error_with_a_reason(session: Session, tmp_path: Path) -> None:
    gone = MergeInput({str(tmp_path / "gone.parquet"): 9}, {}, [0], [0], [], 0, 1)
    with pytest.raises(Unavailable, match=r"Spark failed: .*gone"):
        merge(session.get(), gone, str(tmp_path / "out"))


def test_the_same_id_in_another_run_is_another_record(warm: Lake) -> None:
    mine, theirs = batch("f", "r1", NOON, 5), batch("f", "r2", NOON, 5)
    other = batch("g", "r1", NOON, 5)
    warm.put("a", [mine, theirs, other])
    warm.compact()
    warm.holds([mine, theirs, other])


def test_hours_are_of_the_ulid_and_each_file_has_one(warm: Lake) -> None:
    edges = [
        batch("f", "r", NOON + hours * HOUR + offset, 3, salt=i)
        for i, (hours, offset) in enumerate([(0, 0), (0, HOUR - 1), (1, 0), (13, 5), (400, 7)])
    ]
    warm.put("a", edges)
    assert warm.compact().hours == 4
    warm.holds(edges)


def test_deleted_lines_are_left_out_up_to_their_tombstone(warm: Lake) -> None:
    gone = batch("f", "r1", NOON, 4)
    at = batch("f", "r1", NOON + 1, 4)
    after = batch("f", "r1", NOON + 2, 4)
    other_run = batch("f", "r2", NOON, 4)
    pipeline = batch("g", "r1", NOON, 4)
    warm.put("a", [gone, at, after, other_run, pipeline])
    warm.put("b", [gone])
    warm.delete("f", "r1", at[1] | ulid.LINE_MASK)
    warm.delete("g", None, NOON << 80 | 1 << 79)
    report = warm.compact()
    warm.holds([after, other_run])
    assert (report.rows_in, report.rows_out) == (24, 8)
    assert (report.deleted, report.duplicates) == (16, 0)


def test_a_corrupt_segment_is_set_aside_and_the_rest_goes_on(warm: Lake) -> None:
    first, second, third = (batch("f", "r", NOON + i, 10) for i in range(3))
    warm.put("a", [first])
    bad = warm.put("a", [second])
    warm.put("a", [third])
    body = bytearray(warm.run(warm.store.get(bad))[1])
    body[100] ^= 1
    warm.put_bytes(bad, bytes(body))
    report = warm.compact()
    warm.holds([first, third])
    assert (report.set_aside, report.left_out, report.segments) == (1, 1, 3)
    assert "segment 2 of a is left out" in report.alarms[0]
    assert (
        "seal"
        in orjson.loads(warm.run(warm.store.get(keys.quarantine_marker("a", 2)))[1])["reason"]
    )
    assert bad in warm.keys("segments/a/")
    assert warm.snapshot().mark("a") == 3


def test_a_newer_format_stops_its_node_and_no_other(warm: Lake) -> None:
    first, second = batch("f", "r", NOON, 10), batch("f", "r", NOON + 1, 10)
    warm.put("a", [first])
    sealed = bytearray(warm.run(warm.store.get(keys.segment("a", 1)))[1])
    warm.put_bytes(keys.segment("b", 1), newer(sealed))
    warm.put("b", [second], seq=2)
    report = warm.compact()
    warm.holds([first])
    assert "b waits at segment 1" in report.alarms[0]
    assert warm.snapshot().marks(["a", "b"]) == {"a": 1, "b": 0}
    assert warm.keys(keys.QUARANTINE) == []


def newer(body: bytearray) -> bytes:
    """The segment with a seal of a kind that this program does not know, itself intact."""
    import xxhash

    from tailrace.logstore.segments import file_format

    start = file_format.footer_start(memoryview(body)) - file_format.SIZE
    head = b"TRSEAL99" + bytes(body[start + 8 : start + 24])
    body[start : start + file_format.SIZE] = head + xxhash.xxh3_64_intdigest(head).to_bytes(
        8, "little"
    )
    return bytes(body)


def test_every_column_arrives_as_it_was(warm: Lake) -> None:
    text = b"first\nsecond\nwith\nlines\n"
    meta = RecordMeta(
        ends=(6, 13, len(text)),
        ts=(1_700_000_000_123_456, None, 5),
        levels=("ERROR", None, "TRACE"),
        attributes=({"k": "v", "ü": "\n"}, None, {}),
    )
    key = RunKey("f.ü/'\" 🚀", "r\\1")
    shared = {"log.file.name": "a.log", "ü": "\n"}
    entries: list[Entry] = [
        (key, ulid.lowest_at(NOON), text, "conn", meta),
        (key, ulid.lowest_at(NOON + 1), b"plain\n" * 3, None, shared),
        (key, ulid.lowest_at(NOON + 2), b"bare\n", None),
    ]
    body = encode_segment(make_batches("a", entries), node="a", seq=1, carry=Carry()).body
    warm.put_bytes(keys.segment("a", 1), body)
    warm.compact()
    (file,) = warm.snapshot().files
    sent = duckdb.sql(rows(warm.store.uri(keys.segment("a", 1)))).fetchall()
    assert duckdb.sql(rows(file.uri)).fetchall() == sent
    assert [row[-1] for row in sent[3:]] == [*[shared] * 3, None]
    assert len(sent) == 7
    written = pq.ParquetFile(file.uri).schema_arrow
    assert {name: str(written.field(name).type) for name in ("ts", "pos", "ulid")} == {
        "ts": "timestamp[us, tz=UTC]",
        "pos": "int64",
        "ulid": "string",
    }
    assert [field.name for field in written] == [field.name for field in COLUMNS][:-2]


def rows(path: str) -> str:
    columns = "ulid, epoch_us(ts), fqn, run_id, pos, level, connector_id, message, attributes"
    return f"SELECT {columns} FROM read_parquet('{path}') ORDER BY ulid"


def test_a_backlog_is_taken_in_by_parts(warm: Lake) -> None:
    parts = [batch("f", "r", NOON + i, 50) for i in range(6)]
    sizes = [warm.run(warm.store.head(warm.put("a", [part]))).size for part in parts]
    warm.limits = Compaction(batch_bytes=2 * max(sizes))
    report = warm.compact()
    warm.holds(parts)
    assert (report.commits, report.segments) == (3, 6)


def test_a_table_made_by_another_is_planned_anew(warm: Lake) -> None:
    """Another driver commits while this one merges: its segments are not ingested twice."""
    one, two = batch("f", "r", NOON, 10), batch("f", "r", NOON + 1, 10)
    warm.put("a", [one])
    other = Lake(warm.data, session=warm.session)

    def step(name: str) -> None:
        if name == "written" and warm.snapshot().mark("a") == 0:
            warm.reached = lambda _name: None
            run_elsewhere(other.compact)

    warm.reached = step
    report = warm.compact()
    warm.holds([one])
    assert (report.commits, report.rows_out) == (0, 0)
    warm.put("a", [two])
    warm.compact()
    warm.holds([one, two])


def run_elsewhere(work: Callable[[], object]) -> None:
    import threading

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()


@pytest.mark.in_turn(4)
def test_random_histories_end_as_the_model_says(warm: Lake) -> None:
    dice = random.Random(20261121)
    sent: list[Batch] = []
    for _round in range(4):
        for node in ("a", "b", "c"):
            for _segment in range(dice.randrange(3)):
                fresh = [
                    batch(
                        dice.choice("fg"),
                        f"r{dice.randrange(3)}",
                        NOON + dice.randrange(3 * HOUR),
                        dice.randrange(1, 40),
                        salt=dice.randrange(1 << 20),
                    )
                    for _ in range(dice.randrange(1, 6))
                ]
                again = dice.sample(sent, min(len(sent), dice.randrange(4)))
                warm.put(node, fresh + again)
                sent += fresh
        warm.compact()
        warm.holds(sent)
    assert warm.compact().commits == 0
