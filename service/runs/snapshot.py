"""The log of a run at one moment: its chunks, then lines that only segments and journal hold.

A snapshot is taken in the order in which lines move (journal pin, segments, manifest, chunks).
A line that moves meanwhile is found at its new place and left out at its old one. Line numbers
count from the beginning of the log and never change while a line moves.

A snapshot is taken again when an object that it names has moved.

If the store does not answer, readers that can do without it get a snapshot of what the nodes hold
(`Snapshots.held`). Nobody knows then which lines come before, so it has no chunks, its line numbers
count from the first line held, and the run's state is `unknown`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from logstore.batch import Batches, Indexes, Rows, RunKey
from logstore.errors import NodeNotReady, StoreUnavailable
from logstore.position import Cursor, Position
from logstore.runs.manifest import Chunk, Copy, Manifest
from logstore.runs.manifests import Manifests
from service.runs.backlog import Backlog
from service.runs.chunks import Chunks, Moved
from service.runs.deletions import Deletions
from service.runs.elsewhere import NOWHERE, Elsewhere, OtherNodes, Unfetched
from service.runs.large_batch import LineIndexes
from service.runs.pending import FlushProgress
from service.runs.pin import Pin
from service.runs.repair.rebuild import RunRebuilder
from service.runs.selection import Source, in_range, left_out, news
from service.runs.trim import Trimmer


@dataclass(frozen=True, slots=True)
class Stretch:
    """Rows of one source behind the chunks; `ends` are line numbers after each row."""

    batches: Batches
    indexes: Indexes
    rows: Rows
    first_line: int
    first_byte: int
    ends: NDArray[np.int64]
    byte_ends: NDArray[np.int64]

    @property
    def end_line(self) -> int:
        """The line number after its last line."""
        return int(self.ends[-1])

    @property
    def end_byte(self) -> int:
        """The byte number after its last byte."""
        return int(self.byte_ends[-1])


@dataclass(frozen=True, slots=True)
class Place:
    """A chunk and where its lines and bytes begin in the run's log."""

    chunk: Chunk
    line: int
    byte: int


