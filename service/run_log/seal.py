"""Seals closed runs: the settled beginning of a run's log becomes `logs.txt`.

    sort ──► intent (manifest) ──► logs.txt composed under a condition ──► index ──► manifest
                                                                              ──► read back

Chunks of several nodes are sorted by ULID first. The intent names the sorted chunks, and from then
on their lines have their final place. The intent carries a ULID that `logs.txt` gets as metadata,
so a lost answer is resolved by reading the object. Within a generation, `logs.txt` always begins
with the log that the manifest names, because it was composed from a longer beginning of the same
run. A reader between composing and swapping therefore reads the right bytes. The chunks stay; the
sweeper removes them after a day.

A small run of one node, whose text is in its manifest, needs no intent and no chunk: `logs.txt` is
put if absent, then the manifest is swapped. After a kill in between, `logs.txt` is composed again.
If such a run has no manifest yet, the sealed manifest is its first one. After a kill in between,
the metadata of `logs.txt` says that its lines are still to be flushed (`first_lines`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial

from service.run_log.chunks import FIRST, PUT, Chunks, Moved, first_lines, goes_on
from service.run_log.merge import ChunkMerger, ChunkSorter, Exchange
from tailrace.logstore import keys
from tailrace.logstore.batch import RunKey
from tailrace.logstore.cas import RetryBudget
from tailrace.logstore.errors import (
    Damaged,
    NotFound,
    OutcomeUnknown,
    PreconditionFailed,
    StoreUnavailable,
)
from tailrace.logstore.objects.store import ObjectInfo, ObjectPart, ObjectStore
from tailrace.logstore.runs.manifest import FORMAT, Chunk, Manifest, Manifests, PendingSeal

Closes = Callable[[Manifest], Mapping[str, int] | None]
"""From the newest manifest: per writer one past its last line before the close; None: leave it."""
Asking = Callable[[Manifest], tuple[str, ...]]
"""From the newest manifest: the nodes that closed the run and still ask others to do so."""

_TRIES = 8


class Sealer:
    """Seals one run at a time; its caller holds the run's lock."""

    def __init__(
        self,
        store: ObjectStore,
        manifests: Manifests,
        chunks: Chunks,
        merger: ChunkMerger,
        sorter: ChunkSorter,
        *,
        prefix: str,
        has_partial: Callable[[RunKey], bool],
    ) -> None:
        """`has_partial`: whether this process has published the `partial.txt` of a run."""
        self._has_partial = has_partial
        self._store = store
        self._manifests = manifests
        self._chunks = chunks
        self._merger = merger
        self._sorter = sorter
        self._prefix = prefix
        self._unnamed: dict[RunKey, ObjectInfo] = {}
        """Texts that `seal_first` has put, until it is known whether a manifest names them."""

    async def seal(
        self,
        key: RunKey,
        closes: Closes,
        asking: Asking = lambda newest: newest.asking,
        *,
        abandoned: bool = False,
    ) -> Manifest:
        """Records up to which position each writer's lines came before a close, and seals those.

        `abandoned`: no client closed the run, the sweeper does. It only records as long as a node
        is `asking` other nodes to close the run, because their lines belong between these lines.
        Raises `StoreUnavailable`, `OutcomeUnknown`, `Damaged`; a second call continues.
        """
        small = await self._seal_at_once(key, closes, asking, abandoned=abandoned)
        if small is not None:
            return small
        while True:
            put = self._manifests.fresh_id()
            intend = partial(_intended, closes=closes, asking=asking, put=put, abandoned=abandoned)
            manifest = await self._intend(key, intend)
            if manifest.closing is None or manifest.closing.put != put:
                break
            await self._build(manifest, manifest.closing)
        if manifest.sealed:
            await self._read_back(manifest)
            await self._store.delete([keys.partial(self._prefix, key)])
        return manifest

    async def _seal_at_once(
        self, key: RunKey, closes: Closes, asking: Asking, *, abandoned: bool
    ) -> Manifest | None:
        """Seals a run whose text is in its manifest; None if the usual way must seal it.

        It needs no intent: of several writers one makes `logs.txt`, and its manifest names it only
        if it is still the version that the text is from.
        """
        seen = await self._manifests.recent(key)
        put = await self._put_logs(seen.manifest, closes, asking, abandoned=abandoned)
        if put is None:
            return None
        sealed, made = put
        try:
            manifest = (await self._manifests.swap(seen, sealed)).manifest
        except PreconditionFailed:
            await self._take_back(key, made)
            return None
        except OutcomeUnknown:
            return None
        if self._has_partial(key) or manifest.epoch > 1:
            await self._read_back(manifest)
            await self._store.delete([keys.partial(self._prefix, key)])
        return manifest

    async def seal_first(self, manifest: Manifest, closes: Closes, asking: Asking) -> Manifest:
        """Puts `logs.txt` of a run that has no manifest; returns its first one, which names it.

        The caller puts that manifest if it is absent, and calls `named` with what is stored then.
        Returns `manifest` if the run must be flushed and sealed in the usual way.
        """
        put = await self._put_logs(manifest, closes, asking, first=True)
        if put is None:
            return manifest
        sealed, self._unnamed[manifest.key] = put
        return sealed

    async def named(self, manifest: Manifest) -> bool:
        """Returns true if `seal_first` has sealed the run as its manifest says.

        Another node may have been first: if it has deleted the run, the text is taken back.
        """
        made = self._unnamed.get(manifest.key)
        if made is None:
            return False
        logs = manifest.logs
        if logs is None or logs.etag != made.etag:
            await self._take_back(manifest.key, made)
        del self._unnamed[manifest.key]
        return manifest.state == "closed" and manifest.sealed

    def forget(self, key: RunKey) -> None:
        """Drops the state of a deleted run: its deletion removes the text."""
        self._unnamed.pop(key, None)

    async def _put_logs(
        self,
        manifest: Manifest,
        closes: Closes,
        asking: Asking,
        *,
        abandoned: bool = False,
        first: bool = False,
    ) -> tuple[Manifest, ObjectInfo] | None:
        """Puts a text that is in the manifest, if absent; returns the manifest that names it.

        None if this is not possible. `first`: the run has no manifest in the store.
        """
        key, put = manifest.key, self._manifests.fresh_id()
        chunks = manifest.chunks
        texts = [chunk.text for chunk in chunks if chunk.text is not None]
        writers = {writer for chunk in chunks for writer in chunk.writers}
        wanted = _intended(manifest, closes, asking, put, abandoned=abandoned)
        if wanted is None or wanted.closing is None or wanted.closing.put != put:
            return None
        ready = len(texts) == len(chunks) == len(wanted.closing.chunks) and len(writers) == 1
        if not ready or manifest.closing is not None:
            return None
        metadata = _metadata(wanted, chunks, wanted.closing)
        if first:
            metadata[FIRST] = first_lines(chunks[0])
        try:
            made = await self._store.put(
                keys.logs(self._prefix, key), b"".join(texts), if_absent=True, metadata=metadata
            )
            logs = await self._merger.joined(
                key, chunks, self._manifests.fresh_id(), etag=made.etag
            )
        except (PreconditionFailed, OutcomeUnknown):
            return None
        sealed = _sealed(wanted, wanted.closing, logs)
        assert sealed is not None
        return sealed, made

    async def _take_back(self, key: RunKey, made: ObjectInfo) -> None:
        """Removes a text that was put after another node had deleted the run."""
        newest = (await self._manifests.get(key)).manifest
        if newest.state != "deleted" or newest.closing is not None:
            return
        with suppress(PreconditionFailed):
            await self._store.put(made.key, b"", if_match=made.etag)
        if (await self._manifests.get(key)).manifest.state == "deleted":
            await self._store.delete([made.key])

    async def _intend(
        self, key: RunKey, intended: Callable[[Manifest], Manifest | None]
    ) -> Manifest:
        """Returns the manifest with an intent that names chunks in order, or without one."""
        exchanges: dict[tuple[str, ...], Exchange] = {}

        async def decide(newest: Manifest | None) -> Manifest | None:
            manifest = newest or Manifest(key)
            wanted = intended(manifest)
            if wanted is None or wanted.closing in (None, manifest.closing):
                return wanted
            assert wanted.closing is not None
            for exchange in await self._sorter.sort(
                manifest, len(wanted.closing.chunks), exchanges
            ):
                exchanges[exchange.ids] = exchange
                manifest = exchange.apply(manifest)
            return intended(manifest)

        moved: Moved | None = None
        for _ in range(_TRIES):
            try:
                manifest = (await self._manifests.update_by(key, decide)).manifest
            except Moved as error:  # merged while its chunks were read
                moved = error
                continue
            await self._sorter.discard(manifest, exchanges.values())
            return manifest
        raise StoreUnavailable(f"the chunks of {key.fqn}/{key.run} change all the time: {moved}")

    async def _build(self, manifest: Manifest, closing: PendingSeal) -> None:
        group = manifest.chunks[: len(closing.chunks)]
        info = await self._compose(manifest, closing, group)
        if info is None:
            return  # another node's intent is recorded: look again
        if info.size != closing.bytes:
            raise Moved(f"a chunk of {manifest.key} is cut")
        chunk_id = self._manifests.fresh_id()
        sealed = await self._merger.joined(manifest.key, group, chunk_id, etag=info.etag)

        def change(newest: Manifest) -> Manifest | None:
            return _sealed(newest, closing, sealed)

        await self._manifests.update(manifest.key, change)

    async def _compose(
        self, manifest: Manifest, closing: PendingSeal, group: tuple[Chunk, ...]
    ) -> ObjectInfo | None:
        where = keys.logs(self._prefix, manifest.key)
        budget = RetryBudget()
        while True:
            there = await self._head(where)
            if there is not None and there.metadata.get(PUT) == closing.put:
                return there
            newest = (await self._manifests.get(manifest.key)).manifest
            if newest.closing != closing:
                return None
            parts = [self._part(manifest, chunk, there) for chunk in group]
            try:
                return await self._store.compose(
                    where,
                    parts,
                    if_absent=there is None,
                    if_match=None if there is None else there.etag,
                    metadata=_metadata(manifest, group, closing),
                )
            except (PreconditionFailed, OutcomeUnknown) as error:
                budget.spend(error)

    def _part(
        self, manifest: Manifest, chunk: Chunk, there: ObjectInfo | None
    ) -> ObjectPart | bytes:
        if chunk.kind == "chunk":
            return self._chunks.text_part(manifest.key, chunk)
        where = self._chunks.text_key(manifest.key, chunk)
        if there is None or not goes_on(chunk, there):
            raise Moved(f"{where} is gone, or is another text than the manifest names")
        return ObjectPart(where, 0, chunk.bytes, if_match=there.etag)

    async def _head(self, key: str) -> ObjectInfo | None:
        try:
            return await self._store.head(key)
        except NotFound:
            return None

    async def _read_back(self, manifest: Manifest) -> None:
        logs = manifest.logs
        there = await self._head(keys.logs(self._prefix, manifest.key))
        if there is None:  # somebody removed it: it is made again
            raise Moved(f"logs.txt of {manifest.key} is gone")
        if logs is None or (there.size, there.etag) != (logs.bytes, logs.etag):
            raise Damaged(f"logs.txt of {manifest.key} is not what its manifest says")


