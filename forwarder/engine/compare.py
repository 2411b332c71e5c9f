"""Compares an unknown file with those that are known: the same, a copy, or another one.

| it holds … | and the known file … | then it is |
| --- | --- | --- |
| what the known file was read to | is gone, or was truncated | that file: reading goes on in it |
| the same as the known file, or its beginning | is there | a shadow: a copy, which is not read |
| the same, and more | is there, and is longer than a fingerprint | that file, which has moved on |
| something else behind the same first bytes | | another file |
| the same first bytes | is there, but no handle is free for it | undecided |

A copy that is being written is the beginning of its original, and so a shadow from its first byte.
An archive that is being written, whose original is gone, is unfinished: it is looked at again.
So is a file that is undecided, by the next scan: handles become free as files are read.
"""

from __future__ import annotations

from enum import Enum, auto

from forwarder.engine.opening import Opened, Opener
from forwarder.engine.parts import SourceParts
from forwarder.engine.registry import Registry
from forwarder.engine.tracked import Tracked
from forwarder.files.content import Content
from forwarder.files.finder import Found
from forwarder.files.identity import begins, holds


class Is(Enum):
    """What an unknown file is, compared with a known one."""

    OTHER = auto()
    UNFINISHED = auto()
    UNDECIDED = auto()
    SHADOW = auto()
    SAME = auto()


class Comparer:
    """Finds the known file that an unknown one is, or copies."""

    def __init__(self, registry: Registry, opener: Opener) -> None:
        self._registry = registry
        self._opener = opener

    def compare(
        self, source: SourceParts, found: Found, content: Content, fingerprint: bytes
    ) -> tuple[Tracked | None, Is]:
        """The file, and what the unknown one is to it; None and `OTHER` if there is none.

        Raises `OSError`, `Damaged`.
        """
        best: tuple[Tracked | None, Is] = None, Is.OTHER
        near = self._registry.similar(source.config.name, fingerprint) if fingerprint else []
        for file in sorted(near, key=lambda each: -each.read.offset):
            if self._may_be(source, found, file, fingerprint):
                relation = self._relation(source, content, file)
                if relation is Is.SAME:
                    return file, relation
                if relation.value > best[1].value:
                    best = file, relation
        return best

    def _may_be(self, source: SourceParts, found: Found, file: Tracked, fingerprint: bytes) -> bool:
        """A few bytes are no identity where the names say that the files are different ones."""
        if len(fingerprint) >= source.config.fingerprint_size:
            return True
        named = source.name(found.path, file.id)
        return named == (file.fqn, file.run)

    def _relation(self, source: SourceParts, content: Content, file: Tracked) -> Is:
        opened = Opened.ELSEWHERE
        if file.stage != "failed" and file.readable:
            opened = self._opener.open(file)
        if opened is Opened.FULL:
            return Is.UNDECIDED
        if (
            opened is not Opened.READY
            or file.content is None
            or not holds(file.content, file.known)
        ):
            if holds(content, file.known):
                return Is.SAME
            return Is.UNFINISHED if content.compressed and not content.whole() else Is.OTHER
        if not begins(content, file.content):
            return Is.OTHER
        if source.config.duplicates == "each":
            return Is.OTHER
        its = _end(file.content)
        if not content.read(its, 1):
            return Is.SHADOW
        full = len(file.fingerprint) >= source.config.fingerprint_size
        return Is.SAME if full and holds(content, file.known) else Is.OTHER


def _end(content: Content) -> int:
    """The end, also of a compressed file."""
    if content.compressed:
        while content.read(content.end(), 1 << 20):
            pass
    return content.end()
