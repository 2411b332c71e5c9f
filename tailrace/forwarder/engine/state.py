"""The engine's state: tracked files, their registry, still folders, and the parts it uses.

`Tracked` is one file, `FileRegistry` finds it by place, path and content. `EngineParts` has the
sources, and the parts that are passed in as protocols. All of it belongs to the engine's thread.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from math import inf
from typing import Literal, Protocol

import xxhash

from tailrace.forwarder.config.source import FileSource
from tailrace.forwarder.entries.splitting import Rest
from tailrace.forwarder.files.content import (
    NO_WINDOW,
    WINDOW,
    FileContent,
    Handle,
    Handles,
    KnownContent,
    Rank,
    Window,
    window_of,
)
from tailrace.forwarder.files.finder import Confines, Finder, FoundFile, Glob
from tailrace.forwarder.model import EntryCursor, FileFacts, FileState, Packed, Prepared, Stage

NOWHERE = (0, 0)
RECENT = 16 << 10
_COPIES = 8
START = EntryCursor()


@dataclass(slots=True)
class PendingBatch:
    """A batch that is not acknowledged yet. Without an id it has no records, and is not sent."""

    prepared: Prepared
    packed: Packed
    stage: Literal["new", "saved", "unlike", "sent", "asked"] = "new"
    """`saved`: in the synced log. `unlike`: made again, it is not what it was."""
    window: Window = NO_WINDOW
    """Of the content before the batch's end."""


