"""Verifies the logs of runs: objects that manifests name exist, and match their indexes.

A run is read block by block, and each batch's bytes are compared with its checksum. Chunks
that were folded or closed meanwhile are read on at the same byte from the newer manifest:
the order of a run's text never changes. A chunk that lifecycle rules took away because it
is older than runs are kept is no fault, and the run is left out of comparisons.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import xxhash
from numpy.typing import NDArray

from service.run_log.chunks import Chunks, Moved, goes_on
from tailrace.logstore import keys
from tailrace.logstore import ulid as ulids
from tailrace.logstore.batch import RunKey
from tailrace.logstore.errors import Damaged, InvalidInput, NotFound, PreconditionFailed
from tailrace.logstore.objects.store import ObjectInfo, ObjectStore
from tailrace.logstore.runs.chunk_index import Blocks, Directory
from tailrace.logstore.runs.manifest import Chunk, Manifest, decode_manifest
from tailrace.verification.findings import Findings, Kind, place_of, records
from tailrace.verification.state import StateCheck

SPAN_BYTES = 8 << 20
"""Text that is held at once, unless one block is longer."""
_DAY_MS = 86_400_000
_NAMED = "missing, although the manifest names it"


@dataclass(frozen=True, slots=True)
class CheckedRecords:
    """Some records of a run (`records`), and the writer of each (`writer`)."""

    key: RunKey
    records: pa.Table


@dataclass(slots=True)
class RunText:
    """A run that is read. `comparable` is false where its text is known not to be whole."""

    manifest: Manifest
    comparable: bool = True


@dataclass(slots=True)
class Texts:
    """Reads runs of one store; `kept_ms` is how long a run's text is kept, 0 for ever."""

    store: ObjectStore
    state: StateCheck
    chunks: Chunks
    findings: Findings
    now_ms: int
    kept_ms: int

    async def manifest(self, key: str) -> Manifest | None:
        """The manifest at the key; None if it is gone or cannot be read, which is reported."""
        manifest = await self.state.read(key)
        if manifest is None:
            return None
        assert isinstance(manifest, Manifest)
        self.findings.count("runs")
        return manifest

    async def read(self, run: RunText, where: str) -> AsyncIterator[CheckedRecords]:
        """The run's records in order of its text; `where` is its manifest's key."""
        done = 0
        while True:
            try:
                async for size, stretch in self._from(run, done):
                    done += size
                    if stretch is not None:
                        yield stretch
            except Moved:
                newer = decode_manifest((await self.store.get(where))[1])
                if newer.version == run.manifest.version:
                    raise
                if newer.generation != run.manifest.generation:
                    run.comparable = False  # deleted while it was read
                    return
                run.manifest = newer
            else:
                return

    async def _from(
        self, run: RunText, done: int
    ) -> AsyncIterator[tuple[int, CheckedRecords | None]]:
        """Sizes of stretches behind the first `done` bytes, and their records."""
        at = 0
        for chunk in run.manifest.chunks:
            skip = min(max(done - at, 0), chunk.bytes)
            at += chunk.bytes
            if skip == chunk.bytes:
                continue
            text = None if chunk.text is not None else await self._there(run, chunk)
            if text is None and chunk.text is None:
                run.comparable = False
                yield chunk.bytes - skip, None
                continue
            given = 0
            try:
                async for size, stretch in self._chunk(run, chunk, text, skip):
                    given += size
                    yield size, stretch
                self.findings.count("chunks")
            except (Damaged, InvalidInput, Moved) as error:
                if isinstance(error, Moved) and chunk.id not in self.chunks.damaged:
                    raise
                run.comparable = False
                kind: Kind = "chunk-damaged" if isinstance(error, _Text) else "index-damaged"
                in_text = kind == "chunk-damaged" and text is not None
                name = text.key if in_text and text else self._index_key(run, chunk)
                self.findings.add(kind, name, str(error), lines=chunk.lines)
                yield chunk.bytes - skip - given, None

    def _index_key(self, run: RunText, chunk: Chunk) -> str:
        if chunk.index is not None:
            return keys.run_manifest(run.manifest.key)
        return self.chunks.index_key(run.manifest.key, chunk)

    async def _there(self, run: RunText, chunk: Chunk) -> ObjectInfo | None:
        """The text, if it and its index can be read; faults are reported."""
        text_key, index_key = (
            self.chunks.text_key(run.manifest.key, chunk),
            self._index_key(run, chunk),
        )
        text, inline = await self._head(text_key), chunk.index is not None
        index = None if inline else await self._head(index_key)
        wrong = _wrong(run.manifest, chunk, text)
        whole = inline or (index is not None and index.size == chunk.index_bytes)
        if not wrong and whole:
            return text
        where = keys.run_manifest(run.manifest.key)
        if decode_manifest((await self.store.get(where))[1]).version != run.manifest.version:
            raise Moved(f"{place_of(run.manifest.key)} changed while it was read")
        if self._expired(chunk):
            return None
        if text is None:
            self.findings.add("chunk-missing", text_key, _NAMED, lines=chunk.lines)
        elif wrong:
            self.findings.add("chunk-changed", text_key, wrong, lines=chunk.lines)
        if index is None and not inline:
            self.findings.add("index-missing", index_key, _NAMED)
        elif index is not None and not whole:
            detail = f"{index.size} bytes; the manifest says {chunk.index_bytes}"
            self.findings.add("index-damaged", index_key, detail)
        # Its lines can be named as long as it has as many bytes as it must have.
        return text if whole and text is not None and text.size == chunk.bytes else None

    async def _head(self, key: str) -> ObjectInfo | None:
        try:
            return await self.store.head(key)
        except NotFound:
            return None

    def _expired(self, chunk: Chunk) -> bool:
        if not self.kept_ms:
            return False
        try:
            made = ulids.time_ms(ulids.decode(chunk.id))
        except InvalidInput:
            return False
        return self.now_ms - made > self.kept_ms

    async def _chunk(
        self, run: RunText, chunk: Chunk, info: ObjectInfo | None, skip: int
    ) -> AsyncIterator[tuple[int, CheckedRecords]]:
        """`info` is of the text; None: it stands in the manifest."""
        key = run.manifest.key
        directory = await self.chunks.directory(key, chunk)
        _check(directory, chunk)
        batch = _ReadBatch(keys.run_manifest(key) if info is None else info.key, self.findings)
        for number in range(len(directory.entries)):
            entry = directory.entries[number]
            blocks, writers = await self.chunks.piece(key, chunk, number)
            _check_piece(entry, blocks)
            if int(entry["byte"]) + int(entry["bytes"]) <= skip:
                continue
            names = np.array(writers, dtype=object)
            for part in spans(blocks[blocks["offset"] >= skip]):
                offset, size = int(part["offset"][0]), int(part["size"].sum())
                if info is None:
                    text = await self.chunks.text(run.manifest, chunk, offset, size)
                else:
                    text = await self._text(info, offset, size)
                starts = batch.take(part, text)
                yield len(text), CheckedRecords(key, _recorded(part, text, starts, names))
                self.findings.count("text lines", int(part["lines"].sum()))
        batch.end()

    async def _text(self, info: ObjectInfo, offset: int, size: int) -> bytes:
        try:
            found = await self.store.get(info.key, offset=offset, size=size, if_match=info.etag)
        except (NotFound, PreconditionFailed) as error:
            raise Moved(str(error)) from error
        return found[1]


