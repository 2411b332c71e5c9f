"""Manifests in the store: read, and changed by compare-and-swap.

A change is a function of the newest version. It is tried again on whatever version is
there when another writer was first, and also when an answer was lost: if the write did
happen, the change finds itself done. So a change must be one that can be applied twice.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace

from logstore import keys
from logstore import ulid as ulids
from logstore.batch import RunKey
from logstore.clock import Clock
from logstore.entropy import Entropy
from logstore.errors import NotFound, OutcomeUnknown, PreconditionFailed
from logstore.objects.store import ObjectStore
from logstore.runs.manifest import Manifest, decode_manifest, encode_manifest

_PAUSE_SECONDS = 0.01


@dataclass(frozen=True, slots=True)
class Versioned:
    """A manifest as it stands in the store; `etag` None means that there is none."""

    manifest: Manifest
    etag: str | None


class Manifests:
    """The manifests of all runs."""

    def __init__(self, store: ObjectStore, clock: Clock, entropy: Entropy) -> None:
        self._store = store
        self._clock = clock
        self._entropy = entropy
        self.swaps = 0
        self.conflicts = 0

    async def get(self, key: RunKey) -> Versioned:
        """The newest version; an empty open one without ETag if there is none.

        Raises `Damaged`, `UnsupportedVersion`, `StoreUnavailable`.
        """
        try:
            info, body = await self._store.get(keys.run_manifest(key))
        except NotFound:
            return Versioned(Manifest(key), None)
        return Versioned(decode_manifest(body), info.etag)

    async def swap(self, seen: Versioned, manifest: Manifest) -> Versioned:
        """Writes `manifest` in the place of `seen`.

        Raises `PreconditionFailed` if that is not the newest any more, `StoreUnavailable`,
        `OutcomeUnknown`.
        """
        fresh = replace(manifest, version=self.fresh_id())
        key = keys.run_manifest(manifest.key)
        body = encode_manifest(fresh)
        if seen.etag is None:
            info = await self._store.put(key, body, if_absent=True)
        else:
            info = await self._store.put(key, body, if_match=seen.etag)
        self.swaps += 1
        return Versioned(fresh, info.etag)

    async def update(self, key: RunKey, change: Callable[[Manifest], Manifest | None]) -> Versioned:
        """Applies `change` to the newest version until it is in; None leaves it as it is."""

        async def decide(seen: Versioned) -> Manifest | None:
            return change(seen.manifest)

        return await self.update_by(key, decide)

    async def update_by(
        self, key: RunKey, decide: Callable[[Versioned], Awaitable[Manifest | None]]
    ) -> Versioned:
        """`update` with a change that takes its time (it writes chunks, say)."""
        tries = 0
        while True:
            seen = await self.get(key)
            wanted = await decide(seen)
            if wanted is None:
                return seen
            try:
                return await self.swap(seen, wanted)
            except (PreconditionFailed, OutcomeUnknown):
                self.conflicts += 1
                tries += 1
                jitter = 1 + self._entropy.getrandbits(4) / 16
                await self._clock.sleep(min(_PAUSE_SECONDS * 2 ** min(tries, 6) * jitter, 1.0))

    def fresh_id(self) -> str:
        """A ULID of now: for versions and chunks."""
        return ulids.encode(ulids.fresh(self._clock, self._entropy))
