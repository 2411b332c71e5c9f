"""Tells which file each found path is: one that is known, a copy of one, or a new one.

A file whose device and inode are known is that file, until reading it shows another content. Any
other is compared by content with the known files (`Comparer`), and is one of them, a copy of one,
or new. A new file waits for the file with the preceding lines: the one that had its path, or the
rotation of the same log that was changed last before it. `Archives` knows rotated files outside of
a source's patterns.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from enum import Enum, auto

from tailrace.forwarder.engine.reader import Locator, Opener, OpenResult
from tailrace.forwarder.engine.state import (
    EngineParts,
    FileRegistry,
    Shadow,
    SourceParts,
    Tracked,
)
from tailrace.forwarder.files.content import (
    NO_WINDOW,
    WINDOW,
    FileContent,
    KnownContent,
    NoHandle,
    begins,
    find_end,
    find_format,
    holds,
    read_window,
    window_of,
)
from tailrace.forwarder.files.finder import (
    FoundFile,
    family,
    find_date,
    is_archive,
    look,
    look_at,
    may_be_rotation,
    uncompressed,
    written_names,
)
from tailrace.forwarder.model import EntryCursor
from tailrace.logstore.errors import Damaged, InvalidInput, TailraceError, Unavailable

# Rotated files outside of a source's patterns: the path where they were written, and their age.
#
# `archive_include` matches them. They are scanned with the files of the source, so a generation
# that was rotated while the forwarder was stopped is found as a new file, and read before its
# successors. Its lines belong to the run of the path where it was written.
#
# An archive is old, and is not read, if it existed when the source began:
#
#   | the source | old are |
#   | --- | --- |
#   | was never read, `start_at: end` | all archives |
#   | was never read, `start_at: beginning` | none |
#   | was read without its archives | those not newer than the known part of their log |
#   | was read with its archives | none: all of them are known by their content |


class Archives:
    """The known archives of all sources. Made before the first scan."""

    def __init__(self, shared: EngineParts) -> None:
        self._shared = shared
        self._registry: FileRegistry = shared.registry
        self._said: set[str] = set()
        self._seen_ms: dict[str, dict[tuple[str, str], int]] = {}
        """By source and log, when it was seen last before this start."""
        latest: dict[str, tuple[int, bool]] = {}
        for state in shared.checkpoints.files.values():
            logs = self._seen_ms.setdefault(state.source, {})
            log = family(state.named or state.path)
            logs[log] = max(logs.get(log, 0), state.seen_ms)
            mine = state.seen_ms, state.archives
            latest[state.source] = max(latest.get(state.source, mine), mine)
        shared.with_archives.update(name for name, (_, archives) in latest.items() if archives)

    def written_path(self, source: SourceParts, path: str) -> str:
        """The path of the source at which a rotated file was written; if none fits, its own."""
        if source.finder.matches(path):
            return path
        folder, name = os.path.split(path)
        names = list(written_names(name))
        for each in names:
            if source.finder.matches(there := os.path.join(folder, each)):
                return there
        known = {
            os.path.basename(file.named): file.named
            for file in self._registry.of_source(source.config.name)
            if source.finder.matches(file.named)
        }
        return next((known[each] for each in names if each in known), path)

    def is_old(self, source: SourceParts, found: FoundFile) -> bool:
        """Whether an archive that is not known by its content was read, or is not to be read."""
        name = source.config.name
        logs = self._seen_ms.get(name)
        if logs is None or name in self._shared.with_archives:
            return False
        log = family(self.written_path(source, found.path))
        return found.mtime_ns <= logs.get(log, max(logs.values())) * 1_000_000

    def is_readable(self, source: SourceParts, found: FoundFile, descriptor: int) -> bool:
        """Whether the source can decompress an archive; said once, if it cannot."""
        format_ = find_format(descriptor)
        if format_ == "" or (source.compression and format_ in ("gzip", "zstd")):
            return True
        if found.path not in self._said:
            self._said.add(found.path)
            self._shared.say(
                f"{found.path} is not read: it is compressed with {format_}, and the source reads"
                f" {'gzip and zstd' if source.compression else 'files as they are'}"
            )
        return False


# Compares an unknown file with the known ones: the same, a copy, or another one.
#
#   | it holds … | and the known file … | then it is |
#   | --- | --- | --- |
#   | all bytes read of the known file | is gone, or was truncated | that file: reading goes on |
#   | the beginning of them, and no more | is gone | the rest of it: nothing is new |
#   | the same as the known file, or its beginning | exists | a shadow: a copy, which is not read |
#   | the same, and more | exists, and is longer than a fingerprint | that file, which moved on |
#   | something else after the same first bytes | | another file |
#   | anything | has a name of which its own is no rotation | another file |
#   | the same first bytes | exists, but no handle is free for it | undecided |
#
# A copy that is being written is the beginning of its original, and so a shadow from its first
# byte. An archive that is being written, whose original is gone, is unfinished: it is looked at
# again. So is a file that is undecided, by the next scan: handles become free as files are read.
#
# A copy is shorter than the bytes read if the writer went on between the copy and the truncation.
# Its original cannot show any more that it began like that, so the forwarder remembers where copies
# of a file ended (`Tracked.copies`), and for copies that it has not seen yet the last bytes that it
# read (`Tracked.recent`). A file at the path where another was written is never a copy of it: a
# successor that has only the first lines of its predecessor so far is another file.


class FileRelation(Enum):
    """The relation of an unknown file to a known one; of several, the last counts.

    A file that may be a copy of two is one of the file that exists: the first bytes of two logs may
    be the same.
    """

    OTHER = auto()
    UNFINISHED = auto()
    UNDECIDED = auto()
    LEFT = auto()
    """The beginning of a file that is gone, and so all that is left of it."""
    SHADOW = auto()
    LONGER = auto()
    """The same as a file that is there, and goes on where that ends."""
    SAME = auto()


class Comparer:
    """Finds the known file that an unknown one is, or copies."""

    def __init__(self, registry: FileRegistry, opener: Opener, archives: Archives) -> None:
        self._registry = registry
        self._opener = opener
        self._archives = archives

    def compare(
        self, source: SourceParts, found: FoundFile, content: FileContent, fingerprint: bytes
    ) -> tuple[Tracked | None, FileRelation]:
        """The file, and what the unknown one is to it; None and `OTHER` if there is none.

        Raises `OSError`, `Damaged`.
        """
        best: tuple[Tracked | None, FileRelation] = None, FileRelation.OTHER
        near = self._registry.similar(source.config.name, fingerprint) if fingerprint else []
        for file in sorted(near, key=lambda each: -each.read.offset):
            if self._may_rotate(source, found, file) and self._may_be(
                source, found, file, fingerprint
            ):
                relation = self._relation(source, found, content, file)
                if relation in (FileRelation.LONGER, FileRelation.SAME):
                    return file, relation
                if relation.value > best[1].value:
                    best = file, relation
        return best

    def _may_rotate(self, source: SourceParts, found: FoundFile, file: Tracked) -> bool:
        """Whether the names allow that it is the known file, or a copy of it."""
        name = source.config.name

        def is_log(path: str) -> bool:
            return self._registry.at_path(name, path) is not None

        return any(may_be_rotation(found.path, path, is_log) for path in {file.path, file.named})

    def _may_be(
        self, source: SourceParts, found: FoundFile, file: Tracked, fingerprint: bytes
    ) -> bool:
        """A few bytes are no identity where the names say that the files are different ones."""
        if len(fingerprint) >= source.config.fingerprint_size:
            return True
        named = source.name(self._archives.written_path(source, found.path), file.id)
        return named == (file.fqn, file.run)

    def _relation(
        self, source: SourceParts, found: FoundFile, content: FileContent, file: Tracked
    ) -> FileRelation:
        opened = OpenResult.ELSEWHERE
        if file.stage != "failed" and file.readable:
            opened = self._opener.open(file)
        if opened is OpenResult.FULL:
            return FileRelation.UNDECIDED
        each = source.config.duplicates == "each"
        may_copy = not each and found.path != file.named
        there = file.content if opened is OpenResult.READY else None
        if there is not None and holds(there, file.known):
            if each:
                return FileRelation.OTHER
            relation = self._beside(source, content, file, there, may_copy=may_copy)
            if holds(there, file.known):
                return relation
            # It was truncated while they were compared: what it held is here, or nowhere.
        if holds(content, file.known):
            return FileRelation.SAME
        if may_copy and found.path != file.path and (left := self._left(content, file)):
            return FileRelation.UNDECIDED if opened is OpenResult.LATER else left
        return (
            FileRelation.UNFINISHED
            if content.compressed and not content.whole()
            else FileRelation.OTHER
        )

    def _beside(
        self,
        source: SourceParts,
        content: FileContent,
        file: Tracked,
        there: FileContent,
        *,
        may_copy: bool,
    ) -> FileRelation:
        """The relation of a content to that of a file that exists."""
        if not begins(content, there):
            return FileRelation.OTHER
        if not content.read(find_end(there), 1):
            return FileRelation.SHADOW if may_copy else FileRelation.OTHER
        full = len(file.fingerprint) >= source.config.fingerprint_size
        return FileRelation.LONGER if full and holds(content, file.known) else FileRelation.OTHER

    def _left(self, content: FileContent, file: Tracked) -> FileRelation | None:
        """Returns whether this is the beginning of a file that is gone.

        While batches of the file are on their way it is a shadow: if they do not arrive, their
        bytes may have to be read from it.
        """
        end = find_end(content)
        start = file.fingerprint[:end]
        if not end or not content.whole() or content.read(0, len(start)) != start:
            return None
        last = read_window(content, end)
        if file.begins_with(end, last):
            return FileRelation.LEFT if file.settled else FileRelation.SHADOW
        acknowledged = KnownContent(file.fingerprint, file.window)
        unproven = bool(file.resend) and file.may_have_copy(end, last)
        return FileRelation.SHADOW if unproven and holds(content, acknowledged) else None


class Identifier:
    """Updates the registry after each scan."""

    def __init__(self, shared: EngineParts, opener: Opener, locator: Locator) -> None:
        self._shared = shared
        self._registry = shared.registry
        self._opener = opener
        self._locator = locator
        self._archives = Archives(shared)
        self._comparer = Comparer(shared.registry, opener, self._archives)
        self._archived: set[tuple[int, int]] = set()
        """The places of the archives of this scan."""
        self._said: set[str] = set()
        self._new_ones: list[Tracked] = []
        self._scanned: set[str] = set()
        self._inherited: dict[tuple[int, int], Tracked] = {}
        """By place, what files waited for that were empty then."""
        self._unfinished: dict[tuple[int, int], tuple[int, float]] = {}
        """By place, the size of an unfinished archive, and since when it has that size."""
        self._undecided = False

    def reconcile(
        self, source: SourceParts, found: list[FoundFile], archives: list[FoundFile], *, first: bool
    ) -> bool:
        """Handles one scan of a source; returns False if some files remain undecided.

        `first`: new files existed before the start.
        """
        self._undecided = False
        self._archived = {file.place for file in archives}
        name, now = source.config.name, self._shared.clock.monotonic()
        self._find_generations(source, [*found, *archives])
        seen: set[str] = set()
        rest: list[FoundFile] = []
        places: set[tuple[int, int]] = set()
        for file in [*found, *archives]:
            known = self._registry.at_place(name, file.place)
            if known is not None and known.id not in seen:
                if file.size and known.unbegun and not known.fingerprint:
                    self._drop(known)
                    rest.append(file)
                elif self._again(known, file, now):
                    seen.add(known.id)
                else:
                    rest.append(file)
            elif known is None and file.place not in places:
                rest.append(file)
            places.add(file.place)
        self._missing(name, seen, places, now)
        for file in sorted(rest, key=lambda each: _turn_of(each, source.config.fingerprint_size)):
            self.unknown(source, file, at_end=first and source.config.start_at == "end")
        if name not in self._scanned:
            self._scanned.add(name)
            self._new_ones += [
                file for file in self._registry.of_source(name) if file.unbegun and not file.over
            ]
        self._line_up()
        if source.archives and not self._undecided:
            self._shared.with_archives.add(name)
        return not self._undecided

    def _find_generations(self, source: SourceParts, found: list[FoundFile]) -> None:
        """Moves files to the copies that were made of them, where their successors begin alike.

        Of such a file only a part of a header was read, which each generation of its log has. The
        oldest one that came since then is the file.
        """
        name = source.config.name
        if source.config.duplicates == "each":
            return
        new = [file for file in found if self._registry.at_place(name, file.place) is None]
        for file in found:
            known = self._registry.at_place(name, file.place)
            if known is None or known.over or file.path != known.named:
                continue
            if (file.size, file.mtime_ns) == (known.content_end, known.written_ns):
                continue
            others = new if source.finder.matches(file.path) and new else []
            if not others and known.lost_sight:
                others = self._locator.unmatched(known)
            copy = self._locator.find_generation(known, file, others)
            if copy is not None:
                self._shared.tallies[name].truncations += 1
                self._locator.take_over(known, copy)
                new = [each for each in new if each.place != copy.place]

    def unknown(self, source: SourceParts, found: FoundFile, *, at_end: bool = False) -> None:
        """A file at a place where none is known."""
        name = source.config.name
        there = self._registry.at_place(name, found.place)
        if there is not None:
            there.matched = True  # a search found it in this scan
            return
        shadow = self._registry.shadows.get((name, *found.place))
        if shadow is not None and self._still(shadow, found):
            return
        try:
            handle, content = self._opener.transient(found.path, source)
        except FileNotFoundError:
            return
        except (OSError, NoHandle) as error:
            self._unopened(source, found, error)
            return
        try:
            # The scan may be older than a truncation, and the order of files goes by times.
            now_there = look_at(found.path, handle.descriptor)
            if found.place in self._archived and not self._archives.is_readable(
                source, found, handle.descriptor
            ):
                return
            same = now_there.place == found.place and now_there.size >= found.size
            if content is not None and same:
                self._judge(source, now_there, content, at_end=at_end)
            else:  # one that is shorter now is another file, if its inode is used again
                self._undecided = True  # the next scan knows more
        except Damaged as error:
            self._shared.tallies[name].damaged += 1
            self._shared.say(f"{found.path}: {error}")
        except (InvalidInput, Unavailable) as error:
            self._unnamed(found, error)
        except OSError as error:
            self._unopened(source, found, error)
        finally:
            self._shared.handles.close(handle)

    def _judge(
        self, source: SourceParts, found: FoundFile, content: FileContent, *, at_end: bool
    ) -> None:
        fingerprint = content.read(0, source.config.fingerprint_size)
        original, is_ = self._comparer.compare(source, found, content, fingerprint)
        if is_ is FileRelation.UNDECIDED or (content.end() < found.size and not content.compressed):
            self._undecided = True  # the next scan looks at it again
            return
        if is_ is not FileRelation.UNFINISHED:
            self._unfinished.pop(found.place, None)
        if original is not None and is_ in (FileRelation.SAME, FileRelation.LONGER):
            if (
                is_ is FileRelation.LONGER and original.unbegun
            ):  # what it had may be in each generation
                end = find_end(content)
                original.window = window_of(read_window(content, end), end)
            if (
                is_ is FileRelation.LONGER
            ):  # and what was taken for it is a copy, which a scan met first
                original.named = found.path
                if original.content is not None:
                    now, end = self._shared.clock.monotonic(), find_end(original.content)
                    original.remember_copy(now, end, read_window(original.content, end))
            self._locator.take_over(original, found)
        elif original is not None and is_ is FileRelation.LEFT:
            self._locator.take_over_left(original, found, content)
        elif original is not None and (
            is_ is FileRelation.SHADOW or self._may_go_on(source, found, original)
        ):
            self._shadow(source, found, content, original)
        elif fingerprint or not found.size:  # else a compressed file that only begins
            at_end |= found.place in self._archived and self._archives.is_old(source, found)
            self._new(source, found, content, fingerprint, at_end=at_end)

    def _shadow(
        self, source: SourceParts, found: FoundFile, content: FileContent, original: Tracked
    ) -> None:
        key = (source.config.name, *found.place)
        before = self._registry.shadows.get(key)
        if before is None:
            self._shared.tallies[source.config.name].duplicate_files += 1
            self._shared.say(
                f"{found.path} is not read: it holds what {original.path} holds, and its name says"
                " that it is a rotation or a copy of it"
            )
        end = find_end(content)
        self._registry.shadows[key] = Shadow(found, original, end)
        now, last = self._shared.clock.monotonic(), read_window(content, end)
        grew_from = before.end if before is not None and before.of is original else 0
        original.remember_copy(now, end, last, instead_of=grew_from)
        self._shared.change(original)

    def split(self, file: Tracked) -> None:
        """The file's inode has another content: it was truncated, or the inode is used again."""
        source = self._shared.sources[file.source]
        self._shared.tallies[file.source].truncations += 1
        found = FoundFile(file.path, *file.place, file.size, file.mtime_ns)
        plain = file.content is not None and not file.content.compressed
        end = file.content.end() if file.content is not None and plain else file.content_end
        if not self._moved_to_copy(file, end):
            self._locator.lose(file)
            self._locator.find(file)
            if file.place == found.place:
                self._count_cut(file, end)
        if self._registry.at_place(file.source, found.place) is None:
            self.unknown(source, found)
        self._line_up()

    def first_bytes(self, file: Tracked) -> None:
        """A file that was empty may be a copy, or compressed: it is looked at as if it were new."""
        place = file.place
        self._drop(file)
        try:
            found = look(file.path)
        except OSError:
            found = None
        if found is None or found.place != place:
            self._shared.rescan.add(file.source)
            return
        self.unknown(self._shared.sources[file.source], found)
        self._line_up()

    def _drop(self, file: Tracked) -> None:
        """Nothing was known of it but its place."""
        if file.predecessor is not None:
            self._inherited[file.place] = file.predecessor
        if file.handle is not None:
            self._shared.handles.close(file.handle)
        self._registry.remove(file)
        self._shared.changed.pop(file.id, None)
        self._shared.checkpoints.forget(file.id)

    def _again(self, file: Tracked, found: FoundFile, now: float) -> bool:
        """A file where one was known to be; False if it has another content now."""
        file.archived = found.place in self._archived
        if file.lost_sight and file.is_as_saved(found):
            file.rest(found)
            self._registry.move(file, found)
            file.matched = True
            return True
        moved = file.path != found.path
        if (file.differs(found) or moved or file.lost_sight) and self._replaced(file, found):
            self._shared.tallies[file.source].truncations += 1
            if file.place == found.place:
                self._locator.lose(file)
            return False
        if moved:
            self._shared.tallies[file.source].rotations += 1
            file.rotated_at = now
        elif file.lost_sight and found.path != file.named:
            file.rotated_at = now  # before this process began
        if moved or file.lost_sight:
            file.wake()
            self._shared.change(file)
        self._registry.move(file, found)
        file.saw(found, now)
        file.matched = True
        return True

    def _replaced(self, file: Tracked, found: FoundFile) -> bool:
        """Whether its inode has another content."""
        before, file.path = file.path, found.path
        opened, content = self._opener.open(file), file.content
        if opened is OpenResult.REPLACED:
            replaced = True
        elif opened is not OpenResult.READY or content is None or content.compressed:
            return False
        else:
            size = self._shared.sources[file.source].config.fingerprint_size
            try:
                # A file that is truncated meanwhile holds something else when these were read.
                end = content.end()
                start = content.read(0, size) if len(file.fingerprint) < size else b""
                replaced = not holds(content, file.known)
            except OSError:
                return False  # the next attempt to read it says so
            if not replaced and self._moved_to_copy(file, end):
                return True
            if not replaced:
                self._learn(file, start)
                if self._count_cut(file, end):
                    self._shared.tallies[file.source].truncations += 1
        if replaced:
            file.path = before
        return replaced

    def _moved_to_copy(self, file: Tracked, end: int) -> bool:
        """Returns whether a copy has bytes of it that are cut off at its path.

        Then it is that copy. At its path is a successor that begins alike, for example with the
        same header, which is a part of the bytes that were read.
        """
        copy = self._locator.find_longer(file, end) if self._is_cut(file, end) else None
        if copy is not None:
            self._locator.take_over(file, copy)
        return copy is not None

    def _is_cut(self, file: Tracked, end: int) -> bool:
        """Returns whether bytes of it that were seen are missing, though all read bytes exist."""
        return end < file.content_end and file.rotated_at is None and file.cut == NO_WINDOW

    def _count_cut(self, file: Tracked, end: int) -> bool:
        """If a file was cut off after its read bytes, it is the same; the rest is counted as lost.

        For a file that was rotated, this is counted when it is done.
        """
        if not self._is_cut(file, end):
            return False
        lost, file.content_end = file.content_end - end, end
        self._shared.count_lost(file, lost)
        self._shared.say(
            f"{file.path} was cut off: {lost} bytes were removed before they were read"
        )
        return True

    def _learn(self, file: Tracked, start: bytes) -> None:
        """The fingerprint grows with the file, so that a copy is known before it is read."""
        before = file.fingerprint
        if len(start) > len(before) and file.cut == NO_WINDOW:
            file.fingerprint = start
            self._registry.index(file, before)

    def _may_go_on(self, source: SourceParts, found: FoundFile, original: Tracked) -> bool:
        """Whether an unfinished archive may still be written: it is so long since it grew."""
        now = self._shared.clock.monotonic()
        size, since = self._unfinished.get(found.place, (-1, now))
        if size != found.size:
            since = now
        self._unfinished[found.place] = found.size, since
        plain = uncompressed(found.path)
        if plain not in (found.path, original.named) and os.path.exists(plain):
            return True  # it goes when the archive is whole
        if now - since < source.config.rotate_wait:
            return True
        del self._unfinished[found.place]
        return False

    def _line_up(self) -> None:
        """New files, and those not read from yet, wait for the files with the preceding lines."""
        new, self._new_ones = self._new_ones, []
        waiting = {file.id: file for file in new}
        for file in new:
            waiting.update({each.id: each for each in self._rotations(file) if each.unbegun})
        for file in waiting.values():
            file.predecessor = self._predecessor(file, waiting)

    def _missing(
        self, source: str, seen: set[str], places: set[tuple[int, int]], now: float
    ) -> None:
        """Files that no path of the scan leads to any more."""
        for file in self._registry.of_source(source):
            if file.id not in seen:
                self._vanished(file, now)
        for key, shadow in list(self._registry.shadows.items()):
            if key[0] == source and shadow.found.place not in places:
                del self._registry.shadows[key]

    def _vanished(self, file: Tracked, now: float) -> None:
        if file.over:
            if file.matched:
                file.matched = False
                file.seen_at = now
                self._shared.change(file)
                self._registry.leave_place(file)
                self._locator.pass_on(file)
            return
        if file.matched:
            file.matched = False
            file.wake()
            self._shared.tallies[file.source].rotations += 1
        if file.rotated_at is None:
            file.rotated_at = now
        if file.handle is not None:
            there = os.fstat(file.handle.descriptor)
            file.saw(FoundFile(file.path, *file.place, there.st_size, there.st_mtime_ns), now)
        elif not self._locator.still(file):
            self._locator.find(file)

    def _still(self, shadow: Shadow, found: FoundFile) -> bool:
        """Returns whether a copy needs no other look: neither it nor its original has changed."""
        same = (shadow.found.size, shadow.found.mtime_ns) == (found.size, found.mtime_ns)
        return same and not shadow.of.lost_sight and shadow.of.id in self._registry.files

    def _new(
        self,
        source: SourceParts,
        found: FoundFile,
        content: FileContent,
        fingerprint: bytes,
        *,
        at_end: bool,
    ) -> None:
        name, now = source.config.name, self._shared.clock.monotonic()
        id_ = self._shared.mint()
        named = self._archives.written_path(source, found.path)
        fqn, run = source.name(named, id_)
        file = Tracked(
            id=id_,
            source=name,
            path=found.path,
            named=named,
            archived=found.place in self._archived,
            place=found.place,
            fqn=fqn,
            run=run,
            fingerprint=fingerprint,
            seen_at=now,
            unsure_since=now,
            size=found.size,
            mtime_ns=found.mtime_ns,
            written_ns=found.mtime_ns,
            content_end=content.end() if content.compressed else found.size,
            grown_at=now,
            matched=True,
        )
        if at_end:
            end = _end_of(content)
            file.read = file.cursor = EntryCursor(offset=end)
            file.tail = None if end else b""
            if end:
                file.remember_tail(content.read(max(end - WINDOW, 0), min(end, WINDOW)))
                file.window = file.known.window
        else:
            file.window = window_of(read_window(content, file.content_end), file.content_end)
        before = self._registry.at_path(name, found.path)
        before = self._inherited.pop(found.place, None) or before
        file.predecessor = before if before is not None and before.awaited else None
        self._new_ones.append(file)
        self._registry.add(file)
        self._registry.move(file, found)
        self._shared.change(file)
        self._shared.unsaved = True
        if name in self._shared.quiet and named == found.path and not at_end:
            self._shared.follow(file)  # it came while its folder was watched

    def _predecessor(self, file: Tracked, waiting: Mapping[str, Tracked]) -> Tracked | None:
        """The file whose lines come before this one's: which had its path, or is its rotation."""
        candidates = self._rotations(file)
        if file.predecessor is not None:
            candidates.append(file.predecessor)
        # Of two that wait, one waits for the other: the one that was changed later.
        mine = _age(file)
        before = [each for each in candidates if each.id not in waiting or _age(each) < mine]
        # They follow the files that were read; one of those may still be known by the log's path.
        return max(before, key=lambda each: (each.id in waiting, _age(each)), default=None)

    def _rotations(self, file: Tracked) -> list[Tracked]:
        """The other files of the same log, by their names, whose lines are in the same run.

        The order of archives is kept over runs.
        """
        return [
            each
            for each in self._registry.of_source(file.source)
            if each is not file
            and each.fqn == file.fqn
            and (each.run == file.run or each.archived or file.archived)
            and each.awaited
            and family(each.named) == family(file.named)
        ]

    def _unnamed(self, found: FoundFile, error: TailraceError) -> None:
        """A path that no run can be made of, or not before another program answers: said once."""
        self._undecided |= isinstance(error, Unavailable)
        if found.path not in self._said:
            self._said.add(found.path)
            self._shared.say(f"{error}. {error.hint}")

    def _unopened(self, source: SourceParts, found: FoundFile, error: Exception) -> None:
        self._undecided |= isinstance(error, NoHandle)
        tally = self._shared.tallies[source.config.name]
        tally.open_errors += 1
        if tally.open_errors == 1 or not isinstance(error, NoHandle):
            self._shared.say(f"{found.path} cannot be read: {error}; it is tried again")


def _turn_of(found: FoundFile, fingerprint_size: int) -> tuple[bool, int, int]:
    """A copy is compared with its original, and so comes after it.

    That is known of archives, and of beginnings that are shorter than a fingerprint.
    """
    return is_archive(found.path), -min(found.size, fingerprint_size), found.mtime_ns


def _age(file: Tracked) -> tuple[bool, str, int, str]:
    """Of two rotations of a log, the older one has the smaller one.

    A date in the name counts more than the time of the last change: an archive that is compressed
    later, as the kubelet does, may have been changed after its successor. The log has no date.
    """
    date = find_date(file.path)
    return not date, date, file.written_ns, file.id


def _end_of(content: FileContent) -> int:
    if not content.compressed:
        return content.end()
    offset = 0
    while piece := content.read(offset, 1 << 20):
        offset += len(piece)
    return offset
