"""Opens files, searches for moved ones, reads one bounded piece of one file, makes a batch of it.

Read bytes count only if the bytes before them are still those that were read earlier. This check
comes *after* the read: if the file had been truncated and written again meanwhile, they would
differ.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from enum import Enum, auto
from math import inf

import xxhash

from tailrace.forwarder.engine.state import (
    NOWHERE,
    RECENT,
    EngineParts,
    PendingBatch,
    SourceParts,
    Tracked,
)
from tailrace.forwarder.entries.splitting import NO_REST
from tailrace.forwarder.files.content import (
    NO_WINDOW,
    WINDOW,
    FileContent,
    Handle,
    KnownContent,
    NoHandle,
    Rank,
    begins,
    find_end,
    holds,
    open_content,
    read_window,
    window_of,
)
from tailrace.forwarder.files.finder import (
    FoundFile,
    find_date,
    is_archive,
    look,
    may_be_rotation,
)
from tailrace.forwarder.model import FileFacts, Packed, Prepared
from tailrace.logstore.errors import Damaged
from tailrace.logstore.filesystem import advise
from tailrace_client.records import id_after, is_ahead
from tailrace_client.system import steady_ms

# Opens files, and checks that they have the expected content.


_RETRY_SECONDS = 1.0


class OpenResult(Enum):
    """The result of opening a file."""

    READY = auto()
    ELSEWHERE = auto()
    """Another file, or none, is where it was."""
    REPLACED = auto()
    """The same inode, with another content."""
    LATER = auto()
    """It cannot be opened now; `retry_at` says when to try again."""
    FULL = auto()
    """It could be opened, but no handle can be closed for it now; `retry_at` as above."""


class Opener:
    """Opens tracked files, within the limit of handles."""

    def __init__(self, shared: EngineParts) -> None:
        self._shared = shared

    def open(self, file: Tracked) -> OpenResult:
        """Makes sure that `handle` and `content` are there, and that the content is the file's."""
        if file.handle is not None:
            self._shared.handles.touch(file.handle)
            return OpenResult.READY
        try:
            handle = self._shared.handles.open(file.path, file.rank, file.forget_handle)
        except (FileNotFoundError, NotADirectoryError):
            return OpenResult.ELSEWHERE
        except NoHandle:
            self._later(file)
            return OpenResult.FULL
        except OSError as error:
            return self._failed(file, error)
        try:
            self._shared.sources[file.source].confines.check_open(handle.descriptor, file.path)
        except OSError as error:
            self._shared.handles.close(handle)
            return self._failed(file, error)
        if (handle.device, handle.inode) != file.place:
            self._shared.handles.close(handle)
            return OpenResult.ELSEWHERE
        return self._check(file, handle)

    def transient(self, path: str, source: SourceParts) -> tuple[Handle, FileContent | None]:
        """A file that is looked at once, as the source reads it: the caller closes the handle.

        Raises `OSError`, `NoHandle`.
        """
        handle = self._shared.handles.open(path, lambda: Rank.UNLINKED, lambda: None)
        try:
            source.confines.check_open(handle.descriptor, path)
            return handle, open_content(handle.descriptor, compression=source.compression)
        except OSError:
            self._shared.handles.close(handle)
            raise

    def _check(self, file: Tracked, handle: Handle) -> OpenResult:
        source = self._shared.sources[file.source]
        outcome = OpenResult.LATER
        try:
            content = open_content(handle.descriptor, compression=source.compression)
            if source.config.acquire_fs_lock and not _lock(handle):
                content = None
            if content is None:
                file.retry_at = self._shared.clock.monotonic() + _RETRY_SECONDS
            elif holds(content, file.known):
                if file.tail is None:
                    file.tail = read_window(content, file.read.offset)
                file.handle, file.content = handle, content
                return OpenResult.READY
            else:
                outcome = OpenResult.REPLACED
        except Damaged as error:
            self.damaged(file, error)
        except OSError as error:
            outcome = self._failed(file, error)
        self._shared.handles.close(handle)
        return outcome

    def damaged(self, file: Tracked, error: Damaged) -> None:
        """Handles a damaged compressed file: it is read again if it changes."""
        self._shared.tallies[file.source].damaged += 1
        self._shared.say(f"{file.path}: {error}; what is in front of that was read")
        file.dirty = False
        file.at_end = True

    def _failed(self, file: Tracked, error: OSError) -> OpenResult:
        self._shared.tallies[file.source].open_errors += 1
        if file.retry_at <= 0:
            self._shared.say(f"{file.path} cannot be read: {error.strerror}; it is tried again")
        return self._later(file)

    def _later(self, file: Tracked) -> OpenResult:
        file.retry_at = self._shared.clock.monotonic() + _RETRY_SECONDS
        return OpenResult.LATER


