"""Encodes and decodes the bytes of a journal file, and translates errors of its disk.

All numbers are little-endian. A file is named `{ULID}.wal`:

    header   magic 8 | version u32 | length u32 | file ULID 16 | secret 8 | first pos u64
             | node length u16 | node, UTF-8 | crc32c of all before u32
    entry    length u32 | crc32c u32 | body
    body     kind u8 | the kind's own bytes
    end      length 0 u32 | 0 u32; then bytes without meaning, up to the file's size

    kind 1   state      JSON; the first entry of every file, and nowhere else
    kind 2   batch      flags u8 | fqn, run, connector length u16 each | records u32 | lines u32
                        | meta length u32 | pos u64 | digest u64 | ULID 16, big-endian
                        | fqn | run | connector | text | meta
    kind 3   cut        JSON: a segment's node, sequence number and range of positions
    kind 4   close      JSON: fqn, run, and the position below which all lines came before it
    kind 5   tombstone  JSON: fqn, run (or null for all runs), T
    kind 6   mark       secret 8 | own offset u64 | offset synced when it was written u64
                        | pos of the next line u64, which older programs left out; a mark of
                        another length is a filler, which has no meaning
    kind 7   confirm    JSON: as a cut; the segment is in the store
    kind 8   open       JSON: fqn, run, connector: a gen-1 client begins the run
    kind 9   finish     JSON: fqn, run, and pos of a close or T of a tombstone: it is done

The length is that of the body. The checksum covers the body and then the secret; that of the
state, which contains the secret, covers the body alone.

A file is written as `{ULID}.wal.new` and renamed when header and state are synced. It
overwrites a spare (`*.spare`) if there is one: a file whose space is allocated already. Its content
is arbitrary, mostly entries of an earlier life. `{ULID}.idx` is a cache of the rows of a journal
file (`service.journal.file.JournalFileIndex`). `newest` holds the ULID of the newest file.

Invariants:

- Every version of the format has magic, version and length at these offsets, and its header ends
  in the checksum of the rest.
- Entries follow one another without gaps, in the order in which they were appended;
  `pos` never falls and is never reused.
- No entry of an earlier life of the file is valid: its checksum includes another secret.
- A write begins with a mark if something was synced since the last mark or `MARK_EVERY` bytes
  were written. A mark also follows the last write of a journal that is idle or closed. The secret
  of a mark is random for each file and never leaves the node, so no payload can fake a mark. A
  state with `write_marks` says that its file has these marks; older programs only wrote a mark
  after every `MARK_EVERY` bytes.
- A reader that finds a bad entry continues at the next whole one.
- A power cut may tear bytes after the last offset that a mark or a later file claims to be synced.
  None of these bytes were acknowledged as durable, except by the last sync of a process that ended
  right after it. A start writes a filler over a torn range that whole entries follow.

The metadata of a batch follow its text. For structured records they are JSON columns:
`[ends, ts, levels, attributes]`, as in `RecordMeta`. If the lowest flag is set
(`tailrace.logstore.batch.CONSTANT_ATTRIBUTES`), they are a JSON object: the attributes of every
line. The flags `AHEAD` and `MADE_AFTER_DELETION` concern the ULID. Version 1 has no flags and is
otherwise the same as version 2.

An `OSError` becomes one of three errors of the journal:

| the disk says | the error | meaning |
| --- | --- | --- |
| ENOSPC, EDQUOT | `JournalFull` | nothing was written; try again when the disk has space |
| EMFILE, ENFILE | `NodeNotReady` | nothing was opened, so nothing changed; try again |
| anything else | `JournalFailed` | the disk fails: the node ends and keeps the synced entries |
"""

from __future__ import annotations

import errno
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import google_crc32c
import orjson

from tailrace.logstore import ulid as ulids
from tailrace.logstore.batch import CONSTANT_ATTRIBUTES, RecordMeta, RunKey
from tailrace.logstore.errors import (
    Damaged,
    JournalFailed,
    JournalFull,
    NodeNotReady,
    UnsupportedVersion,
)
from tailrace.logstore.filesystem import NO_DESCRIPTOR


