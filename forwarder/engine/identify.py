"""Tells which file each found path is: one that is known, a copy of one, or a new one.

A file whose device and inode are known is that file, until reading it shows another content.
Any other is compared by content with those that are known:

| it holds … | and the known file … | then it is |
| --- | --- | --- |
| what the known file was read to | is gone, or was truncated | that file: reading goes on in it |
| the same as the known file, or its beginning | is there | a shadow: a copy, which is not read |
| the same, and more | is there, and is longer than a fingerprint | that file, which has moved on |
| something else behind the same first bytes | | another file |

A copy that is being written is the beginning of its original, and so a shadow from its first byte.
"""

from __future__ import annotations

import os
from enum import Enum, auto

from forwarder.engine.locate import Locator
from forwarder.engine.opening import Opened, Opener
from forwarder.engine.parts import Shared, SourceParts
from forwarder.engine.registry import Shadow
from forwarder.engine.tracked import Tracked
from forwarder.files.content import Content
from forwarder.files.family import family
from forwarder.files.finder import Found
from forwarder.files.handles import NoHandle
from forwarder.files.identity import begins, holds
from forwarder.model import Cursor
from logstore.errors import Damaged, InvalidInput


class _Is(Enum):
    OTHER = auto()
    SHADOW = auto()
    SAME = auto()


