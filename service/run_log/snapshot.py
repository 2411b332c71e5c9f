"""Takes snapshots of a run: its chunks, then lines that only segments and journal hold.

A snapshot is taken in the order in which lines move (journal pin, segments, manifest, chunks). A
line that moves meanwhile is found at its new place and left out at its old one. Line numbers count
from the beginning of the log and never change while a line moves.

A snapshot is taken again when an object that it names has moved.

If the store does not answer, readers that can do without it get a snapshot of the lines that nodes
hold (`Snapshots.held`). The lines before them are unknown, so it has no chunks, its line numbers
count from the first held line, and the run's state is `unknown`.

Parts of large batches are read through an index (`LineIndexes`). A batch may have 64 MiB of text,
while a piece of a page has half a MiB. Chunks have an index of their lines; journal and segments
have none. The first read within such a batch therefore scans it in steps and remembers the places
of its lines: 8 bytes per 64 KiB of text for a batch whose records are lines, 16 bytes per record
for one whose records hold newlines. Later reads fetch only the bytes that they return. A read ends
at the end of a record, because a cursor names records. Batches never change, so an index stays
valid.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from service.run_log.backlog import NOWHERE, Backlog, Deletions, Elsewhere, RunLogPeers, Unfetched
from service.run_log.chunks import Chunks, Moved, NewBatches, in_range, left_out, select_new
from service.run_log.contracts import FlushProgress, UnflushedPin
from service.run_log.flush import Trimmer
from service.run_log.repair import RunRebuilder
from tailrace.logstore.batch import Batches, Indexes, Rows, RunKey, line_ends
from tailrace.logstore.cache import BoundedCache
from tailrace.logstore.errors import NodeNotReady, StoreUnavailable, Unavailable
from tailrace.logstore.position import Cursor, Position
from tailrace.logstore.runs.manifest import Chunk, Copy, Manifest, Manifests

# --- Large batches ------------------------------------------------------------------------------


_STEP_BYTES = 64 << 10
_KEPT_BYTES = 16 << 20
_AT_ONCE_BYTES = 1 << 20
_ENTRY_BYTES = 512  # overhead of Python for each entry

Ints = NDArray[np.int64]


class BatchLines(NamedTuple):
    """Whole lines of a batch, and how many there are."""

    text: bytes
    lines: int


class LineIndex(NamedTuple):
    """Bytes of a batch's text and the lines that end within them, at some places of it.

    The places are steps of 64 KiB from 0 on, or after each record if records hold newlines.
    """

    bytes: Ints
    lines: Ints


_Key = tuple[str, int, int]

_ONE_STEP = LineIndex(np.zeros(1, np.int64), np.zeros(1, np.int64))


class LineIndexes:
    """The indexes of the large batches that were read last."""

    def __init__(self) -> None:
        self._kept: BoundedCache[_Key, LineIndex] = BoundedCache(_KEPT_BYTES, _size, least=1)

    def of(self, batches: Batches, at: int) -> LineIndex:
        """Returns the index of one row; reads all of its text the first time."""
        key = _key(batches, at)
        index = self._kept.get(key)
        if index is None:
            index = _indexed(batches, at)
            self._kept.put(key, index)
        return index

    async def prepare(self, batches: Batches, at: int) -> None:
        """Reads a row's text off the event loop, if it is large enough to delay others."""
        key = _key(batches, at)
        row = batches.rows[at]
        if int(row["size"]) + int(row["meta"]) > _AT_ONCE_BYTES and key not in self._kept:
            self._kept.put(key, await asyncio.to_thread(_indexed, batches, at))


def _key(batches: Batches, at: int) -> _Key:
    row = batches.rows[at]
    return batches.node, int(row["pos"]), int(row["digest"])


def read_lines_of(
    batches: Batches, at: int, indexes: LineIndexes, skip: int, most: int, max_bytes: int
) -> BatchLines:
    """Returns up to `most` lines after the first `skip` of a row whose records are lines.

    It returns at least one line, and fewer if they take more than `max_bytes`. Raises `Unavailable`
    if the text is cut short.
    """
    begin = _begin_of_line(batches, at, indexes, skip) if skip else 0
    size = max_bytes
    while True:
        text = batches.slice(at, begin, begin + size)
        ends = line_ends(text)
        if len(ends) or len(text) < size:
            break
        size *= 2
    if not len(ends):
        raise _cut(batches, at)
    lines = 1 if size > max_bytes else min(most, len(ends))
    return BatchLines(text[: int(ends[lines - 1])], lines)


