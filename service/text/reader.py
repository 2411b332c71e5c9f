"""Reading the text of runs: pages, catching up, downloads, sizes, lists.

Every call takes a snapshot; nothing is held between calls but caches of immutable
things. So a page costs the manifest, a piece of an index, and one ranged get.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, replace

import xxhash

from logstore import ulid as ulids
from logstore.batch import RunKey
from logstore.errors import NotFound
from logstore.position import Cursor
from service.text.cursors import cursor_at, line_of, parse_token, token_at, unseen
from service.text.download import download
from service.text.lines import read_lines
from service.text.snapshot import Snapshot
from service.text.snapshots import Snapshots

MAX_PAGE_BYTES = 16 << 20


@dataclass(frozen=True, slots=True)
class Page:
    """Whole lines, each with its newline; totals are of the run as it is now.

    `after` is None when there is no more for now, `before` when nothing comes before.
    `missing` lines of those that were asked for did not fit: they follow `after`.
    """

    text: bytes
    lines: int
    after: str | None
    before: str | None
    total_lines: int
    total_bytes: int
    state: str
    missing: int

    @property
    def streaming(self) -> bool:
        """Whether more may come."""
        return self.state == "open"


@dataclass(frozen=True, slots=True)
class TextPiece:
    """Whole lines, and the cursor after the last of them."""

    text: bytes
    cursor: Cursor


@dataclass(frozen=True, slots=True)
class TextSize:
    """How long the text is, and how much of it is in the store under which ETag."""

    stored_bytes: int
    total_bytes: int
    total_lines: int
    etag: str | None
    state: str


class TextReader:
    """Of one node."""

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
        max_bytes: int = MAX_PAGE_BYTES,
    ) -> Page:
        """At most `limit` lines after a token, before one, or the last `tail`.

        Fewer if they take more than about `max_bytes`, but one if there is one.

        Raises `NotFound`, `InvalidCursor`, `StoreUnavailable`.
        """
        first = None if after is None else parse_token(after)
        last = None if before is None else parse_token(before)

        async def read(snapshot: Snapshot) -> Page:
            if not snapshot.exists:
                raise NotFound(
                    f"no run {key.run!r} of {key.fqn!r}",
                    hint="Its first batch makes a run; look at the list of the pipeline's runs.",
                )
            end = snapshot.lines
            if last is not None:
                end = await line_of(snapshot, last)
                return await _page(snapshot, max(end - limit, 0), end, max_bytes)
            if tail is not None:
                return await _page(snapshot, max(end - tail, 0), end, max_bytes)
            return await _page_after(snapshot, first, limit, max_bytes)

        return await self._snapshots.with_one(key, read)

    async def batches_after(
        self, key: RunKey, cursor: Cursor | int | None, *, max_bytes: int
    ) -> list[TextPiece]:
        """What follows a cursor, up to about `max_bytes`; nothing when level with the hot end."""

        async def read(snapshot: Snapshot) -> list[TextPiece]:
            ranges = await unseen(snapshot, cursor)
            if not ranges:
                return []
            start, end = ranges[0]
            found = await read_lines(snapshot, start, end, max_bytes, whole_blocks=True)
            after = await cursor_at(snapshot, found.end)
            if isinstance(cursor, Cursor) and cursor.complete:
                after = cursor.joined(after)
            return [TextPiece(found.text, after)]

        return await self._snapshots.with_one(key, read)

    async def tail_start(self, key: RunKey, lines: int) -> Cursor | int | None:
        """The place that the last `lines` lines follow; None for the beginning."""

        async def find(snapshot: Snapshot) -> Cursor | int | None:
            start = max(snapshot.lines - lines, 0)
            if start == 0:
                return None
            return start if start < snapshot.chunk_lines else await cursor_at(snapshot, start)

        return await self._snapshots.with_one(key, find)

    def download(
        self, key: RunKey, *, offset: int = 0, size: int | None = None
    ) -> AsyncIterator[bytes]:
        """The text as it is at the first piece, from byte `offset`, in constant memory.

        Raises `NotFound`, `StoreUnavailable` with the first piece or later.
        """
        return download(self._snapshots, key, offset, size)

    async def size(self, key: RunKey) -> TextSize:
        """Lengths and state; zero and `none` for a run that never was."""

        async def measure(snapshot: Snapshot) -> TextSize:
            stored = snapshot.chunk_bytes
            etag = _etag(snapshot) if snapshot.exists else None
            return TextSize(stored, snapshot.size, snapshot.lines, etag, snapshot.state)

        return await self._snapshots.with_one(key, measure)


async def _page_after(
    snapshot: Snapshot, first: Cursor | int | None, limit: int, max_bytes: int
) -> Page:
    """The first lines that were not seen; only some of them if what follows was seen."""
    ranges = await unseen(snapshot, first)
    start, end = ranges[0] if ranges else (snapshot.lines, snapshot.lines)
    page = await _page(snapshot, start, min(start + limit, end), max_bytes)
    if end < snapshot.lines and isinstance(first, Cursor):
        after = first.joined(await cursor_at(snapshot, start + page.lines))
        return replace(page, after=after.encode())
    return page


async def _page(snapshot: Snapshot, start: int, end: int, max_bytes: int) -> Page:
    found = await read_lines(snapshot, start, end, max_bytes)
    more = found.end < snapshot.lines
    return Page(
        text=found.text,
        lines=found.end - start,
        after=await token_at(snapshot, found.end) if more else None,
        before=await token_at(snapshot, start) if start else None,
        total_lines=snapshot.lines,
        total_bytes=snapshot.size,
        state=snapshot.state,
        missing=max(end - found.end, 0),
    )


def _etag(snapshot: Snapshot) -> str:
    """Of the text in the chunks: it only grows within a generation, so its length tells."""
    manifest = snapshot.manifest
    name = "\0".join([*manifest.key, ulids.encode(manifest.generation), str(manifest.bytes)])
    return xxhash.xxh3_128_hexdigest(name.encode())
