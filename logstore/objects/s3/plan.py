"""Plans how an object is composed: which ranges the server copies, and which bytes we send.

S3 requires at least 5 MiB for all parts but the last, and at most 10,000 parts. The server copies
stored ranges of that size, in pieces that it copies in parallel. Smaller ranges, and bytes of
the caller, are gathered into parts that are sent. A gathered part in the middle that is too
small takes the bytes that it lacks from the range that follows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Final

MIB: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class PartLimits:
    """S3's limits and our sizes, in bytes; tests make them smaller."""

    smallest: int = 5 * MIB
    count: int = 10_000
    copied: int = 256 * MIB  # 5 GiB are allowed, but take minutes
    sent: int = 16 * MIB
    single_put: int = 64 * MIB
    at_once: int = 8


@dataclass(frozen=True, slots=True)
class Stored:
    """A range of a stored object."""

    key: str
    offset: int
    size: int
    if_match: str | None = None

    def split(self, size: int) -> tuple[Stored, Stored]:
        """The first `size` bytes, and the rest."""
        rest = replace(self, offset=self.offset + size, size=self.size - size)
        return replace(self, size=size), rest


@dataclass(frozen=True, slots=True)
class Given:
    """Bytes that the caller gave."""

    data: memoryview

    @property
    def size(self) -> int:
        """The number of bytes."""
        return len(self.data)

    def split(self, size: int) -> tuple[Given, Given]:
        """The first `size` bytes, and the rest."""
        return Given(self.data[:size]), Given(self.data[size:])


@dataclass(frozen=True, slots=True)
class Sent:
    """A part that we send."""

    pieces: list[Stored | Given]

    @property
    def size(self) -> int:
        """The number of bytes of the part."""
        return sum([piece.size for piece in self.pieces])


@dataclass(slots=True)
class _Gathered:
    pieces: list[Stored | Given] = field(default_factory=list)
    size: int = 0

    def add(self, piece: Stored | Given) -> None:
        self.pieces.append(piece)
        self.size += piece.size

    def take(self) -> Sent:
        sent = Sent(self.pieces)
        self.pieces, self.size = [], 0
        return sent


def plan(sources: Iterable[Stored | Given], limits: PartLimits) -> list[Stored | Sent]:
    """The parts in order: `Stored` is copied, `Sent` is sent. Empty ranges are left out."""
    wanted = [source for source in sources if source.size]
    total = sum([source.size for source in wanted])
    # With every part but the last this large there are never too many.
    smallest = max(limits.smallest, -(-total // limits.count))
    return list(_parts(wanted, smallest, limits))


def _parts(
    sources: list[Stored | Given], smallest: int, limits: PartLimits
) -> Iterator[Stored | Sent]:
    copied, sent = max(limits.copied, 2 * smallest), max(limits.sent, smallest)
    gathered = _Gathered()
    for source in sources:
        lacking = max(0, smallest - gathered.size) if gathered.pieces else 0
        # S3 copies ranges only of objects that are larger than the smallest part.
        if isinstance(source, Stored) and source.size - lacking > smallest:
            rest = source
            if lacking:
                piece, rest = source.split(lacking)
                gathered.add(piece)
            if gathered.pieces:
                yield gathered.take()
            yield from _evenly(rest, copied)
        else:
            yield from _gather(source, gathered, sent)
    if gathered.pieces:
        yield gathered.take()


def _gather(source: Stored | Given, gathered: _Gathered, size: int) -> Iterator[Sent]:
    rest: Stored | Given = source
    while rest.size:
        piece, rest = rest.split(min(rest.size, size - gathered.size))
        gathered.add(piece)
        if gathered.size == size:
            yield gathered.take()


def _evenly(source: Stored, largest: int) -> Iterator[Stored]:
    count = -(-source.size // largest)
    for left in range(count, 0, -1):
        piece, source = source.split(-(-source.size // left))
        yield piece
