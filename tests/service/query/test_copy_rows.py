"""Rows that are read where they lie in a copy are those that Parquet's reader gives."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from service.query import scan_copies
from service.query.footers import TableFileFooter, batch_of
from service.query.scan_copies import ENCODING, CopyRows, write_rows
from service.query.text_scan import places
from tailrace.logstore import ulid
from tailrace.logstore.table.schema import RECORD_SCHEMA
from tests.seeds import seeds

PIECES = ["", "a", "aa", "späße", "🎉", "\n", "\x00", "needle", "x" * 300]


def table_of(rng: random.Random, rows: int) -> pa.Table:
    ids = [ulid.encode(rng.getrandbits(127)) for _ in range(rows)]
    pick = rng.choices
    columns = {
        "ulid": ids,
        "ts": pa.array(pick(range(-(1 << 40), 1 << 50), k=rows), pa.timestamp("us", "UTC")),
        "fqn": pick(["svc.a", "svc.ä", "s"], k=rows),
        "run_id": pick([f"run-{n}" for n in range(20)], k=rows),
        "pos": pick(range(-3, 1 << 60), k=rows),
        "level": pick(["INFO", "ERROR", None], k=rows),
        "connector_id": pick([None, "host-1"], k=rows),
        "message": ["".join(pick(PIECES, k=rng.randrange(4))) for _ in range(rows)],
        "carried": pick([None, True], k=rows),
        "attributes": pa.nulls(rows, RECORD_SCHEMA.field("attributes").type),
    }
    return pa.table([columns[name] for name in RECORD_SCHEMA.names], schema=RECORD_SCHEMA)


def copy_of(
    path: Path, table: pa.Table, *, group_rows: int = 1_000, **others: Any
) -> CopyRows | None:
    without = table.drop_columns(["attributes"])
    with pq.ParquetWriter(path, without.schema, **ENCODING | others) as writer:
        writer.write_table(without, row_group_size=group_rows)
    return write_rows(str(path), f"{path}.rows", lambda: None)


@pytest.fixture(params=[0, 1 << 30], ids=["by parts", "whole"])
def by_parts(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the part filters of row groups however small, and without."""
    monkeypatch.setattr(scan_copies, "_WORTH_A_LOOK", request.param)


