"""A footer that is not as it was written is damage, and never the end of the process."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tailrace.logstore.errors import Damaged
from tailrace.logstore.parquet import footer_at, footer_of
from tailrace.logstore.table.schema import COLUMNS, PARTITIONS
from tests.seeds import some

_LOOKS = """
import json, sys
from pathlib import Path
from tailrace.logstore.errors import Damaged
from tailrace.logstore.table.file_check import check_schema
from tailrace.logstore.parquet import footer_of

data, refused = Path(sys.argv[1]).read_bytes(), 0
start = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
for bit in json.load(sys.stdin):
    changed = bytearray(data)
    changed[start + bit // 8] ^= 1 << bit % 8
    try:
        footer = footer_of(bytes(changed))
        check_schema(footer)
    except Damaged:
        refused += 1
        continue
    for index in range(footer.num_row_groups):
        for number in range(footer.num_columns):
            try:
                chunk = footer.row_group(index).column(number)
                if chunk.statistics is not None and chunk.statistics.has_min_max:
                    (chunk.statistics.min, chunk.statistics.max)
            except (ValueError, OverflowError):  # a bound that is no text, or no time
                continue
print(refused)
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A file with the columns of the table, and with sizes of levels as new writers have them."""
    schema = pa.schema([field for field in COLUMNS if field.name not in PARTITIONS])
    row = {"ulid": "01M8NAQJKK71JHTNW9A8D00000", "ts": 1_780_000_000_000_000, "fqn": "a.b"}
    row |= {"run_id": "r", "pos": 1, "message": "x", "attributes": [("k", "v")], "carried": True}
    path = tmp_path / "file.parquet"
    pq.write_table(pa.Table.from_pylist([row, row], schema), path)
    return path


def test_it_is_what_pyarrow_reads(path: Path) -> None:
    expected = pq.read_metadata(path)
    assert footer_at(str(path)).equals(expected)
    assert footer_of(path.read_bytes()[-expected.serialized_size - 8 :]).equals(expected)


def test_no_bit_ends_the_process(path: Path) -> None:
    size = pq.read_metadata(path).serialized_size
    footer = path.read_bytes()[-8 - size : -8]
    # Thrift's head of a field of bytes, their number, and True: the bounds of `carried`.
    lengths = [found.start() + 1 for found in re.finditer(rb"\x18\x01\x01", footer)]
    assert lengths
    # Of levels in the schema, and of the lengths of bounds; a run takes some of all others.
    chosen = [*range(0, 600, 4), *[at * 8 + bit for at in lengths for bit in range(8)]]
    chosen += some(range(size * 8), 16, "bits of a footer")
    done = subprocess.run(
        [sys.executable, "-c", _LOOKS, str(path)],
        input=json.dumps(chosen),
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    assert 0 < int(done.stdout) < len(chosen)


@pytest.mark.parametrize("content", [b"", b"PAR1", b"no Parquet file", b"\xff\xff\xff\x7fPAR1"])
def test_what_is_no_parquet_file_is_damage(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "file").write_bytes(content)
    with pytest.raises(Damaged):
        footer_at(str(tmp_path / "file"))
