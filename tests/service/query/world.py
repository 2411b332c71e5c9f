"""A small installation with lines in a journal, segments and a table that overlap, and its model.

`World` holds what was acknowledged as `records`: every search is compared with a plain
loop over them. A batch is put into any of the sources, or several: that is what flushes,
retries to another node and a lagging compactor leave behind.
"""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import (
    ColumnProperties,
    CommitProperties,
    Transaction,
    WriterProperties,
    write_deltalake,
)

from compactor.skip_index import build
from service.query.duckdb import SearchedBucket
from service.query.engine import QueryEngine
from service.query.request import QueryRequest, RecordKey, TimeRangeSizes
from service.query.sources import Deletion, FooterCatalog, SearchSources
from service.query.unflushed import Encode
from service.settings import QuerySettings
from tailrace.logstore import keys, ulid
from tailrace.logstore.batch import Batches, RunKey
from tailrace.logstore.clock import SystemClock
from tailrace.logstore.filesystem import Disk
from tailrace.logstore.objects.local import LocalStore
from tailrace.logstore.objects.s3.credentials import Credentials
from tailrace.logstore.objects.store import ObjectStore
from tailrace.logstore.segments.detect import Carry
from tailrace.logstore.segments.writer import encode_segment, record_batches
from tailrace.logstore.table.followed import FollowedTable
from tailrace.logstore.table.schema import COLUMNS
from tailrace.logstore.table.snapshot import TableFile
from tailrace.logstore.table.table import Table, open_table
from tests.batches import Entry, MemoryBatches, make_batches
from tests.logstore.search.evaluate import holds
from tests.logstore.segments.earlier import EARLIER_COLUMNS, earlier_segment, earlier_table
from tests.servers.minio import Bucket as S3Bucket
from tests.settings import changed
from tests.simulation.backing import open_place

NOW_MS = 1_795_255_200_000
HOUR_MS = 3_600_000
NODE = "node-01"
RUNS = [RunKey(f"svc.pipe{i}", f"run{j}") for i in range(3) for j in range(2)]
WORDS = ["INFO start", "ERROR failed to read", "WARN slow", "DEBUG x=1", "plain line", "späße 🎉"]


@dataclass(frozen=True, slots=True)
class Record:
    """One acknowledged record."""

    key: RecordKey
    message: str


class FakePin:
    """A journal that stands still, over batches in memory; counts who holds it.

    None of it is confirmed. Where lines move, `shipped` has a real journal.
    """

    def __init__(self, world: World, batches: MemoryBatches) -> None:
        self.node = batches.node
        self.confirmed_pos = 0
        self._batches = batches
        self._world = world
        world.pins += 1

    def batches(
        self,
        *,
        run: RunKey | None = None,
        start: int = 0,
        end: int | None = None,
        times: tuple[int, int] | None = None,
    ) -> Batches:
        part = self._batches.part(start, 1 << 62 if end is None else end)
        part = part if times is None else part.within(*times)
        return part if run is None else part.of(run)

    def release(self) -> None:
        self._world.pins -= 1


# As `compactor/spark/engine.py` has it.
_PLAIN = dict.fromkeys(("message", "ulid", "ts", "pos"), ColumnProperties(dictionary_enabled=False))


def _encode(batches: Batches) -> Iterator[pa.RecordBatch]:
    return record_batches(batches, Carry())


