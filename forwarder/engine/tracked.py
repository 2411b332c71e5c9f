"""A file as the engine knows it while it runs."""

from __future__ import annotations

import os
from collections import deque
from dataclasses import dataclass, field
from math import inf
from typing import Literal

import xxhash

from forwarder.files.content import Content
from forwarder.files.finder import Found
from forwarder.files.handles import Handle, Rank
from forwarder.files.identity import NO_WINDOW, WINDOW, Known, Window, window_of
from forwarder.model import Cursor, FileState, Packed, Prepared, Stage

NOWHERE = (0, 0)
RECENT = 16 << 10
_COPIES = 8
START = Cursor()


@dataclass(slots=True)
class Pending:
    """A batch that is not acknowledged yet. Without an id it has no records, and is not sent."""

    prepared: Prepared
    packed: Packed
    stage: Literal["new", "saved", "unlike", "sent", "asked"] = "new"
    """`saved`: in the synced log. `unlike`: made again, it is not what it was."""
    window: Window = NO_WINDOW
    """Of the content before the batch's end."""


@dataclass(slots=True, eq=False)
class Tracked:
    """One file, which is one content: where it lies, how far it was read and acknowledged.

    `read` is where the next batch begins, `cursor` where what is acknowledged ends. Between them
    are `pending` batches, and after a restart `resend`, those that are still to be read again.
    """

    id: str
    source: str
    path: str
    """Where it is, or was seen last."""
    named: str = ""
    """The path under which it was written, by which its records name it."""
    place: tuple[int, int] = NOWHERE
    """Device and inode, while the engine believes the content to be there."""
    fqn: str = ""
    run: str = ""
    fingerprint: bytes = b""
    cursor: Cursor = START
    window: Window = NO_WINDOW
    stage: Stage = "open"
    lost: int = 0
    seen_at: float = 0.0
    """When its content was known to be there last; seconds of the monotonic clock. Before the start
    of the process, it may be negative."""

    read: Cursor = START
    tail: bytes | None = b""
    """The content before `read`, at most `WINDOW` bytes; None: to be read from the file."""
    copies: tuple[tuple[int, int], ...] = ()
    """Where copies of it ended: the offset, and a hash of the window before it."""
    copied_at: float = -inf
    """When a copy of it was seen to be new or to grow; seconds of the monotonic clock."""
    recent: tuple[int, bytes] = (0, b"")
    """An offset and the content before it, at most `RECENT` bytes: what was read while a copy that
    no scan has seen may end there."""
    cut: Window = NO_WINDOW
    """The window at the end of the copy that is left of it, if that ends before `read`."""
    pending: deque[Pending] = field(default_factory=deque)
    resend: deque[Prepared] = field(default_factory=deque)

    size: int = 0
    """Bytes of the file as seen last, compressed if it is."""
    mtime_ns: int = 0
    written_ns: int = 0
    """When it was written last; `mtime_ns` is 0 until this process has seen it."""
    content_end: int = 0
    """Bytes of content that are known to have been there."""
    handle: Handle | None = None
    content: Content | None = None
    dirty: bool = True
    """There may be something behind `read`."""
    at_end: bool = False
    """Behind `read` was nothing more, but perhaps a part of an entry."""
    partial: int = 0
    """Bytes behind `read` that are no whole entry yet."""
    grown_at: float = 0.0
    """When new bytes were seen last; seconds of the monotonic clock."""
    held: tuple[int, float] = (0, 0.0)
    """Up to where there are whole lines of an entry that may go on, and since when."""
    unfinished: bool = False
    """Behind those is a line without an end."""
    showing: bytes = b""
    """What that looks like in live views."""
    retry_at: float = 0.0
    """Not before this is it read again, after an error."""

    matched: bool = False
    """The last scan found it under a path of its source, or of the source's archives."""
    archived: bool = False
    """It is under a path of the source's archives alone."""
    rotated_at: float | None = None
    """Since when it is not under the path where it was written."""
    lost_sight: bool = False
    """Nobody knows where its content is."""
    predecessor: Tracked | None = None
    unsure_since: float | None = None
    """Since when it is known, until a scan has shown that nothing comes before it."""
    waits_since: float | None = None
    """When its first bytes were seen while its predecessor was not done."""
    ended_at: float = -1.0
    """When it was last read to its end."""
    examined: set[tuple[int, int, int, int]] = field(default_factory=set)
    """Files that do not hold its content: device, inode, size, time of change."""
    turned: int = 0
    """The number of its last turn; of two files the one with the lower number goes first."""
    heavy: bool = False
    """Its last turn was a whole block."""
    closed: bool = False
    """Its run was closed, and nothing was sent since."""
    given: str = ""
    """The last id that the service gave for a batch of it, after a deletion."""
    awake: dict[str, Tracked] = field(default_factory=dict)
    """The registry's files that need a look in each round; shared by all of them."""

    @property
    def known(self) -> Known:
        """What a file must hold to be this one, or a copy of it."""
        if self.cut != NO_WINDOW:
            end = self.cut[0]
            return Known(self.fingerprint[:end], self.cut, least=end, exact=True)
        least = max(self.read.offset, self.resend[-1].end.offset if self.resend else 0)
        if self.unbegun:
            # Of a file that was only seen, the window is at the end that it had then.
            return Known(self.fingerprint, self.window, self.content_end)
        ranges = tuple(
            (each.start.offset, each.end.offset - each.start.offset, each.content)
            for each in self.resend
        )
        if self.tail is None:
            # The service had batches whose bytes were gone: `read` may be behind the window.
            blind = self.read.offset > 0 and self.window[1] == 0
            return Known(self.fingerprint, self.window, least, ranges, blind)
        return Known(self.fingerprint, window_of(self.tail, self.read.offset), least, ranges)

    @property
    def unread(self) -> int:
        """Bytes that are known to be there and are not read; of content."""
        return max(self.content_end - self.read.offset, 0)

    @property
    def settled(self) -> bool:
        """Everything that was read is acknowledged."""
        return not self.pending and not self.resend

    @property
    def awaited(self) -> bool:
        """Lines of it may still come, which go before those of its successor.

        A file that is being compressed is out of sight for a while; if it stays away, it is over.
        """
        return not self.over and not (self.lost_sight and self.settled and not self.unread)

    @property
    def unbegun(self) -> bool:
        """Nothing of it was read."""
        return self.read.offset == 0 and self.settled

    @property
    def caught_up(self) -> bool:
        """It was read to its end, and all of it is acknowledged."""
        return self.at_end and not self.dirty and self.partial == 0 and self.settled

    @property
    def over(self) -> bool:
        """Nothing more is expected of it."""
        return self.stage in ("done", "gone", "failed")

    @property
    def readable(self) -> bool:
        """Its content is where the engine believes it to be."""
        return self.handle is not None or (self.place != NOWHERE and not self.lost_sight)

    def saw(self, found: Found, now: float) -> bool:
        """Notes what `stat` says; True if that is not what it said before."""
        changed = self.differs(found)
        if changed:
            restored = self.mtime_ns == 0 and self.size == found.size
            self.size, self.mtime_ns = found.size, found.mtime_ns
            self.written_ns = found.mtime_ns
            self.grown_at = now
            self.wake()
            if not restored and self.stage in ("rotated", "done", "gone"):
                self.stage = "open"
        return changed

    def differs(self, found: Found) -> bool:
        """Whether `stat` says something else than before."""
        return (found.size, found.mtime_ns) != (self.size, self.mtime_ns)

    def is_as_saved(self, found: Found) -> bool:
        """Whether nothing is expected of it, and `stat` says what the checkpoint log has."""
        there = found.place, found.size, found.mtime_ns
        return (
            self.over
            and self.settled
            and self.mtime_ns == 0
            and there == (self.place, self.size, self.written_ns)
        )

    def rest(self, found: Found) -> None:
        """It is there as it was when it was done."""
        self.mtime_ns = found.mtime_ns
        self.at_end, self.dirty = True, False

    def wake(self) -> None:
        """It is to be looked at in the next round."""
        self.dirty = True
        self.awake[self.id] = self

    def rank(self) -> Rank:
        """What closing its handle would cost."""
        if self.matched and self.rotated_at is None:
            return Rank.IDLE if self.at_end and not self.dirty else Rank.READING
        if self.caught_up or self.handle is None:
            return Rank.ROTATED
        named = os.fstat(self.handle.descriptor).st_nlink > 0
        return Rank.ROTATED if named else Rank.UNLINKED

    def forget_handle(self) -> None:
        """Its handle was closed."""
        self.handle = None
        self.content = None

    def begins_with(self, end: int, last: bytes) -> bool:
        """Whether a content that ends at `end` with `last` is the beginning of this one.

        It begins with the same fingerprint, as far as it goes.
        """
        if end <= len(self.fingerprint) or (end, xxhash.xxh3_64_intdigest(last)) in self.copies:
            return True
        until, recent = self.recent
        start = end - len(last) - (until - len(recent))
        return start >= 0 and end <= until and recent[start : start + len(last)] == last

    def may_have_copy(self, end: int, last: bytes) -> bool:
        """Whether a copy that no scan has seen may end there, of which `recent` knows nothing."""
        until, recent = self.recent
        if not until:
            return not self.copies
        return end - len(last) < until - len(recent)

    def remember_copy(self, now: float, end: int, last: bytes, *, instead_of: int = 0) -> None:
        """A copy of it ends there `now`; one that grew ended at `instead_of` before."""
        self.copied_at = now
        known = [each for each in self.copies if each[0] not in (end, instead_of)]
        self.copies = (*known, (end, xxhash.xxh3_64_intdigest(last)))[-_COPIES:]

    def remember_recent(self, data: bytes, end: int) -> None:
        """The content before `end` is `data`, and a copy that nobody saw may end in it."""
        until, recent = self.recent
        if len(data) < RECENT:
            data = ((recent if until == self.read.offset else self.tail or b"") + data)[-RECENT:]
        self.recent = end, data

    def forget_recent(self) -> None:
        """Every copy of it that there is was seen, or is at least as long as what was read."""
        self.recent = 0, b""

    def remember_tail(self, tail: bytes) -> None:
        """The content before `read`."""
        self.tail = tail[-WINDOW:]

    def state(self, now_ms: int, now: float) -> FileState:
        """What the checkpoint log is to hold of it, by both clocks."""
        prepared = [each.prepared for each in self.pending if each.prepared.batch]
        return FileState(
            id=self.id,
            source=self.source,
            path=self.path,
            fingerprint=self.fingerprint,
            window=self.window,
            device=self.place[0],
            inode=self.place[1],
            size=self.content_end,
            seen_ms=now_ms - int((now - self.seen_at) * 1000),
            cursor=self.cursor,
            prepared=(*prepared, *self.resend),
            fqn=self.fqn,
            run=self.run,
            stage=self.stage,
            lost=self.lost,
            written_ns=self.written_ns,
            stored_size=self.size if self.over else 0,
            named=self.named if self.named != self.path else "",
            copies=self.copies,
            recent=self.recent,
            cut=self.cut,
        )

    @classmethod
    def of(cls, state: FileState, now_ms: int, now: float) -> Tracked:
        """A file as the checkpoint log has it, by both clocks. Its content is to be found."""
        return cls(
            id=state.id,
            source=state.source,
            path=state.path,
            named=state.named or state.path,
            place=(state.device, state.inode),
            fqn=state.fqn,
            run=state.run,
            fingerprint=state.fingerprint,
            cursor=state.cursor,
            window=state.window,
            stage=state.stage,
            lost=state.lost,
            seen_at=now - max(now_ms - state.seen_ms, 0) / 1000,
            read=state.cursor,
            tail=None if state.cursor.offset else b"",
            resend=deque(state.prepared),
            given=max([each.batch for each in state.prepared if each.given], default=""),
            size=state.stored_size or state.size,
            content_end=state.size,
            written_ns=state.written_ns,
            copies=state.copies,
            recent=state.recent,
            cut=state.cut,
            lost_sight=True,
        )
