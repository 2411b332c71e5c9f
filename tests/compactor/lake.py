"""A store with segments, and a plain model of what its table must hold."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from compactor.context import Compactor
from compactor.placement import STAGING, FolderPlacement, ObjectPlacement
from compactor.report import PassReport
from compactor.runner import once
from compactor.settings import Compaction
from compactor.spark.engine import SparkEngine
from compactor.spark.session import Session
from tailrace.logstore import keys, ulid
from tailrace.logstore.batch import RunKey
from tailrace.logstore.clock import system_entropy
from tailrace.logstore.filesystem import Disk
from tailrace.logstore.objects.config import StoreSettings
from tailrace.logstore.objects.local import LocalStore
from tailrace.logstore.objects.store import ObjectStore
from tailrace.logstore.runs.deletions import Deletion, encode_deletion
from tailrace.logstore.segments.detect import Carry
from tailrace.logstore.segments.writer import encode_segment
from tailrace.logstore.table.snapshot import TableFile, TableSnapshot
from tailrace.logstore.table.table import open_table
from tests.batches import make_batches
from tests.servers.minio import Bucket
from tests.simulation.clocks import ShiftedClock
from tests.simulation.outside import Outside, OutsideStore

T = TypeVar("T")
NOON = 1_795_262_400_000  # 2026-11-21T12:00:00Z
HOUR = 3_600_000

Batch = tuple[RunKey, int, bytes]
Record = tuple[str, str, str, str]  # fqn, run, ulid, message


def batch(fqn: str, run: str, at_ms: int, lines: int, *, salt: int = 0, tag: str = "") -> Batch:
    """A batch of numbered lines; equal arguments give an equal batch."""
    text = "".join(f"{fqn} {run} {at_ms} {tag}{i}\n" for i in range(lines))
    return RunKey(fqn, run), ulid.lowest_at(at_ms) | salt << ulid.LINE_BITS, text.encode()


def records(batches: Iterable[Batch]) -> set[Record]:
    """The records of the batches, each once."""
    return {
        (key.fqn, key.run, ulid.encode(first + i), line)
        for key, first, text in batches
        for i, line in enumerate(text.decode().split("\n")[:-1])
    }


@dataclass
class Lake:
    """The store below `data`, or in `bucket`, as service and compactor lay it out."""

    data: Path
    bucket: Bucket | None = None
    store: ObjectStore = field(init=False)
    clock: ShiftedClock = field(default_factory=ShiftedClock)
    limits: Compaction = field(default_factory=Compaction)
    session: SparkEngine = field(default_factory=lambda: Session("1g"))
    reached: Callable[[str], None] = lambda _step: None
    taken: list[Batch] = field(default_factory=list)
    _next: dict[str, int] = field(default_factory=dict)
    _pos: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.bucket is None:
            root = self.settings.store_folder
            self.store = LocalStore(root, Disk(), self.clock, system_entropy())

    @property
    def settings(self) -> StoreSettings:
        return self.bucket.settings if self.bucket else StoreSettings(data=str(self.data))

    @property
    def compactor(self) -> Compactor:
        table = open_table(self.settings)
        return Compactor(
            self.store,
            table,
            ObjectPlacement(self.store) if self.bucket else FolderPlacement(Disk(), table.uri),
            self.clock,
            system_entropy(),
            self.limits,
            self.session,
            self.reached,
        )

    def put(self, node: str, batches: Sequence[Batch], *, seq: int | None = None) -> str:
        """Cuts and uploads a segment; gives its key."""
        number = self._next.get(node, 1) if seq is None else seq
        self._next[node] = number + 1
        first = self._pos.get(node, 0)
        entries = make_batches(node, list(batches), first_pos=first)
        self._pos[node] = first + sum(text.count(b"\n") for _, _, text in batches)
        body = encode_segment(entries, node=node, seq=number, carry=Carry()).body
        key = keys.segment(node, number)
        self.run(self.store.put(key, body))
        self.taken += batches
        return key

    def put_bytes(self, key: str, body: bytes) -> None:
        self.run(self.store.put(key, body))

    def delete(self, fqn: str, run: str | None, t: int) -> None:
        deletion = Deletion(fqn, run, t, ulid.encode(1))
        self.run(self.store.put(deletion.key, encode_deletion(deletion)))

    def watermark(self, node: str, seq: int) -> None:
        body = orjson.dumps({"seq": seq, "pos": 0, "low": 0, "version": ulid.encode(1)})
        self.run(self.store.put(keys.watermark(node), body))

    def compact(self) -> PassReport:
        return self.run(once(self.compactor))

    def run(self, work: Awaitable[T]) -> T:
        async def awaited() -> T:
            return await work

        return asyncio.run(awaited())

    def keys(self, prefix: str) -> list[str]:
        async def listed() -> list[str]:
            return [info.key async for info in self.store.list(prefix)]

        return self.run(listed())

    def snapshot(self) -> TableSnapshot:
        return self.compactor.table.snapshot()

    def table(self) -> list[Record]:
        """All records of the table, after checking that each file is as it must be."""
        return [record for file in self.snapshot().files for record in self.content(file)]

    def content(self, file: TableFile) -> list[Record]:
        """The records of a file of the table, which must be as the log says of it."""
        body = pa.BufferReader(self.run(self.store.get(f"{keys.TABLE}/{file.path}"))[1])
        rows = pq.ParquetFile(body).read(["fqn", "run_id", "ulid", "message"]).to_pylist()
        content = [(r["fqn"], r["run_id"], r["ulid"], r["message"]) for r in rows]
        assert [r[:3] for r in content] == sorted(r[:3] for r in content)
        assert file.rows == len(content) > 0
        assert file.path.startswith(f"date={file.date}/hour={file.hour:02}/")
        ids = sorted(r[2] for r in content)
        assert file.ulids == (ids[0], ids[-1])
        hours = {ulid.time_ms(ulid.decode(i)) // HOUR % 24 for i in ids}
        assert hours == {file.hour}
        return content

    def holds(self, expected: Iterable[Batch]) -> None:
        """The table has each record of the batches once and nothing else."""
        found = self.table()
        assert len(found) == len(set(found))
        assert set(found) == records(expected)


def merging(lake: Lake) -> bool:
    """Whether a job writes to the table's folder."""
    staging = Path(lake.compactor.table.uri) / STAGING
    with suppress(OSError):  # folders come and go
        return any(staging.glob("*/_temporary"))
    return False


class ServerStore(OutsideStore):
    """The lake's clock is the server's but for its shift, so times of uploads compare."""

    async def sweep(self, before_ms: int) -> int:
        return await self._outside.call(self._inner.sweep(before_ms))


async def _entered(opening: AbstractAsyncContextManager[T]) -> T:
    return await opening.__aenter__()


async def _left(opening: AbstractAsyncContextManager[T]) -> None:
    await opening.__aexit__(None, None, None)


@contextmanager
def lake_in(bucket: Bucket, data: Path) -> Iterator[Lake]:
    """A lake on a server, with a client that lives as long as the block."""
    with Outside() as outside:
        opening = bucket.open()
        inner = outside.run(_entered(opening))
        lake = Lake(data, bucket)
        lake.store = ServerStore(inner, outside, lake.clock)
        try:
            yield lake
        finally:
            outside.run(_left(opening))
