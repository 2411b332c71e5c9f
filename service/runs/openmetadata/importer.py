"""Import: a run that OpenMetadata wrote gets a manifest at its first use.

    look ──► scan (stream the text once) ──► copy in the store ──► index ──► manifest, if absent

The log becomes the run's first chunk. A `logs.txt` at the run's own key that ends with a newline
is not copied: it becomes the closed run's `logs.txt` as it is. Objects of OpenMetadata under
other keys are never changed.

Chunk id and line ids depend only on the objects' keys, ETags and times. Two nodes that import
at once, or one that repeats a killed import, therefore write the same bytes to the same keys,
and one of their manifests wins. If an object changes meanwhile, the copy's condition fails and
the import begins again. All line ids have the time at which OpenMetadata last wrote. The writer
of the lines is `taken-in`, which no node can be called.
"""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace

from logstore import keys
from logstore import ulid as ulids
from logstore.batch import RunKey
from logstore.clock import Clock, Entropy
from logstore.errors import (
    Damaged,
    NotFound,
    OutcomeUnknown,
    PreconditionFailed,
    StoreUnavailable,
    TailraceError,
    Unavailable,
)
from logstore.objects.store import ObjectStore, Part
from logstore.runs.manifest import Chunk, Manifest
from logstore.runs.manifests import Manifests, Versioned
from logstore.runs.scan import TextScan
from logstore.swap import Document, RetryBudget, Revision
from service.runs.chunks import Chunks
from service.runs.deletions import Deletions
from service.runs.locks import OncePerRun
from service.runs.openmetadata.layout import Upstream, UpstreamLog

WRITER = "taken-in"
"""Of lines that no node of ours brought into the text; a node's id ends in a ULID."""

_NUMBER_BITS = 28  # of a batch's 55: its number; the others are of the text's name
_TRIES = 8
_PAUSE_SECONDS = 0.1
_ABSENT_SECONDS = 10.0


class Importer:
    """Imports runs for one node."""

    def __init__(
        self,
        store: ObjectStore,
        upstream: Upstream,
        manifests: Manifests,
        chunks: Chunks,
        deletions: Deletions,
        clock: Clock,
        *,
        prefix: str,
        rebuild: Callable[[RunKey], Awaitable[bool]],
    ) -> None:
        """`rebuild` is called first: it may be Tailrace's own run whose manifest is lost."""
        self._store = store
        self._upstream = upstream
        self._rebuild = rebuild
        self._manifests = manifests
        self._chunks = chunks
        self._deletions = deletions
        self._clock = clock
        self._prefix = prefix
        self._touch = OncePerRun(clock, self._import, remembered_seconds=_ABSENT_SECONDS)
        self._left: set[RunKey] = set()
        self.imported = 0

    async def import_run(self, key: RunKey) -> bool:
        """Imports a run without a manifest; whether it has one now.

        Raises `StoreUnavailable`, `OutcomeUnknown`, `Damaged`.
        """
        return await self._touch.do(key)

    async def is_new(self, key: RunKey) -> bool:
        """Whether no text of the run is in the store, or was a moment ago.

        A small open run has its text in its manifest, so it may have that. Raises
        `StoreUnavailable`.
        """
        return self._touch.idle(key) or not await self._upstream.has_texts(key)

    async def import_left(self, before_ms: int) -> None:
        """Imports runs that OpenMetadata left in progress and nobody has used since.

        The sweeper then finds their manifests. A run that cannot be imported delays no other.
        Raises `StoreUnavailable`, `OutcomeUnknown`, `Damaged`, after trying all.
        """
        found = [key async for key in self._upstream.left(before_ms) if key not in self._left]
        failure: TailraceError | None = None
        for key in found:
            try:
                if (await self._manifests.get(key)).etag is None:
                    await self.import_run(key)
                self._left.add(key)
            except (Unavailable, OutcomeUnknown, Damaged) as error:
                failure = error
        if failure is not None:
            raise failure

    def stop(self) -> None:
        """Ends running work; the next access begins again."""
        self._touch.stop()

    async def _import(self, key: RunKey) -> bool:
        if not await self._upstream.has_texts(key):
            return False
        if await self._rebuild(key):
            return True
        budget = RetryBudget()
        for tries in range(_TRIES):
            try:
                return await self._once(key)
            except (NotFound, PreconditionFailed):
                pass  # somebody was first, or writes or closes: look again
            except OutcomeUnknown as error:
                budget.spend(error)
            if (await self._manifests.get(key)).etag is not None:
                return True
            await self._clock.sleep(_PAUSE_SECONDS * 2 ** min(tries, 4))
        raise StoreUnavailable(
            f"the log of {key.fqn}/{key.run} changes all the time while it is imported",
            hint="Stop the OpenMetadata server that still writes to this bucket.",
        )

    async def _once(self, key: RunKey) -> bool:
        horizon = self._deletions.horizon(key)
        text = await self._upstream.find(key, horizon)
        if text is None:
            return False
        await self._deletions.refresh(key)
        if self._deletions.horizon(key) > horizon:  # deleted by another node: look again
            return await self._once(key)
        manifest = _manifest(key, text, await self._chunk(key, text), horizon)
        await self._manifests.swap(Versioned(Manifest(key), None), manifest)
        self.imported += 1
        return True

    async def _chunk(self, key: RunKey, text: UpstreamLog) -> Chunk:
        name = _Name.of(text)
        scan = TextScan(WRITER, name.first_batch)
        parts: list[Part | bytes] = []
        for info in text.objects:
            async for piece in self._store.stream(info.key, if_match=info.etag):
                scan.add(piece)
            parts.append(Part(info.key, 0, info.size, if_match=info.etag))
            if not scan.ended:
                scan.add(b"\n")
                parts.append(b"\n")
        scanned = scan.end(name.chunk_id)
        chunk = scanned.chunk
        only = text.objects[0]
        if len(parts) == 1 and only.key == keys.logs(self._prefix, key):
            chunk = replace(chunk, kind="logs", etag=only.etag)
        else:
            await self._store.compose(self._chunks.text_key(key, chunk), parts)
        await self._store.put(self._chunks.index_key(key, chunk), scanned.index)
        return chunk


