"""A store with segments, for pipelines to read."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from logstore import keys, ulid
from logstore.batch import RunKey
from logstore.clock import SystemClock
from logstore.disk import Disk
from logstore.objects.local import LocalStore
from logstore.objects.settings import PipelineSettings
from logstore.segments.carry import Carry
from logstore.segments.writer import encode_segment
from pipelines.config import PipelineConfig
from pipelines.process import PipelinesProcess
from pipelines.settings import PipelinesSettings
from pipelines.world import World, open_world
from tests.batches import make_batches


class Lake:
    """A store with segments of nodes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.store = LocalStore(f"{folder}/store", Disk(), SystemClock(), random.Random(1))
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

    @asynccontextmanager
    async def running(
        self,
        *pipelines: PipelineConfig,
        read_again: Callable[[], Sequence[PipelineConfig]] | None = None,
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
