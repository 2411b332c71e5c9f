"""The index of a chunk: pieces of blocks, then a directory of the pieces.

    piece … piece │ directory (zstd of JSON head + rows) │ footer

A *block* is a batch or a part of one, a *piece* up to 4,096 blocks.

Footer, 28 bytes, little-endian: magic `TRCI`, u32 format, u64 size of the directory, u64 XXH3-64 of
the directory, u32 blank. Directory and footer are the *tail*; a manifest knows its size, so that
one ranged get returns all that is needed to find a piece.

The directory, decompressed: u32 length of a JSON head {"writers", "spans"}, the head, and a row of
`ENTRY` per piece. `spans` are [piece, writer, lowest pos, highest pos + 1].

Damaged bytes raise `Damaged`, a newer format `UnsupportedVersion`.
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

from tailrace.logstore.batch import Batches, Indexes, RecordMeta, line_ends, lowest_and_highest
from tailrace.logstore.errors import Damaged, UnsupportedVersion

# Blocks: the places of a chunk's text that can be found without reading the text.
#
# A block is a batch, or a part of a large one: at most about 64 KiB that end with a line (one line
# may be longer). A batch whose records hold newlines has a block per record, so that in every block
# either line `i` is record `i`, or it has one record.
#
# A block holds the offsets of its bytes and lines, the writer that received it and its position,
# its batch ULID, and for a batch's first block the digest of the whole batch.


BLOCK = np.dtype(
    [
        ("offset", "<u8"),  # bytes from the beginning of the text
        ("line", "<u8"),  # lines from the beginning of the text
        ("pos", "<u8"),  # of its first record
        ("ulid_hi", "<u8"),  # of its batch
        ("ulid_lo", "<u8"),
        ("digest", "<u8"),  # of its batch; 0 in a batch's later blocks
        ("size", "<u8"),
        ("lines", "<u4"),
        ("records", "<u4"),
        ("writer", "<u4"),  # index into the writers that go with the blocks
        ("first", "<u4"),  # 1 if it begins its batch
    ]
)
Blocks = NDArray[np.void]
BLOCK_BYTES = 64 << 10


def blocks_of(batches: Batches, indexes: Indexes, text: bytes) -> Blocks:
    """The blocks of the rows at `indexes`, whose texts one after another are `text`.

    The writer is 0: all rows are of one node.
    """
    rows = batches.rows[indexes]
    plain = np.zeros(len(rows), BLOCK)
    for name in ("pos", "ulid_hi", "ulid_lo", "digest", "size", "lines", "records"):
        plain[name] = rows[name]
    plain["first"] = 1
    plain["offset"] = np.cumsum(rows["size"]) - rows["size"]
    split = (rows["size"] > BLOCK_BYTES) | (rows["records"] != rows["lines"])
    if split.any():
        plain = _with_split(batches, indexes, text, plain, np.flatnonzero(split))
    plain["line"] = np.cumsum(plain["lines"], dtype=np.uint64) - plain["lines"]
    return plain


def _with_split(
    batches: Batches, indexes: Indexes, text: bytes, plain: Blocks, split: Indexes
) -> Blocks:
    parts: list[Blocks] = []
    done = 0
    for number in split.tolist():
        parts.append(plain[done:number])
        meta = batches.meta(int(indexes[number]))
        parts.append(_split(plain[number], text, meta))
        done = number + 1
    parts.append(plain[done:])
    return np.concatenate(parts)


def _split(whole: np.void, text: bytes, meta: RecordMeta | None) -> Blocks:
    """One batch as several blocks."""
    offset, size = int(whole["offset"]), int(whole["size"])
    ends = line_ends(memoryview(text)[offset : offset + size])
    if int(whole["records"]) == int(whole["lines"]):
        cuts = _cuts(ends, size)
        lines = np.searchsorted(ends, cuts, "right")
        records = lines
    elif meta is not None:
        cuts = np.asarray(meta.ends, np.int64)
        lines = np.searchsorted(ends, cuts, "right")
        records = np.arange(1, len(cuts) + 1)
    else:  # which line is which record is not known: all of it is one place
        return whole.reshape(1).copy()
    return _parts(whole, cuts, lines, records)


def _cuts(ends: Indexes, size: int) -> Indexes:
    """Line ends so that most parts are just below `BLOCK_BYTES`."""
    cuts: list[int] = []
    at = 0
    while at < size:
        last = int(np.searchsorted(ends, at + BLOCK_BYTES, "right")) - 1
        if last < 0 or int(ends[last]) <= at:
            last += 1
        at = int(ends[last]) if last < len(ends) else size
        cuts.append(at)
    return np.array(cuts, np.int64)


def _parts(
    whole: np.void, cuts: NDArray[np.int64], lines: NDArray[np.int64], records: NDArray[np.int64]
) -> Blocks:
    parts = np.repeat(whole.reshape(1), len(cuts))
    parts["size"] = np.diff(cuts, prepend=0)
    parts["offset"] = int(whole["offset"]) + cuts - parts["size"].astype(np.int64)
    parts["lines"] = np.diff(lines, prepend=0)
    parts["records"] = np.diff(records, prepend=0)
    parts["pos"] = int(whole["pos"]) + records - parts["records"].astype(np.int64)
    parts["digest"][1:] = 0
    parts["first"][1:] = 0
    return parts


def positions(blocks: Blocks, writers: Sequence[str]) -> dict[str, tuple[int, int]]:
    """For each writer the lowest position, and one past the highest."""
    ends = blocks["pos"] + blocks["records"]
    ranges: dict[str, tuple[int, int]] = {}
    for number in np.unique(blocks["writer"]).tolist():
        chosen = blocks["writer"] == number
        ranges[writers[number]] = (int(blocks["pos"][chosen].min()), int(ends[chosen].max()))
    return ranges


def changed_batch(blocks: Blocks, text: bytes, *, ended: bool) -> int | None:
    """The ULID of a batch whose text does not have its digest; None without one.

    `text` is that of the blocks. A batch is compared if all of it is there: it begins in the
    blocks, and ends before the last of them, or with it if that one is known to have `ended` it.
    """
    firsts = np.flatnonzero(blocks["first"] == 1)
    if len(firsts) == 0:
        return None
    begins = (blocks["offset"][firsts] - blocks["offset"][0]).tolist()
    ends = [*begins[1:], len(text)] if ended else begins[1:]
    view = memoryview(text)
    for number, (begin, end, digest) in enumerate(
        zip(begins, ends, blocks["digest"][firsts].tolist(), strict=False)
    ):
        if xxhash.xxh3_64_intdigest(view[begin:end]) != digest:
            changed = blocks[firsts[number]]
            return int(changed["ulid_hi"]) << 64 | int(changed["ulid_lo"])
    return None


# Pieces: up to 4,096 blocks, column by column, compressed.
#
# Nothing in a piece depends on its place: offsets and lines are sums of sizes from a base that the
# directory gives, writers are named in the piece. So indexes are merged by copying pieces.
# Decompressed (zstd), little-endian:
#
#   u32 blocks · u16 writers · per writer: u16 length, name in UTF-8 · columns
#
# Columns in order: ULID time in ms and `pos` as differences from the block before, ULID bits 79-64,
# ULID bits 63-0, digest, size, lines, records, writer, first. Each is laid out byte plane by byte
# plane (all lowest bytes first), which leaves planes of zeros to zstd. A batch of one line takes
# about 20 bytes, most of them the random ULID and the digest.


PIECE_BLOCKS = 4096
_HEAD = struct.Struct("<IH")
_NAME = struct.Struct("<H")
_LEVEL = 3
_MAX_BYTES = 1 << 24
_COLUMNS = ("<u8", "<u8", "<u2", "<u8", "<u8", "<u8", "<u4", "<u4", "<u2", "<u1")


def encode_piece(blocks: Blocks, writers: Sequence[str]) -> bytes:
    """The bytes of a piece."""
    used, numbers = np.unique(blocks["writer"], return_inverse=True)
    names = [writers[number].encode() for number in used.tolist()]
    time = blocks["ulid_hi"] >> np.uint64(16)
    columns = (
        np.diff(time, prepend=np.uint64(0)),
        np.diff(blocks["pos"], prepend=np.uint64(0)),
        blocks["ulid_hi"] & np.uint64(0xFFFF),
        blocks["ulid_lo"],
        blocks["digest"],
        blocks["size"],
        blocks["lines"],
        blocks["records"],
        numbers,
        blocks["first"],
    )
    parts = [_HEAD.pack(len(blocks), len(names))]
    parts += [_NAME.pack(len(name)) + name for name in names]
    parts += [_planes(c, kind) for c, kind in zip(columns, _COLUMNS, strict=True)]
    return zstandard.ZstdCompressor(level=_LEVEL).compress(b"".join(parts))


def decode_piece(body: bytes, *, first_byte: int, first_line: int) -> tuple[Blocks, list[str]]:
    """The blocks, and the writers that they index. Raises `Damaged`."""
    try:
        data = zstandard.ZstdDecompressor().decompress(body, max_output_size=_MAX_BYTES)
        count, names, at = _names(data)
        columns: list[NDArray[np.generic]] = []
        for kind in _COLUMNS:
            width = np.dtype(kind).itemsize
            columns.append(_column(data, at, count, kind))
            at += width * count
    except (zstandard.ZstdError, struct.error, ValueError) as error:
        raise Damaged(f"not a piece of a chunk's index: {error}") from error
    return _blocks(columns, count, first_byte, first_line), names


def _names(data: bytes) -> tuple[int, list[str], int]:
    count, writers = _HEAD.unpack_from(data)
    at = _HEAD.size
    names = []
    for _ in range(writers):
        (length,) = _NAME.unpack_from(data, at)
        at += _NAME.size
        names.append(data[at : at + length].decode())
        at += length
    return count, names, at


def _blocks(
    columns: Sequence[NDArray[np.generic]], count: int, first_byte: int, first_line: int
) -> Blocks:
    time, pos, high, low, digest, size, lines, records, writer, first = columns
    blocks = np.zeros(count, BLOCK)
    blocks["ulid_hi"] = np.cumsum(time, dtype=np.uint64) << np.uint64(16)
    blocks["ulid_hi"] |= high.astype(np.uint64)
    blocks["pos"] = np.cumsum(pos, dtype=np.uint64)
    blocks["ulid_lo"], blocks["digest"], blocks["size"] = low, digest, size
    blocks["lines"], blocks["records"] = lines, records
    blocks["writer"], blocks["first"] = writer, first
    blocks["offset"] = np.cumsum(blocks["size"]) - blocks["size"] + np.uint64(first_byte)
    ends = np.cumsum(blocks["lines"], dtype=np.uint64)
    blocks["line"] = ends - blocks["lines"] + np.uint64(first_line)
    return blocks


def _planes(column: NDArray[np.generic], kind: str) -> bytes:
    values = np.ascontiguousarray(column.astype(kind))
    return values.view(np.uint8).reshape(len(values), -1).T.tobytes()


def _column(data: bytes, at: int, count: int, kind: str) -> NDArray[np.generic]:
    width = np.dtype(kind).itemsize
    planes = np.frombuffer(data, np.uint8, width * count, at).reshape(width, count)
    return np.ascontiguousarray(planes.T).view(kind).reshape(count)


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
_INDEX_HEAD = struct.Struct("<I")
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
    plain = _INDEX_HEAD.pack(len(head)) + head + directory.entries.tobytes()
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
    (length,) = _INDEX_HEAD.unpack_from(plain)
    head = orjson.loads(plain[_INDEX_HEAD.size : _INDEX_HEAD.size + length])
    names = head["writers"]
    ranges = [(piece, names[writer], low, high) for piece, writer, low, high in head["spans"]]
    return Directory(np.frombuffer(plain, ENTRY, offset=_INDEX_HEAD.size + length), tuple(ranges))


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
