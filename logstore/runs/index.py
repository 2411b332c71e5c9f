"""The index of a chunk: pieces of blocks, then a directory of the pieces.

    piece … piece │ directory (zstd of JSON head + rows) │ footer

Footer, 28 bytes, little-endian: magic `TRCI`, u32 format, u64 size of the directory, u64
XXH3-64 of the directory, u32 blank. Directory and footer are the *tail*; a manifest knows
its size, so that one ranged get brings all that is needed to find a piece.

The directory, decompressed: u32 length of a JSON head {"writers", "spans"}, the head, and
a row of `ENTRY` per piece. `spans` are [piece, writer, lowest pos, highest pos + 1].
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import orjson
import xxhash
import zstandard
from numpy.typing import NDArray

from logstore.batch import lowest_and_highest
from logstore.errors import Damaged, UnsupportedVersion
from logstore.runs.blocks import Blocks, positions
from logstore.runs.piece import PIECE_BLOCKS, decode_piece, encode_piece

ENTRY = np.dtype(
    [
        ("at", "<u8"),  # where the piece stands in the index, bytes
        ("size", "<u8"),
        ("check", "<u8"),  # XXH3-64 of the piece
        ("byte", "<u8"),  # the first byte and line of text that it covers
        ("line", "<u8"),
        ("bytes", "<u8"),
        ("lines", "<u8"),
        ("records", "<u8"),
        ("first_hi", "<u8"),  # lowest and highest batch ULID
        ("first_lo", "<u8"),
        ("last_hi", "<u8"),
        ("last_lo", "<u8"),
        ("blocks", "<u8"),
    ]
)
Entries = NDArray[np.void]
PositionRange = tuple[int, str, int, int]

_MAGIC = b"TRCI"
_FORMAT = 1
_FOOTER = struct.Struct("<4sIQQI")
_HEAD = struct.Struct("<I")
_MAX_DIRECTORY = 1 << 30


@dataclass(frozen=True, slots=True)
class Directory:
    """The row of each piece, known without reading it; `ranges` by piece and writer."""

    entries: Entries
    ranges: tuple[PositionRange, ...]

    @property
    def body_bytes(self) -> int:
        """The bytes of all pieces; the directory begins there."""
        return int(self.entries["size"].sum())

    def writers(self) -> dict[str, tuple[int, int]]:
        """For each writer the lowest position, and one past the highest."""
        known: dict[str, tuple[int, int]] = {}
        for _, writer, low, high in self.ranges:
            before = known.get(writer, (low, high))
            known[writer] = (min(before[0], low), max(before[1], high))
        return known

    def extremes(self) -> tuple[int, int]:
        """The lowest and the highest batch ULID."""
        if len(self.entries) == 0:
            return 0, 0
        return min(_ulids(self.entries, "first")), max(_ulids(self.entries, "last"))

    def piece_of_line(self, line: int) -> int:
        """The piece that holds the line (one before the end if it is past all)."""
        return int(np.searchsorted(self.entries["line"], line, "right")) - 1

    def overlapping(self, low: int, high: int) -> list[int]:
        """Pieces that may hold batch ULIDs from `low` to `high`."""
        first_hi, first_lo = self.entries["first_hi"], self.entries["first_lo"]
        last_hi, last_lo = self.entries["last_hi"], self.entries["last_lo"]
        begins = (first_hi < high >> 64) | (
            (first_hi == high >> 64) & (first_lo <= high & (1 << 64) - 1)
        )
        ends = (last_hi > low >> 64) | ((last_hi == low >> 64) & (last_lo >= low & (1 << 64) - 1))
        return [int(n) for n in np.flatnonzero(begins & ends)]


def _ulids(entries: Entries, which: str) -> list[int]:
    pairs = zip(entries[f"{which}_hi"].tolist(), entries[f"{which}_lo"].tolist(), strict=True)
    return [high << 64 | low for high, low in pairs]


def build_index(blocks: Blocks, writers: Sequence[str]) -> tuple[bytes, Directory]:
    """The pieces' bytes, and their directory."""
    bodies: list[bytes] = []
    entries = np.zeros(-(-len(blocks) // PIECE_BLOCKS), ENTRY)
    ranges: list[PositionRange] = []
    at = 0
    for number in range(len(entries)):
        part = blocks[number * PIECE_BLOCKS : (number + 1) * PIECE_BLOCKS]
        body = encode_piece(part, writers)
        entries[number] = entry_of(part, body, at)
        ranges += [(number, name, *range_) for name, range_ in positions(part, writers).items()]
        bodies.append(body)
        at += len(body)
    return b"".join(bodies), Directory(entries, tuple(ranges))


def entry_of(blocks: Blocks, body: bytes, at: int) -> Entries:
    """The directory's row of one piece."""
    entry = np.zeros((), ENTRY)
    entry["at"], entry["size"], entry["check"] = at, len(body), xxhash.xxh3_64_intdigest(body)
    entry["byte"], entry["line"] = blocks["offset"][0], blocks["line"][0]
    entry["blocks"] = len(blocks)
    entry["bytes"] = blocks["size"].sum()
    entry["lines"] = blocks["lines"].sum(dtype=np.uint64)
    entry["records"] = blocks["records"].sum(dtype=np.uint64)
    low, high = lowest_and_highest(blocks)
    entry["first_hi"], entry["first_lo"] = low >> 64, low & (1 << 64) - 1
    entry["last_hi"], entry["last_lo"] = high >> 64, high & (1 << 64) - 1
    return entry


def encode_tail(directory: Directory) -> bytes:
    """Directory and footer as bytes."""
    writers = sorted({writer for _, writer, _, _ in directory.ranges})
    numbers = {name: number for number, name in enumerate(writers)}
    ranges = [(piece, numbers[name], low, high) for piece, name, low, high in directory.ranges]
    head = orjson.dumps({"writers": writers, "spans": ranges})
    plain = _HEAD.pack(len(head)) + head + directory.entries.tobytes()
    body = zstandard.ZstdCompressor(level=3).compress(plain)
    return body + _FOOTER.pack(_MAGIC, _FORMAT, len(body), xxhash.xxh3_64_intdigest(body), 0)


def decode_tail(tail: bytes) -> Directory:
    """The directory at the end of `tail`. Raises `Damaged`, `UnsupportedVersion`."""
    try:
        magic, form, size, check, spare = _FOOTER.unpack(tail[-_FOOTER.size :])
    except struct.error as error:
        raise Damaged("a chunk's index is cut off") from error
    if magic != _MAGIC:
        raise Damaged("not a chunk's index")
    if form > _FORMAT:
        raise UnsupportedVersion(f"a chunk's index of format {form}")
    if spare:
        raise Damaged("the footer of a chunk's index has other bytes than zeros at its end")
    end = len(tail) - _FOOTER.size
    body = tail[max(end - size, 0) : end]
    if len(body) != size or xxhash.xxh3_64_intdigest(body) != check:
        raise Damaged("the directory of a chunk's index fails its checksum")
    plain = zstandard.ZstdDecompressor().decompress(body, max_output_size=_MAX_DIRECTORY)
    (length,) = _HEAD.unpack_from(plain)
    head = orjson.loads(plain[_HEAD.size : _HEAD.size + length])
    names = head["writers"]
    ranges = [(piece, names[writer], low, high) for piece, writer, low, high in head["spans"]]
    return Directory(np.frombuffer(plain, ENTRY, offset=_HEAD.size + length), tuple(ranges))


def open_piece(entry: np.void, body: bytes) -> tuple[Blocks, list[str]]:
    """The blocks of a piece, by its row in the directory. Raises `Damaged`."""
    if xxhash.xxh3_64_intdigest(body) != int(entry["check"]):
        raise Damaged("a piece of a chunk's index fails its checksum")
    return decode_piece(body, first_byte=int(entry["byte"]), first_line=int(entry["line"]))


def joined(directories: Sequence[Directory]) -> Directory:
    """The directory of the texts, and of the pieces, one after another."""
    parts: list[Entries] = []
    ranges: list[PositionRange] = []
    at = byte = line = pieces = 0
    for directory in directories:
        part = directory.entries.copy()
        part["at"] += at
        part["byte"] += byte
        part["line"] += line
        parts.append(part)
        ranges += [(piece + pieces, *rest) for piece, *rest in directory.ranges]  # type: ignore[misc]
        at += directory.body_bytes
        byte += int(part["bytes"].sum())
        line += int(part["lines"].sum())
        pieces += len(part)
    return Directory(np.concatenate(parts) if parts else np.zeros(0, ENTRY), tuple(ranges))
