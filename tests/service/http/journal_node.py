"""A node whose batches go into a real journal, by a real appender; the rest is in memory."""

from __future__ import annotations

from dataclasses import dataclass, field

from service.ingest.batch import AppendReceipt, IncomingBatch, Submitted
from tailrace.logstore.batch import RunKey
from tests.service.http.memory_node import MemoryNode
from tests.service.ingest.gated_appender import GatedAppender


@dataclass
class JournalNode(MemoryNode):
    """`taken` counts the batches that the fast path took."""

    gated: GatedAppender = field(default_factory=GatedAppender)
    taken: int = 0

    def submit(self, batch: IncomingBatch) -> Submitted | None:
        submitted = self.gated.appender.submit(batch)
        self.taken += submitted is not None
        return submitted

    async def append(self, batch: IncomingBatch) -> AppendReceipt:
        return await self.gated.appender.append(batch)

    async def find_repeat(self, batch: IncomingBatch, since_ms: int) -> AppendReceipt | None:
        return await self.gated.appender.find_repeat(batch, since_ms)

    async def open_run(self, key: RunKey, connector: str) -> int:
        return await self.gated.appender.open_run(key, connector)

    def news(self) -> list[bytes]:
        """What the journal has beyond the batches that made the runs known."""
        return [text for text in self.gated.texts() if text != b"first\n"]