class MetaColumns:
    """Columns of metadata that grow. They are kept encoded, not as objects."""

    def __init__(self) -> None:
        self._columns: tuple[list[bytes], ...] = ([], [], [], [])
        self.size = 0
        """Bytes of all columns so far."""

    def add(self, meta: RecordMeta) -> None:
        """Adds one or more records. Their `ends` are offsets in the text of the whole batch."""
        given = (meta.ends, meta.ts, meta.levels, meta.attributes)
        for column, values in zip(self._columns, given, strict=True):
            piece = orjson.dumps(values)[1:-1]
            column.append(piece)
            self.size += len(piece) + 1

    def encoded(self) -> bytes:
        """The bytes of the entry."""
        return b"[%b]" % b",".join(b"[%b]" % b",".join(column) for column in self._columns)


def encode_meta(meta: RecordMeta | None) -> bytes:
    """Encodes the columns of all records at once; empty for a batch of plain lines."""
    if meta is None:
        return b""
    return orjson.dumps([meta.ends, meta.ts, meta.levels, meta.attributes])


def decode_meta(data: bytes) -> RecordMeta:
    """Decodes the output of `encode_meta`, each column when it is asked for."""
    return _EncodedMeta(data)


class _EncodedMeta(RecordMeta):
    """Metadata of which a reader mostly needs one column."""

    __slots__ = ("_columns",)
    _columns: list[Any]
    """Each is encoded until it is asked for."""

    def __init__(self, data: bytes) -> None:
        # Numbers, numbers and levels come first: none of them has these bytes in it.
        second = data.index(_BETWEEN, 1) + 2
        third = data.index(_BETWEEN, second) + 2
        fourth = data.index(_BETWEEN, third) + 2
        edges = (data[1 : second - 1], data[second : third - 1], data[third : fourth - 1])
        object.__setattr__(self, "_columns", [*edges, data[fourth:-1]])

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, RecordMeta):
            return NotImplemented
        mine, others = (
            (meta.ends, meta.ts, meta.levels, meta.attributes) for meta in (self, other)
        )
        return mine == others

    __hash__ = RecordMeta.__hash__

    def _column(self, number: int) -> Any:
        found = self._columns[number]
        if isinstance(found, bytes):
            found = self._columns[number] = orjson.loads(found)
        return found

    @property
    def ends(self) -> Sequence[int]:
        found: Sequence[int] = self._column(0)
        return found

    @property
    def ts(self) -> Sequence[int | None]:
        found: Sequence[int | None] = self._column(1)
        return found

    @property
    def levels(self) -> Sequence[str | None]:
        found: Sequence[str | None] = self._column(2)
        return found

    @property
    def attributes(self) -> Sequence[Mapping[str, str] | None]:
        found: Sequence[Mapping[str, str] | None] = self._column(3)
        return found


_BETWEEN = b"],["


def encode_attributes(attributes: Mapping[str, str]) -> bytes:
    """Encodes the metadata of a batch of plain lines that all have these attributes."""
    return orjson.dumps(attributes)


def decode_attributes(data: bytes) -> dict[str, str]:
    """Decodes the output of `encode_attributes`."""
    attributes: dict[str, str] = orjson.loads(data)
    return attributes


def flags_of(meta: bytes) -> int:
    """The flags of a batch with this metadata."""
    return CONSTANT_ATTRIBUTES if meta[:1] == b"{" else 0


def encode_newest(ulid: str) -> bytes:
    """The bytes of the file `newest`."""
    return f"{ulid} {google_crc32c.value(ulid.encode()):08x}".encode()


def decode_newest(body: bytes) -> str:
    """Returns the ULID, empty if the bytes are damaged. Older programs write no checksum."""
    ulid, _, check = body.decode("ascii", "replace").strip().partition(" ")
    return ulid if not check or encode_newest(ulid) == body else ""


