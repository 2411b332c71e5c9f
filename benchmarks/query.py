"""Search beside plain DuckDB over the same Parquet files, in one run.

    python -m benchmarks.query [--gigabytes 1] [--hours 24] [--rounds 5]

Builds a table of at least that much text (lines of `benchmarks.corpus`), as the
compactor leaves it: by hour, sorted by fqn, run, ULID, zstd, in its row groups. No block of lines
occurs twice. Then each search runs through the engine to ndjson bytes, as over HTTP, and as bare
SQL through DuckDB to Arrow. Prints the medians in ms and engine/bare, and what one more search by
the engine reads (a regular expression reads in another process, which is not counted). All is warm.
Then the fixed cost of a search through a running service (`query_fixed.py`). `query_peer.py` asks
over HTTP, of lines that were posted, beside VictoriaLogs.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

import duckdb
import pyarrow as pa
from deltalake import ColumnProperties, WriterProperties, write_deltalake

from benchmarks import query_fixed
from benchmarks.corpus import blocks, source
from compactor.skip_index import build as build_index
from service.query.engine import QueryEngine
from service.query.output import Ndjson
from service.query.request import QueryRequest
from service.query.sources import Deletion, FooterCatalog, SearchSources
from service.query.sql import COLUMNS as SELECTED
from service.settings import QuerySettings
from tailrace.logstore import keys, ulid
from tailrace.logstore.batch import Batches, RunKey
from tailrace.logstore.clock import SystemClock
from tailrace.logstore.filesystem import Disk
from tailrace.logstore.objects.local import LocalStore
from tailrace.logstore.search.conditions import Contains, Matches
from tailrace.logstore.table.followed import FollowedTable
from tailrace.logstore.table.schema import COLUMNS, ROW_GROUP_ROWS
from tailrace.logstore.table.table import Table
from tests.batches import make_batches

START_MS = 1_795_219_200_000
HOUR_MS = 3_600_000
BATCH_LINES = 1_000
RUNS = [RunKey(f"warehouse.ingest_{i:02d}", f"run-{j}") for i in range(20) for j in range(3)]
NEEDLE = "needle 7f3a9c51"
# As `compactor/spark/engine.py` has it.
WRITER = WriterProperties(
    compression="ZSTD",
    compression_level=1,
    max_row_group_size=ROW_GROUP_ROWS,
    column_properties=dict.fromkeys(
        ("message", "ulid", "ts", "pos"), ColumnProperties(dictionary_enabled=False)
    ),
)


@dataclass(frozen=True)
class Search:
    """One search in both languages."""

    name: str
    request: QueryRequest
    where: str
    tail: str = "ORDER BY ulid DESC"


ALL = QueryRequest()
SEARCHES = [
    Search(
        "rare substring", replace(ALL, condition=Contains(NEEDLE)), f"contains(message, '{NEEDLE}')"
    ),
    Search("word", replace(ALL, condition=Contains("Exception")), "contains(message, 'Exception')"),
    Search(
        "regex",
        replace(ALL, condition=Matches(r"blk_-?\d*77\d*99 ")),
        r"regexp_matches(message, 'blk_-?\d*77\d*99 ')",
    ),
    Search(
        "one run plus word",
        replace(ALL, fqn=RUNS[7].fqn, run=RUNS[7].run, condition=Contains("Exception")),
        f"fqn = '{RUNS[7].fqn}' AND run_id = '{RUNS[7].run}' AND contains(message, 'Exception')",
    ),
    Search(
        "tail of one run",
        replace(ALL, fqn=RUNS[7].fqn, run=RUNS[7].run, limit=100),
        f"fqn = '{RUNS[7].fqn}' AND run_id = '{RUNS[7].run}'",
        "ORDER BY ulid DESC LIMIT 100",
    ),
    Search("newest 1,000", replace(ALL, limit=1_000), "true", "ORDER BY ulid DESC LIMIT 1000"),
]


class EmptyPin:
    """A node without lines in its journal."""

    node = "bench"
    confirmed_pos = 0

    def batches(self, **_: object) -> Batches:
        return make_batches(self.node, [])

    def release(self) -> None:
        pass


def no_records(_: Batches) -> Iterator[pa.RecordBatch]:
    return iter(())


def hour_of_text(hour: int, size: int, text: Iterator[bytes], rng: random.Random) -> pa.Table:
    """About `size` bytes of text in one hour, sorted as the compactor sorts.

    `text` gives blocks of lines.
    """
    suffixes = [ulid.encode(i)[-5:] for i in range(BATCH_LINES)]
    lines, taken = list[str](), 0
    while taken < size:
        block = next(text)
        taken += len(block)
        lines += block.decode(errors="replace").split("\n")[:-1]
    count = max(1, len(lines) // BATCH_LINES)
    batches = sorted(
        (rng.choice(RUNS), START_MS + hour * HOUR_MS + i * HOUR_MS // count) for i in range(count)
    )
    ids, messages = [], []
    for n, (_, at) in enumerate(batches):
        prefix = ulid.encode(at << 80 | rng.getrandbits(55) << 25)[:21]
        ids += [prefix + suffix for suffix in suffixes]
        messages += lines[n * BATCH_LINES : (n + 1) * BATCH_LINES]
    messages[rng.randrange(len(messages))] = NEEDLE
    rows = len(messages)
    del ids[rows:]
    moment = datetime.fromtimestamp(START_MS / 1000 + hour * 3600, UTC)
    each = [value for batch in batches for value in [batch] * BATCH_LINES][:rows]
    columns = {
        "ulid": ids,
        "ts": pa.array([at * 1000 for _, at in each], pa.timestamp("us", "UTC")),
        "fqn": [run.fqn for run, _ in each],
        "run_id": [run.run for run, _ in each],
        "pos": pa.array(range(rows), pa.int64()),
        "level": pa.array(rng.choices(["INFO", "WARN", "ERROR", None], k=rows), pa.string()),
        "connector_id": pa.nulls(rows, pa.string()),
        "message": messages,
        "attributes": pa.nulls(rows, COLUMNS.field("attributes").type),
        "date": pa.array([moment.date()] * rows, pa.date32()),
        "hour": pa.array([moment.hour] * rows, pa.int32()),
    }
    return pa.table(columns, schema=COLUMNS)


def build(table: Table, gigabytes: float, hours: int) -> int:
    """Fills the table; the bytes of text in it."""
    table.create()
    rng, text, total = random.Random(1), blocks(), 0
    for hour in range(hours):
        rows = hour_of_text(hour, int(gigabytes * 1e9 / hours) + 1, text, rng)
        total += rows.column("message").nbytes
        write_deltalake(
            table.uri,
            rows,
            mode="append",
            partition_by=["date", "hour"],
            writer_properties=WRITER,
        )
    return total


async def no_deletions() -> Sequence[Deletion]:
    return []


def engine_over(store: LocalStore, table: Table, scratch: str) -> QueryEngine:
    """Searches of the table alone."""
    sources = SearchSources(
        store=store,
        table=FollowedTable(table),
        pin=EmptyPin,
        encode=no_records,
        deletions=no_deletions,
        catalog=FooterCatalog(),
    )
    return QueryEngine(
        sources,
        clock=SystemClock(),
        scratch=scratch,
        cache=f"{scratch}-cache",
        settings=QuerySettings(threads=2),
    )


async def through_engine(engine: QueryEngine, request: QueryRequest) -> int:
    output, size = Ndjson(), 0
    async with await engine.open(request) as running:
        async for batch in running.batches():
            size += sum(map(len, output.records(batch)))
        return running.stats()["matches"] if size else 0


def through_duckdb(connection: duckdb.DuckDBPyConnection, files: list[str], search: Search) -> int:
    statement = f"SELECT {SELECTED} FROM read_parquet($files) WHERE {search.where} {search.tail}"
    result = connection.execute(statement, {"files": files}).to_arrow_table()
    return int(result.num_rows)


def read_so_far() -> int:
    """Bytes that this process has read of files and pipes; its children's are not counted."""
    lines = Path("/proc/self/io").read_text().splitlines()
    return int(dict(line.split(": ") for line in lines)["rchar"])