def read_records_of(
    batches: Batches, at: int, indexes: LineIndexes, skip: int, most: int, max_bytes: int
) -> BatchLines:
    """Returns lines after the first `skip` of a row whose records hold newlines.

    It ends at the end of a record: up to `most` lines and `max_bytes`, but at least the rest of one
    record. Raises `Unavailable` if the text is cut short.
    """
    ends, lines = indexes.of(batches, at)
    first = int(np.searchsorted(lines, skip, "right"))
    begin, line = (int(ends[first - 1]), int(lines[first - 1])) if first else (0, 0)
    fitting = min(
        int(np.searchsorted(ends, begin + max_bytes, "right")),
        int(np.searchsorted(lines, skip + most, "right")),
    )
    last = max(fitting, first + 1) - 1
    text = batches.slice(at, begin, int(ends[last]))
    if begin + len(text) < int(ends[last]):
        raise _cut(batches, at)
    skipped = int(line_ends(text)[skip - line - 1]) if skip > line else 0
    return BatchLines(text[skipped:], int(lines[last]) - skip)


def records_through(batches: Batches, at: int, indexes: LineIndexes, lines: int) -> int:
    """Returns to how many of the row's records its first `lines` lines belong."""
    row = batches.rows[at]
    if lines == int(row["lines"]):
        return int(row["records"])
    if has_plain_records(batches, at):
        return lines
    ends = indexes.of(batches, at).lines
    known = int(np.searchsorted(ends, lines, "left")) + 1
    return known if known < len(ends) else int(row["records"])


def lines_through(batches: Batches, at: int, indexes: LineIndexes, records: int) -> int:
    """Returns how many lines the row's first `records` records have; all if it has fewer."""
    row = batches.rows[at]
    if records >= int(row["records"]):
        return int(row["lines"])
    if records == 0 or has_plain_records(batches, at):
        return records
    return int(indexes.of(batches, at).lines[records - 1])


def has_plain_records(batches: Batches, at: int) -> bool:
    """Returns true if each record of the row is a line."""
    row = batches.rows[at]
    return int(row["records"]) == int(row["lines"])


def _begin_of_line(batches: Batches, at: int, indexes: LineIndexes, line: int) -> int:
    """Returns the offset after the newline number `line` of the text."""
    if int(batches.rows["size"][at]) <= _STEP_BYTES:
        steps, before = _ONE_STEP
    else:
        steps, before = indexes.of(batches, at)
    step = int(np.searchsorted(before, line, "left")) - 1
    begin = int(steps[step])
    ends = line_ends(batches.slice(at, begin, begin + _STEP_BYTES))
    number = line - int(before[step]) - 1
    if number >= len(ends):
        raise _cut(batches, at)
    return begin + int(ends[number])


def _indexed(batches: Batches, at: int) -> LineIndex:
    size = int(batches.rows["size"][at])
    steps = np.arange(0, size, _STEP_BYTES, dtype=np.int64)
    if has_plain_records(batches, at):
        places = steps
    elif meta := batches.meta(at):
        places = np.array(meta.ends, np.int64)
    else:  # the record of each line is unknown: all of it is one place
        places = np.array([size], np.int64)
    lines, before = np.zeros(len(places), np.int64), 0
    for step in steps.tolist():
        ends = line_ends(batches.slice(at, step, step + _STEP_BYTES)) + step
        low, high = np.searchsorted(places, [step, step + _STEP_BYTES], "right")
        lines[low:high] = before + np.searchsorted(ends, places[low:high], "right")
        before += len(ends)
    return LineIndex(places, lines)


def _size(index: LineIndex) -> int:
    return _ENTRY_BYTES + index.bytes.nbytes + index.lines.nbytes


def _cut(batches: Batches, at: int) -> Unavailable:
    pos = int(batches.rows["pos"][at])
    return Unavailable(
        f"the batch at {pos} of {batches.node} is shorter than when it was written",
        hint="Run `tailrace verify`.",
    )


@dataclass(frozen=True, slots=True)
class UnflushedRows:
    """Rows of one source after the chunks; `ends` are line numbers after each row."""

    batches: Batches
    indexes: Indexes
    rows: Rows
    first_line: int
    first_byte: int
    ends: NDArray[np.int64]
    byte_ends: NDArray[np.int64]

    @property
    def end_line(self) -> int:
        """Returns the line number after its last line."""
        return int(self.ends[-1])

    @property
    def end_byte(self) -> int:
        """Returns the byte number after its last byte."""
        return int(self.byte_ends[-1])


@dataclass(frozen=True, slots=True)
class ChunkPlace:
    """A chunk and where its lines and bytes begin in the run's log."""

    chunk: Chunk
    line: int
    byte: int


