from __future__ import annotations

import random
from pathlib import Path

import duckdb
import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings

from tailrace.logstore.batch import RunKey
from tailrace.logstore.errors import Damaged, UnsupportedVersion
from tailrace.logstore.segments import file_format
from tailrace.logstore.segments.detect import Carry
from tailrace.logstore.segments.file_format import SCHEMA
from tailrace.logstore.segments.reader import open_segment, verify_segment
from tailrace.logstore.segments.slices import Limits
from tailrace.logstore.segments.writer import EncodedSegment, encode_segment
from tailrace.logstore.ulid import encode
from tests.batches import MemoryBatches, make_batches
from tests.logstore.segments.corpora import many_batches
from tests.logstore.segments.model import rows_of
from tests.logstore.segments.test_columns import rows_from

A, B = RunKey("svc.a", "1"), RunKey("svc.b", "1")


def encoded(
    batches: MemoryBatches, limits: Limits | None = None, *, threads: bool = False
) -> EncodedSegment:
    return encode_segment(
        batches, node="node-1", seq=7, carry=Carry(), limits=limits, threads=threads
    )


def some() -> MemoryBatches:
    lines = b"".join(b"2024-05-06 07:08:%02d INFO line %d\n" % (n % 60, n) for n in range(50))
    entries = [(A, 3 << 80, lines), (B, 1 << 80, b"x\r\n\n"), (A, 3 << 80, lines)]
    return make_batches("node-1", entries, 100)


@pytest.mark.in_turn(3)
@settings(deadline=None, max_examples=40)
@given(many_batches())
def test_what_was_written_is_read(batches: MemoryBatches) -> None:
    segment = encoded(batches, Limits(text=100, rows=5))
    found = pa.Table.from_batches(
        [b for table in open_segment(segment.body).groups() for b in table.to_batches()], SCHEMA
    )
    assert rows_from(found) == rows_of(batches)
    assert verify_segment(segment.body) == segment.footer
    assert segment.rows == found.num_rows


def test_equal_batches_give_equal_bytes() -> None:
    assert encoded(some()).body == encoded(some()).body
    small = Limits(text=100, rows=5)
    assert encoded(some(), small, threads=True).body == encoded(some(), small).body


def test_what_is_damaged_in_a_later_slice_is_told_by_threads_too() -> None:
    batches = some()
    batches.rows["records"][[0, 2]] += 1
    with pytest.raises(Damaged):
        encoded(batches, Limits(text=100, rows=5), threads=True)


def test_the_footer_says_what_is_in_it() -> None:
    segment = encoded(some(), Limits(rows=20))
    about = verify_segment(segment.body)
    assert (about.node, about.seq, about.rows, about.ranges) == ("node-1", 7, 52, ((100, 202),))
    assert (about.low, about.high) == (encode(1 << 80), encode((3 << 80) + 49))
    run = about.run(A)
    assert run is not None
    assert (run.rows, run.first, run.last) == (50, 100, 149)
    assert about.run(RunKey("svc.c", "1")) is None
    assert segment.text_bytes == 50 * len("2024-05-06 07:08:00 INFO line 10\n") - 10 + 4


@pytest.mark.parametrize(("line", "coloured"), [("plain", False), ("\x1b[1mbold\x1b[0m", True)])
def test_the_footer_says_whether_a_line_has_colours(line: str, coloured: bool) -> None:
    batches = make_batches("n", [(A, 1 << 80, f"before\n{line}\n".encode())])
    assert verify_segment(encoded(batches, Limits(rows=1)).body).coloured is coloured


def test_a_footer_that_does_not_say_so_may_have_colours() -> None:
    written = file_format.encode(verify_segment(encoded(some()).body))
    about = orjson.loads(written[file_format.KEY.decode()])
    del about["coloured"]
    older = written | {file_format.KEY.decode(): orjson.dumps(about).decode()}
    assert file_format.decode_footer(
        {name.encode(): text.encode() for name, text in older.items()}
    ).coloured


