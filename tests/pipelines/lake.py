"""A store with segments, for pipelines to read."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
from deltalake import CommitProperties, Transaction, WriterProperties, write_deltalake

from tailrace.logstore import keys, ulid
from tailrace.logstore.batch import RunKey
from tailrace.logstore.clock import SystemClock
from tailrace.logstore.filesystem import Disk
from tailrace.logstore.objects.config import PipelineSettings
from tailrace.logstore.objects.local import LocalStore
from tailrace.logstore.runs.report import raise_watermark
from tailrace.logstore.segments.detect import Carry
from tailrace.logstore.segments.reader import open_segment
from tailrace.logstore.segments.writer import encode_segment
from tailrace.logstore.table.schema import COLUMNS, application
from tailrace.logstore.table.table import Table
from tailrace.pipelines.definition import PipelineConfig, PipelineFolder
from tailrace.pipelines.process import PipelinesProcess
from tailrace.pipelines.world import PipelinesSettings, World, open_world
from tests.batches import make_batches


class Lake:
    """A store with segments of nodes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.store = LocalStore(f"{folder}/store", Disk(), SystemClock(), random.Random(1))
        self.table = Table(self.store.uri(keys.TABLE))
        self.seqs: dict[str, int] = {}
        self.settings = PipelinesSettings(
            data=str(folder), pipelines=PipelineSettings(poll_seconds=0.05)
        )

    async def put(
        self,
        *lines: str,
        node: str = "n",
        fqn: str = "shop.load",
        run: str = "r",
        ulid_: int | None = None,
    ) -> int:
        """A segment of lines; gives the ULID of its batch."""
        seq = self.seqs[node] = self.seqs.get(node, 0) + 1
        first = ulid_ or ulid.lowest_at(SystemClock().now_ms()) | seq << 40
        text = "".join(f"{line}\n" for line in lines).encode()
        entries = make_batches(node, [(RunKey(fqn, run), first, text)], first_pos=seq * 1000)
        body = bytes(encode_segment(entries, node=node, seq=seq, carry=Carry()).body)
        await self.store.put(keys.segment(node, seq), body)
        return first

    async def compact(self, *, upto: dict[str, int] | None = None, remove: bool = True) -> None:
        """Takes segments into the table, up to these of each node, and may remove them."""
        snapshot = self.table.create()
        assert snapshot.delta is not None
        wanted = self.seqs if upto is None else upto
        marks = {node: max(seq, snapshot.mark(node)) for node, seq in wanted.items()}
        new = [
            (node, seq)
            for node, last in marks.items()
            for seq in range(snapshot.mark(node) + 1, last + 1)
        ]
        if not new:
            return
        bodies = [(await self.store.get(keys.segment(*one)))[1] for one in new]
        rows = pa.concat_tables(one for body in bodies for one in open_segment(body).groups())
        times = [
            datetime.fromtimestamp(ulid.time_ms(ulid.decode(text)) / 1000, UTC)
            for text in rows.column("ulid").to_pylist()
        ]
        rows = rows.append_column("date", pa.array([t.date() for t in times], pa.date32()))
        rows = rows.append_column("hour", pa.array([t.hour for t in times], pa.int32()))
        order = [("fqn", "ascending"), ("run_id", "ascending"), ("ulid", "ascending")]
        write_deltalake(
            snapshot.delta,
            rows.select(COLUMNS.names).cast(COLUMNS).sort_by(order),
            mode="append",
            partition_by=["date", "hour"],
            writer_properties=WriterProperties(max_row_group_size=4),
            commit_properties=CommitProperties(
                app_transactions=[Transaction(application(n), s) for n, s in marks.items()]
            ),
        )
        if remove:
            for node, last in marks.items():
                await self.remove(node, last)

    async def remove(self, node: str, last: int) -> None:
        """Removes segments, those that a group holds as well."""
        await raise_watermark(self.store, node, fresh_id=lambda: "v", low=last + 1)
        await self.store.delete([keys.segment(node, seq) for seq in range(1, last + 1)])

    def rewrite(self) -> None:
        """Replaces all files of the table by others, and removes the old ones at once."""
        delta = self.table.snapshot().delta
        assert delta is not None
        delta.optimize.compact(min_commit_interval=None)
        delta.optimize.z_order(["ulid"])
        delta.vacuum(0, dry_run=False, enforce_retention_duration=False)

    @asynccontextmanager
    async def running(
        self,
        *pipelines: PipelineConfig,
        read_again: Callable[[], PipelineFolder] | None = None,
    ) -> AsyncIterator[PipelinesProcess]:
        """A process that runs these."""
        async with self.world() as world:
            process = PipelinesProcess(world, pipelines, read_again)
            task = asyncio.ensure_future(process.run())
            try:
                yield process
            finally:
                process.stop()
                await task

    @asynccontextmanager
    async def world(self) -> AsyncIterator[World]:
        async with open_world(self.settings) as world:
            yield world
