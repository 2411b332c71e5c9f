"""Manifests in the store: read, and changed by compare-and-swap.

A change is a function of the newest version. It is applied again to the new version when
another writer was first, and also when an answer was lost: if the write did happen and others
wrote since, the change finds its effect already there. A change must therefore be safe to
apply twice.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Final

from logstore import keys
from logstore import ulid as ulids
from logstore.batch import RunKey
from logstore.cache import Cache
from logstore.clock import Clock, Entropy
from logstore.errors import OutcomeUnknown, PreconditionFailed
from logstore.objects.store import ObjectStore
from logstore.runs.manifest import Manifest, decode_manifest, encode_manifest
from logstore.swap import Backoff, Document, RetryBudget, Revision, swap

_REMEMBERED_BYTES: Final = 4 << 20
_REVISION_BYTES: Final = 1500
"""Of a version without its chunks and their text, roughly: measured with `tracemalloc`."""
_CHUNK_BYTES: Final = 600
_AMBIGUOUS: Final = 10  # `decide` may have written chunks: they are not given up for a lost answer


@dataclass(frozen=True, slots=True)
class Versioned:
    """A manifest as stored; `etag` None means that there is no object."""

    manifest: Manifest
    etag: str | None


class Manifests:
    """The manifests of all runs.

    Versions that were written here last are remembered: a change begins with them and saves a read.
    If one is not the newest any more, the store refuses the write, and the change is made again.
    """

    def __init__(self, store: ObjectStore, clock: Clock, entropy: Entropy) -> None:
        self._store = store
        self._clock = clock
        self._entropy = entropy
        self.conflicts = 0
        self._written = Cache[Revision[Manifest]](_REMEMBERED_BYTES)

    def _document(self, key: RunKey) -> Document[Manifest]:
        return Document(self._store, keys.run_manifest(key), decode_manifest, encode_manifest)

    async def get(self, key: RunKey) -> Versioned:
        """The newest version; an empty open one without ETag if there is no object.

        Raises `Damaged`, `UnsupportedVersion`, `StoreUnavailable`.
        """
        return _versioned(key, await self._document(key).read())

    async def recent(self, key: RunKey) -> Versioned:
        """The version that was written here last; without one, as `get`."""
        written = self._written.get(key)
        return await self.get(key) if written is None else _versioned(key, written)

    def is_remembered(self, key: RunKey) -> bool:
        """Whether `recent` asks nobody."""
        return self._written.get(key) is not None

    async def presumed(self, key: RunKey) -> Versioned:
        """As `recent`; a run that most likely is new is presumed to have no manifest.

        The store refuses the first write if that is wrong.
        """
        return await self.recent(key)

    async def swap(self, seen: Versioned, manifest: Manifest) -> Versioned:
        """Replaces `seen` by `manifest`.

        Raises `PreconditionFailed` if `seen` is not the newest version any more,
        `StoreUnavailable`, `OutcomeUnknown`.
        """
        key = manifest.key
        self._written.drop(key)
        written = await self._document(key).write(self._fresh(manifest), seen.etag)
        return self._remembered(key, written)

    async def update(self, key: RunKey, change: Callable[[Manifest], Manifest | None]) -> Versioned:
        """Applies `change` to the newest version until it is written; None leaves it unchanged.

        Raises as `get`, and `OutcomeUnknown`.
        """

        async def decide(newest: Manifest | None) -> Manifest | None:
            return change(newest or Manifest(key))

        return await self.update_by(key, decide)

    async def update_by(
        self,
        key: RunKey,
        decide: Callable[[Manifest | None], Awaitable[Manifest | None]],
        *,
        seen: Versioned | None = None,
    ) -> Versioned:
        """As `update`, with an async `decide`, which may for instance write chunks.

        `decide` gets None where there is no manifest. If that was `seen` just now, the first try
        does not look again.
        """
        budget = RetryBudget(Backoff(self._clock, self._entropy), ambiguous=_AMBIGUOUS)

        async def change(newest: Manifest | None) -> Manifest | None:
            wanted = await decide(newest)
            return None if wanted is None else self._fresh(wanted)

        known = self._written.get(key)
        self._written.drop(key)
        if known is None and seen is not None and seen.etag is None:
            try:
                if (first := await change(None)) is not None:
                    return self._remembered(key, await self._document(key).write(first, None))
            except PreconditionFailed:  # somebody was faster
                pass
            except OutcomeUnknown as error:
                budget.spend(error)
        try:
            found = await swap(self._document(key), change, known=known, budget=budget)
        finally:
            self.conflicts += budget.refused
        return self._remembered(key, found)

    def _remembered(self, key: RunKey, found: Revision[Manifest] | None) -> Versioned:
        if found is not None and found.written:
            self._written.drop(key)
            self._written.put(key, found, _bytes_of(found.value))
        return _versioned(key, found)

    def fresh_id(self) -> str:
        """A fresh ULID, for versions and chunks."""
        return ulids.fresh_text(self._clock, self._entropy)

    def _fresh(self, manifest: Manifest) -> Manifest:
        return replace(manifest, version=self.fresh_id())


def _bytes_of(manifest: Manifest) -> int:
    chunks = manifest.chunks
    kept = sum([len(chunk.text or b"") + len(chunk.index or b"") for chunk in chunks])
    return _REVISION_BYTES + _CHUNK_BYTES * (len(chunks) + len(manifest.copies) // 4) + kept


def _versioned(key: RunKey, found: Revision[Manifest] | None) -> Versioned:
    return Versioned(Manifest(key), None) if found is None else Versioned(found.value, found.etag)