class Snapshot:
    """The log of a run at one moment, valid as long as `pin` is held."""

    def __init__(
        self,
        manifest: Manifest,
        chunks: Chunks,
        pin: Pin,
        tail: Sequence[tuple[Batches, Indexes]],
        line_indexes: LineIndexes,
        elsewhere: Elsewhere = NOWHERE,
        copies: Sequence[Copy] = (),
        flushed: Cursor | None = None,
        late: bool = False,
    ) -> None:
        """`copies` are batches that were left out because the log has them from another node.

        `late`: a node that does not answer says in the store that it holds lines of the run.
        `flushed` is of a snapshot of what nodes hold: all lines in it that are in chunks, too.
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
        """Whether there ever was a line, or still is."""
        return bool(self.stretches or self.manifest.chunks)

    @property
    def known(self) -> bool:
        """Whether there are lines, or a manifest that says why there are none."""
        return self.exists or bool(self.manifest.version) or self.manifest.state == "deleted"

    @property
    def lines(self) -> int:
        """All lines."""
        return self.stretches[-1].end_line if self.stretches else self.chunk_lines

    @property
    def size(self) -> int:
        """All bytes."""
        return self.stretches[-1].end_byte if self.stretches else self.chunk_bytes

    @property
    def state(self) -> str:
        """The state of the run, including lines that are not in chunks yet."""
        if self.held:
            return "unknown"
        if not self.exists:
            return "deleted" if self.manifest.state == "deleted" else "none"
        if self._late and self.manifest.state == "closed":
            return "open"  # they came after the close, like those below
        if self.manifest.state == "open" or self.manifest.asking or not self.stretches:
            return self.manifest.state
        return self.manifest.state if self._settled() else "open"

    def _settled(self) -> bool:
        closes = self.manifest.closes
        return all(int(s.rows["pos"][-1]) < closes.get(s.batches.node, 0) for s in self.stretches)

    def stretch_text(self, stretch: Stretch, low: int, high: int) -> bytes:
        """The texts of its rows from `low` to before `high`."""
        return stretch.batches.text(stretch.indexes[low:high])


def _places(manifest: Manifest) -> list[Place]:
    places = []
    line = byte = 0
    for chunk in manifest.chunks:
        places.append(Place(chunk, line, byte))
        line, byte = line + chunk.lines, byte + chunk.bytes
    return places


def _stretches(tail: Sequence[tuple[Batches, Indexes]], line: int, byte: int) -> list[Stretch]:
    found = []
    for batches, indexes in tail:
        if len(indexes) == 0:
            continue
        rows = batches.rows[indexes]
        ends = line + np.cumsum(rows["lines"], dtype=np.int64)
        byte_ends = byte + np.cumsum(rows["size"].astype(np.int64))
        found.append(Stretch(batches, indexes, rows, line, byte, ends, byte_ends))
        line, byte = int(ends[-1]), int(byte_ends[-1])
    return found


T = TypeVar("T")
_TRIES = 8
HeldBy: TypeAlias = Callable[[RunKey, Collection[str]], Awaitable[Callable[[Manifest], bool]]]


async def fetching(snapshot: Snapshot, work: Callable[[Snapshot], Awaitable[T]]) -> T:
    """The result of `work`, done again whenever a text of another node had to be fetched."""
    while True:
        try:
            return await work(snapshot)
        except Unfetched as missing:
            await missing.fetch()


class Snapshots:
    """Takes snapshots of runs, of all that this node and the others hold."""

    def __init__(
        self,
        pin: Callable[[], Pin],
        backlog: Backlog,
        manifests: Manifests,
        chunks: Chunks,
        deletions: Deletions,
        trimmer: Trimmer,
        progress: FlushProgress,
        rebuilder: RunRebuilder,
        repair: Callable[[RunKey], Awaitable[bool]],
        elsewhere: OtherNodes,
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

    async def read(self, key: RunKey, work: Callable[[Snapshot], Awaitable[T]]) -> T:
        """The result of `work` as by `with_one`; of what nodes hold, if the store does not answer.

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
    async def held(self, key: RunKey) -> AsyncIterator[Snapshot]:
        """What this node's journal and the nodes that answer hold of the run. Asks no store."""
        with self._pin() as pin:
            elsewhere = await self._elsewhere.lines(key, held=True)
            horizon, manifest = self._deletions.horizon(key), Manifest(key)
            sources = [Source(pin.batches(run=key), pin.end_pos), *elsewhere.sources]
            chosen = [in_range(source, key, 0) for source in sources]
            kept = await news(sources, chosen, manifest, self._chunks, horizon)
            tail = [(s.batches, i) for s, i in zip(sources, kept, strict=True)]
            firsts = {**elsewhere.flushed, pin.node: self._progress.first_unflushed(key)}
            flushed = Cursor({n: Position("", first - 1) for n, first in firsts.items() if first})
            yield Snapshot(
                manifest, self._chunks, pin, tail, self._line_indexes, elsewhere, flushed=flushed
            )

    @asynccontextmanager
    async def take(self, key: RunKey) -> AsyncIterator[Snapshot]:
        """The run as it is now. Raises `Moved`, `Unavailable`, `Damaged`."""
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
            kept = await news(sources, chosen, manifest, self._chunks, horizon)
            tail = [(s.batches, i) for s, i in zip(sources, kept, strict=True)]
            copies = [*manifest.copies, *left_out(sources, chosen, kept, horizon)]
            parts = manifest, self._chunks, pin, tail, self._line_indexes, elsewhere, copies
            yield Snapshot(*parts, late=await self._is_late(manifest, elsewhere.silent))

    async def _is_late(self, manifest: Manifest, silent: Collection[str]) -> bool:
        """Whether a node that does not answer says in the store that it holds lines of the run.

        It matters for a closed run only. Raises `Moved` if there are none, and the run has changed.
        """
        if not silent or manifest.state != "closed":
            return False
        beyond = await self._held_by(manifest.key, silent)
        if beyond(manifest):
            return True
        if (await self._manifests.get(manifest.key)).manifest.version != manifest.version:
            raise Moved("lines of a node that does not answer were flushed meanwhile")
        return False

    async def with_one(self, key: RunKey, work: Callable[[Snapshot], Awaitable[T]]) -> T:
        """The result of `work` on a snapshot, repeated on a newer one if something moved.

        If nothing of a run is found, it is rebuilt, where that is possible, before it is said
        not to exist.
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
                if moved is not None:  # it was no swap between two looks: something is gone
                    await self.repair(key)
                moved = error
        raise StoreUnavailable(
            f"the log of {key.fqn}/{key.run} is not where its manifest says: {moved}",
            hint="Try again; if it stays so, run `tailrace verify`.",
        )
