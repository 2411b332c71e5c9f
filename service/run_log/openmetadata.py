"""Imports runs that OpenMetadata wrote: such a run gets a manifest at its first use.

    look ──► scan (stream the text once) ──► copy in the store ──► index ──► manifest, if absent

The log becomes the run's first chunk. A `logs.txt` at the run's own key that ends with a newline is
not copied: it becomes the closed run's `logs.txt` unchanged. Objects of OpenMetadata under other
keys are never changed.

Chunk id and line ids depend only on the objects' keys, ETags and times. Two nodes that import at
once, or one that repeats a killed import, therefore write the same bytes to the same keys, and one
of their manifests wins. If an object changes meanwhile, the copy's condition fails and the import
begins again. All line ids have the time at which OpenMetadata last wrote. The writer of the lines
is `taken-in`, which no node can be called.

OpenMetadata keeps a run in progress in `partial.txt`. At its close it copies that to `logs.txt` and
deletes it. Its folder has the pipeline's name with every character but letters, digits, `_` and `-`
turned into `_`; Tailrace looks at its own folder first. The objects in a folder mean:

    only logs.txt       that; the run is closed
    only partial.txt    that; the run is open
    both, and one begins with the other (killed between copying and deleting)
                        the longer one; closed, unless that is partial.txt
    both, and neither does (a late batch, which OpenMetadata would throw away at the next close)
                        logs.txt, then partial.txt; the run is open again

An empty object counts as missing. Names that share a folder share its objects: a request under one
of them imports a copy. Whether a caller may use a name is decided before.

The scan builds the index of a text that is not held in memory, while it streams past. A text that
was not written batch by batch is divided into batches of a block each: the first line end at or
after 32 KiB ends one. So the beginnings of blocks depend on the text alone, and not on the pieces
in which it came. Two scans of the same text under the same first id make the same index, byte for
byte. The scan needs memory for a piece of text and for the index, about 12 bytes per block.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Container
from dataclasses import dataclass, replace

import numpy as np
import xxhash

from service.run_log.backlog import Deletions
from service.run_log.chunks import Chunks
from service.run_log.contracts import OncePerRun
from service.runtime.concurrency import SharedCalls
from tailrace.logstore import keys
from tailrace.logstore import ulid as ulids
from tailrace.logstore.batch import Indexes, RunKey, line_ends
from tailrace.logstore.cas import Document, RetryBudget, Revision
from tailrace.logstore.clock import Clock, Entropy
from tailrace.logstore.errors import (
    Damaged,
    InvalidName,
    NotFound,
    OutcomeUnknown,
    PreconditionFailed,
    StoreUnavailable,
    TailraceError,
    Unavailable,
)
from tailrace.logstore.keys import decode
from tailrace.logstore.objects.store import ObjectInfo, ObjectPart, ObjectStore
from tailrace.logstore.retry import doubled
from tailrace.logstore.runs.chunk_index import (
    BLOCK,
    ENTRY,
    PIECE_BLOCKS,
    Blocks,
    Directory,
    Entries,
    PositionRange,
    encode_piece,
    encode_tail,
    entry_of,
)
from tailrace.logstore.runs.manifest import Chunk, Manifest, Manifests, Versioned

# --- Objects of OpenMetadata --------------------------------------------------------------------


_COMPARED_BYTES = 8 << 20
_NEWLINE = b"\n"
_PLAIN = re.compile(r"[a-zA-Z0-9_-]+")
_NAMES = ("partial.txt", "logs.txt")


@dataclass(frozen=True, slots=True)
class UpstreamLog:
    """The objects whose bytes, one after another, are the run's log.

    `closed`: the log ends where OpenMetadata closed the run; `reopened`: it continues after that.
    An object may lack its last newline.
    """

    objects: tuple[ObjectInfo, ...]
    closed: bool
    reopened: bool = False

    @property
    def modified_ms(self) -> int:
        """Returns when its last object was written, in milliseconds since the epoch."""
        return max([info.modified_ms for info in self.objects])


@dataclass(frozen=True, slots=True)
class UpstreamRun:
    """A run in a listing that nobody has imported yet."""

    key: RunKey
    bytes: int
    modified_ms: int
    closed: bool


class Upstream:
    """Reads what OpenMetadata wrote below `prefix`; never writes."""

    def __init__(self, store: ObjectStore, prefix: str) -> None:
        self._store = store
        self._prefix = prefix
        self._calls = SharedCalls()

    async def objects(self, key: RunKey) -> list[str]:
        """Returns the keys of the run's objects. Raises `StoreUnavailable`."""
        folders = await asyncio.gather(*[self._look(folder) for folder in self._folders(key)])
        return [info.key for both in folders for info in both if info is not None]

    async def has_texts(self, key: RunKey) -> bool:
        """Returns true if an object is in a folder of the run. Raises `StoreUnavailable`.

        Runs of one pipeline share the question whether OpenMetadata has written anything of it.
        """
        ours, theirs = keys.run_texts(self._prefix, key), keys.upstream_texts(self._prefix, key)
        if ours == theirs:
            return await self._holds(ours)
        pipeline = keys.upstream_pipeline(self._prefix, key.fqn)
        if pipeline == keys.pipeline_texts(self._prefix, key.fqn):
            return await self._holds(ours) or await self._holds(theirs)
        own, others = await asyncio.gather(
            self._holds(ours), self._calls.call(pipeline, lambda: self._holds(pipeline))
        )
        return own or (others and await self._holds(theirs))

    async def _holds(self, prefix: str) -> bool:
        try:
            return await anext(aiter(self._store.list(prefix)), None) is not None
        except InvalidName:  # too long for this store
            return False

    async def find(self, key: RunKey, deleted_through: int) -> UpstreamLog | None:
        """Returns the run's log; None if none was written after the deletion.

        Raises `NotFound`, `PreconditionFailed` (somebody is changing it: look again),
        `StoreUnavailable`.
        """
        folders = await asyncio.gather(*[self._look(folder) for folder in self._folders(key)])
        for partial, logs in folders:
            alive = [_alive(info, deleted_through) for info in (partial, logs)]
            found = await self._chosen(*alive)
            if found is not None:
                return found
        return None

    async def runs(self, fqn: str, manifests: Container[str] = ()) -> AsyncIterator[UpstreamRun]:
        """Yields runs in the pipeline's folders that have a log, in no order; some come twice.

        The folders of runs that have one of these manifests are not read.
        """
        ours = keys.pipeline_texts(self._prefix, fqn)
        theirs = keys.upstream_pipeline(self._prefix, fqn)
        if theirs != ours:  # that folder has only texts: one list has them all
            async for run in self._listed(fqn, theirs, theirs):
                yield run
        async for folder in self._store.folders(ours):
            component = folder.removeprefix(ours).strip("/")
            if f"{keys.manifests_of(fqn)}{component}.json" in manifests:
                continue
            async for run in self._listed(fqn, ours, f"{ours}{component}/"):
                yield run

    async def left(self, before_ms: int) -> AsyncIterator[RunKey]:
        """Yields runs that OpenMetadata marked as in progress, last before `before_ms`.

        A marker has the pipeline's name, which the folder does not.
        """
        prefix = keys.all_active(self._prefix)
        async for info in self._store.list(prefix):
            folder, _, rest = info.key.removeprefix(prefix).partition("/")
            if info.modified_ms >= before_ms or _PLAIN.fullmatch(folder) is None:
                continue
            try:
                fqn = (await self._store.head(info.key)).metadata.get("pipeline", "")
            except NotFound:
                continue
            run = decode(rest.partition("/")[0])
            theirs = f"{self._prefix}/{folder}/" == keys.upstream_pipeline(self._prefix, fqn)
            if run is not None and theirs:
                yield RunKey(fqn, run)

    # --- reading the folders -------------------------------------------------------

    def _folders(self, key: RunKey) -> list[str]:
        ours, theirs = keys.run_texts(self._prefix, key), keys.upstream_texts(self._prefix, key)
        return [ours] if ours == theirs else [ours, theirs]

    async def _look(self, folder: str) -> tuple[ObjectInfo | None, ObjectInfo | None]:
        # In the order of the move: a run that is closed meanwhile is seen twice rather than missed.
        partial = await self._head(f"{folder}partial.txt")
        return partial, await self._head(f"{folder}logs.txt")

    async def _head(self, key: str) -> ObjectInfo | None:
        try:
            info = await self._store.head(key)
        except (NotFound, InvalidName):  # a name too long for this store has no object in it
            return None
        return info

    # --- deciding ------------------------------------------------------------------

    async def _chosen(
        self, partial: ObjectInfo | None, logs: ObjectInfo | None
    ) -> UpstreamLog | None:
        if logs is None or partial is None:
            only = logs or partial
            return None if only is None else UpstreamLog((only,), closed=logs is not None)
        if not await self._continues(logs, partial):
            return UpstreamLog((logs, partial), closed=False, reopened=True)
        if partial.size <= logs.size:
            return UpstreamLog((logs,), closed=True)
        return UpstreamLog((partial,), closed=False, reopened=True)

    async def _continues(self, one: ObjectInfo, other: ObjectInfo) -> bool:
        """Returns true if the longer one begins with the shorter one, up to a line's end."""
        short, long = sorted((one, other), key=lambda info: info.size)
        if (short.size, short.etag) == (long.size, long.etag):
            return True
        last = b""
        for offset in range(0, short.size, _COMPARED_BYTES):
            size = min(_COMPARED_BYTES, short.size - offset)
            pieces = await asyncio.gather(
                *[self._range(info, offset, size) for info in (short, long)]
            )
            if pieces[0] != pieces[1]:
                return False
            last = pieces[0][-1:]
        if short.size == long.size or last == _NEWLINE:
            return True
        return await self._range(long, short.size, 1) == _NEWLINE

    async def _range(self, info: ObjectInfo, offset: int, size: int) -> bytes:
        return (await self._store.get(info.key, offset=offset, size=size, if_match=info.etag))[1]

    # --- listing -------------------------------------------------------------------

    async def _listed(self, fqn: str, folder: str, prefix: str) -> AsyncIterator[UpstreamRun]:
        async for info in self._store.list(prefix):
            component, _, name = info.key.removeprefix(folder).partition("/")
            run = decode(component)
            if name in _NAMES and run is not None and info.size:
                key = RunKey(fqn, run)
                yield UpstreamRun(key, info.size, info.modified_ms, name == "logs.txt")


