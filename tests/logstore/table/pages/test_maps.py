"""A map of lines gives what Parquet's reader gives, of whatever it is made of."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tailrace.logstore import ulid
from tailrace.logstore.errors import Damaged
from tailrace.logstore.table import line_map
from tailrace.logstore.table.line_map import (
    EVERY,
    GroupReader,
    LineMap,
    Scratch,
    UnknownPages,
    pages_of,
)
from tailrace.logstore.table.schema import COLUMNS
from tests.logstore.table.pages.mapped import expected, given, made, read_of
from tests.seeds import seeds

SCHEMA = pa.schema([COLUMNS.field(name) for name in COLUMNS.names if name not in ("date", "hour")])
OPTIONS: dict[str, Any] = {
    "compression": "zstd",
    "use_dictionary": ["fqn", "run_id", "level", "connector_id"],
}


def batch(dice: random.Random, lines: int, pos: int) -> list[dict[str, Any]]:
    first = ulid.batch_of(dice.getrandbits(127)) + dice.choice([0, 0, 31, 1_020, (1 << 25) - 500])
    fqn, run = dice.choice(["a", "b" * 300, "é"]), dice.choice(["1", "2"])
    connector, continued = dice.choice([None, "c", "d"]), dice.random() < 0.5
    return [
        {
            "ulid": ulid.encode(first + number),
            "ts": dice.randrange(-(1 << 40), 1 << 52),
            "fqn": fqn,
            "run_id": run,
            "pos": pos + number,
            "level": dice.choice([None, "INFO", "INFO", "ERROR"]),
            "connector_id": connector,
            "message": "é\0\n"[: dice.randrange(4)] + "x" * dice.choice([0, 3, 40, 400]),
            "attributes": None,
            "carried": dice.choice([None, True]) if continued else None,
        }
        for number in range(lines)
    ]


def lines_of(seed: int) -> list[dict[str, Any]]:
    dice = random.Random(seed)
    found = list[dict[str, Any]]()
    for _ in range(dice.randrange(1, 12)):
        found += batch(dice, dice.randrange(1, 90), dice.randrange(1 << 40))
    if dice.random() < 0.3:
        dice.shuffle(found)  # whatever the order, each line is itself
    return found


def write(path: Path, lines: list[dict[str, Any]], **options: Any) -> Path:
    pq.write_table(pa.Table.from_pylist(lines, SCHEMA), path, **OPTIONS | options)
    return path


@pytest.mark.parametrize("seed", seeds(30))
def test_each_line_is_what_it_was(tmp_path: Path, seed: int) -> None:
    dice, lines = random.Random(seed), lines_of(seed)
    group_rows = dice.choice([1 << 20, 70])
    path = write(
        tmp_path / "a.parquet",
        lines,
        row_group_size=group_rows,
        data_page_size=dice.choice([300, 1 << 20]),
        max_rows_per_page=dice.choice([EVERY - 1, EVERY, 1 << 20]),
        write_batch_size=16,
    )
    for group in range(pq.read_metadata(path).num_row_groups):
        found = made(path, group)
        assert found is not None
        assert given(path, found) == expected(path, group)


def test_columns_that_cannot_be_null(tmp_path: Path) -> None:
    lines = lines_of(3)
    nullable = ("level", "connector_id", "attributes", "carried")
    required = pa.schema([one.with_nullable(one.name in nullable) for one in SCHEMA])
    path = tmp_path / "a.parquet"
    pq.write_table(pa.Table.from_pylist(lines, SCHEMA).cast(required), path, **OPTIONS)
    found = made(path)
    assert found is not None
    assert {page.begin for page in found.messages} == {0}
    assert given(path, found) == expected(path)


@pytest.mark.parametrize(
    "options",
    [
        {"compression": "snappy"},
        {"compression": "none"},
        {"use_dictionary": True},
        {"data_page_version": "2.0"},
        {"use_dictionary": False, "column_encoding": {"message": "DELTA_LENGTH_BYTE_ARRAY"}},
        {"use_dictionary": False, "column_encoding": {"ts": "DELTA_BINARY_PACKED"}},
    ],
)
def test_pages_of_other_kinds_have_none(tmp_path: Path, options: dict[str, Any]) -> None:
    assert made(write(tmp_path / "a.parquet", lines_of(3), **options)) is None


@pytest.mark.parametrize(
    "change",
    [
        {"message": None},
        {"ts": None},
        {"fqn": None},
        {"ulid": "short"},
        {"ulid": "U" * 26},
    ],
)
def test_lines_that_are_none_of_ours_have_none(tmp_path: Path, change: dict[str, Any]) -> None:
    lines = lines_of(3)
    lines[5] |= change
    assert made(write(tmp_path / "a.parquet", lines)) is None


def test_lines_without_a_column_have_none(tmp_path: Path) -> None:
    """Another program may leave out one that is null, as Delta allows."""
    rows = pa.Table.from_pylist(lines_of(3), SCHEMA).drop_columns(["connector_id"])
    dictionaries = ["fqn", "run_id", "level"]
    pq.write_table(rows, tmp_path / "a.parquet", **OPTIONS | {"use_dictionary": dictionaries})
    assert made(tmp_path / "a.parquet") is None


def test_times_of_another_unit_have_none(tmp_path: Path) -> None:
    rows = pa.Table.from_pylist(lines_of(3), SCHEMA)
    at = rows.schema.get_field_index("ts")
    rows = rows.set_column(at, "ts", rows.column("ts").cast(pa.timestamp("ns", "UTC"), safe=False))
    pq.write_table(rows, tmp_path / "a.parquet", **OPTIONS)
    assert made(tmp_path / "a.parquet") is None


def test_too_many_levels_have_none(tmp_path: Path) -> None:
    lines = [line | {"level": str(n)} for n, line in enumerate(batch(random.Random(1), 300, 0))]
    assert made(write(tmp_path / "a.parquet", lines)) is None


def test_a_file_that_is_another_is_told_of_or_read_as_it_is(tmp_path: Path) -> None:
    """Never a part of a message, or one of another line's place."""
    lines = lines_of(3)
    path = write(tmp_path / "a.parquet", lines, data_page_size=300, write_batch_size=16)
    found = made(path)
    assert found is not None
    body = path.read_bytes()
    dice = random.Random(1)
    for _ in range(200):
        at = dice.randrange(4, len(body) // 2)
        path.write_bytes(body[:at] + bytes([body[at] ^ 0x40]) + body[at + 1 :])
        try:
            again = given(path, found)
        except (Damaged, UnicodeDecodeError):
            continue
        assert len(again) == len(lines)
    path.write_bytes(body[: found.messages[-1].at + 3])
    with pytest.raises(OSError, match="cut off"):
        list(GroupReader(found, read_of(path), Scratch()).message_pages(0, found.rows))


def test_lengths_that_lead_out_of_a_page_are_told_of(tmp_path: Path) -> None:
    lines = [line | {"message": "x" * 40} for line in batch(random.Random(1), 60, 0)]
    path = write(tmp_path / "a.parquet", lines)
    found = made(path)
    assert found is not None
    dice = random.Random(1)
    for _ in range(500):
        (page,) = GroupReader(found, read_of(path), Scratch()).message_pages(0, 60)
        row, end = dice.randrange(60), page.end
        at = page.begin + row * 44
        page.data[at : at + 4] = dice.randrange(1 << dice.choice([7, 12, 32])).to_bytes(4, "little")
        del page.data[end:]
        try:
            rows, _ = page.at([dice.randrange(page.begin, end), end - 1])
        except Damaged:
            continue
        assert rows == sorted(set(rows)) <= [59] * len(rows)


def test_maps_agree_however_they_are_compressed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path / "a.parquet", lines_of(3))
    one = made(path)
    monkeypatch.setattr(line_map, "_ZSTANDARD_LEVEL", 19)
    two, other = made(path), made(write(tmp_path / "b.parquet", lines_of(4)))
    assert one is not None
    assert two is not None
    assert other is not None
    assert one.equals(two)
    assert not one.equals(other)


