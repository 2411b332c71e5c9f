"""Reads run logs as text: pages, catching up, downloads, sizes.

Every call takes a snapshot; between calls only caches of immutable objects are kept. So a page
costs the manifest, a piece of an index, and one ranged get.

A download is the whole log of a run as a stream of bytes, in constant memory. Its lines and their
order are those of one snapshot (`pinned_log`). Chunks are streamed from the store. The lines after
them are read in steps, each from a snapshot of its own, so that a slow reader does not hold the
journal's files.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

import xxhash

from service.run_log.chunks import Chunks, Moved
from service.run_log.cursors import (
    MAX_PAGE_BYTES,
    After,
    Begun,
    LinePage,
    OneSource,
    TextLines,
    WantedPage,
    after_piece,
    cursor_at,
    place_after,
    read_after,
    read_page,
    resolved,
    silent_of,
    sources_of,
    sum_of,
    unseen,
)
from service.run_log.lines import HeldPlace, given, read_lines
from service.run_log.pinned_log import PinnedLog, place_of_byte
from service.run_log.snapshot import ChunkPlace, RunSnapshot, Snapshots, fetching
from tailrace.logstore import ulid as ulids
from tailrace.logstore.batch import RunKey
from tailrace.logstore.errors import NotFound, StoreUnavailable
from tailrace.logstore.position import Cursor
from tailrace.logstore.runs.manifest import Manifest

_STEP_BYTES = 1 << 20
_TRIES = 8


@dataclass(frozen=True, slots=True)
class _DownloadStep:
    """The next step of a download: bytes, or the rest of a chunk."""

    piece: bytes
    manifest: Manifest
    chunks: Chunks
    place: ChunkPlace | None


async def download(
    snapshots: Snapshots, key: RunKey, offset: int, size: int | None, known: PinnedLog | None = None
) -> AsyncIterator[bytes]:
    """Yields bytes from `offset` on, of a `known` log or of the log at the first piece.

    Raises `NotFound`, `Unavailable`, `Damaged`.
    """
    log = known if known is not None else await snapshots.with_one(key, _pinned)
    if not log.exists:
        raise NotFound(f"no run {key.run!r} of {key.fqn!r}")
    at, end = offset, log.size if size is None else min(offset + size, log.size)
    tries = 0
    while at < end and tries < _TRIES:
        before = at
        step = await snapshots.with_one(key, partial(_next, log, at, end))
        if step.place is None:
            at += len(step.piece)
            yield step.piece
        else:
            async for part in _chunk(step, step.place, at, end):
                at += len(part)
                yield part
        tries = 0 if at > before else tries + 1
        if tries > 1:
            await snapshots.repair(key)
    if at < end:
        raise StoreUnavailable(f"the log of {key.fqn}/{key.run} is not where its manifest says")


async def _pinned(snapshot: RunSnapshot) -> PinnedLog:
    return PinnedLog(snapshot)


async def _next(log: PinnedLog, at: int, end: int, now: RunSnapshot) -> _DownloadStep:
    left = log.at(now)
    if at >= log.chunk_bytes:
        piece = await left.text(at, min(end - at, _STEP_BYTES))
        return _DownloadStep(piece, now.manifest, now.chunks, None)
    stored = left.stored
    return _DownloadStep(b"", stored.manifest, stored.chunks, place_of_byte(stored, at))


async def _chunk(step: _DownloadStep, place: ChunkPlace, at: int, end: int) -> AsyncIterator[bytes]:
    """Streams the rest of one chunk; ends early if it moves meanwhile."""
    low, high = at - place.byte, min(end - place.byte, place.chunk.bytes)
    with suppress(Moved):
        async for part in step.chunks.stream(step.manifest, place.chunk, low, high - low):
            yield part


@dataclass(frozen=True, slots=True)
class LogPiece:
    """Whole lines, and the place after the last of them; `sources`: see `sources_of`."""

    text: bytes
    cursor: Cursor | HeldPlace
    sources: Sequence[OneSource] = ()


@dataclass(frozen=True, slots=True)
class LogSize:
    """The size of a run's log, and how much of it is in the store under which ETag.

    `silent` nodes did not answer which lines they have beyond the stored ones. `held`: the store
    did not answer, and all values are of the lines that nodes hold.
    """

    stored_bytes: int
    total_bytes: int
    total_lines: int
    etag: str | None
    state: str
    silent: tuple[str, ...] = ()
    held: bool = False
    log: PinnedLog | None = None
    """The measured log, for a download of exactly that log."""


class RunLogReader:
    """Reads the logs of runs at one node."""

    def __init__(self, snapshots: Snapshots) -> None:
        self._snapshots = snapshots

    async def page(
        self,
        key: RunKey,
        *,
        after: str | None,
        limit: int,
        tail: int | None = None,
        before: str | None = None,
        around: int | None = None,
        max_bytes: int = MAX_PAGE_BYTES,
        stored: bool = False,
    ) -> LinePage:
        """Returns at most `limit` lines after or before a token, at the end, or around a record.

        It returns fewer if they take more than about `max_bytes`, but one if one exists. If the
        store does not answer, the lines are those that nodes hold, unless the caller asks for
        `stored` lines only.

        Raises `NotFound`, `InvalidCursor`, `StoreUnavailable`.
        """
        wanted = WantedPage.parsed(limit, after=after, before=before, tail=tail, around=around)

        async def read(snapshot: RunSnapshot) -> LinePage:
            async def lines(start: int, end: int) -> TextLines:
                found = await read_lines(snapshot, start, end, max_bytes)
                return TextLines(found.text, start, found.end)

            return (await read_page(snapshot, wanted, lines))[1]

        take = self._snapshots.with_one if stored else self._snapshots.read
        return await take(key, read)

    async def batches_after(
        self,
        key: RunKey,
        where: Cursor | int | HeldPlace | None,
        *,
        max_bytes: int,
        begun: Begun | None = None,
    ) -> After[LogPiece]:
        """Returns lines after a place, up to about `max_bytes`; none at the live end.

        Of a batch that was `begun` it returns only the remaining lines.
        """

        async def piece(
            snapshot: RunSnapshot, start: int, end: int, before: Cursor | None, apart: bool
        ) -> tuple[LogPiece, int]:
            found = await read_lines(snapshot, start, end, max_bytes, whole_blocks=True)
            sources = await sources_of(snapshot, before, start, found.end, apart=apart)
            after = await place_after(snapshot, before, sources, found.end, apart=apart)
            return LogPiece(found.text, after, sources), found.end

        async def read(snapshot: RunSnapshot) -> After[LogPiece]:
            if snapshot.held:
                return await held_lines(snapshot, where, max_bytes)
            return await read_after(snapshot, where, begun, piece)

        return await self._snapshots.read(key, read)

    async def tail_start(self, key: RunKey, lines: int) -> Cursor | int | HeldPlace | None:
        """Returns the place before the last `lines` lines; None for the beginning."""

        async def find(snapshot: RunSnapshot) -> Cursor | int | HeldPlace | None:
            start = max(snapshot.lines - lines, 0)
            if snapshot.held:
                before = await sum_of(snapshot, [(0, start)])
                return HeldPlace(None, await cursor_at(snapshot, start), before)
            if start == 0:
                return None
            fixed = snapshot.manifest.fixed_lines
            return start if start < fixed else await cursor_at(snapshot, start)

        return await self._snapshots.read(key, find)

    async def resolved(self, key: RunKey, cursor: Cursor | int | HeldPlace | None) -> Cursor:
        """Returns the same place as a cursor that names every writer of the run."""

        async def find(snapshot: RunSnapshot) -> Cursor:
            return await resolved(snapshot, cursor)

        return await self._snapshots.with_one(key, find)

    async def held_text(self, key: RunKey) -> AsyncIterator[bytes]:
        """Streams the lines that the nodes hold, without the store. Raises `Unavailable`."""
        async with self._snapshots.held(key) as snapshot:
            start = 0
            while start < snapshot.lines:
                step = partial(read_lines, start=start, end=snapshot.lines, max_bytes=_STEP_BYTES)
                found = await fetching(snapshot, step)
                yield found.text
                start = found.end

    def download(
        self,
        key: RunKey,
        *,
        offset: int = 0,
        size: int | None = None,
        measured: LogSize | None = None,
    ) -> AsyncIterator[bytes]:
        """Streams the log as it was `measured`, or is at the first piece, from byte `offset`.

        Raises `NotFound`, `Unavailable` with the first piece or later.
        """
        log = None if measured is None else measured.log
        return download(self._snapshots, key, offset, size, log)

    async def size(self, key: RunKey) -> LogSize:
        """Returns lengths and state; zero and `none` for a run that never existed."""

        async def measure(snapshot: RunSnapshot) -> LogSize:
            stored = snapshot.chunk_bytes
            etag = _etag(snapshot) if snapshot.exists and not snapshot.held else None
            return LogSize(
                stored,
                snapshot.size,
                snapshot.lines,
                etag,
                snapshot.state,
                silent_of(snapshot),
                snapshot.held,
                PinnedLog(snapshot) if snapshot.exists and not snapshot.held else None,
            )

        return await self._snapshots.read(key, measure)


async def held_lines(
    snapshot: RunSnapshot, where: Cursor | int | HeldPlace | None, max_bytes: int
) -> After[LogPiece]:
    """Returns lines after a place in a snapshot of the lines that nodes hold."""
    ranges = await unseen(snapshot, where)
    if not ranges:
        return after_piece(snapshot, None, ranges, 0)
    start, end = ranges[0]
    found = await read_lines(snapshot, start, end, max_bytes)
    sent = await sum_of(snapshot, [(start, found.end)])
    place = given(where, await cursor_at(snapshot, found.end), sent)
    return after_piece(snapshot, LogPiece(found.text, place), ranges, found.end)


def _etag(snapshot: RunSnapshot) -> str:
    """Returns the ETag of the log in the chunks: in a generation it grows, and a close may sort it.

    A close sorts only lines of several nodes, and then more of them have their final place.
    """
    manifest = snapshot.manifest
    several = len({who for chunk in manifest.chunks for who in chunk.writers}) > 1
    order = [str(manifest.fixed_lines)] if several else []
    name = [*manifest.key, ulids.encode(manifest.generation), str(manifest.bytes), *order]
    return xxhash.xxh3_128_hexdigest("\0".join(name).encode())
