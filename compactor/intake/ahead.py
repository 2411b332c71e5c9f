"""Verifying the next batch's segments while Spark merges this one's.

Spark keeps its cores busy for most of a merge and not for all of it, and where segments are in
a bucket, verifying mostly waits for requests. Nothing is decided here: the next batch is planned
when it is its turn, and what was found out serves as far as it is of that batch's first
segments, which never change. It is bounded as a batch is.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from compactor.intake.plan import StoredSegment
from compactor.intake.room import Room
from compactor.intake.verify import Verification
from logstore.objects.store import ObjectStore


@dataclass(slots=True)
class Ahead:
    """Verdicts on batches of a store, `bucket_bytes` of text for each task."""

    store: ObjectStore
    bucket_bytes: int
    _asked: tuple[StoredSegment, ...] = ()
    _found: Verification = field(init=False)
    _task: asyncio.Task[None] | None = None

    def look(self, segments: tuple[StoredSegment, ...]) -> None:
        """Begins to verify them, which are probably next, beside whatever goes on."""
        self._asked, self._found = segments, self._nothing()
        self._task = asyncio.create_task(self._found.go_on(self.store, segments), name="ahead")

    async def of(self, segments: tuple[StoredSegment, ...]) -> Verification:
        """Verdicts on these, as far as one batch has room. What was looked at is forgotten."""
        found = self._nothing()
        if self._task is not None:
            if self._asked[:1] == segments[:1]:
                await self._task
                found = self._found if self._found.begins(segments) else found
            await self.close()
        await found.go_on(self.store, segments)
        return found

    async def close(self) -> None:
        """Ends what is under way, whatever it has met: nobody asks for it any more."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    def _nothing(self) -> Verification:
        return Verification(Room(self.bucket_bytes))