def test_only_pages_with_the_rows_are_read(tmp_path: Path) -> None:
    path = write(tmp_path / "a.parquet", lines_of(3), data_page_size=300, write_batch_size=16)
    found = made(path)
    assert found is not None
    read, body = list[int](), read_of(path)

    def noting(at: int, size: int) -> bytes:
        read.append(at)
        return bytes(body(at, size))

    firsts = [sum(page.rows for page in found.messages[:n]) for n in range(len(found.messages))]
    assert len(firsts) > 4
    reader = GroupReader(found, noting, Scratch())
    pages = list(reader.message_pages(firsts[1] + 1, firsts[3]))
    assert [page.first for page in pages] == firsts[1:3]
    assert read == [page.at for page in found.messages[1:3]]


def test_a_map_that_is_none_is_damaged(tmp_path: Path) -> None:
    found = made(write(tmp_path / "a.parquet", lines_of(3)))
    assert found is not None
    body = found.encoded()
    for other in (b"", body[:3], body[:50], body[:-1], b"\0\0\0\0" + body[4:], b"\2\0\0\0{}"):
        with pytest.raises(Damaged):
            LineMap.decoded(other)


def test_headers_that_are_none_are_told_of(tmp_path: Path) -> None:
    path = write(tmp_path / "a.parquet", lines_of(3), data_page_size=300, write_batch_size=16)
    chunk = pq.read_metadata(path).row_group(0).column(7)
    begin = chunk.data_page_offset
    column = path.read_bytes()[begin : begin + chunk.total_compressed_size]
    pages = pages_of(column)
    assert sum(page.values for page in pages) == len(lines_of(3))
    assert pages[-1].at + pages[-1].stored == len(column)
    dice = random.Random(1)
    for _ in range(2_000):
        cut = column[: dice.randrange(1, len(column))] if dice.random() < 0.2 else column
        at = dice.randrange(min(60, len(cut)))
        try:
            pages_of(cut[:at] + dice.randbytes(dice.randrange(3)) + cut[at + 1 :])
        except (Damaged, UnknownPages):
            continue
