"""What a map of lines gives of a row group, and what Parquet's reader gives of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tailrace.logstore import ulid
from tailrace.logstore.table.line_map import MAPPED, GroupReader, LineMap, Scratch, map_of


def read_of(path: Path) -> Any:
    """Reads bytes of the file, as maps are read by."""
    body = path.read_bytes()
    return lambda at, size: body[at : at + size]


def rows_of(path: Path, group: int) -> pa.Table:
    """The columns of a map, by Parquet's reader."""
    return pq.ParquetFile(path).read_row_group(group, columns=list(MAPPED))


def made(path: Path, group: int = 0) -> LineMap | None:
    """The map of a row group, once it was stored."""
    found = map_of(pq.read_metadata(path), group, rows_of(path, group), read_of(path))
    return None if found is None else LineMap.decoded(found.encoded())


def expected(path: Path, group: int = 0) -> list[dict[str, Any]]:
    """All lines of a row group, by Parquet's reader; times in µs."""
    rows = rows_of(path, group)
    at = rows.schema.get_field_index("ts")
    return list(rows.set_column(at, "ts", rows.column("ts").cast(pa.int64())).to_pylist())


def given(path: Path, lines: LineMap) -> list[dict[str, Any]]:
    """All lines of the row group, by its map."""
    reader = GroupReader(lines, read_of(path), Scratch())
    messages = list[bytes]()
    for page in reader.message_pages(0, lines.rows):
        begins = list(range(page.begin, page.end))  # each byte is one of some message
        rows, texts = page.at(begins)
        assert rows == list(range(page.first, page.first + page.rows))
        messages += texts
    found = []
    for line, message in zip(reader.lines(range(lines.rows)), messages, strict=True):
        names = {
            name: lines.names[line[name]] for name in ("fqn", "run_id", "level", "connector_id")
        }
        found.append(
            names
            | {name: int(line[name]) for name in ("ts", "pos")}
            | {"ulid": ulid.encode(int(line["hi"]) << 64 | int(line["lo"]))}
            | {"message": message.decode()}
        )
    return found
