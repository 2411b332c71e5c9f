"""Compares an unknown file with those that are known: the same, a copy, or another one.

| it holds … | and the known file … | then it is |
| --- | --- | --- |
| what the known file was read to | is gone, or was truncated | that file: reading goes on in it |
| the beginning of what was read, and no more | is gone | what is left of it: nothing is new |
| the same as the known file, or its beginning | is there | a shadow: a copy, which is not read |
| the same, and more | is there, and is longer than a fingerprint | that file, which has moved on |
| something else behind the same first bytes | | another file |
| anything | has a name of which its own is no rotation | another file |
| the same first bytes | is there, but no handle is free for it | undecided |

A copy that is being written is the beginning of its original, and so a shadow from its first byte.
An archive that is being written, whose original is gone, is unfinished: it is looked at again.
So is a file that is undecided, by the next scan: handles become free as files are read.

A copy is shorter than what was read if the writer went on between the copy and the truncation. Its
original cannot show any more that it began like that, so the forwarder remembers where copies of a
file ended (`Tracked.copies`), and for copies that it has not seen yet the last bytes that it read
(`Tracked.recent`). At the path where a file was written is never a copy of it: a successor that has
only the first lines of its predecessor so far is another file.
"""

from __future__ import annotations

from enum import Enum, auto

from forwarder.engine.archives import Archives
from forwarder.engine.opening import Opened, Opener
from forwarder.engine.parts import SourceParts
from forwarder.engine.registry import Registry
from forwarder.engine.tracked import Tracked
from forwarder.files.content import Content
from forwarder.files.family import may_be_rotation
from forwarder.files.finder import Found
from forwarder.files.identity import Known, begins, find_end, holds, read_window


class Is(Enum):
    """What an unknown file is, compared with a known one; of several, the last counts.

    A file that may be a copy of two is one of the file that is there: the first bytes of two logs
    may be the same.
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

    def __init__(self, registry: Registry, opener: Opener, archives: Archives) -> None:
        self._registry = registry
        self._opener = opener
        self._archives = archives

    def compare(
        self, source: SourceParts, found: Found, content: Content, fingerprint: bytes
    ) -> tuple[Tracked | None, Is]:
        """The file, and what the unknown one is to it; None and `OTHER` if there is none.

        Raises `OSError`, `Damaged`.
        """
        best: tuple[Tracked | None, Is] = None, Is.OTHER
        near = self._registry.similar(source.config.name, fingerprint) if fingerprint else []
        for file in sorted(near, key=lambda each: -each.read.offset):
            if self._may_rotate(source, found, file) and self._may_be(
                source, found, file, fingerprint
            ):
                relation = self._relation(source, found, content, file)
                if relation in (Is.LONGER, Is.SAME):
                    return file, relation
                if relation.value > best[1].value:
                    best = file, relation
        return best

    def _may_rotate(self, source: SourceParts, found: Found, file: Tracked) -> bool:
        """Whether the names allow that it is the known file, or a copy of it."""
        name = source.config.name

        def is_log(path: str) -> bool:
            return self._registry.at_path(name, path) is not None

        return any(may_be_rotation(found.path, path, is_log) for path in {file.path, file.named})

    def _may_be(self, source: SourceParts, found: Found, file: Tracked, fingerprint: bytes) -> bool:
        """A few bytes are no identity where the names say that the files are different ones."""
        if len(fingerprint) >= source.config.fingerprint_size:
            return True
        named = source.name(self._archives.written_path(source, found.path), file.id)
        return named == (file.fqn, file.run)

    def _relation(self, source: SourceParts, found: Found, content: Content, file: Tracked) -> Is:
        opened = Opened.ELSEWHERE
        if file.stage != "failed" and file.readable:
            opened = self._opener.open(file)
        if opened is Opened.FULL:
            return Is.UNDECIDED
        each = source.config.duplicates == "each"
        may_copy = not each and found.path != file.named
        there = file.content if opened is Opened.READY else None
        if there is not None and holds(there, file.known):
            if each:
                return Is.OTHER
            relation = self._beside(source, content, file, there, may_copy=may_copy)
            if holds(there, file.known):
                return relation
            # It was truncated while they were compared: what it held is here, or nowhere.
        if holds(content, file.known):
            return Is.SAME
        if may_copy and found.path != file.path and (left := self._left(content, file)):
            return Is.UNDECIDED if opened is Opened.LATER else left
        return Is.UNFINISHED if content.compressed and not content.whole() else Is.OTHER

    def _beside(
        self,
        source: SourceParts,
        content: Content,
        file: Tracked,
        there: Content,
        *,
        may_copy: bool,
    ) -> Is:
        """What a content is to that of a file that is there."""
        if not begins(content, there):
            return Is.OTHER
        if not content.read(find_end(there), 1):
            return Is.SHADOW if may_copy else Is.OTHER
        full = len(file.fingerprint) >= source.config.fingerprint_size
        return Is.LONGER if full and holds(content, file.known) else Is.OTHER

    def _left(self, content: Content, file: Tracked) -> Is | None:
        """Whether this is the beginning of a file that is gone.

        While batches of the file are on their way it is a shadow: if they do not arrive, their
        bytes may have to be read from it.
        """
        end = find_end(content)
        start = file.fingerprint[:end]
        if not end or not content.whole() or content.read(0, len(start)) != start:
            return None
        last = read_window(content, end)
        if file.begins_with(end, last):
            return Is.LEFT if file.settled else Is.SHADOW
        acknowledged = Known(file.fingerprint, file.window)
        unproven = bool(file.resend) and file.may_have_copy(end, last)
        return Is.SHADOW if unproven and holds(content, acknowledged) else None
