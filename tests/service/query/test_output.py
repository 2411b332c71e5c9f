"""Results as bytes: by column, and byte for byte what record by record would give."""

from __future__ import annotations

import io
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from service.query.output import Ndjson, Parquet, ResultEncoder, Text, pieces
from tailrace.logstore import ulid as ulids
from tailrace.logstore.table.schema import RECORD_SCHEMA

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_CONTROLS = "".join(map(chr, range(32)))
_HARD = ["", "\x7f", "\x7f\x7f", '"', "\\", '","', '\\",', '\x7f"', "\u2028", "\U0001f6f6", "null"]

# A slow machine is no failure.
patient = settings(
    deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow], max_examples=200
)
strings = st.one_of(
    st.text(st.characters(exclude_categories=["Cs"])),
    st.text('"\\,:{}[]\x7f\n\t\x00\x1b\u00e4\u20ac\U0001f6f6 a'),
    st.sampled_from([*_HARD, _CONTROLS]),
)
maps = st.lists(st.tuples(strings, st.none() | strings), max_size=4)
records = st.fixed_dictionaries(
    {
        "ulid": st.integers(0, (1 << 128) - 1).map(ulids.encode),
        "ts": st.integers(-(10**15), 10**17).map(lambda us: _EPOCH + timedelta(microseconds=us)),
        "fqn": strings,
        "run_id": strings,
        "pos": st.integers(-(1 << 63), (1 << 63) - 1),
        "level": st.none() | strings,
        "connector_id": st.none() | strings,
        "message": strings,
        "attributes": st.none() | maps,
    }
)


def batch_of(rows: list[dict[str, Any]]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(rows, RECORD_SCHEMA)


def record(message: str, number: int = 0, **other: Any) -> dict[str, Any]:
    return {
        "ulid": ulids.encode(number),
        "ts": _EPOCH + timedelta(microseconds=number),
        "fqn": "svc.one",
        "run_id": "r",
        "pos": number,
        "level": None,
        "connector_id": None,
        "message": message,
        "attributes": None,
        **other,
    }


def encoded(output: ResultEncoder, batches: Iterable[pa.RecordBatch]) -> bytes:
    return b"".join(piece for batch in batches for piece in output.records(batch))


def plain(rows: Iterable[dict[str, Any]]) -> bytes:
    """What ndjson means, said one record at a time."""
    return b"".join(orjson.dumps(_object(row)) + b"\n" for row in rows)


def _object(row: dict[str, Any]) -> dict[str, Any]:
    ts = row["ts"].replace(tzinfo=None).isoformat(timespec="microseconds") + "Z"
    attributes = row["attributes"]
    return {
        "ulid": row["ulid"],
        "ts": ts,
        **{name: row[name] for name in ("fqn", "run_id", "level", "connector_id", "pos")},
        "message": row["message"],
        "attributes": None if attributes is None else dict(attributes),
    }


@patient
@given(st.lists(records, max_size=20), st.integers(0, 20), st.integers(0, 20))
def test_ndjson_is_what_record_by_record_gives(
    rows: list[dict[str, Any]], start: int, size: int
) -> None:
    for times in (1, 65):  # few records go one by one, many by column
        many = rows * times
        assert encoded(Ndjson(), [batch_of(many)]) == plain(many)
        part = batch_of(many).slice(start, size * times)  # its buffers are those of the whole
        assert encoded(Ndjson(), [part]) == plain(many[start : start + size * times])


@patient
@given(st.lists(strings, max_size=20), st.integers(0, 20), st.integers(0, 20))
def test_text_is_the_messages_each_with_a_newline(
    messages: list[str], start: int, size: int
) -> None:
    batch = batch_of([record(message) for message in messages]).slice(start, size)
    expected = "".join(message + "\n" for message in messages[start : start + size])
    assert encoded(Text(), [batch]) == expected.encode()


@patient
@given(st.lists(records, min_size=1, max_size=20))
def test_parquet_holds_the_records(rows: list[dict[str, Any]]) -> None:
    output = Parquet()
    body = encoded(output, [batch_of(rows)]) + output.end({})
    with pq.ParquetFile(io.BytesIO(body)) as file:
        assert file.read().equals(pa.Table.from_batches([batch_of(rows)]))


@pytest.mark.parametrize("unit", ["x", '"', "\x00", "\x7f", "\u20ac", "\U0001f6f6"])
def test_huge_lines_between_small_ones(unit: str) -> None:
    messages = ["", unit * 3_000_000, "small", unit, "", unit * 1_000_000]
    rows = [record(message, number) for number, message in enumerate(messages)]
    assert encoded(Ndjson(), [batch_of(rows)]) == plain(rows)
    assert encoded(Text(), [batch_of(rows)]) == "".join(m + "\n" for m in messages).encode()


def test_pieces_are_bounded_by_bytes_and_by_records() -> None:
    for size, count in ((0, 100_000), (100, 50_000), (1_000, 3_000), (400_000, 5)):
        batch = batch_of([record("m" * size, number) for number in range(count)])
        parts = list(pieces(batch))
        assert pa.Table.from_batches(parts).equals(pa.Table.from_batches([batch]))
        for output in (Ndjson(), Text()):
            for piece in output.records(batch):
                assert len(piece) < 1 << 20


@pytest.mark.parametrize("count", [1, 64, 65, 3_000])
def test_each_record_of_each_piece_has_its_own_names(count: int) -> None:
    levels = [None, "INFO", "WARN"]
    rows = [
        record("m" * 500, n, fqn=f"svc.{n % 7}", run_id=f"r{n % 11}", level=levels[n % 3])
        for n in range(count)
    ]
    assert encoded(Ndjson(), [batch_of(rows)]) == plain(rows)
    assert len(list(pieces(batch_of(rows)))) > 5 or count < 3_000


def test_nothing_is_no_piece() -> None:
    for output in (Ndjson(), Text(), Parquet()):
        assert list(output.records(batch_of([]))) == []


def test_a_parquet_group_is_filled_by_what_is_held_not_by_what_it_was_cut_from() -> None:
    whole = batch_of([record("m" * 1000, number) for number in range(6_000)])
    output = Parquet()
    parts = [whole.slice(start, 1_000) for start in range(0, 6_000, 1_000)]
    body = encoded(output, parts) + output.end({})
    with pq.ParquetFile(io.BytesIO(body)) as file:
        assert (file.num_row_groups, file.metadata.num_rows) == (1, 6_000)