class Identifier:
    """Keeps the registry in step with what is found."""

    def __init__(self, shared: Shared, opener: Opener, locator: Locator) -> None:
        self._shared = shared
        self._registry = shared.registry
        self._opener = opener
        self._locator = locator
        self._said: set[str] = set()

    def reconcile(self, source: SourceParts, found: list[Found], *, first: bool) -> None:
        """Takes in one scan of a source. `first`: what is new was there before the start."""
        name, now = source.config.name, self._shared.clock.monotonic()
        seen: set[str] = set()
        rest: list[Found] = []
        places: set[tuple[int, int]] = set()
        for file in found:
            known = self._registry.at_place(name, file.place)
            if known is not None and known.id not in seen:
                seen.add(known.id)
                self._again(known, file, now)
            elif known is None and file.place not in places:
                rest.append(file)
            places.add(file.place)
        self._missing(name, seen, places, now)
        # The one that was changed first is the oldest of its rotations.
        for file in sorted(rest, key=lambda each: (each.mtime_ns, each.path)):
            self.unknown(source, file, at_end=first and source.config.start_at == "end")

    def unknown(self, source: SourceParts, found: Found, *, at_end: bool = False) -> None:
        """A file at a place where none is known."""
        name = source.config.name
        shadow = self._registry.shadows.get((name, *found.place))
        if shadow is not None and self._still(shadow, found):
            return
        try:
            handle, content = self._opener.transient(found.path)
        except FileNotFoundError:
            return
        except (OSError, NoHandle) as error:
            self._unopened(source, found, error)
            return
        try:
            if content is not None and (handle.device, handle.inode) == found.place:
                self._judge(source, found, content, at_end=at_end)
            # else the next scan knows more
        except Damaged as error:
            self._shared.tallies[name].damaged += 1
            self._shared.say(f"{found.path}: {error}")
        except InvalidInput as error:
            self._unnamed(found, error)
        except OSError as error:
            self._unopened(source, found, error)
        finally:
            self._shared.handles.close(handle)

    def _judge(self, source: SourceParts, found: Found, content: Content, *, at_end: bool) -> None:
        name = source.config.name
        fingerprint = content.read(0, source.config.fingerprint_size)
        original, same = self._compare(source, found, content, fingerprint)
        if original is not None and same is _Is.SAME:
            self._locator.take_over(original, found)
        elif original is not None:
            key = (name, *found.place)
            self._shared.tallies[name].duplicate_files += key not in self._registry.shadows
            self._registry.shadows[key] = Shadow(found, original)
        elif fingerprint or not found.size:  # else a compressed file that only begins
            self._new(source, found, content, fingerprint, at_end=at_end)

    def split(self, file: Tracked) -> None:
        """The file's inode has another content: it was truncated, or the inode is used again."""
        source = self._shared.sources[file.source]
        self._shared.tallies[file.source].truncations += 1
        found = Found(file.path, *file.place, file.size, file.mtime_ns)
        self._locator.lose(file)
        self._locator.find(file)
        now_there = self._registry.at_place(file.source, found.place)
        if now_there is None:
            self.unknown(source, found)

    def _again(self, file: Tracked, found: Found, now: float) -> None:
        if file.path != found.path:
            if file.path and file.handle is None and file.lost_sight:
                file.wake()
            self._shared.tallies[file.source].rotations += 1
            file.rotated_at = now
            file.wake()
        file.matched = True
        if file.lost_sight:
            file.wake()
        self._registry.move(file, found)
        file.saw(found, now)

    def _missing(
        self, source: str, seen: set[str], places: set[tuple[int, int]], now: float
    ) -> None:
        """Files that no path of the scan leads to any more."""
        for file in self._registry.of_source(source):
            if file.id in seen or file.over:
                continue
            if file.matched:
                file.matched = False
                file.wake()
                self._shared.tallies[source].rotations += 1
            if file.rotated_at is None:
                file.rotated_at = now
            if file.handle is not None:
                there = os.fstat(file.handle.descriptor)
                place = Found(file.path, *file.place, there.st_size, there.st_mtime_ns)
                file.saw(place, now)
            elif not self._locator.still(file):
                self._locator.find(file)
        for key, shadow in list(self._registry.shadows.items()):
            if key[0] == source and shadow.found.place not in places:
                del self._registry.shadows[key]

    def _still(self, shadow: Shadow, found: Found) -> bool:
        """Whether a copy needs no other look: neither it nor what it is a copy of has changed."""
        same = (shadow.found.size, shadow.found.mtime_ns) == (found.size, found.mtime_ns)
        return same and not shadow.of.lost_sight and shadow.of.id in self._registry.files

    def _compare(
        self, source: SourceParts, found: Found, content: Content, fingerprint: bytes
    ) -> tuple[Tracked | None, _Is]:
        """The known file that this one is, or copies."""
        best: tuple[Tracked | None, _Is] = None, _Is.OTHER
        near = self._registry.similar(source.config.name, fingerprint) if fingerprint else []
        for file in sorted(near, key=lambda each: -each.read.offset):
            if not self._may_be(source, found, file, fingerprint):
                continue
            is_ = self._relation(source, content, file)
            if is_ is _Is.SAME:
                return file, is_
            if is_ is _Is.SHADOW and best[0] is None:
                best = file, is_
        return best

    def _may_be(self, source: SourceParts, found: Found, file: Tracked, fingerprint: bytes) -> bool:
        """A few bytes are no identity where the names say that the files are different ones."""
        if len(fingerprint) >= source.config.fingerprint_size:
            return True
        named = source.name(found.path, file.id)
        return named == (file.fqn, file.run)

    def _relation(self, source: SourceParts, content: Content, file: Tracked) -> _Is:
        known = file.known
        there = not file.over and file.readable and self._opener.open(file) is Opened.READY
        if not there:
            if not holds(content, known):
                return _Is.OTHER
            return _Is.SAME
        assert file.content is not None
        if content.compressed and not file.content.compressed:
            return _Is.SHADOW  # what else it may hold is seen when the file itself is gone
        if not holds(file.content, known):  # truncated, which reading it has not seen yet
            return _Is.SAME if holds(content, known) else _Is.OTHER
        mine, its = content.end(), file.content.end()
        if content.compressed:
            mine = its = min(mine, its)
        if not begins(content, min(mine, its), file.content):
            return _Is.OTHER
        if source.config.duplicates == "each":
            return _Is.OTHER
        if mine <= its:
            return _Is.SHADOW
        full = len(file.fingerprint) >= source.config.fingerprint_size
        return _Is.SAME if full and holds(content, known) else _Is.OTHER

    def _new(
        self,
        source: SourceParts,
        found: Found,
        content: Content,
        fingerprint: bytes,
        *,
        at_end: bool,
    ) -> None:
        name, now = source.config.name, self._shared.clock.monotonic()
        id_ = self._shared.mint()
        fqn, run = source.name(found.path, id_)
        file = Tracked(
            id=id_,
            source=name,
            path=found.path,
            named=found.path,
            place=found.place,
            fqn=fqn,
            run=run,
            fingerprint=fingerprint,
            seen_ms=self._shared.clock.now_ms(),
            size=found.size,
            mtime_ns=found.mtime_ns,
            content_end=content.end(),
            grown_at=now,
            matched=True,
        )
        if at_end:
            end = _end_of(content)
            file.read = file.cursor = Cursor(offset=end)
            file.tail = None if end else b""
            if end:
                known_tail = content.read(max(end - 1024, 0), min(end, 1024))
                file.remember_tail(known_tail)
                file.window = file.known.window
        file.predecessor = self._predecessor(file)
        self._registry.add(file)
        self._registry.move(file, found)
        self._shared.checkpoints.put(file.state(self._shared.clock.now_ms()))
        self._shared.unsaved = True

    def _predecessor(self, file: Tracked) -> Tracked | None:
        """The file whose lines come before this one's: which had its path, or is its rotation."""
        before = self._registry.at_path(file.source, file.path)
        candidates = [] if before is None or before.over else [before]
        candidates += [
            each
            for each in self._registry.of_run(file.fqn, file.run)
            if each.source == file.source
            and not each.over
            and family(each.path) == family(file.path)
        ]
        return max(candidates, key=lambda each: each.mtime_ns, default=None)

    def _unnamed(self, found: Found, error: InvalidInput) -> None:
        """A path that no run can be made of: said once."""
        if found.path not in self._said:
            self._said.add(found.path)
            self._shared.say(f"{error}. {error.hint}")

    def _unopened(self, source: SourceParts, found: Found, error: Exception) -> None:
        tally = self._shared.tallies[source.config.name]
        tally.open_errors += 1
        if tally.open_errors == 1 or not isinstance(error, NoHandle):
            self._shared.say(f"{found.path} cannot be read: {error}; it is tried again")


def _end_of(content: Content) -> int:
    if not content.compressed:
        return content.end()
    offset = 0
    while piece := content.read(offset, 1 << 20):
        offset += len(piece)
    return offset
