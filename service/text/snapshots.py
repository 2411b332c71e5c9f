"""Taking snapshots of runs, and taking them again when what they name has moved."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TypeVar

from logstore.batch import RunKey
from logstore.errors import StoreUnavailable
from logstore.runs.manifests import Manifests
from service.text.backlog import Backlog
from service.text.chunks import Chunks, Moved
from service.text.deletions import Deletions
from service.text.flusher import TextFlusher
from service.text.pin import Pin
from service.text.restore.remake import Remaker
from service.text.selection import in_range, news
from service.text.snapshot import Snapshot
from service.text.trim import Trimmer

T = TypeVar("T")
_TRIES = 8


class Snapshots:
    """Of one node."""

    def __init__(
        self,
        pin: Callable[[], Pin],
        backlog: Backlog,
        manifests: Manifests,
        chunks: Chunks,
        deletions: Deletions,
        trimmer: Trimmer,
        flusher: TextFlusher,
        remaker: Remaker,
        mend: Callable[[RunKey], Awaitable[bool]],
    ) -> None:
        self._pin = pin
        self._backlog = backlog
        self._manifests = manifests
        self._chunks = chunks
        self._deletions = deletions
        self._trimmer = trimmer
        self._flusher = flusher
        self._remaker = remaker
        self.mend = mend

    @asynccontextmanager
    async def take(self, key: RunKey) -> AsyncIterator[Snapshot]:
        """The run as it is now. Raises `Moved`, `Unavailable`, `Damaged`."""
        await self._flusher.until_started()
        with self._pin() as pin:
            segments, low = self._backlog.now(), self._flusher.flushed_pos
            horizon = self._deletions.horizon(key)
            manifest = (await self._manifests.get(key)).manifest
            if manifest.generation < horizon and manifest.straddling(horizon):
                manifest = (await self._trimmer.swap(key, horizon))[0].manifest
            manifest = manifest.deleted_through(horizon)
            sources = await self._backlog.sources(key, pin, segments, manifest, low, pin.end_pos)
            chosen = [in_range(s, key, manifest.dealt_with(s.node)) for s in sources]
            kept = await news(sources, chosen, manifest, self._chunks, horizon)
            tail = [(s.batches, i) for s, i in zip(sources, kept, strict=True)]
            yield Snapshot(manifest, self._chunks, pin, tail)

    async def with_one(self, key: RunKey, work: Callable[[Snapshot], Awaitable[T]]) -> T:
        """What `work` makes of a snapshot, done anew on a newer one if something moved.

        A run of which nothing is to be found is remade, if that can be, before it is said
        not to exist.
        """
        hopeless = False
        moved: Moved | None = None
        for _ in range(_TRIES):
            try:
                async with self.take(key) as snapshot:
                    if snapshot.known or hopeless or self._remaker.hopeless(key):
                        return await work(snapshot)
                hopeless = not await self._remaker.run(key)
            except Moved as error:
                if moved is not None:  # it was no swap between two looks: something is gone
                    await self.mend(key)
                moved = error
        raise StoreUnavailable(
            f"the text of {key.fqn}/{key.run} is not where its manifest says: {moved}",
            hint="Try again; if it stays so, run `tailrace verify`.",
        )