def _intended(
    manifest: Manifest, closes: Closes, asking: Asking, put: str, *, abandoned: bool
) -> Manifest | None:
    """Returns the manifest with the close and, if lines must be sealed, the intent."""
    if not manifest.chunks or (manifest.closing is not None and manifest.closing.put == put):
        return None
    ends = closes(manifest)
    if ends is None:
        return None
    known = manifest.closes
    merged = {**known, **{who: max(known.get(who, 0), end) for who, end in ends.items()}}
    closed = replace(
        manifest,
        closes=merged,
        asking=asking(manifest),
        closing=None,
        # A sweep that a crash cut short has recorded closes, and continues.
        abandoned=abandoned and (manifest.abandoned or not known),
    )
    count = 0 if closed.asking else _settled_count(closed)
    if count > (1 if manifest.logs is not None else 0):
        group = closed.chunks[:count]
        size = sum([chunk.bytes for chunk in group])
        ids = tuple([chunk.id for chunk in group])
        whole = count == len(closed.chunks) and not manifest.logs
        state = "closing" if whole else closed.state
        fixed = sum([chunk.lines for chunk in group])
        return replace(closed, state=state, closing=PendingSeal(put, size, ids), fixed=fixed)
    # Another node's intended composition is left to it, as long as the run is not closed.
    closing = manifest.closing if closed.asking else None
    changed = replace(closed, state=closed.state_of_close(), closing=closing)
    return None if changed == manifest else changed


def _settled_count(manifest: Manifest) -> int:
    """Returns how many of the first chunks hold only batches from before the close."""
    count = 0
    while count < len(manifest.chunks) and manifest.settled(count + 1):
        count += 1
    return count


def _sealed(manifest: Manifest, closing: PendingSeal, sealed: Chunk) -> Manifest | None:
    """Returns the manifest with `logs.txt` in place of its chunks."""
    if manifest.closing != closing:
        return None
    rest = manifest.chunks[len(closing.chunks) :]
    changed = replace(manifest, chunks=(sealed, *rest), closing=None, partial=None)
    return replace(changed, state=changed.state_of_close())


def _metadata(manifest: Manifest, group: tuple[Chunk, ...], closing: PendingSeal) -> dict[str, str]:
    return {
        "last-flushed-line": str(sum([chunk.lines for chunk in group])),
        "total-bytes": str(closing.bytes),
        "writer-epoch": str(manifest.epoch),
        "writer-version": str(FORMAT),
        PUT: closing.put,
    }
