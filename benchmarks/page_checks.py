"""What it costs a search to check pages against their CRCs, in pairs within one run.

    python -m benchmarks.page_checks [LINES]

    unchecked   no page is checked: every verdict is taken to be good
    first       each row group is checked before it is read, as for the first search of a node
    again       the verdicts are known

The table is one file of an hour, as Spark lays it out. `word` looks through all messages, `all`
counts lines of a level by DuckDB. Each figure is the median of the rounds, in ms.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.corpus import lines_of, source
from service.query.engine import QueryEngine
from service.query.footers import Footers
from service.query.page_checks import PageChecks
from service.query.request import QueryRequest
from tailrace.logstore import keys, ulid
from tailrace.logstore.search.conditions import Contains
from tailrace.logstore.table.schema import COLUMNS, PARTITIONS, ROW_GROUP_ROWS, describe
from tests.compactor.files import commit_files
from tests.compactor.lake import NOON, Lake
from tests.service.query.world import World, engine_of

ROUNDS: Final = 9
_SEARCHES: Final = {
    "word": replace(QueryRequest(), condition=Contains("Exception")),
    "all": replace(QueryRequest(), levels=("ERROR",)),
}


def make(root: Path, lines: int) -> int:
    """A table of so many lines; the bytes of its file."""
    lake = Lake(root)
    low = ulid.lowest_at(NOON)
    columns = {
        "ulid": [ulid.encode(low + (n << 8)) for n in range(lines)],
        "ts": pa.array([NOON * 1000 + n for n in range(lines)], pa.timestamp("us", "UTC")),
        "fqn": ["service.pipeline"] * lines,
        "run_id": [f"run-{n * 20 // lines:02}" for n in range(lines)],
        "pos": list(range(lines)),
        "level": ["ERROR" if n % 50 == 0 else "INFO" for n in range(lines)],
        "message": [line[:-1].decode("utf-8", "replace") for line in lines_of(lines)],
    }
    schema = pa.schema([column for column in COLUMNS if column.name not in PARTITIONS])
    for column in schema:
        columns.setdefault(column.name, pa.nulls(lines, column.type))
    made = pa.BufferOutputStream()
    pq.write_table(
        pa.table(columns).select(schema.names).cast(schema),
        made,
        row_group_size=ROW_GROUP_ROWS,
        compression="zstd",
        compression_level=1,
        use_dictionary=["fqn", "run_id", "level", "connector_id"],
        write_page_checksum=True,
    )
    body = made.getvalue().to_pybytes()
    path = "date=2026-11-21/hour=12/01KAK3B4S0ZZZZZZZZZZZZZZZZ-00000-R1.parquet"
    lake.put_bytes(f"{keys.TABLE}/{path}", body)
    footer = pq.read_metadata(pa.BufferReader(body))
    now = lake.clock.now_ms()
    commit_files(lake, [describe(footer, path=path, size=len(body), modified_ms=now)])
    return len(body)


async def timed(engine: QueryEngine, request: QueryRequest) -> float:
    began = time.perf_counter()
    async with await engine.open(request) as running:
        async for _ in running.batches():
            pass
        assert running.stats()["complete"]
    return (time.perf_counter() - began) * 1000


class _Unchecked(PageChecks):
    """Takes every row group for sound."""

    def check_group(self, path: str, group: int) -> None:
        """Does nothing."""


async def measure(root: Path) -> None:
    """Prints a line for each search."""
    threads = ThreadPoolExecutor(2)
    async with engine_of(World(root), scan_copies_bytes=0) as engine:
        checks = engine.checks
        ways: dict[str, Callable[[], PageChecks]] = {
            "unchecked": lambda: _Unchecked(Footers(), threads),
            "first": lambda: PageChecks(Footers(), threads),
            "again": lambda: checks,
        }
        print(f"{'':<6}" + "".join(f"{way:>12}" for way in ways) + f"{'first':>10}{'again':>8}")
        for name, request in _SEARCHES.items():
            found: dict[str, list[float]] = {way: [] for way in ways}
            for _ in range(ROUNDS + 1):  # the first opens a database
                for way, chosen in ways.items():
                    engine.checks = chosen()
                    found[way].append(await timed(engine, request))
            plain, first, again = (statistics.median(found[way][1:]) for way in ways)
            print(
                f"{name:<6}{plain:>12.1f}{first:>12.1f}{again:>12.1f}"
                f"{first / plain:>9.2f}x{again / plain:>7.2f}x"
            )


def main() -> None:
    lines = int(sys.argv[1]) if len(sys.argv) > 1 else 500_000
    with tempfile.TemporaryDirectory() as folder:
        size = make(Path(folder), lines)
        print(f"{lines} lines, {size / 1e6:.1f} MB ({source()})")
        asyncio.run(measure(Path(folder)))


if __name__ == "__main__":
    main()