def test_a_segment_without_rows() -> None:
    segment = encoded(make_batches("n", []))
    assert (verify_segment(segment.body).rows, segment.low, segment.high) == (0, "", "")


def test_duckdb_reads_the_same_values(tmp_path: Path) -> None:
    path = tmp_path / "segment.parquet"
    path.write_bytes(encoded(some(), Limits(rows=20)).body)
    with duckdb.connect() as db:
        found = db.execute(
            "select ulid, epoch_us(ts), fqn, run_id, pos, level, connector_id, encode(message), "
            "attributes, carried from read_parquet(?) order by ulid, fqn",
            [str(path)],
        ).fetchall()
    assert found == [tuple(row) for row in rows_of(some())]


def test_row_groups_stay_small_and_hold_a_long_line_whole() -> None:
    long = b"y" * (20 << 20) + b"\n"
    text = b"short line\n" * 900_000 + long + b"after\n"
    segment = encoded(make_batches("n", [(A, 1 << 80, text)]))
    sizes = [table["message"].nbytes for table in open_segment(segment.body).groups()]
    assert sum(size > 12 << 20 for size in sizes) == 1
    assert verify_segment(segment.body).rows == 900_002


def test_a_segment_cut_at_any_byte_is_damaged() -> None:
    body = encoded(some()).body
    for size in range(len(body)):
        with pytest.raises(Damaged):
            open_segment(body[:size])


def test_a_changed_byte_anywhere_is_damaged() -> None:
    body = encoded(some(), Limits(rows=20)).body
    dice = random.Random(3)
    for place in range(len(body)):
        changed = bytearray(body)
        changed[place] ^= 1 << dice.randrange(8)
        with pytest.raises(Damaged):
            open_segment(bytes(changed))


def test_bytes_behind_the_end_are_damage() -> None:
    body = encoded(some()).body
    for more in (b"\0", body):
        with pytest.raises(Damaged):
            verify_segment(more + body if more == body else body + more)


def parquet_of(table: pa.Table) -> memoryview:
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink)
    return memoryview(sink.getvalue())


def test_foreign_parquet_is_damaged_even_under_a_seal() -> None:
    foreign = pa.table({"x": [1]})
    for body in (bytes(parquet_of(foreign)), file_format.sealed(parquet_of(foreign))):
        with pytest.raises(Damaged):
            verify_segment(body)
    about = {k.encode(): v.encode() for k, v in file_format.encode(encoded(some()).footer).items()}
    with pytest.raises(Damaged, match="columns"):
        verify_segment(file_format.sealed(parquet_of(foreign.replace_schema_metadata(about))))


def test_a_newer_format_is_told_from_damage() -> None:
    about = file_format.encode(encoded(some()).footer)
    about["tailrace.segment"] = about["tailrace.segment"].replace('"version":2', '"version":3')
    newer = pa.table({"x": [1]}, metadata=about)
    with pytest.raises(UnsupportedVersion):
        verify_segment(file_format.sealed(parquet_of(newer)))


def test_other_rows_under_the_footer_are_damaged() -> None:
    about = file_format.encode(encoded(some()).footer)
    rows = encoded(make_batches("n", [(A, 1 << 80, b"other\n" * 52)]))
    table = pa.concat_tables(open_segment(rows.body).groups())
    body = file_format.sealed(parquet_of(table.replace_schema_metadata(about)))
    with pytest.raises(Damaged, match="checksum"):
        verify_segment(body)
    with pytest.raises(Damaged, match="checksum"):
        open_segment(body).group(0, ["message", *file_format.CHECKED])
    assert open_segment(body).group(0, ["message"]).num_rows == 52


def test_a_text_that_is_not_what_its_batch_says_is_damaged() -> None:
    for field, value in (("records", 3), ("size", 5)):
        batches = make_batches("n", [(A, 1 << 80, b"one\ntwo\n")])
        batches.rows[field] = value
        with pytest.raises(Damaged):
            encoded(batches)