def _alive(info: ObjectInfo | None, deleted_through: int) -> ObjectInfo | None:
    """Returns the object if it is not empty and was written after the deletion."""
    if info is None or not info.size:
        return None
    return info if ulids.highest_at(info.modified_ms) > deleted_through else None


# --- The scan -----------------------------------------------------------------------------------


_CUT_BYTES = 32 << 10
_NEWLINE_BYTE = 10


@dataclass(frozen=True, slots=True)
class Scanned:
    """A chunk's entry without its ETag, and its index."""

    chunk: Chunk
    index: bytes


class TextScan:
    """Takes a text from its beginning. Batch `n` gets the id `first` plus n batch ids.

    All lines are the `writer`'s, whose positions are line numbers.
    """

    def __init__(self, writer: str, first: int) -> None:
        self._writer = writer
        self._first = ulids.batch_of(first)
        self._rows: list[tuple[int, int, int]] = []
        self._bodies: list[bytes] = []
        self._entries: list[Entries] = []
        self._ranges: list[PositionRange] = []
        self._digest = xxhash.xxh3_64()
        self._open_bytes = self._open_lines = 0
        self._last_byte = _NEWLINE_BYTE
        self._at = 0
        self.bytes = self.lines = self.blocks = 0

    @property
    def ended(self) -> bool:
        """Returns true if the text so far ends with a line, or is empty."""
        return self._last_byte == _NEWLINE_BYTE

    def add(self, piece: bytes) -> None:
        """Adds the next bytes of the text."""
        if not piece:
            return
        self._last_byte = piece[-1]
        ends = line_ends(piece)
        at = line = 0
        while (cut := self._cut(ends, at, line)) is not None:
            end = int(ends[cut])
            self._take(piece[at:end], cut + 1 - line)
            self._close_block()
            at, line = end, cut + 1
        self._take(piece[at:], len(ends) - line)

    def end(self, chunk_id: str) -> Scanned:
        """Returns the whole text's chunk. The text must end with a line, and not be empty."""
        assert self.ended, "the caller adds a missing newline"
        if self._open_bytes:
            self._close_block()
        self._close_piece()
        directory = Directory(np.array(self._entries, ENTRY), tuple(self._ranges))
        tail = encode_tail(directory)
        body = b"".join([*self._bodies, tail])
        first, last = directory.extremes()
        chunk = Chunk(
            id=chunk_id,
            kind="chunk",
            bytes=self.bytes,
            lines=self.lines,
            records=self.lines,
            first=first,
            last=last,
            blocks=self.blocks,
            index_bytes=len(body),
            tail_bytes=len(tail),
            writers=directory.writers(),
        )
        return Scanned(chunk, body)

    def _cut(self, ends: Indexes, at: int, line: int) -> int | None:
        """Returns which of the line ends from `line` on ends the open block."""
        found = int(np.searchsorted(ends, at + _CUT_BYTES - self._open_bytes, "left"))
        found = max(found, line)
        return found if found < len(ends) else None

    def _take(self, text: bytes, lines: int) -> None:
        self._digest.update(text)
        self._open_bytes += len(text)
        self._open_lines += lines

    def _close_block(self) -> None:
        self._rows.append((self._open_bytes, self._open_lines, self._digest.intdigest()))
        self._digest.reset()
        self._open_bytes = self._open_lines = 0
        if len(self._rows) == PIECE_BLOCKS:
            self._close_piece()

    def _close_piece(self) -> None:
        if not self._rows:
            return
        blocks = np.zeros(len(self._rows), BLOCK)
        sizes, lines, digests = zip(*self._rows, strict=True)
        blocks["size"], blocks["lines"], blocks["records"] = sizes, lines, lines
        blocks["digest"] = np.array(digests, np.uint64)
        blocks["first"] = 1
        blocks["offset"] = np.cumsum(blocks["size"]) - blocks["size"] + np.uint64(self.bytes)
        ends = np.cumsum(blocks["lines"], dtype=np.uint64)
        blocks["line"] = blocks["pos"] = ends - blocks["lines"] + np.uint64(self.lines)
        ids = [
            self._first + (number << ulids.LINE_BITS)
            for number in range(self.blocks, self.blocks + len(blocks))
        ]
        blocks["ulid_hi"] = np.array([each >> 64 for each in ids], np.uint64)
        blocks["ulid_lo"] = np.array([each & (1 << 64) - 1 for each in ids], np.uint64)
        self._add_piece(blocks)
        self._rows.clear()

    def _add_piece(self, blocks: Blocks) -> None:
        body = encode_piece(blocks, [self._writer])
        number = len(self._entries)
        self._entries.append(entry_of(blocks, body, self._at))
        end = int(blocks["pos"][-1]) + int(blocks["records"][-1])
        self._ranges.append((number, self._writer, int(blocks["pos"][0]), end))
        self._bodies.append(body)
        self._at += len(body)
        self.blocks += len(blocks)
        self.bytes += int(blocks["size"].sum())
        self.lines += int(blocks["lines"].sum(dtype=np.uint64))