@dataclass
class World:
    """Sources below `root`, and the model of what they hold.

    The store is there, or in `bucket`: then `store` is one that is open there. The table is
    written by way of `straight`, if that is given: past any proxy.
    """

    root: Path
    bucket: S3Bucket | None = None
    store: ObjectStore = field(default=None)  # type: ignore[assignment]
    straight: S3Bucket | None = None
    records: dict[RecordKey, Record] = field(default_factory=dict)
    deletions: list[Deletion] = field(default_factory=list)
    pins: int = 0
    encode: Encode = _encode
    earlier: bool = False  # the table gets files of a version that knew of no marks
    _unflushed: list[Entry] = field(default_factory=list)
    _seqs: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.bucket is None:
            root = str(self.root / "store")
            self.store = LocalStore(root, Disk(), SystemClock(), random.Random(1))
            self.table = Table(self.store.uri(keys.TABLE))
        else:
            self.table = open_table(self.bucket.settings)

    def unflushed(self, entries: Iterable[Entry], *, known: bool = True) -> None:
        """Puts batches into the journal; what nobody asks the model for need not be `known`."""
        for entry in entries:
            self._unflushed.append(entry)
            if known:
                self.know(entry)

    async def segment(
        self,
        entries: Sequence[Entry],
        node: str = NODE,
        carry: Carry | None = None,
        *,
        earlier: bool = False,
    ) -> str:
        """Puts batches into the node's next segment, giving its key."""
        carry = carry or Carry()
        seq = self._seqs[node] = self._seqs.get(node, 0) + 1
        encoded = encode_segment(make_batches(node, entries), node=node, seq=seq, carry=carry)
        body = earlier_segment(encoded) if earlier else encoded.body
        await self.store.put(keys.segment(node, seq), body)
        for entry in entries:
            self.know(entry)
        return keys.segment(node, seq)

    def merge(self, entries: Sequence[Entry], marks: dict[str, int]) -> None:
        """Puts batches into the table, each record once, with the nodes' marks."""
        for entry in entries:
            self.know(entry)
        batches = make_batches(NODE, entries)
        rows = pa.Table.from_batches(record_batches(batches, Carry()))
        self.write_table(rows, marks)

    def write_table(
        self, rows: pa.Table, marks: dict[str, int], *, group_rows: int | None = None
    ) -> None:
        """Appends rows of a segment's schema to the table, in row groups of so many."""
        times = [
            datetime.fromtimestamp(ulid.time_ms(ulid.decode(text)) / 1000, UTC)
            for text in rows.column("ulid").to_pylist()
        ]
        rows = rows.append_column("date", pa.array([t.date() for t in times], pa.date32()))
        rows = rows.append_column("hour", pa.array([t.hour for t in times], pa.int32()))
        order = [("fqn", "ascending"), ("run_id", "ascending"), ("ulid", "ascending")]
        straight = open_table(self.straight.settings) if self.straight else self.table
        delta = earlier_table(straight) if self.earlier else straight.create().delta
        assert delta is not None
        columns = EARLIER_COLUMNS if self.earlier else COLUMNS
        write_deltalake(
            delta,
            rows.select(columns.names).cast(columns).sort_by(order),
            mode="append",
            partition_by=["date", "hour"],
            writer_properties=WriterProperties(
                compression="ZSTD",
                compression_level=1,
                max_row_group_size=group_rows,
                column_properties=_PLAIN,
            ),
            commit_properties=CommitProperties(
                app_transactions=[Transaction(f"segments/{n}", s) for n, s in marks.items()]
            ),
        )

    async def index(self) -> list[TableFile]:
        """Gives all files of the table a skip index."""
        files = list(self.table.snapshot().files)
        for file in files:
            await self.store.put(keys.skip_index(file.path), await build(self.store, file))
        return files

    def know(self, entry: Entry) -> None:
        """Adds a batch's records to the model."""
        run, batch, text = entry[:3]
        for number, line in enumerate(text.decode().split("\n")[:-1]):
            key = RecordKey(ulid.encode(batch + number), run.fqn, run.run)
            self.records[key] = Record(key, line)

    def pin(self) -> FakePin:
        return FakePin(self, make_batches(NODE, self._unflushed))

    async def deleted(self) -> Sequence[Deletion]:
        return self.deletions

    def sources(self) -> SearchSources:
        return SearchSources(
            store=self.store,
            table=FollowedTable(self.table),
            pin=self.pin,
            encode=self.encode,
            deletions=self.deleted,
            catalog=FooterCatalog(),
        )

    def expected(self, request: QueryRequest, matches: Any = None) -> list[RecordKey]:
        """The model's answer: a plain loop, with `matches` deciding on messages."""
        found = [
            record.key
            for record in self.records.values()
            if request.low <= ulid.decode(record.key.ulid) <= request.high
            and request.fqn in (None, record.key.fqn)
            and request.run in (None, record.key.run)
            and (matches(record.message) if matches else _holds(request, record))
            and not any(
                fqn == record.key.fqn
                and run in (None, record.key.run)
                and ulid.decode(record.key.ulid) <= t
                for fqn, run, t in self.deletions
            )
            and (request.after is None or _behind(record.key, request))
        ]
        return sorted(found, reverse=request.descending)[: request.limit]


def lake_in(root: Path) -> World:
    """Empty, on what the test stands on: `every_store`."""
    place = open_place(SystemClock())
    if place is None:
        return World(root)
    return World(root, place.bucket, place.store, straight=place.straight)


def _holds(request: QueryRequest, record: Record) -> bool:
    row = {"message": record.message, "fqn": record.key.fqn, "run_id": record.key.run}
    return request.condition is None or holds(request.condition, row)


def _behind(key: RecordKey, request: QueryRequest) -> bool:
    assert request.after is not None
    return key < request.after if request.descending else key > request.after


def entry(rng: random.Random, *, at_ms: int | None = None, lines: int | None = None) -> Entry:
    """A batch of some lines of some run, within the last five hours."""
    time = NOW_MS - rng.randrange(5 * HOUR_MS) if at_ms is None else at_ms
    batch = ulid.lowest_at(time) | rng.getrandbits(55) << 25
    text = "".join(
        f"{rng.choice(WORDS)} {rng.randrange(50)}\n" for _ in range(lines or rng.randrange(1, 6))
    )
    return rng.choice(RUNS), batch, text.encode()


def bucket_of(bucket: S3Bucket) -> SearchedBucket:
    """How DuckDB reads it."""
    settings = bucket.settings
    assert settings.bucket is not None
    return SearchedBucket(settings.bucket.uri, settings.s3, Credentials(settings.s3))


@asynccontextmanager
async def engine_of(
    world: World,
    clock: Any = None,
    *,
    sources: SearchSources | None = None,
    sizes: TimeRangeSizes | None = None,
    bucket: SearchedBucket | None = None,
    **values: Any,
) -> AsyncIterator[QueryEngine]:
    """An engine that has given everything back at the end, or the test fails.

    It reads `bucket`; without one, that of the world.
    """
    engine = QueryEngine(
        sources or world.sources(),
        clock=clock or SystemClock(),
        scratch=str(world.root / "scratch"),
        cache=str(world.root / "cache"),
        settings=changed(QuerySettings(), **values),
        time_range_sizes=sizes,
        bucket=bucket or (bucket_of(world.bucket) if world.bucket else None),
    )
    try:
        yield engine
    finally:
        engine.close()
        assert engine.running == 0
        assert engine.waiting == 0
        assert world.pins == 0
        assert not list((world.root / "scratch").glob("*"))


async def search(
    engine: QueryEngine, request: QueryRequest
) -> tuple[list[RecordKey], dict[str, Any]]:
    """All keys in the order that they came in, and the stats."""
    found: list[RecordKey] = []
    async with await engine.open(request) as running:
        async for batch in running.batches():
            columns = [batch.column(name).to_pylist() for name in ("ulid", "fqn", "run_id")]
            found += [RecordKey(*key) for key in zip(*columns, strict=True)]
        return found, running.stats()