def _lock(handle: Handle) -> bool:
    try:
        fcntl.flock(handle.descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


BLOCK = 1 << 20
_EVERYTHING = 1 << 62


# Searches for contents that are not at their path any more: renamed, compressed, or truncated.
#
# A file's own folder and the globs of `archive_include` are searched, outside of the source's
# patterns too. A candidate is the file if it has the bytes that were read of it. Files that are not
# compressed come first: while an archive is being written, its original still exists.


class Locator:
    """Finds and moves files whose content is elsewhere."""

    def __init__(self, shared: EngineParts, opener: Opener) -> None:
        self._shared = shared
        self._registry = shared.registry
        self._opener = opener

    def lose(self, file: Tracked) -> None:
        """The file's content is not where it was. It is searched for `rotate_wait` from now on."""
        if file.handle is not None:
            self._shared.handles.close(file.handle)
        self._registry.leave_place(file)
        self._shared.change(file)
        file.matched = False
        file.lost_sight = True
        file.wake()
        file.rotated_at = self._shared.clock.monotonic()

    def find(self, file: Tracked) -> bool:
        """Searches the content; True if the file has a place again."""
        if not file.fingerprint:
            return False
        candidates = list(self._candidates(file))
        for found in candidates:
            key = (*found.place, found.size, found.mtime_ns)
            if key in file.examined:
                continue
            verdict = self._holds(found, file)
            if verdict:
                self.take_over(file, self.find_generation(file, found, candidates) or found)
                return True
            if verdict is False:
                file.examined.add(key)
        return False

    def find_longer(self, file: Tracked, end: int) -> FoundFile | None:
        """Another file that holds the bytes read of it, and goes on after `end`."""
        known = replace(file.known, least=max(file.known.least, end + 1))
        for found in self._candidates(file):
            if found.place != file.place and self._holds(found, file, known):
                return found
        return None

    def find_generation(
        self, file: Tracked, there: FoundFile, others: Sequence[FoundFile]
    ) -> FoundFile | None:
        """The oldest of the `others` that may be the file, if the one `there` only begins alike.

        An older generation than the file was not written since, and no scan knew it as a copy. A
        copy of the one `there` is none.
        """
        since, named, mine = file.written_ns, file.named, _generation(there)
        copies = {shadow.found.place for shadow in self._registry.shadows_of(file)}
        candidates = [
            each
            for each in others
            if each.size
            and (each.mtime_ns >= since or each.place in copies)
            and each.path not in (named, there.path)
            and (there.path == named or _generation(each) < mine)
            and may_be_rotation(each.path, named, lambda _: True)
        ]
        for each in sorted(candidates, key=_generation):
            if self._holds(each, file) and self._differ(each, there, file):
                return each
        return None

    def unmatched(self, file: Tracked) -> list[FoundFile]:
        """Files in the folder of a file whose names may be those of its rotations."""
        begin = os.path.basename(file.named).split(".")[0]
        found = []
        for path in self._paths(file):
            if os.path.basename(path).startswith(begin):
                with suppress(OSError):
                    there = look(path)
                    if there is not None and self._free(file, there):
                        found.append(there)
        return found

    def _differ(self, one: FoundFile, other: FoundFile, file: Tracked) -> bool:
        """Whether neither of two files is the beginning of the other; False if nobody can tell."""
        source, handles = self._shared.sources[file.source], []
        contents = []
        try:
            for found in (one, other):
                handle, content = self._opener.transient(found.path, source)
                handles.append(handle)
                if content is None or (handle.device, handle.inode) != found.place:
                    return False
                contents.append(content)
            return not begins(contents[0], contents[1])
        except (OSError, NoHandle, Damaged):
            return False
        finally:
            for handle in handles:
                self._shared.handles.close(handle)

    def pass_on(self, file: Tracked) -> None:
        """A file that is done has vanished: a copy that is still there is known by it."""
        for shadow in self._registry.shadows_of(file):
            found = _again(shadow.found)
            if found is not None and self._holds(found, file):
                self.take_over(file, found)
                return
        file.lost_sight = True  # the next scan compares its shorter copies with what was read

    def still(self, file: Tracked) -> bool:
        """Whether the file is where a search found it."""
        if file.lost_sight:
            return False
        try:
            found = look(file.path)
        except OSError:
            return True  # it cannot be seen: the next attempt to read it says so
        if found is None or found.place != file.place:
            file.lost_sight = True
            file.rotated_at = self._shared.clock.monotonic()
            return False
        file.saw(found, self._shared.clock.monotonic())
        return True

    def take_over(self, file: Tracked, found: FoundFile) -> None:
        """The content of `file` is there now."""
        now = self._shared.clock.monotonic()
        if file.handle is not None:
            self._shared.handles.close(file.handle)
        if file.place not in (NOWHERE, found.place):
            self._shared.rescan.add(file.source)  # what it left may have another content by now
        if found.path == file.named:
            file.rotated_at = None
        elif file.path != found.path and file.rotated_at is None:
            file.rotated_at = now
        self._registry.move(file, found)
        file.saw(found, now)
        file.wake()
        file.retry_at = 0.0
        file.examined.clear()
        self._shared.change(file)
        if file.stage in ("done", "gone"):
            file.stage = "rotated"

    def take_over_left(self, file: Tracked, found: FoundFile, content: FileContent) -> None:
        """Only the beginning of `file` is left, there: it ends where `content` does."""
        end = find_end(content)
        window = window_of(read_window(content, end), end)
        if end <= file.read.offset:
            file.cut = window
        else:
            file.window = window if file.unbegun else file.window
            before, file.fingerprint = file.fingerprint, file.fingerprint[:end]
            self._registry.index(file, before)
            lost, file.content_end = max(file.content_end - end, 0), end
            if lost:
                self._shared.count_lost(file, lost)
                self._shared.say(
                    f"{file.path}: its last {lost} bytes were removed before they were read"
                )
        self.take_over(file, found)

    def _candidates(self, file: Tracked) -> Iterator[FoundFile]:
        shadows = [shadow.found for shadow in self._registry.shadows_of(file)]
        others: dict[tuple[int, int], FoundFile] = {}
        for path in self._paths(file):
            try:
                found = look(path)
            except OSError:
                continue
            if found is not None and found.size and self._free(file, found):
                others.setdefault(found.place, found)
        shadows.sort(key=lambda each: is_archive(each.path))
        yield from (found for each in shadows if (found := _again(each)) is not None)
        first = others.pop(file.place, None)
        if first is not None:
            yield first
        yield from sorted(others.values(), key=lambda each: (is_archive(each.path), -each.mtime_ns))

    def _free(self, file: Tracked, found: FoundFile) -> bool:
        """Whether no other file is known to be there."""
        there = self._registry.at_place(file.source, found.place)
        if there is None or there is file:
            return True
        if there.matched or there.handle is not None or self._holds(found, there) is not False:
            return False
        self._registry.leave_place(there)  # it is gone, and its inode is used again
        there.lost_sight = True
        return True

    def _paths(self, file: Tracked) -> Iterator[str]:
        folder = os.path.dirname(file.path) or "."
        try:
            with os.scandir(folder) as entries:
                yield from sorted(entry.path for entry in entries if entry.is_file())
        except OSError:
            pass  # the folder is gone; whatever else is wrong with it, the finder says
        for glob in self._shared.sources[file.source].archives:
            yield from glob.find(lambda _path, _error: None)

    def _holds(
        self, found: FoundFile, file: Tracked, known: KnownContent | None = None
    ) -> bool | None:
        """Whether it holds what was read of the file, or is `known` of it.

        None if that cannot be told now.
        """
        try:
            source = self._shared.sources[file.source]
            handle, content = self._opener.transient(found.path, source)
        except (OSError, NoHandle):
            return None
        try:
            if content is None or (handle.device, handle.inode) != found.place:
                return None
            return holds(content, known or file.known)
        except Damaged:
            return False
        except OSError:
            return None
        finally:
            self._shared.handles.close(handle)


def _again(found: FoundFile) -> FoundFile | None:
    """The file as it is now, if it is still there."""
    try:
        now = look(found.path)
    except OSError:
        return None
    return now if now is not None and now.place == found.place else None


def _generation(found: FoundFile) -> tuple[bool, str, int]:
    """Of two rotations of a log, the older one has the smaller one, as with `_age`."""
    date = find_date(found.path)
    return not date, date, found.mtime_ns


class Turn(Enum):
    """The result of a turn."""

    PREPARED = auto()
    """A batch more."""
    ENDED = auto()
    """Nothing new is there now."""
    PARTIAL = auto()
    """What is there is no whole entry; `grown_at` says since when."""
    MOVED = auto()
    """The file is not where it was."""
    REPLACED = auto()
    """The file's place has another content."""
    FIRST = auto()
    """The first bytes of a file that was empty: now it can be told what it is."""
    LATER = auto()
    """It cannot be read now."""


class FileReader:
    """Takes turns at files."""

    def __init__(self, shared: EngineParts, opener: Opener, batch_bytes: int) -> None:
        self._shared = shared
        self._opener = opener
        self._most = batch_bytes

    def turn(self, file: Tracked) -> Turn:
        """Prepares the next batch of a file: at most one block, or the next one to send again."""
        opened = self._opener.open(file)
        if opened is not OpenResult.READY:
            return {
                OpenResult.ELSEWHERE: Turn.MOVED,
                OpenResult.REPLACED: Turn.REPLACED,
                OpenResult.LATER: Turn.LATER,
                OpenResult.FULL: Turn.LATER,
            }[opened]
        source = self._shared.sources[file.source]
        try:
            if file.cut != NO_WINDOW:
                self._ended(file, 0)  # it ends before what was read
                return Turn.ENDED
            if file.resend:
                return self._again(source, file)
            return self._next(source, file)
        except Damaged as error:
            self._opener.damaged(file, error)
            return Turn.ENDED
        except OSError as error:
            self._shared.tallies[file.source].open_errors += 1
            self._shared.say(f"{file.path} cannot be read: {error.strerror}; it is tried again")
            assert file.handle is not None
            self._shared.handles.close(file.handle)
            file.retry_at = self._shared.clock.monotonic() + 1.0
            return Turn.LATER

    def glance(self, file: Tracked) -> bool:
        """Notes how much there is in a file that is not to be read now; True if that is more."""
        before = file.content_end
        if not file.resend and file.size > before and self._opener.open(file) is OpenResult.READY:
            with suppress(OSError, Damaged):  # the next turn says it
                self._read(file, 1)
        return file.content_end > before

    def _next(self, source: SourceParts, file: Tracked) -> Turn:
        most = max(source.packer.longest, BLOCK)
        facts = source.facts(file.named or file.path)
        wanted = BLOCK
        while True:
            data = self._read(file, wanted)
            if data is None:
                return Turn.REPLACED
            at_end = len(data) < wanted
            if not data:
                self._ended(file, 0)
                return Turn.ENDED
            if not file.fingerprint:
                return Turn.FIRST
            packed = self._pack(source, file, data, facts, final=False)
            if packed is None and len(data) >= most:
                packed = self._pack(source, file, data, facts, final=True)
            elif packed is None and at_end:
                packed = self._pack_rest(source, file, data, facts)
            if packed is not None and packed.end.offset > file.read.offset:
                self._take(source, file, data, packed)
                behind = len(data) - (packed.end.offset - file.read.offset)
                self._prepare(source, file, data, packed, facts)
                file.at_end = at_end and behind == 0
                if file.at_end:
                    self._ended(file, 0)
                return Turn.PREPARED
            if at_end:
                self._ended(file, len(data))
                return Turn.PARTIAL
            wanted = min(wanted * 4, most)

    def _again(self, source: SourceParts, file: Tracked) -> Turn:
        """Makes the body of a batch again, of the bytes that it was made of."""
        prepared = file.resend[0]
        if prepared.start.offset != file.read.offset:
            file.resend.clear()  # of another time: what is acknowledged is behind it
            return Turn.LATER
        length = prepared.end.offset - prepared.start.offset
        data = self._read(file, length)
        if data is None:
            return Turn.REPLACED
        if len(data) < length or xxhash.xxh3_64_intdigest(data) != prepared.content:
            return Turn.REPLACED
        packed = source.packer.pack(
            data, prepared.start, prepared.facts, final=True, most=_EVERYTHING
        )
        same = (
            packed is not None
            and packed.end.offset == prepared.end.offset
            and packed.digest() == prepared.digest
        )
        file.resend.popleft()
        if packed is None or not same:
            packed = Packed(end=prepared.end, body=b"", kind="text/plain", records=0)
        pending = PendingBatch(prepared, packed, stage="saved" if same else "unlike")
        self._advance(file, data, pending)
        return Turn.PREPARED

    def _read(self, file: Tracked, count: int) -> bytes | None:
        """Bytes at `read`; None if those before them are not the file's."""
        assert file.content is not None
        assert file.tail is not None
        start, tail = file.read.offset, file.tail
        there = file.content.end()  # in front of the comparison: only its own bytes count as seen
        data = file.content.read(start, count)
        if not file.content.compressed:
            if file.unbegun and not holds(file.content, file.known):
                return None  # it was seen, and truncated while it waited for its predecessor
            if tail and file.content.read(start - len(tail), len(tail)) != tail:
                return None
            if there < start or (there < file.content_end and file.rotated_at is None):
                return None  # bytes that were seen are not there
            expected = file.fingerprint[start : start + count]
            if expected and data[: len(expected)] != expected:
                return None
        end = max(start + len(data), there)
        if end > file.content_end:
            file.content_end = end
            file.grown_at = self._shared.clock.monotonic()
        return data

    def _pack_rest(
        self, source: SourceParts, file: Tracked, data: bytes, facts: FileFacts
    ) -> Packed | None:
        """An entry that is not complete, if nothing came for long enough; and it is shown."""
        now, shows = self._shared.clock.monotonic(), source.config.unfinished_wait > 0
        rest = source.packer.rest(data, file.read) if shows else NO_REST
        if file.held[0] != file.read.offset + rest.held:
            file.held = file.read.offset + rest.held, now
        file.unfinished = rest.unfinished
        self._show(file, rest.shown)
        if now < flush_at(source, file):
            return None
        if rest.unfinished and now < line_sent_at(source, file):
            data = data[: rest.held]
        return self._pack(source, file, data, facts, final=True)

    def _show(self, file: Tracked, line: bytes) -> None:
        if line != file.showing:
            file.showing = line
            self._shared.show(file.fqn, file.run, file.id, line)

    def _pack(
        self, source: SourceParts, file: Tracked, data: bytes, facts: FileFacts, *, final: bool
    ) -> Packed | None:
        return source.packer.pack(data, file.read, facts, final=final, most=self._most)

    def _ended(self, file: Tracked, partial: int) -> None:
        if not partial:
            file.unfinished = False
            self._show(file, b"")
        file.at_end = True
        file.partial = partial
        file.dirty = False
        file.ended_at = self._shared.clock.monotonic()

    def _take(self, source: SourceParts, file: Tracked, data: bytes, packed: Packed) -> None:
        """The fingerprint grows with what is read."""
        size = source.config.fingerprint_size
        if len(file.fingerprint) < size:
            start, before = file.read.offset, file.fingerprint
            taken = data[: packed.end.offset - start]
            if start <= len(before):
                file.fingerprint = (before[:start] + taken)[:size]
                if len(file.fingerprint) < len(before):
                    file.fingerprint = before
                self._shared.registry.index(file, before)

    def _prepare(
        self, source: SourceParts, file: Tracked, data: bytes, packed: Packed, facts: FileFacts
    ) -> None:
        tally = self._shared.tallies[file.source]
        tally.replaced += packed.replaced
        tally.truncated += packed.truncated
        tally.unparsed += packed.failed
        prepared = Prepared(
            batch=self._batch(file) if packed.body else "",
            start=file.read,
            end=packed.end,
            digest=packed.digest(),
            content=xxhash.xxh3_64_intdigest(data[: packed.end.offset - file.read.offset]),
            facts=facts,
            fqn=file.fqn,
            run=file.run,
            read_ms=steady_ms(),
        )
        self._advance(file, data, PendingBatch(prepared, packed))
        if source.config.file_cache_advise and file.handle is not None:
            advise(file.handle.descriptor, 0, file.read.offset, "DONTNEED")

    def _batch(self, file: Tracked) -> str:
        """A new id, above the one that the service gave where this machine's clock is slow."""
        batch = self._shared.mint()
        if batch > file.given or is_ahead(file.given, self._shared.clock.now_ms()):
            return batch
        file.given = id_after(file.given)
        return file.given

    def _advance(self, file: Tracked, data: bytes, pending: PendingBatch) -> None:
        """`read` moves to the end of the batch."""
        assert file.tail is not None
        end = pending.prepared.end
        taken = end.offset - file.read.offset
        if self._shared.may_have_copies(file):
            file.remember_recent(data[max(taken - RECENT, 0) : taken], end.offset)
        else:
            file.forget_recent()
        file.remember_tail(file.tail + data[max(taken - WINDOW, 0) : taken])
        file.read = end
        assert file.tail is not None
        pending.window = window_of(file.tail, end.offset)
        file.pending.append(pending)
        file.partial = 0


def flush_at(source: SourceParts, file: Tracked) -> float:
    """The time at which whole lines of an unfinished last entry are sent, if no more follows."""
    at = line_sent_at(source, file)
    end, since = file.held
    if file.unfinished and end > file.read.offset:  # its whole lines wait for no unfinished one
        at = min(at, since + (source.config.force_flush_period or inf))
    return at


def line_sent_at(source: SourceParts, file: Tracked) -> float:
    """The time at which all of the entry is sent, including an unfinished line."""
    config = source.config
    period, wait = config.force_flush_period, config.rotate_wait
    if file.content is not None and not file.content.whole():
        period = max(period, wait)
    at = file.grown_at + period if period > 0 else inf
    if file.unfinished and period > 0:
        at = file.grown_at + max(period, config.unfinished_wait)
    if file.rotated_at is not None:  # nothing more is expected
        at = min(at, max(file.grown_at, file.rotated_at) + (period or wait))
    return at