class _Text(Damaged):
    """The text, not its index, is wrong."""


def _wrong(manifest: Manifest, chunk: Chunk, text: ObjectInfo | None) -> str:
    """Describes what is wrong with the object at the text's key; empty if nothing is."""
    if text is None:
        return "it is missing"
    if chunk.kind == "logs":
        if text.etag == chunk.etag or (manifest.closing is not None and goes_on(chunk, text)):
            return ""
        return f"its ETag is {text.etag}, not {chunk.etag}; it has {text.size} bytes"
    if text.size != chunk.bytes:
        return f"{text.size} bytes; the manifest says {chunk.bytes}"
    return ""


def _check(directory: Directory, chunk: Chunk) -> None:
    entries = directory.entries
    sums = tuple(
        int(entries[name].sum(dtype=np.uint64)) for name in ("bytes", "lines", "records", "blocks")
    )
    if sums != (chunk.bytes, chunk.lines, chunk.records, chunk.blocks):
        raise Damaged(f"the index has wrong sums of bytes, lines, records and blocks: {sums}")


def spans(blocks: Blocks) -> Iterator[Blocks]:
    """The blocks in stretches of about `SPAN_BYTES`."""
    ends = np.cumsum(blocks["size"], dtype=np.int64)
    low = 0
    while low < len(blocks):
        base = int(ends[low - 1]) if low else 0
        high = max(int(np.searchsorted(ends, base + SPAN_BYTES, "right")), low + 1)
        yield blocks[low:high]
        low = high


def _check_piece(entry: np.void, blocks: Blocks) -> None:
    if int(entry["bytes"]) != int(blocks["size"].sum()) or int(entry["blocks"]) != len(blocks):
        raise Damaged("a piece of the index differs from its directory")


def _recorded(
    blocks: Blocks, text: bytes, starts: NDArray[np.int64], names: NDArray[np.object_]
) -> pa.Table:
    try:
        table = records(blocks, text, starts)
    except Damaged as error:
        raise _Text(str(error)) from error
    writer = names[blocks["writer"]][table.column("block").to_numpy()]
    return table.append_column("writer", pa.array(writer, pa.string()))


class _ReadBatch:
    """The batch that is read: its blocks come in sequence, perhaps in several stretches."""

    def __init__(self, place: str, findings: Findings) -> None:
        self._place = place
        self._findings = findings
        self._state = xxhash.xxh3_64()
        self._wanted: int | None = None
        self._start = 0
        self._ulid = 0

    def take(self, blocks: Blocks, text: bytes) -> NDArray[np.int64]:
        """Checks each batch that ends here; gives of each block its batch's first position."""
        starts = np.empty(len(blocks), np.int64)
        view, at = memoryview(text), 0
        columns = ("first", "digest", "pos", "size", "ulid_hi", "ulid_lo")
        rows = zip(*(blocks[name].tolist() for name in columns), strict=True)
        for number, (first, digest, pos, size, high, low) in enumerate(rows):
            ulid = high << 64 | low
            if first:
                self.end()
                self._wanted, self._start = digest, pos
            elif ulid != self._ulid:  # read on in the middle of a batch
                self.end()
                self._start = pos
            self._ulid = ulid
            self._state.update(view[at : at + size])
            starts[number] = self._start
            at += size
        return starts

    def end(self) -> None:
        """Reports the batch if its bytes do not have its checksum."""
        wanted, self._wanted = self._wanted, None
        if wanted is not None and self._state.intdigest() != wanted:
            batch = ulids.encode(self._ulid)
            detail = f"the bytes of batch {batch} do not match their checksum"
            self._findings.add("chunk-damaged", self._place, detail)
        self._state.reset()