WRITER = "taken-in"
"""The writer of lines that no node of ours wrote; a node's id ends in a ULID."""

_NUMBER_BITS = 28  # of a batch's 55: its number; the others are of the text's name
_TRIES = 8
_PAUSE_SECONDS = 0.1
_LONGEST_PAUSE_SECONDS = 1.6
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
        waits: Callable[[ObjectInfo], Awaitable[bool]],
    ) -> None:
        """`rebuild` is called first: it may be Tailrace's own run whose manifest is lost.

        `waits` returns true for a `logs.txt` of Tailrace whose lines are still to be flushed.
        """
        self._store = store
        self._upstream = upstream
        self._rebuild = rebuild
        self._waits = waits
        self._manifests = manifests
        self._chunks = chunks
        self._deletions = deletions
        self._clock = clock
        self._prefix = prefix
        self._touch = OncePerRun(clock, self._import, remembered_seconds=_ABSENT_SECONDS)
        self._left: set[RunKey] = set()
        self.imported = 0

    async def import_run(self, key: RunKey) -> bool:
        """Imports a run without a manifest; returns true if it has one now.

        Raises `StoreUnavailable`, `OutcomeUnknown`, `Damaged`.
        """
        return await self._touch.do(key)

    async def is_new(self, key: RunKey) -> bool:
        """Returns true if no text of the run is in the store, or was a moment ago.

        A small open run has its text in its manifest, so it may still have a manifest. Raises
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
                pass  # another writer was first, or is writing or closing: look again
            except OutcomeUnknown as error:
                budget.spend(error)
            if (await self._manifests.get(key)).etag is not None:
                return True
            await self._clock.sleep(doubled(_PAUSE_SECONDS, tries, _LONGEST_PAUSE_SECONDS))
        raise StoreUnavailable(
            f"the log of {key.fqn}/{key.run} changes all the time while it is imported",
            hint="Stop the OpenMetadata server that still writes to this bucket.",
        )

    async def _once(self, key: RunKey) -> bool:
        horizon = self._deletions.horizon(key)
        text = await self._upstream.find(key, horizon)
        if text is None or await self._waits(text.objects[0]):
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
        parts: list[ObjectPart | bytes] = []
        for info in text.objects:
            async for piece in self._store.stream(info.key, if_match=info.etag):
                scan.add(piece)
            parts.append(ObjectPart(info.key, 0, info.size, if_match=info.etag))
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

    One read of the folders of a run without any text makes the read of its manifest unnecessary.
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
    """A manifest that, if it does not exist, is made from OpenMetadata's objects.

    `imported` makes it, and returns true if it exists now. `read` also raises the errors of
    `Importer.import_run`.
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
        """Returns the ids for these objects; always the same for the same objects."""
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
    """Returns OpenMetadata's epoch, so that the run's epoch keeps rising."""
    epoch = text.objects[-1].metadata.get("writer-epoch", "")
    return int(epoch) if epoch.isascii() and epoch.isdigit() and len(epoch) < 16 else 0