class ImportingManifests(Manifests):
    """Manifests whose `get`, and all calls that begin with it, import a missing run.

    One look at the folders of a run without any text saves the look for its manifest.
    """

    def __init__(
        self, store: ObjectStore, clock: Clock, entropy: Entropy, importer: Importer
    ) -> None:
        super().__init__(store, clock, entropy)
        self._importer = importer

    async def presumed(self, key: RunKey) -> Versioned:
        if not self.is_remembered(key) and await self._importer.is_new(key):
            return Versioned(Manifest(key), None)
        return await self.recent(key)

    def _document(self, key: RunKey) -> Document[Manifest]:
        own = super()._document(key)
        return _ImportedDocument(
            own.store, own.key, own.decode, own.encode, lambda: self._importer.import_run(key)
        )


@dataclass(frozen=True)
class _ImportedDocument(Document[Manifest]):
    """A manifest that, if it does not exist, is made from what OpenMetadata wrote.

    `imported` makes it, and returns whether there is one now. `read` also raises as
    `Importer.import_run` does.
    """

    imported: Callable[[], Awaitable[bool]]

    async def read(self) -> Revision[Manifest] | None:
        found = await super().read()
        if found is None and await self.imported():
            return await super().read()
        return found


@dataclass(frozen=True, slots=True)
class _Name:
    """The ids of a log's chunk and batches."""

    chunk_id: str
    first_batch: int

    @staticmethod
    def of(text: UpstreamLog) -> _Name:
        """The ids for these objects; always the same for the same objects."""
        parts = [f"{info.key}\0{info.etag}\0{info.size}" for info in text.objects]
        digest = hashlib.blake2b("\0".join(parts).encode(), digest_size=16).digest()
        base = ulids.lowest_at(text.modified_ms)
        chunk = base | int.from_bytes(digest[:10])
        own_bits = ulids.RANDOM_BITS - ulids.LINE_BITS - _NUMBER_BITS
        own = int.from_bytes(digest[10:]) & (1 << own_bits) - 1
        return _Name(ulids.encode(chunk), base | own << ulids.LINE_BITS + _NUMBER_BITS)


def _manifest(key: RunKey, text: UpstreamLog, chunk: Chunk, generation: int) -> Manifest:
    closes: dict[str, int] = {}
    if text.closed or text.reopened:
        closes = {WRITER: chunk.records if text.closed else 0}
    return Manifest(
        key,
        state="closed" if text.closed else "open",
        generation=generation,
        epoch=_epoch(text),
        owner=WRITER,
        chunks=(chunk,),
        writers={WRITER: chunk.records},
        closes=closes,
        first_ms=text.modified_ms,
        last_ms=text.modified_ms,
        flushed_ms=text.modified_ms,
    )


def _epoch(text: UpstreamLog) -> int:
    """OpenMetadata's epoch, so that that of the run keeps rising."""
    epoch = text.objects[-1].metadata.get("writer-epoch", "")
    return int(epoch) if epoch.isascii() and epoch.isdigit() and len(epoch) < 16 else 0