MAGIC = b"TRLRWAL\n"
VERSION = 2
SUFFIX = ".wal"
MAKING_SUFFIX = ".wal.new"
NEWEST = "newest"
SPARE_SUFFIX = ".spare"
NEW_SPARE_SUFFIX = ".spare.new"
MARK_EVERY = 256 * 1024
WRITE_MARKS = "write_marks"
MAX_ENTRY_BYTES = (1 << 32) - 1
MAX_NAME_BYTES = (1 << 16) - 1

STATE, BATCH, CUT, CLOSE, TOMBSTONE, MARK, CONFIRM, OPEN, FINISH = range(1, 10)

HEADER = struct.Struct("<8sII16s8sQH")
PREFIX = struct.Struct("<II")
BATCH_HEAD = struct.Struct("<BBHHHIIIQQ16s")
MARK_BODY = struct.Struct("<B8sQQQ")
OLD_MARK_BODY = struct.Struct("<B8sQQ")
MARK_BYTES = PREFIX.size + MARK_BODY.size
END = bytes(PREFIX.size)
LEAST_FILLER = PREFIX.size + 1
# The checksum of the state has no secret: the state must be readable even if the header, which
# holds the secret, is not.
NO_SECRET = b""

_CRC = struct.Struct("<I")
_checksum = google_crc32c.value
_extend = google_crc32c.extend


@dataclass(frozen=True, slots=True)
class FileHeader:
    """The header of a file; `size` is where its entries begin."""

    file: str
    secret: bytes
    first_pos: int
    node: str
    size: int


def encode_header(*, file: str, secret: bytes, first_pos: int, node: str) -> bytes:
    """The header of a new file."""
    name = node.encode()
    length = HEADER.size + len(name) + _CRC.size
    identity = ulids.decode(file).to_bytes(16, "big")
    head = HEADER.pack(MAGIC, VERSION, length, identity, secret, first_pos, len(name)) + name
    return head + _CRC.pack(_checksum(head))


def decode_header(data: bytes) -> FileHeader:
    """Decodes a header. Raises `Damaged`, or `UnsupportedVersion` for a newer format."""
    if len(data) < HEADER.size or data[: len(MAGIC)] != MAGIC:
        raise Damaged("not a journal file: it has no header")
    _, version, length, identity, secret, first_pos, name_length = HEADER.unpack_from(data)
    end = length - _CRC.size
    if end < HEADER.size or len(data) < length:
        raise Damaged("the journal file's header is cut")
    if _CRC.unpack_from(data, end)[0] != _checksum(data[:end]):
        raise Damaged("the journal file's header fails its checksum")
    if version > VERSION:
        raise UnsupportedVersion(f"journal format {version}, this program knows {VERSION}")
    if end != HEADER.size + name_length:
        raise Damaged("the journal file's header has lengths that do not add up")
    file = ulids.encode(int.from_bytes(identity, "big"))
    return FileHeader(file, secret, first_pos, data[HEADER.size : end].decode(), length)


def encode_batch(
    names: tuple[bytes, bytes, bytes],
    ulid: int,
    pos: int,
    text: bytes,
    records: int,
    lines: int,
    digest: int,
    meta: bytes,
    flags: int,
) -> tuple[bytes, int]:
    """The bytes before the text in the body of a batch entry, and the body's checksum.

    `names` are fqn, run, connector.
    """
    fqn, run, connector = names
    head = (
        BATCH_HEAD.pack(
            BATCH,
            flags,
            len(fqn),
            len(run),
            len(connector),
            records,
            lines,
            len(meta),
            pos,
            digest,
            ulid.to_bytes(16, "big"),
        )
        + fqn
        + run
        + connector
    )
    crc = _extend(_checksum(head), text)
    return head, _extend(crc, meta) if meta else crc


def encode_json(kind: int, value: Mapping[str, Any]) -> bytes:
    """The body of an entry of one of the kinds that hold JSON."""
    return bytes((kind,)) + orjson.dumps(value)


def encode_mark(secret: bytes, offset: int, synced: int, pos: int) -> bytes:
    """A whole mark entry at `offset`; the next line has position `pos`."""
    return sealed(MARK_BODY.pack(MARK, secret, offset, synced, pos), secret)