class RunSnapshot:
    """The log of a run at one moment, valid as long as `pin` is held."""

    def __init__(
        self,
        manifest: Manifest,
        chunks: Chunks,
        pin: UnflushedPin,
        tail: Sequence[tuple[Batches, Indexes]],
        line_indexes: LineIndexes,
        elsewhere: Elsewhere = NOWHERE,
        copies: Sequence[Copy] = (),
        flushed: Cursor | None = None,
        late: bool = False,
    ) -> None:
        """`copies` are batches that were left out because the log has them from another node.

        `late`: the store says that a silent node holds lines of the run. `flushed` is set in a
        snapshot of lines that nodes hold: all its lines below these positions are in chunks, too.
        """
        self.held = flushed is not None
        self.flushed = flushed
        self._late = late
        self.manifest = manifest
        self.elsewhere = elsewhere
        self.copies = copies
        self.chunks = chunks
        self.pin = pin
        self.line_indexes = line_indexes
        self.places = _places(manifest)
        self.chunk_lines = manifest.lines
        self.chunk_bytes = manifest.bytes
        self.stretches = _stretches(tail, self.chunk_lines, self.chunk_bytes)

    @property
    def exists(self) -> bool:
        """Returns true if a line ever existed."""
        return bool(self.stretches or self.manifest.chunks)

    @property
    def known(self) -> bool:
        """Returns true if lines exist, or a manifest that explains why none do."""
        return self.exists or bool(self.manifest.version) or self.manifest.state == "deleted"

    @property
    def lines(self) -> int:
        """Returns the number of all lines."""
        return self.stretches[-1].end_line if self.stretches else self.chunk_lines

    @property
    def size(self) -> int:
        """Returns the number of all bytes."""
        return self.stretches[-1].end_byte if self.stretches else self.chunk_bytes

    @property
    def state(self) -> str:
        """Returns the state of the run, including lines that are not in chunks yet."""
        if self.held:
            return "unknown"
        if not self.exists:
            return "deleted" if self.manifest.state == "deleted" else "none"
        if self._late and self.manifest.state == "closed":
            return "open"  # these lines came after the close, like those below
        if self.manifest.state == "open" or self.manifest.asking or not self.stretches:
            return self.manifest.state
        return self.manifest.state if self._settled() else "open"

    def _settled(self) -> bool:
        closes = self.manifest.closes
        return all(int(s.rows["pos"][-1]) < closes.get(s.batches.node, 0) for s in self.stretches)

    def stretch_text(self, stretch: UnflushedRows, low: int, high: int) -> bytes:
        """Returns the texts of its rows from `low` to before `high`."""
        return stretch.batches.text(stretch.indexes[low:high])


def _places(manifest: Manifest) -> list[ChunkPlace]:
    places = []
    line = byte = 0
    for chunk in manifest.chunks:
        places.append(ChunkPlace(chunk, line, byte))
        line, byte = line + chunk.lines, byte + chunk.bytes
    return places


def _stretches(
    tail: Sequence[tuple[Batches, Indexes]], line: int, byte: int
) -> list[UnflushedRows]:
    found = []
    for batches, indexes in tail:
        if len(indexes) == 0:
            continue
        rows = batches.rows[indexes]
        ends = line + np.cumsum(rows["lines"], dtype=np.int64)
        byte_ends = byte + np.cumsum(rows["size"].astype(np.int64))
        found.append(UnflushedRows(batches, indexes, rows, line, byte, ends, byte_ends))
        line, byte = int(ends[-1]), int(byte_ends[-1])
    return found


T = TypeVar("T")
_TRIES = 8
HeldBy: TypeAlias = Callable[[RunKey, Collection[str]], Awaitable[Callable[[Manifest], bool]]]


async def fetching(snapshot: RunSnapshot, work: Callable[[RunSnapshot], Awaitable[T]]) -> T:
    """Returns the result of `work`, repeated whenever a text of another node was fetched."""
    while True:
        try:
            return await work(snapshot)
        except Unfetched as missing:
            await missing.fetch()