@dataclass(slots=True, eq=False)
class Tracked:
    """One file, which is one content: its path, and the offsets read and acknowledged.

    `read` is where the next batch begins, `cursor` where the acknowledged bytes end. Between them
    are `pending` batches, and after a restart `resend`, those that have to be read again.
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
    cursor: EntryCursor = START
    window: Window = NO_WINDOW
    stage: Stage = "open"
    lost: int = 0
    seen_at: float = 0.0
    """When its content was known to be there last; seconds of the monotonic clock. Before the start
    of the process, it may be negative."""

    read: EntryCursor = START
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
    pending: deque[PendingBatch] = field(default_factory=deque)
    resend: deque[Prepared] = field(default_factory=deque)

    size: int = 0
    """Bytes of the file as seen last, compressed if it is."""
    mtime_ns: int = 0
    written_ns: int = 0
    """When it was written last; `mtime_ns` is 0 until this process has seen it."""
    content_end: int = 0
    """Bytes of content that are known to have been there."""
    handle: Handle | None = None
    content: FileContent | None = None
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
    def known(self) -> KnownContent:
        """The content that a file must have to be this one, or a copy of it."""
        if self.cut != NO_WINDOW:
            end = self.cut[0]
            return KnownContent(self.fingerprint[:end], self.cut, least=end, exact=True)
        least = max(self.read.offset, self.resend[-1].end.offset if self.resend else 0)
        if self.unbegun:
            # Of a file that was only seen, the window is at the end that it had then.
            return KnownContent(self.fingerprint, self.window, self.content_end)
        ranges = tuple(
            (each.start.offset, each.end.offset - each.start.offset, each.content)
            for each in self.resend
        )
        if self.tail is None:
            # The service had batches whose bytes were gone: `read` may be behind the window.
            blind = self.read.offset > 0 and self.window[1] == 0
            return KnownContent(self.fingerprint, self.window, least, ranges, blind)
        return KnownContent(self.fingerprint, window_of(self.tail, self.read.offset), least, ranges)

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

    def saw(self, found: FoundFile, now: float) -> bool:
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

    def differs(self, found: FoundFile) -> bool:
        """Whether `stat` says something else than before."""
        return (found.size, found.mtime_ns) != (self.size, self.mtime_ns)

    def is_as_saved(self, found: FoundFile) -> bool:
        """Whether nothing is expected of it, and `stat` says what the checkpoint log has."""
        there = found.place, found.size, found.mtime_ns
        return (
            self.over
            and self.settled
            and self.mtime_ns == 0
            and there == (self.place, self.size, self.written_ns)
        )

    def rest(self, found: FoundFile) -> None:
        """It is there as it was when it was done."""
        self.mtime_ns = found.mtime_ns
        self.at_end, self.dirty = True, False

    def wake(self) -> None:
        """It is to be looked at in the next round."""
        self.dirty = True
        self.awake[self.id] = self

    def rank(self) -> Rank:
        """The cost of closing its handle."""
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
        """Returns whether an unseen copy may end at that offset, outside of `recent`."""
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
        """The content before `end` is `data`, and a copy that no scan saw may end in it."""
        until, recent = self.recent
        if len(data) < RECENT:
            data = ((recent if until == self.read.offset else self.tail or b"") + data)[-RECENT:]
        self.recent = end, data

    def forget_recent(self) -> None:
        """Every existing copy of it was seen, or is at least as long as the read bytes."""
        self.recent = 0, b""

    def remember_tail(self, tail: bytes) -> None:
        """The content before `read`."""
        self.tail = tail[-WINDOW:]

    def state(self, now_ms: int, now: float) -> FileState:
        """The state for the checkpoint log, by both clocks."""
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


# All known files, found again by place, path or content.


_KEY = 16


@dataclass(frozen=True, slots=True)
class Shadow:
    """A file that holds what another holds, or the beginning of it, and is not read itself."""

    found: FoundFile
    of: Tracked
    end: int
    """Of its content."""


class FileRegistry:
    """The files of all sources. A place, device and inode, has one file; a path one at most."""

    def __init__(self) -> None:
        self.files: dict[str, Tracked] = {}
        self.awake: dict[str, Tracked] = {}
        self.shadows: dict[tuple[str, int, int], Shadow] = {}
        self._places: dict[tuple[str, int, int], Tracked] = {}
        self._paths: dict[tuple[str, str], Tracked] = {}
        self._contents: dict[tuple[str, bytes], dict[str, Tracked]] = {}

    def __len__(self) -> int:
        return len(self.files)

    def add(self, file: Tracked) -> None:
        """A file that is known from now on."""
        self.files[file.id] = file
        file.awake = self.awake
        self.awake[file.id] = file
        if file.place != NOWHERE:
            self._places.setdefault((file.source, *file.place), file)
        if not file.over:
            self._paths.setdefault((file.source, file.path), file)
        self.index(file, b"")

    def remove(self, file: Tracked) -> None:
        """Nothing is known of it any more."""
        self.files.pop(file.id, None)
        self.awake.pop(file.id, None)
        self.leave_place(file)
        for key in [key for key, each in self._paths.items() if each is file]:
            del self._paths[key]
        self._bucket(file.source, file.fingerprint).pop(file.id, None)

    def at_place(self, source: str, place: tuple[int, int]) -> Tracked | None:
        """The file that has this device and inode."""
        return self._places.get((source, *place))

    def at_path(self, source: str, path: str) -> Tracked | None:
        """The file that was seen last under this path, wherever it is now."""
        return self._paths.get((source, path))

    def move(self, file: Tracked, found: FoundFile) -> None:
        """The file is there now."""
        if file.place != found.place:
            self.leave_place(file)
            file.place = found.place
        self._places[file.source, *file.place] = file
        file.path = found.path
        self._paths[file.source, file.path] = file
        self.shadows.pop((file.source, *found.place), None)
        file.lost_sight = False

    def leave_place(self, file: Tracked) -> None:
        """The file's content is not there any more."""
        key = (file.source, *file.place)
        if self._places.get(key) is file:
            del self._places[key]
        file.place = NOWHERE

    def index(self, file: Tracked, before: bytes) -> None:
        """Its fingerprint is not `before` any more."""
        if before[:_KEY] != file.fingerprint[:_KEY]:
            self._bucket(file.source, before).pop(file.id, None)
        self._bucket(file.source, file.fingerprint)[file.id] = file

    def similar(self, source: str, fingerprint: bytes) -> list[Tracked]:
        """Files of which one fingerprint begins with the other. None has an empty one."""
        if len(fingerprint) >= _KEY:
            near = list(self._bucket(source, fingerprint).values())
            near += [each for each in self._short(source) if each not in near]
        else:
            near = [each for each in self.files.values() if each.source == source]
        return [
            each
            for each in near
            if each.fingerprint
            and fingerprint[: len(each.fingerprint)] == each.fingerprint[: len(fingerprint)]
        ]

    def of_source(self, source: str) -> list[Tracked]:
        """All files of a source."""
        return [file for file in self.files.values() if file.source == source]

    def of_run(self, fqn: str, run: str) -> Iterator[Tracked]:
        """All files whose lines are in a run."""
        return (file for file in self.files.values() if file.run == run and file.fqn == fqn)

    def shadows_of(self, file: Tracked) -> list[Shadow]:
        """The files that hold what it holds."""
        return [shadow for shadow in self.shadows.values() if shadow.of is file]

    def _bucket(self, source: str, fingerprint: bytes) -> dict[str, Tracked]:
        key = fingerprint[:_KEY] if len(fingerprint) >= _KEY else b""
        return self._contents.setdefault((source, key), {})

    def _short(self, source: str) -> Iterator[Tracked]:
        return iter(self._contents.get((source, b""), {}).values())