class Mark(NamedTuple):
    """A mark read back; `pos` is None in files of older programs."""

    secret: bytes
    offset: int
    synced: int
    pos: int | None


def decode_mark(body: bytes | memoryview) -> Mark | None:
    """Returns the mark; None if it is a filler."""
    if len(body) == MARK_BODY.size:
        _, secret, offset, synced, pos = MARK_BODY.unpack(body)
        return Mark(secret, offset, synced, pos)
    if len(body) == OLD_MARK_BODY.size:
        _, secret, offset, synced = OLD_MARK_BODY.unpack(body)
        return Mark(secret, offset, synced, None)
    return None


def encode_filler(secret: bytes, size: int) -> bytes:
    """An entry of `size` bytes, prefix included, that readers skip. At least `LEAST_FILLER`."""
    return sealed(bytes((MARK,)) + bytes(size - LEAST_FILLER), secret)


def sealed(body: bytes, secret: bytes) -> bytes:
    """A whole entry of a file with this secret."""
    return prefix(len(body), _checksum(body), secret) + body


def prefix(size: int, crc: int, secret: bytes) -> bytes:
    """The bytes before a body of `size` bytes with the checksum `crc`.

    The secret comes last in the checksum, so that a batch's sum can be computed before its
    file is known.
    """
    return PREFIX.pack(size, _extend(crc, secret))


def seals(bodies: Iterable[bytes], secret: bytes) -> list[int]:
    """The checksums that entries with these bodies have, in the file with this secret."""
    return [_extend(_checksum(body), secret) for body in bodies]


def seal_fits(body: bytes | memoryview, crc: int, secret: bytes) -> bool:
    """Whether the body of an entry has its checksum in the file with this secret."""
    return bool(_extend(_checksum(bytes(body)), secret) == crc)


@dataclass(frozen=True, slots=True)
class BatchEntry:
    """A batch entry read back; `text_at` is the offset of its text in the body."""

    key: RunKey
    connector: str | None
    ulid: int
    pos: int
    records: int
    lines: int
    digest: int
    text_at: int
    text_size: int
    meta_size: int
    flags: int


def decode_batch(body: bytes | memoryview) -> BatchEntry:
    """The head of a batch body whose checksum fits. Raises `Damaged` if it makes no sense."""
    if len(body) < BATCH_HEAD.size:
        raise Damaged("a batch entry is shorter than its head")
    _, flags, fqn_size, run_size, connector_size, records, lines, meta_size, pos, digest, raw = (
        BATCH_HEAD.unpack_from(body)
    )
    run_at = BATCH_HEAD.size + fqn_size
    connector_at = run_at + run_size
    text_at = connector_at + connector_size
    text_size = len(body) - text_at - meta_size
    if text_size < 0:
        raise Damaged("a batch entry's lengths do not add up")
    try:
        key = RunKey(
            str(body[BATCH_HEAD.size : run_at], "utf-8"), str(body[run_at:connector_at], "utf-8")
        )
        connector = str(body[connector_at:text_at], "utf-8") if connector_size else None
    except UnicodeDecodeError as error:
        raise Damaged(f"a batch entry's names are not text: {error}") from error
    ulid = int.from_bytes(raw, "big")
    return BatchEntry(
        key, connector, ulid, pos, records, lines, digest, text_at, text_size, meta_size, flags
    )


FULL = (errno.ENOSPC, errno.EDQUOT)
_HINT = "Raise the limit of open files (ulimit -n, fs.file-max), or use fewer connections."


@contextmanager
def translated(what: str) -> Iterator[None]:
    """Translates each `OSError`. `what` names the failed action in the past tense, and the file."""
    try:
        yield
    except OSError as error:
        raise journal_error(what, error) from error


def journal_error(what: str, error: OSError) -> JournalFull | JournalFailed | NodeNotReady:
    """The journal's error for `error`."""
    if error.errno in FULL:
        return JournalFull(f"{what}: the disk is full: {error}")
    if error.errno in NO_DESCRIPTOR:
        return NodeNotReady(f"{what}: no file descriptor is free: {error.strerror}", hint=_HINT)
    return JournalFailed(f"{what}: {error}")