async def timed(rounds: int, work: Callable[[], Awaitable[int]]) -> tuple[float, int]:
    """Median ms of `rounds` after one to warm up, and what `work` gives."""
    found = await work()
    taken = []
    for _ in range(rounds):
        began = time.perf_counter()
        await work()
        taken.append((time.perf_counter() - began) * 1000)
    return statistics.median(taken), found


async def measure(root: str, arguments: argparse.Namespace) -> None:
    """Builds the table, and prints the searches through the engine."""
    store = LocalStore(f"{root}/store", Disk(), SystemClock(), random.Random(1))
    table = Table(store.uri(keys.TABLE))
    size = build(table, arguments.gigabytes, arguments.hours)
    indexed = 0
    for file in table.snapshot().files:
        index = await build_index(store, file)
        indexed += (await store.put(keys.skip_index(file.path), index)).size
    files = [file.uri for file in table.snapshot().files]
    stored = sum(file.size for file in table.snapshot().files)
    print(
        f"{size / 1e9:.2f} GB of text ({source()}), {stored / 1e6:.0f} MB in {len(files)} files,"
        f" {indexed / 1e6:.1f} MB of skip indexes"
    )
    engine = engine_over(store, table, f"{root}/scratch")
    connection = duckdb.connect(config={"threads": 2})
    heads = f"{'engine ms':>10} {'bare ms':>9} {'ratio':>6} {'records':>9} {'MB read':>8}"
    print(f"{'search':<18} {heads}")
    for search in SEARCHES:
        request = search.request

        async def engined(request: QueryRequest = request) -> int:
            return await through_engine(engine, request)

        async def bare(search: Search = search) -> int:
            return through_duckdb(connection, files, search)

        ours, found = await timed(arguments.rounds, engined)
        before = read_so_far()
        await engined()
        read = (read_so_far() - before) / 1e6
        theirs, expected = await timed(arguments.rounds, bare)
        if found != expected:
            raise SystemExit(f"{search.name}: {found} records, bare SQL gives {expected}")
        times = f"{ours:>10.0f} {theirs:>9.0f} {ours / theirs:>6.2f}"
        print(f"{search.name:<18} {times} {found:>9,} {read:>8.1f}")
    engine.close()
    connection.close()


def main() -> None:
    parser = argparse.ArgumentParser(description="Search beside plain DuckDB.")
    parser.add_argument("--gigabytes", type=float, default=1.0, help="text in the table")
    parser.add_argument("--hours", type=int, default=24, help="hours that it is spread over")
    parser.add_argument("--rounds", type=int, default=5, help="measured rounds of each search")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as root:
        asyncio.run(measure(root, arguments))
        query_fixed.report(Path(root) / "data", Path(root) / "store")


if __name__ == "__main__":
    main()
