"""A batch that a client may send again: what recognises it, and when it is safe."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass


@dataclass(slots=True)
class KnownBatch:
    """`end` is one past its last position; `done` None if it is in the journal for sure."""

    digest: int
    records: int
    end: int
    done: asyncio.Future[None] | None = None

    @property
    def refused(self) -> bool:
        """Whether the journal took it and then could not write it."""
        return self.done is not None and self.done.done() and not self.held

    @property
    def held(self) -> bool:
        """Whether it is in the journal for sure."""
        done = self.done
        return done is None or (done.done() and not done.cancelled() and done.exception() is None)