class Snapshots:
    """Takes snapshots of runs, of all lines that this node and the others hold."""

    def __init__(
        self,
        pin: Callable[[], UnflushedPin],
        backlog: Backlog,
        manifests: Manifests,
        chunks: Chunks,
        deletions: Deletions,
        trimmer: Trimmer,
        progress: FlushProgress,
        rebuilder: RunRebuilder,
        repair: Callable[[RunKey], Awaitable[bool]],
        elsewhere: RunLogPeers,
        held_by: HeldBy,
        silent: Callable[[], bool] = lambda: False,
    ) -> None:
        """`held_by`: see `RemoteState.held`. `silent`: whether the store is known not to answer."""
        self._held_by = held_by
        self._pin = pin
        self._backlog = backlog
        self._manifests = manifests
        self._chunks = chunks
        self._deletions = deletions
        self._trimmer = trimmer
        self._progress = progress
        self._rebuilder = rebuilder
        self._line_indexes = LineIndexes()
        self.repair = repair
        self._elsewhere = elsewhere
        self._silent = silent

    async def read(self, key: RunKey, work: Callable[[RunSnapshot], Awaitable[T]]) -> T:
        """Returns the result of `work` as `with_one`; on held lines if the store does not answer.

        Raises as `with_one`, and `StoreUnavailable` if no node that answers holds lines of the run.
        """
        try:
            if self._silent() and not self._progress.is_started:
                raise NodeNotReady("the node has not reached its object store yet")
            return await self.with_one(key, work)
        except (StoreUnavailable, NodeNotReady):
            async with self.held(key) as snapshot:
                if not snapshot.exists:
                    raise
                return await fetching(snapshot, work)

    @asynccontextmanager
    async def held(self, key: RunKey) -> AsyncIterator[RunSnapshot]:
        """Yields the lines that this node's journal and answering nodes hold. Asks no store."""
        with self._pin() as pin:
            elsewhere = await self._elsewhere.lines(key, held=True)
            horizon, manifest = self._deletions.horizon(key), Manifest(key)
            sources = [NewBatches(pin.batches(run=key), pin.end_pos), *elsewhere.sources]
            chosen = [in_range(source, key, 0) for source in sources]
            kept = await select_new(sources, chosen, manifest, self._chunks, horizon)
            tail = [(s.batches, i) for s, i in zip(sources, kept, strict=True)]
            firsts = {**elsewhere.flushed, pin.node: self._progress.first_unflushed(key)}
            flushed = Cursor({n: Position("", first - 1) for n, first in firsts.items() if first})
            copies = left_out(sources, chosen, kept, horizon)
            parts = manifest, self._chunks, pin, tail, self._line_indexes, elsewhere, copies
            yield RunSnapshot(*parts, flushed=flushed)

    @asynccontextmanager
    async def take(self, key: RunKey) -> AsyncIterator[RunSnapshot]:
        """Yields the run as it is now. Raises `Moved`, `Unavailable`, `Damaged`."""
        await self._progress.until_started()
        with self._pin() as pin:
            segments, low = self._backlog.now(), self._progress.flushed_pos
            elsewhere = await self._elsewhere.lines(key)
            horizon = self._deletions.horizon(key)
            manifest = (await self._manifests.get(key)).manifest
            if manifest.generation < horizon and manifest.straddling(horizon):
                manifest = (await self._trimmer.swap(key, horizon))[0].manifest
            manifest = manifest.deleted_through(horizon)
            sources = await self._backlog.sources(key, pin, segments, manifest, low, pin.end_pos)
            sources += elsewhere.sources
            chosen = [in_range(s, key, manifest.dealt_with(s.node)) for s in sources]
            kept = await select_new(sources, chosen, manifest, self._chunks, horizon)
            tail = [(s.batches, i) for s, i in zip(sources, kept, strict=True)]
            copies = [*manifest.copies, *left_out(sources, chosen, kept, horizon)]
            parts = manifest, self._chunks, pin, tail, self._line_indexes, elsewhere, copies
            yield RunSnapshot(*parts, late=await self._is_late(manifest, elsewhere.silent))

    async def _is_late(self, manifest: Manifest, silent: Collection[str]) -> bool:
        """Returns true if the store says that a silent node holds lines of the run.

        It matters for a closed run only. Raises `Moved` if no node does, and the run has changed.
        """
        if not silent or manifest.state != "closed":
            return False
        beyond = await self._held_by(manifest.key, silent)
        if beyond(manifest):
            return True
        if (await self._manifests.get(manifest.key)).manifest.version != manifest.version:
            raise Moved("lines of a node that does not answer were flushed meanwhile")
        return False

    async def with_one(self, key: RunKey, work: Callable[[RunSnapshot], Awaitable[T]]) -> T:
        """Returns the result of `work` on a snapshot, repeated on a newer one if an object moved.

        If nothing of a run is found, it is rebuilt, if that is possible, before it is reported not
        to exist.
        """
        hopeless = False
        moved: Moved | None = None
        for _ in range(_TRIES):
            try:
                async with self.take(key) as snapshot:
                    if snapshot.known or hopeless or self._rebuilder.hopeless(key):
                        return await fetching(snapshot, work)
                hopeless = not await self._rebuilder.run(key)
            except Moved as error:
                if moved is not None:  # it was no swap between two reads: an object is gone
                    await self.repair(key)
                moved = error
        raise StoreUnavailable(
            f"the log of {key.fqn}/{key.run} is not where its manifest says: {moved}",
            hint="Try again; if it stays so, run `tailrace verify`.",
        )