# Whether folders stood still while they were scanned.
#
# A list of a folder is no snapshot. A file that is renamed meanwhile may be missing under both
# names, and one that is compressed meanwhile is listed under a name that does not exist when it is
# opened. A new file of that scan may then follow a generation that the scan did not see, so it is
# not read before a scan in which nothing was renamed, made or removed.


_FEW = 8
_TICK_MS = 20
"""Times of changes are as coarse as the kernel's clock ticks, at most 10 ms."""


def folders_of(found: Iterable[FoundFile]) -> dict[str, int]:
    """The folders of these files, and when they were changed last, in ns."""
    folders: dict[str, int] = {}
    for folder in {os.path.dirname(file.path) for file in found}:
        with suppress(OSError):
            folders[folder] = os.stat(folder or ".").st_mtime_ns
    return folders


def unchanged(quiet: Mapping[str, int], folder: str) -> bool:
    """Whether a folder is as `Stillness.quiet` says; where there are few, all of them."""
    if folder not in quiet:
        return False
    folders = quiet if len(quiet) <= _FEW else (folder,)
    try:
        return all(os.stat(each or ".").st_mtime_ns == quiet[each] for each in folders)
    except OSError:
        return False


class Stillness:
    """The folders of the previous scan, checked for changes during the next. Made before a scan."""

    def __init__(self, folders: Iterable[str], now_ms: int) -> None:
        self._since_ns = (now_ms - _TICK_MS) * 1_000_000
        self._before: dict[str, int] = {}
        for folder in folders:
            with suppress(OSError):
                self._before[folder] = os.stat(folder or ".").st_mtime_ns

    def holds(self, after: Mapping[str, int]) -> bool:
        """Whether none of the folders that the scan has seen was changed since."""
        return all(
            changed < self._since_ns and self._before.get(folder, changed) == changed
            for folder, changed in after.items()
        )

    def quiet(self, after: Iterable[str]) -> dict[str, int]:
        """The scanned folders that were at rest before the scan began.

        The values are the times of their last change, in ns. Anything made in them after the begin
        of the scan gives them another time.
        """
        return {
            folder: self._before[folder]
            for folder in after
            if self._before.get(folder, self._since_ns) < self._since_ns
        }


# Parts that the engine uses: its sources, the parts that others implement, and its counters.


class RangePacker(Protocol):
    """Makes the body of a batch of a range of a file's content."""

    longest: int

    def pack(
        self, data: bytes, start: EntryCursor, file: FileFacts, *, final: bool, most: int
    ) -> Packed | None:
        """The first entries of `data`; None if none is complete."""
        ...

    def rest(self, data: bytes, start: EntryCursor) -> Rest:
        """The unfinished end of `data`, which has no complete entry."""
        ...


class CheckpointLog(Protocol):
    """The log of file states; see `tailrace.forwarder.checkpoints`."""

    @property
    def files(self) -> Mapping[str, FileState]: ...

    def put(self, state: FileState) -> None: ...

    def forget(self, id: str) -> None: ...  # noqa: A002 -- the field's own name

    def sync(self) -> None: ...

    def close(self) -> None: ...


class RunReports(Protocol):
    """Says of runs that they began, and that their files are followed; see `followed_runs`."""

    def begin(self, fqn: str, run: str, *, resumes: bool) -> None: ...

    def heard(self, fqn: str, run: str) -> None: ...

    def end(self, fqn: str, run: str) -> int | None: ...


class ForwarderClock(Protocol):
    """Wall time in milliseconds, and seconds that never step backwards."""

    def now_ms(self) -> int: ...

    def monotonic(self) -> float: ...


