"""`partial.txt`: the log so far of an open run, for people and OpenMetadata's readers.

The store composes it from the chunks, at most every `seconds`, and only while copying stays
linear: the log has doubled since, or is small. Tailrace never reads it.
"""

from __future__ import annotations

from collections import OrderedDict

from logstore import keys
from logstore.batch import RunKey
from logstore.clock import Clock
from logstore.objects.store import ObjectStore
from logstore.runs.manifest import FORMAT, Manifest
from logstore.runs.manifests import Manifests
from service.runs.chunks import Chunks
from service.runs.locks import RunLocks

_SMALL_BYTES = 5 << 20
_GROWTH = 2.0
_REMEMBERED = 10_000


class PartialPublisher:
    """Publishes `partial.txt` for the runs of one node."""

    def __init__(
        self,
        store: ObjectStore,
        manifests: Manifests,
        chunks: Chunks,
        locks: RunLocks,
        prefix: str,
        clock: Clock,
        *,
        seconds: float,
        alone: bool,
    ) -> None:
        """`alone`: there is no other node, so that nobody else closes a run meanwhile."""
        self._store = store
        self._manifests = manifests
        self._locks = locks
        self._chunks = chunks
        self._prefix = prefix
        self._clock = clock
        self._seconds = seconds
        self._alone = alone
        self._published: OrderedDict[RunKey, tuple[int, float]] = OrderedDict()
        self.published = 0

    def due(self, manifest: Manifest) -> bool:
        """Whether it is worth publishing now."""
        if manifest.state != "open" or not manifest.chunks:
            return False
        size, at = self._published.get(manifest.key, (0, float("-inf")))
        if self._clock.monotonic() - at < self._seconds:
            return False
        return manifest.bytes > size and (
            manifest.bytes < _SMALL_BYTES or manifest.bytes >= size * _GROWTH
        )

    def has_published(self, key: RunKey) -> bool:
        """Whether this process has written it, as far as it remembers."""
        return key in self._published

    async def publish(self, key: RunKey, *, due: bool = False) -> None:
        """Writes it if the run is open and, with `due`, if it is worth publishing.

        Raises `Unavailable`, `OutcomeUnknown`.
        """
        # Under the lock, so that it cannot come after the close that removes it.
        async with self._locks.of(key):
            # Right after a flush, the version that it wrote was the newest a moment ago.
            read = self._manifests.recent if due else self._manifests.get
            manifest = (await read(key)).manifest
            if manifest.state != "open" or (due and not self.due(manifest)):
                return
            await self._write(manifest)
            if self._alone:
                return
            # Another node may have closed it meanwhile, and removed the one before.
            if (await self._manifests.get(key)).manifest.state != "open":
                await self._store.delete([keys.partial(self._prefix, key)])

    async def _write(self, manifest: Manifest) -> None:
        """Writes it from the newest manifest."""
        key = manifest.key
        parts = [self._chunks.text_part(key, chunk) for chunk in manifest.chunks]
        await self._store.compose(
            keys.partial(self._prefix, key),
            parts,
            metadata={
                "last-flushed-line": str(manifest.lines),
                "total-bytes": str(manifest.bytes),
                "writer-epoch": str(manifest.epoch),
                "writer-version": str(FORMAT),
            },
        )
        self.published += 1
        self._published[key] = (manifest.bytes, self._clock.monotonic())
        self._published.move_to_end(key)
        if len(self._published) > _REMEMBERED:
            self._published.popitem(last=False)

    def forget(self, key: RunKey) -> None:
        """Drops what is known of a run that was closed or deleted."""
        self._published.pop(key, None)
