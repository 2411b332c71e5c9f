"""A node whose batches go into a real journal, by a real appender; the rest is in memory."""

from __future__ import annotations

from dataclasses import dataclass, field

from logstore.batch import RunKey
from service.ingest.batch import IncomingBatch, Receipt, Submitted
from tests.service.http.memory_node import MemoryNode
from tests.service.ingest.gated_appender import Door


@dataclass
class JournalNode(MemoryNode):
    """`taken` counts the batches that the quick lane took."""

    door: Door = field(default_factory=Door)
    taken: int = 0

    def submit(self, batch: IncomingBatch) -> Submitted | None:
        submitted = self.door.appender.submit(batch)
        self.taken += submitted is not None
        return submitted

    async def append(self, batch: IncomingBatch) -> Receipt:
        return await self.door.appender.append(batch)

    async def open_run(self, key: RunKey, connector: str) -> int:
        return await self.door.appender.open_run(key, connector)

    def news(self) -> list[bytes]:
        """What the journal has beyond the batches that made the runs known."""
        return [text for text in self.door.texts() if text != b"first\n"]