@pytest.mark.usefixtures("by_parts")
@pytest.mark.parametrize("seed", seeds(10))
def test_each_row_with_a_text_is_read_as_it_is(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    table, group_rows = table_of(rng, rng.randrange(1, 300)), rng.randrange(1, 100)
    path = tmp_path / "copy.parquet"
    rows = copy_of(path, table, group_rows=group_rows)
    assert rows is not None
    for group in TableFileFooter(str(path), pq.read_metadata(path)).groups:
        for text in ("a", "aa", "needle", "needlea", "späße🎉", "ß", "\n"):
            texts = [text.encode()]
            spans = rows.spans(group.number, None, None, [texts])
            found = [at for span in spans for at in places(str(path), span, texts, 100_000)]
            given = rows.at(group.number, found)
            numbers = list(given.numbers)
            here = table[group.first : group.end]
            messages = here.column("message").to_pylist()
            assert {n for n, message in enumerate(messages) if text in message} <= set(numbers)
            assert numbers == sorted(set(numbers))
            if numbers:
                assert batch_of([given]).to_pylist() == here.take(numbers).to_pylist()


@pytest.mark.usefixtures("by_parts")
@pytest.mark.parametrize("seed", seeds(10))
@pytest.mark.parametrize("in_order", [False, True])
def test_all_messages_of_a_run_lie_in_its_span(tmp_path: Path, seed: int, in_order: bool) -> None:
    rng = random.Random(seed)
    table = table_of(rng, rng.randrange(1, 200))
    if in_order:
        table = table.sort_by([("fqn", "ascending"), ("run_id", "ascending")])
    path = tmp_path / "copy.parquet"
    rows = copy_of(path, table)
    assert rows is not None
    body, found = path.read_bytes(), table.to_pylist()
    for fqn in (None, "svc.a", "svc.other"):
        for run in (None, "run-3"):
            spans = rows.spans(0, fqn, run, [[b"any"]])
            asked = [n for n, r in enumerate(found) if fqn in (None, r["fqn"])]
            asked = [n for n in asked if run in (None, found[n]["run_id"])]
            between = found[asked[0] : asked[-1] + 1] if asked else []
            text = "".join(row["message"] for row in between).encode()
            assert b"".join(body[begin : begin + size] for begin, size in spans) == text
            assert len(spans) <= 1


def changed(name: str, values: Callable[[pa.Table], Any]) -> Callable[[pa.Table], pa.Table]:
    def change(table: pa.Table) -> pa.Table:
        place = table.schema.get_field_index(name)
        return table.set_column(place, name, values(table))

    return change


def unchanged(table: pa.Table) -> pa.Table:
    return table


@pytest.mark.parametrize(
    ("change", "others"),
    [
        (unchanged, {"compression": "zstd"}),
        (unchanged, {"data_page_size": 100, "write_batch_size": 10}),
        (unchanged, {"max_rows_per_page": 50}),
        (unchanged, {"column_encoding": {"message": "DELTA_BYTE_ARRAY"}}),
        (unchanged, {"use_dictionary": ["message"], "column_encoding": None}),
        (changed("message", lambda t: pa.array([None] + ["x"] * (len(t) - 1))), {}),
        (changed("ulid", lambda t: pa.array(["short"] * len(t))), {}),
        (changed("ts", lambda t: t.column("ts").cast(pa.timestamp("ms", "UTC"), safe=False)), {}),
    ],
    ids=[
        *("compressed", "small pages", "few rows a page", "messages", "dictionary"),
        *("null", "no ULID", "milliseconds"),
    ],
)
def test_of_a_copy_of_another_layout_no_row_is_read(
    tmp_path: Path, change: Callable[[pa.Table], pa.Table], others: dict[str, Any]
) -> None:
    table = table_of(random.Random(1), 200)
    assert copy_of(tmp_path / "as_it_is.parquet", table) is not None
    assert copy_of(tmp_path / "copy.parquet", change(table), **others) is None


def test_of_a_copy_with_too_many_names_no_row_is_read(tmp_path: Path) -> None:
    rows = 66_000
    runs = changed("run_id", lambda t: pa.array([f"run-{n}" for n in range(len(t))]))
    assert copy_of(tmp_path / "copy.parquet", runs(table_of(random.Random(1), rows))) is None


@pytest.mark.parametrize("which", ["copy.parquet", "copy.parquet.rows"])
@pytest.mark.parametrize("gone", [False, True])
def test_files_that_are_gone_or_cut_off_are_said(tmp_path: Path, which: str, gone: bool) -> None:
    path = tmp_path / "copy.parquet"
    rows = copy_of(path, table_of(random.Random(1), 100))
    assert rows is not None
    [span] = rows.spans(0, None, None, [[b"a"]])
    found = places(str(path), span, [b"a"], 1_000)
    if gone:
        (tmp_path / which).unlink()
    else:
        (tmp_path / which).write_bytes((tmp_path / which).read_bytes()[:50])
    with pytest.raises(OSError, match=r"cut off|No such file"):
        rows.at(0, found)


@pytest.mark.parametrize("gone", [False, True])
def test_a_part_filter_that_cannot_be_read_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gone: bool
) -> None:
    monkeypatch.setattr(scan_copies, "_WORTH_A_LOOK", 0)
    path, beside = tmp_path / "copy.parquet", tmp_path / "copy.parquet.rows"
    rows = copy_of(path, table_of(random.Random(1), 100))
    assert rows is not None
    if gone:
        beside.unlink()
    else:
        beside.write_bytes(beside.read_bytes()[:-600])
    with pytest.raises(OSError, match=r"cut off|No such file"):
        rows.spans(0, None, None, [[b"needle"]])


def test_of_a_rare_text_one_part_in_sixteen_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each part is of about the same size, whatever its lines are."""
    monkeypatch.setattr(scan_copies, "_WORTH_A_LOOK", 0)
    rng = random.Random(1)
    table = table_of(rng, 4_000)
    lines = [f"{rng.getrandbits(40)} took {rng.randrange(9)} s" * (n % 7) for n in range(4_000)]
    lines[3_210] += "took 3 s needle"
    table = changed("message", lambda _: pa.array(lines))(table)
    path = tmp_path / "copy.parquet"
    rows = copy_of(path, table, group_rows=4_000)
    assert rows is not None
    [(begin, size)] = rows.spans(0, None, None, [[b"took"], [b"took 3 s needle"]])
    whole = sum(map(len, lines))
    assert size < whole / 15
    assert b" needle" in path.read_bytes()[begin : begin + size]
    assert rows.spans(0, None, None, [[b"took"], [b"nowhere at all"]]) == []


def test_it_gives_way_before_each_row_group(tmp_path: Path) -> None:
    path, calls = tmp_path / "copy.parquet", list[int]()
    copy_of(path, table_of(random.Random(3), 2_500))
    beside = tmp_path / "again.rows"
    assert write_rows(str(path), str(beside), lambda: calls.append(beside.stat().st_size))
    assert len(set(calls)) == len(calls) == 3  # in between something was written