@dataclass(frozen=True, slots=True)
class SourceParts:
    """A source with what finds, names and packs its files.

    `name(path, id)` gives the fqn and the run of a file's lines, `facts(path)` what its records say
    of the file.
    """

    config: FileSource
    finder: Finder
    archives: tuple[Glob, ...]
    packer: RangePacker
    name: Callable[[str, str], tuple[str, str]]
    facts: Callable[[str], FileFacts]
    confines: Confines

    def leads(self, path: str) -> bool:
        """Whether a path is of the source or its archives, or a folder in which such may be."""
        return self.finder.leads(path) or any(glob.leads(path) for glob in self.archives)

    def folders(self) -> set[str]:
        """The folders in which something new can be of interest, those that exist."""
        found = self.finder.folders()
        for glob in self.archives:
            found.update(glob.folders(lambda _path, _error: None))
        return found

    @property
    def compression(self) -> bool:
        """Whether a file's first bytes say if it is compressed."""
        return self.config.compression != "" or self.config.encoding != "nop"


@dataclass(slots=True)
class SourceTally:
    """Counters of the files of a source. They only grow."""

    lost_bytes: int = 0
    """Seen in a file, and gone before they were read."""
    duplicate_files: int = 0
    """Files that held what another holds, and were not read."""
    truncations: int = 0
    rotations: int = 0
    open_errors: int = 0
    damaged: int = 0
    """Compressed files that were not what was written."""
    scans: int = 0
    scan_seconds: float = 0.0
    matched_files: int = 0
    acknowledged_bytes: int = 0
    acknowledged_records: int = 0
    duplicate_batches: int = 0
    """Batches that the service had already: an answer or this process was lost."""
    dropped_records: int = 0
    """Their run was deleted."""
    failed_files: int = 0
    """Files that were stopped because the service refuses a batch of theirs for ever."""
    replaced: int = 0
    truncated: int = 0
    unparsed: int = 0


@dataclass(slots=True)
class EngineParts:
    """The parts that all modules of the engine share."""

    sources: Mapping[str, SourceParts]
    registry: FileRegistry
    handles: Handles
    checkpoints: CheckpointLog
    clock: ForwarderClock
    mint: Callable[[], str]
    correct: Callable[[int], None]
    """Takes the service's time, in ms, where this machine's is wrong: later ids go by it."""
    say: Callable[[str], None]
    show: Callable[[str, str, str, bytes], None] = lambda *_: None
    """Shows the last line of a file, by fqn, run and id, while it is not finished."""
    reports: RunReports | None = None
    tallies: Mapping[str, SourceTally] = field(default_factory=dict)
    rescan: set[str] = field(default_factory=set)
    """Sources that are to be scanned again, soon."""
    changed: dict[str, Tracked] = field(default_factory=dict)
    """Files whose state is to be put into the checkpoint log."""
    unsaved: bool = False
    """What changed is to be synced at once."""
    with_archives: set[str] = field(default_factory=set)
    """Sources of which all archives are known."""
    quiet: dict[str, Mapping[str, int]] = field(default_factory=dict)
    """By source, the folders of its last scan and when they were changed before it."""

    def follow(self, file: Tracked, *, resumes: bool = False) -> None:
        """The file's run is to be reported, as far as it is known."""
        source = self.sources[file.source]
        if self.reports is None or not source.config.report_runs:
            return
        named = bool(file.fingerprint) or source.name(file.named, "-") == (file.fqn, file.run)
        if named:  # else the first bytes of the file decide which run it is
            self.reports.begin(file.fqn, file.run, resumes=resumes)

    def change(self, file: Tracked) -> None:
        """The file's state is to be saved."""
        self.changed[file.id] = file

    def count_lost(self, file: Tracked, size: int) -> None:
        """Counts bytes of a file that are gone and were not read.

        The count is synced at once, so that the next process does not count them again.
        """
        file.lost += size
        self.tallies[file.source].lost_bytes += size
        self.change(file)
        self.unsaved = True

    def copy_grows(self, file: Tracked) -> bool:
        """Returns whether a copy of the file appeared or grew a short time ago.

        It may grow further, which changes no folder.
        """
        wait = self.sources[file.source].config.rotate_wait
        return self.clock.monotonic() - file.copied_at < wait

    def may_have_copies(self, file: Tracked) -> bool:
        """Returns whether the file may have a copy whose present content no scan has seen.

        Called after a read: if not, every such copy has the read bytes. True if a copy grew a short
        time ago, or if a folder was changed since the last scan.
        """
        if self.copy_grows(file):
            return True
        return not unchanged(self.quiet.get(file.source, {}), os.path.dirname(file.path))
