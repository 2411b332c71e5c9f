"""Pages of a run's log: which lines a page has, and what it says of its place in the log.

A page begins in one of several ways (`Wanted`). What it holds, text or records, is read by
the caller of `read_page`; it may hold fewer lines than were wanted.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol, TypeVar

from logstore import ulid as ulids
from logstore.batch import RunKey
from logstore.errors import NotFound, StoreUnavailable
from logstore.position import Cursor, as_number
from service.runs.cursors import (
    cursor_at,
    joined_at,
    line_of,
    line_of_record,
    parse_token,
    settled,
    token_at,
    unseen,
)
from service.runs.held_place import HeldPlace, given
from service.runs.snapshot import Snapshot

MAX_PAGE_BYTES = 16 << 20


class NoLines(NotFound):
    """The run has no lines; the `silent` nodes did not say whether they have some."""

    def __init__(self, key: RunKey, silent: tuple[str, ...]) -> None:
        super().__init__(
            f"no run {key.run!r} of {key.fqn!r}",
            hint="Its first batch makes a run; look at the list of the pipeline's runs.",
        )
        self.silent = silent


@dataclass(frozen=True, slots=True)
class Page:
    """Whole lines, each with its newline; totals are of the run as it is now.

    `after` is None when there is no more for now, `before` when nothing comes before. `resume` is
    where lines that come later begin, if some may; it is None where `after` is not.
    `missing` of the requested lines did not fit: they follow `after`. Line numbers count from 0:
    that of the first line, and that of the record around which the page was requested. `silent` are
    nodes that did not say what they have of the run beyond what is stored. `held`: the store did
    not answer, and lines, numbers and totals are of what the nodes hold.
    """

    text: bytes
    lines: int
    after: str | None
    before: str | None
    total_lines: int
    total_bytes: int
    state: str
    missing: int
    first_line: int
    record_line: int | None = None
    silent: tuple[str, ...] = ()
    held: bool = False
    resume: str | None = None

    @property
    def streaming(self) -> bool:
        """Whether more lines may come."""
        return self.state in ("open", "closing", "unknown")


@dataclass(frozen=True, slots=True)
class Wanted:
    """At most `limit` lines, from one of these places on; without any, from the beginning.

    Behind `after`, before `before`, the last `tail`, or around the record with the ULID `around`.
    """

    limit: int
    after: Cursor | int | HeldPlace | None = None
    before: Cursor | int | HeldPlace | None = None
    tail: int | None = None
    around: int | None = None

    @staticmethod
    def parsed(
        limit: int,
        *,
        after: str | None = None,
        before: str | None = None,
        tail: int | None = None,
        around: int | None = None,
    ) -> Wanted:
        """Parses places as clients pass them back. Raises `InvalidCursor`."""
        first = None if after is None else parse_token(after)
        last = None if before is None else parse_token(before)
        return Wanted(limit, first, last, tail, around)


class FoundLines(Protocol):
    """What was read: from line `start`, up to line `end`."""

    @property
    def text(self) -> bytes: ...
    @property
    def start(self) -> int: ...
    @property
    def end(self) -> int: ...


class TextLines(NamedTuple):
    """Whole lines as text."""

    text: bytes
    start: int
    end: int


Found = TypeVar("Found", bound=FoundLines)


@dataclass(frozen=True, slots=True)
class _Bounds:
    """Which lines a page has if they all fit.

    `line` is that of the record in the middle. `seen` is the cursor that the page follows.
    """

    start: int
    end: int
    line: int | None = None
    seen: Cursor | None = None


async def read_page(
    snapshot: Snapshot, wanted: Wanted, read: Callable[[int, int], Awaitable[Found]]
) -> tuple[Found, Page]:
    """Reads a page with `read`, which gives the lines between two numbers.

    A page around a record begins with it if the lines before it leave no room for it. Raises
    `NotFound`, `InvalidCursor`, `Moved`.
    """
    must_exist(snapshot)
    place = await _bounds(snapshot, wanted)
    found = await read(place.start, place.end)
    if place.line is not None and found.end <= place.line:
        end = min(place.line + wanted.limit, snapshot.lines)
        place = replace(place, start=place.line, end=end)
        found = await read(place.start, place.end)
    return found, await _page(snapshot, place, found, wanted)


def must_exist(snapshot: Snapshot) -> None:
    """Raises `NoLines` if the run has none."""
    if not snapshot.exists:
        key = snapshot.manifest.key
        raise NoLines(key, snapshot.elsewhere.silent)


def no_record(snapshot: Snapshot, ulid: int) -> NotFound | StoreUnavailable:
    """The error for a record that the run does not hold, or that may be in a silent store."""
    key = snapshot.manifest.key
    if snapshot.held:
        return StoreUnavailable(
            f"no node holds the record {ulids.encode(ulid)}, and the object store does not answer",
            hint="Try again when it does.",
        )
    return NotFound(
        f"no record {ulids.encode(ulid)} in the run {key.run!r} of {key.fqn!r}",
        hint="It was deleted or has expired, or it is of another run.",
    )


async def _bounds(snapshot: Snapshot, wanted: Wanted) -> _Bounds:
    end, limit = snapshot.lines, wanted.limit
    if wanted.before is not None:
        end = await line_of(snapshot, wanted.before)
        return _Bounds(max(end - limit, 0), end)
    if wanted.tail is not None:
        return _Bounds(max(end - wanted.tail, 0), end)
    if wanted.around is not None:
        return await _around(snapshot, wanted.around, limit)
    return await _behind(snapshot, wanted.after, limit)


async def _around(snapshot: Snapshot, ulid: int, limit: int) -> _Bounds:
    """The record is in the middle, or nearer to an edge at an end of the run."""
    line = await line_of_record(snapshot, ulid)
    if line is None:
        raise no_record(snapshot, ulid)
    start = max(min(line - limit // 2, snapshot.lines - limit), 0)
    return _Bounds(start, min(start + limit, snapshot.lines), line=line)


async def _behind(
    snapshot: Snapshot, where: Cursor | int | HeldPlace | None, limit: int
) -> _Bounds:
    """The first lines that were not seen, up to lines that were seen."""
    where = await settled(snapshot, where)
    ranges = await unseen(snapshot, where)
    start, end = ranges[0] if ranges else (snapshot.lines, snapshot.lines)
    return _Bounds(
        start, min(start + limit, end), seen=where if isinstance(where, Cursor) else None
    )


async def _token_behind(snapshot: Snapshot, seen: Cursor | None, line: int) -> str:
    """The token of a reader that has seen `seen`, and everything before `line`."""
    if seen is None or not seen.complete:
        return await token_at(snapshot, line)
    here, after = await cursor_at(snapshot, line), await joined_at(snapshot, seen, line)
    # It may have seen lines behind, or of nodes that do not answer now: no line number says that.
    same = (after.positions, after.line) == (here.positions, here.line)
    return await token_at(snapshot, line) if same else after.encode_numbered(line)


async def _page(snapshot: Snapshot, place: _Bounds, found: FoundLines, wanted: Wanted) -> Page:
    end = found.end == snapshot.lines
    behind: str | None = None
    if snapshot.held:
        place_behind = await _held_after(snapshot, found, wanted)
        behind = as_number(place_behind.encode(), found.end)
    elif not end or snapshot.state != "closed":
        behind = await _token_behind(snapshot, place.seen, found.end)
    return Page(
        text=found.text,
        lines=found.end - found.start,
        after=None if end else behind,
        before=await token_at(snapshot, found.start) if found.start else None,
        total_lines=snapshot.lines,
        total_bytes=snapshot.size,
        state=snapshot.state,
        # What a page gives of the lines held is one piece: the store may answer before the next.
        missing=0 if snapshot.held else max(place.end - found.end, 0),
        first_line=found.start,
        record_line=place.line,
        silent=silent_of(snapshot),
        held=snapshot.held,
        resume=behind if end else None,
    )


async def _held_after(snapshot: Snapshot, found: FoundLines, wanted: Wanted) -> HeldPlace:
    """Where to go on; a page that began at no cursor leaves out the lines before it."""
    seen = await cursor_at(snapshot, found.end)
    if wanted.tail is None and wanted.before is None and wanted.around is None:
        return given(wanted.after, seen, found.end - found.start)
    return given(None, seen, found.end)


def silent_of(snapshot: Snapshot) -> tuple[str, ...]:
    """The nodes whose newest lines the run may lack; a closed one has them all."""
    return () if snapshot.state == "closed" else snapshot.elsewhere.silent
