"""The format of a segment: its columns, seal, footer and row keys, and quarantined segments.

A segment is a Parquet file with the columns of `SCHEMA`, a description in its footer and a seal
before the footer (contracts, section 2). Any change of them increases `VERSION`. Version 1 had no
column `carried`. Damaged bytes raise `Damaged`, a newer format `UnsupportedVersion`.
"""

from __future__ import annotations

import base64
import binascii
import struct
import zlib
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, TypeVar

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc
import xxhash
from numpy.typing import NDArray

from tailrace.logstore import keys, ulid
from tailrace.logstore.batch import MADE_AFTER_DELETION, Rows, RunKey
from tailrace.logstore.cas import write_until_known
from tailrace.logstore.errors import (
    Damaged,
    InvalidInput,
    NotFound,
    PreconditionFailed,
    UnsupportedVersion,
)
from tailrace.logstore.keys import decode
from tailrace.logstore.objects.store import ObjectStore
from tailrace.logstore.state import decode_checked, encode_checked
from tailrace.logstore.ulid import ALPHABET, MOST_AHEAD_MS

VERSION: Final = 2
MAX_TEXT: Final = 8 << 20  # bytes of text in a row group, unless one line is longer
MAX_ROWS: Final = 1 << 17  # rows in a row group: short lines must not make it large

LEVELS: Final = ("TRACE", "DEBUG", "INFO", "WARN", "ERROR", "FATAL")
NAME: Final = pa.dictionary(pa.int32(), pa.string())
ATTRIBUTES: Final = pa.map_(pa.string(), pa.string())

SCHEMA: Final = pa.schema(
    [
        pa.field("ulid", pa.string(), nullable=False),
        pa.field("ts", pa.timestamp("us", tz="UTC"), nullable=False),
        pa.field("fqn", NAME, nullable=False),
        pa.field("run_id", NAME, nullable=False),
        pa.field("pos", pa.int64(), nullable=False),
        pa.field("level", NAME),
        pa.field("connector_id", NAME),
        pa.field("message", pa.string(), nullable=False),
        pa.field("attributes", ATTRIBUTES),
        pa.field("carried", pa.bool_()),
    ]
)
CARRIED: Final = "carried"
"""True in a line that continues the record before it, and null in any other: never false."""
SCHEMAS: Final = {1: SCHEMA.remove(SCHEMA.get_field_index(CARRIED)), VERSION: SCHEMA}
"""The columns by version."""

# A ULID shares its first characters with the one before it, a message does not.
ENCODINGS: Final = {
    "ulid": "DELTA_BYTE_ARRAY",
    "ts": "DELTA_BINARY_PACKED",
    "pos": "DELTA_BINARY_PACKED",
    "message": "DELTA_LENGTH_BYTE_ARRAY",
}
DICTIONARIES: Final = [
    *("fqn", "run_id", "level", "connector_id"),
    *("attributes.key_value.key", "attributes.key_value.value"),
]
# Not for messages: their smallest and largest would be copied whole into the footer.
STATISTICS: Final = ["ulid", "ts", "fqn", "run_id", "pos", "level", "connector_id", CARRIED]


# The seal: a checksum over every byte of a segment, inside a file that is plain Parquet.
#
#   PAR1 | pages | seal | footer | footer's length (4) | PAR1
#
#   seal, 32 bytes: "TRSEAL01", XXH3-64 of all bytes before the seal, XXH3-64 of all bytes
#   after it, XXH3-64 of the first 24 bytes of the seal; numbers little-endian
#
# Readers of Parquet find pages by the offsets in the footer and the footer by its length, so they
# never look at the seal. With it, a truncated or altered object is distinguished from a whole one
# for certain, and a footer that was fetched alone is checked by itself.


SIZE: Final = 32
MAGIC: Final = b"TRSEAL01"
_PARQUET: Final = b"PAR1"
_FAMILY: Final = b"TRSEAL"
_NUMBER = struct.Struct("<Q")


def sealed(parquet: bytes | memoryview) -> bytes:
    """The Parquet file with a seal before its footer."""
    view = memoryview(parquet)
    cut = footer_start(view)
    pages, footer = view[:cut], view[cut:]
    return b"".join((pages, _seal(pages, footer), footer))


def footer_start(view: memoryview) -> int:
    """The offset of the footer in a Parquet file, or in its end. Raises `Damaged`."""
    if len(view) < 12 or bytes(view[-4:]) != _PARQUET:
        raise Damaged("not a whole segment: it does not end as Parquet does")
    start = len(view) - 8 - int.from_bytes(view[-8:-4], "little")
    if start < 0:
        raise Damaged(f"the footer is {-start} bytes longer than what there is")
    return start


def check(body: bytes | memoryview) -> None:
    """Raises `Damaged` unless every byte is as it was written."""
    view = memoryview(body)
    cut = footer_start(view) - SIZE
    check_tail(view, whole=True)
    if xxhash.xxh3_64_intdigest(view[:cut]) != _NUMBER.unpack_from(view, cut + 8)[0]:
        raise Damaged("the pages of the segment do not match its seal")


def check_tail(tail: memoryview, *, whole: bool = False) -> None:
    """Raises `Damaged` unless the footer in the tail (with its seal) is as it was written."""
    cut = footer_start(tail) - SIZE
    if cut < (len(_PARQUET) if whole else 0):
        raise Damaged("the segment has no seal")
    seal = bytes(tail[cut : cut + SIZE])
    if seal[:8] != MAGIC:
        if seal[:6] == _FAMILY and _intact(seal):
            raise UnsupportedVersion("the seal of the segment is of a newer kind")
        raise Damaged("the segment has no seal")
    if not _intact(seal):
        raise Damaged("the seal of the segment is damaged")
    if xxhash.xxh3_64_intdigest(tail[cut + SIZE :]) != _NUMBER.unpack_from(seal, 16)[0]:
        raise Damaged("the footer of the segment does not match its seal")


def pages(tail: memoryview, size: int) -> tuple[int, int]:
    """The number of bytes before the seal in a segment of `size` bytes, and their XXH3-64.

    `tail` is the segment's end, already verified by `check_tail`.
    """
    cut = footer_start(tail) - SIZE
    return size - len(tail) + cut, _NUMBER.unpack_from(tail, cut + 8)[0]


def _seal(pages: memoryview, footer: memoryview) -> bytes:
    head = MAGIC + b"".join(_NUMBER.pack(xxhash.xxh3_64_intdigest(p)) for p in (pages, footer))
    return head + _NUMBER.pack(xxhash.xxh3_64_intdigest(head))


def _intact(seal: bytes) -> bool:
    """Whether the seal's own checksum is right."""
    return bool(xxhash.xxh3_64_intdigest(seal[:24]) == _NUMBER.unpack_from(seal, 24)[0])


# The footer: a description of the segment, in the key-value metadata of Parquet's footer.
#
#   key                    value
#   tailrace.segment       JSON: "version", "node", "seq", "ranges" ([[first, end) of `pos`]),
#                          "rows", "low", "high" (ULIDs of the first and last row),
#                          "checksums" (one per row group, 16 hex digits)
#   tailrace.segment.runs  base64 of zstd of JSON: [[fqn, run, rows, first pos, last pos,
#                          [row groups that hold rows of it]], …]
#
# A row group's checksum is XXH3-64 over its rows' (ulid, pos, message), column by column: the
# ULIDs' characters, `pos` as 8 bytes and the messages' lengths as 4 bytes (both little-endian), the
# messages' bytes.


KEY: Final = b"tailrace.segment"
RUNS_KEY: Final = b"tailrace.segment.runs"
CHECKED: Final = ("ulid", "pos", "message")
"""The columns that a row group's checksum is over."""
_MAX_RUNS_BYTES: Final = 1 << 30
_CODEC = pa.Codec("zstd", compression_level=3)


@dataclass(frozen=True, slots=True)
class SegmentRun:
    """A run's share of a segment: `first` and `last` are inclusive `pos`."""

    key: RunKey
    rows: int
    first: int
    last: int
    groups: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Footer:
    """The description of a segment. `low` and `high` are ULID texts, empty without rows.

    `coloured`: messages may have control sequences of terminals. Older segments do not say.
    """

    node: str
    seq: int
    ranges: tuple[tuple[int, int], ...]
    rows: int
    low: str
    high: str
    checksums: tuple[str, ...]
    runs: tuple[SegmentRun, ...]
    version: int = VERSION
    coloured: bool = True

    def run(self, key: RunKey) -> SegmentRun | None:
        """The run's share, None if the run has no rows."""
        return next((run for run in self.runs if run.key == key), None)


def encode(footer: Footer) -> dict[str, str]:
    """The key-value metadata; equal footers give equal text."""
    about = {
        "version": footer.version,
        "node": footer.node,
        "seq": footer.seq,
        "ranges": footer.ranges,
        "rows": footer.rows,
        "low": footer.low,
        "high": footer.high,
        "checksums": footer.checksums,
        "coloured": footer.coloured,
    }
    runs = [[*r.key, r.rows, r.first, r.last, list(r.groups)] for r in footer.runs]
    body = orjson.dumps(runs)
    packed = len(body).to_bytes(8, "little") + _CODEC.compress(body, asbytes=True)
    return {
        KEY.decode(): orjson.dumps(about).decode(),
        RUNS_KEY.decode(): base64.b64encode(packed).decode(),
    }


def decode_footer(metadata: Mapping[bytes, bytes] | None) -> Footer:
    """The footer in key-value metadata. Raises `UnsupportedVersion`, `Damaged`."""
    try:
        about = orjson.loads((metadata or {})[KEY])
        check_version(about["version"])
        return _footer(about, _unpack((metadata or {})[RUNS_KEY]))
    except (KeyError, ValueError, TypeError, IndexError, binascii.Error, zlib.error) as error:
        raise Damaged(f"not the footer of a segment: {error}") from error
    except (OSError, pa.ArrowException) as error:
        raise Damaged(f"the list of runs does not unpack: {error}") from error


def check_version(version: Any) -> None:
    """Raises `UnsupportedVersion` for a format newer than this program."""
    if not isinstance(version, int) or version < 1:
        raise Damaged(f"not a version of the segment format: {version!r}")
    if version > VERSION:
        raise UnsupportedVersion(f"segment format {version}, this program knows {VERSION}")


def rows_checksum(rows: pa.RecordBatch | pa.Table) -> str:
    """The checksum of the rows' (ulid, pos, message), as above."""
    parts = rows.to_batches() if isinstance(rows, pa.Table) else [rows]
    state = xxhash.xxh3_64()
    for part in parts:
        state.update(text_buffers(part.column("ulid"))[1])
    for part in parts:
        state.update(part.column("pos").to_numpy().astype("<i8").data)
    messages = [text_buffers(part.column("message")) for part in parts]
    for lengths, _ in messages:
        state.update(lengths.data)
    for _, texts in messages:
        state.update(texts)
    return state.hexdigest()


def text_buffers(array: pa.Array) -> tuple[NDArray[np.int32], memoryview]:
    """Lengths as `<i4`, and all bytes, of a string array."""
    _, offsets, data = array.buffers()
    if offsets is None or len(array) == 0:
        return np.empty(0, dtype="<i4"), memoryview(b"")
    bounds = np.frombuffer(offsets, dtype="<i4")[array.offset : array.offset + len(array) + 1]
    texts = memoryview(data if data is not None else b"")[int(bounds[0]) : int(bounds[-1])]
    return np.diff(bounds), texts


def _unpack(value: bytes) -> list[Any]:
    packed = base64.b64decode(value, validate=True)
    size = int.from_bytes(packed[:8], "little")
    if size > _MAX_RUNS_BYTES:
        raise ValueError(f"a list of runs of {size} bytes")
    runs = orjson.loads(_CODEC.decompress(packed[8:], size, asbytes=True))
    if not isinstance(runs, list):
        raise TypeError("the list of runs is none")
    return runs


def _footer(about: Any, runs: Sequence[Any]) -> Footer:
    return Footer(
        node=str(about["node"]),
        seq=int(about["seq"]),
        ranges=tuple((int(first), int(end)) for first, end in about["ranges"]),
        rows=int(about["rows"]),
        low=str(about["low"]),
        high=str(about["high"]),
        checksums=tuple(map(str, about["checksums"])),
        runs=tuple(_run(*run) for run in runs),
        version=int(about["version"]),
        coloured=bool(about.get("coloured", True)),
    )


def _run(fqn: str, run: str, rows: int, first: int, last: int, groups: list[int]) -> SegmentRun:
    return SegmentRun(RunKey(fqn, run), rows, first, last, tuple(groups))


# Quarantined segments: their bytes are damaged, and every reader treats them as empty.
#
#   segments/.aside/{node}/{seq}           JSON with `reason` and the ULID `version`
#   segments/.aside/{node}/{seq}.given-up  its lines were given up: JSON with `at` and `version`
#
# The segment stays at its key. Its lines are **left out** until an operator decides: an intact copy
# at the key and `tailrace verify --repair` bring them back, `tailrace verify --give-up` gives them
# up. Until then every pass of the compactor has an alarm, and no search is complete.


class QuarantinedSegment(NamedTuple):
    """A segment with a quarantine marker."""

    node: str
    seq: int
    given_up: bool


def encode_marker(reason: str, version: str) -> bytes:
    """The bytes of a quarantine marker."""
    return encode_checked({"reason": reason, "version": version})


def decode_marker(body: bytes) -> str:
    """The reason that a quarantine marker holds. Raises `Damaged`."""
    try:
        return str(decode_checked(body)["reason"])
    except (ValueError, KeyError) as error:
        raise Damaged(f"not a quarantine marker: {error}") from error


def encode_give_up(at: str, version: str) -> bytes:
    """The bytes of a marker that gives up a segment's lines."""
    return encode_checked({"at": at, "version": version})


def decode_give_up(body: bytes) -> str:
    """When a segment's lines were given up, in RFC 3339. Raises `Damaged`."""
    try:
        return str(decode_checked(body)["at"])
    except (ValueError, KeyError) as error:
        raise Damaged(f"not a marker of a segment that was given up: {error}") from error


async def quarantined_segments(store: ObjectStore) -> dict[str, set[int]]:
    """The numbers of quarantined segments by node. Raises `StoreUnavailable`."""
    found: dict[str, set[int]] = {}
    for one in await list_quarantined(store):
        found.setdefault(one.node, set()).add(one.seq)
    return found


async def list_quarantined(store: ObjectStore) -> list[QuarantinedSegment]:
    """All quarantined segments, by node and number. Raises `StoreUnavailable`."""
    listed = {info.key async for info in store.list(keys.QUARANTINE)}
    left_out = set(left_out_markers(listed))
    found = []
    for key in sorted(listed):
        component, _, seq = key.removeprefix(keys.QUARANTINE).partition("/")
        node = decode(component)
        if node is not None and seq.isdecimal():
            found.append(QuarantinedSegment(node, int(seq), key not in left_out))
    return found


def left_out_markers(listed: Iterable[str]) -> list[str]:
    """Selects from all keys below `segments/.aside/` the markers of segments not given up."""
    there = set(listed)
    return sorted(
        key
        for key in there
        if not key.endswith(keys.GIVEN_UP_SUFFIX) and f"{key}{keys.GIVEN_UP_SUFFIX}" not in there
    )


async def read_reason(store: ObjectStore, node: str, seq: int) -> str:
    """Why the segment is quarantined. Raises `StoreUnavailable`."""
    try:
        body = (await store.get(keys.quarantine_marker(node, seq)))[1]
    except NotFound:
        return "the marker is gone"
    try:
        return decode_marker(body)
    except Damaged:
        return "the marker does not say why"


async def quarantine(store: ObjectStore, node: str, seq: int, *, reason: str, version: str) -> None:
    """Marks the segment; an older marker keeps its reason.

    Raises `StoreUnavailable`, `OutcomeUnknown`.
    """
    await _put_once(store, keys.quarantine_marker(node, seq), encode_marker(reason, version))


async def check_quarantined(store: ObjectStore, key: str) -> tuple[str, int]:
    """Node and number of the quarantined segment at `key`.

    Raises `InvalidInput` if it is none, `StoreUnavailable`.
    """
    segment = keys.parse_segment(key)
    if segment is None:
        raise InvalidInput(
            f"{key} is not the key of a segment",
            hint="Name it as the alarm does: segments/NODE/NUMBER.parquet.",
        )
    try:
        await store.head(keys.quarantine_marker(*segment))
    except NotFound as error:
        raise InvalidInput(
            f"{key} is not quarantined", hint="Run `tailrace verify`: it lists what is damaged."
        ) from error
    return segment


async def give_up(store: ObjectStore, key: str, *, at: str, version: str) -> None:
    """Gives up the lines of the quarantined segment at `key`; `at` is the time in RFC 3339.

    Raises as `check_quarantined`, and `OutcomeUnknown`.
    """
    node, seq = await check_quarantined(store, key)
    await _put_once(store, keys.give_up_marker(node, seq), encode_give_up(at, version))


async def release(store: ObjectStore, segments: Iterable[tuple[str, int]]) -> None:
    """Removes the markers of segments. Raises `StoreUnavailable`."""
    markers = [
        key(node, seq)
        for node, seq in segments
        for key in (keys.give_up_marker, keys.quarantine_marker)  # the one that says less first
    ]
    if markers:
        await store.delete(markers)


async def _put_once(store: ObjectStore, key: str, body: bytes) -> None:
    with suppress(PreconditionFailed):  # there is one: an older one, or ours after a lost answer
        await write_until_known(lambda: store.put(key, body, if_absent=True))


# Keys of records in Arrow: records with one key are copies of each other.


KEY_COLUMNS: Final = ("ulid", "fqn", "run_id")
KEY_ORDER: Final = [(name, "ascending") for name in KEY_COLUMNS]

Records = TypeVar("Records", pa.Table, pa.RecordBatch)


def repeats(records: pa.Table | pa.RecordBatch) -> pa.BooleanArray:
    """Which records, of some sorted by their keys, have the key of the one before them.

    The array is as long as the records; its first value is false.
    """
    if records.num_rows == 0:
        return pa.array([], pa.bool_())
    same = None
    for column in map(records.column, KEY_COLUMNS):
        values = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
        equal = pc.equal(values[1:], values[:-1])
        same = equal if same is None else pc.and_(same, equal)
    return pa.concat_arrays([pa.array([False]), same])


def distinct(records: Records) -> Records:
    """Records sorted by their keys, the first of each key; themselves if no key repeats."""
    repeated = repeats(records)
    return records.filter(pc.invert(repeated)) if pc.any(repeated).as_py() else records


def keys_of(records: pa.Table | pa.RecordBatch) -> list[tuple[str, str, str]]:
    """The keys of records, in their order."""
    return list(zip(*(records.column(name).to_pylist() for name in KEY_COLUMNS), strict=True))


# Rows of segments without those of deleted runs: cutting a segment does not apply deletions.


def undeleted(table: pa.Table, deletions: Iterable[tuple[str, str | None, int]]) -> pa.Table:
    """The rows that no deletion covers: (fqn, run or None for all runs, highest ULID).

    Each deletion looks at every row, so callers leave out those that cannot touch the table.
    """
    for fqn, run, t in deletions:
        gone = pc.equal(table["fqn"].cast(pa.string()), fqn)
        if run is not None:
            gone = pc.and_(gone, pc.equal(table["run_id"].cast(pa.string()), run))
        gone = pc.and_(gone, pc.less_equal(table["ulid"], ulid.encode(t)))
        table = table.filter(pc.invert(gone))
    return table


# ULIDs of lines and the times in them, for many lines at once.
#
# Line `i` of a batch has the batch's 26 characters with the last five replaced by `i` in base 32: a
# batch id's low 25 bits are zero (`tailrace.logstore.ulid`).


LINE_CHARACTERS = 5
_DIGITS = np.frombuffer(ALPHABET.encode(), dtype=np.uint8)
_NUMBERS = np.arange(1 << 15)
# The 26 digits are 13 pairs of ten bits: six of the upper 64 bits, one of both, six of the lower.
_PAIR = np.uint64(0x3FF)
_PAIRS = np.stack([_DIGITS[_NUMBERS[:1024] >> shift & 31] for shift in (5, 0)], axis=1)
_PAIRS = np.ascontiguousarray(_PAIRS).view(np.uint16).ravel()
_HIGH_SHIFTS = [np.uint64(shift) for shift in range(56, 0, -10)]
_LOW_SHIFTS = [np.uint64(shift) for shift in range(50, -1, -10)]
_VALUES = np.zeros(256, dtype=np.uint8)
_VALUES[_DIGITS] = np.arange(32)
# The last three characters of every number below 2^15, as items of three bytes.
_LAST = np.stack([_DIGITS[_NUMBERS >> shift & 31] for shift in (10, 5, 0)], axis=1)


def times_ms(rows: Rows) -> NDArray[np.int64]:
    """The time of each batch, in milliseconds since the epoch."""
    times: NDArray[np.int64] = (rows["ulid_hi"] >> np.uint64(16)).astype(np.int64)
    return times


def made_ms(rows: Rows) -> NDArray[np.int64]:
    """The time of each batch's creation, from its id: `times_ms`, unless that is ahead."""
    times = times_ms(rows)
    ahead = rows["flags"] & MADE_AFTER_DELETION != 0
    if ahead.any():
        low = rows["ulid_lo"][ahead] >> np.uint64(56)
        made = (rows["ulid_hi"][ahead] & np.uint64(0xFFFF)) << np.uint64(8) | low
        times[ahead] -= MOST_AHEAD_MS - made.astype(np.int64)
    return times


def texts(rows: Rows) -> NDArray[np.uint8]:
    """The ULID of each batch as a row of 26 characters."""
    return texts_of(rows["ulid_hi"], rows["ulid_lo"])


def texts_of(high: NDArray[np.uint64], low: NDArray[np.uint64]) -> NDArray[np.uint8]:
    """The ULIDs of these upper and lower 64 bits, a row of 26 characters for each."""
    between = high << np.uint64(4) | low >> np.uint64(60)
    values = [high >> shift for shift in _HIGH_SHIFTS]
    values += [between, *(low >> shift for shift in _LOW_SHIFTS)]
    found = np.empty((len(high), len(values)), np.uint16)
    for number, value in enumerate(values):
        found[:, number] = _PAIRS[(value & _PAIR).view(np.int64)]
    return found.view(np.uint8)


def parse(
    matrix: NDArray[np.uint8],
) -> tuple[NDArray[np.uint64], NDArray[np.uint64], NDArray[np.int64]]:
    """Parses ULIDs, rows of characters: upper and lower 64 bits of the batch, line number."""
    values = _VALUES[matrix].astype(np.uint64)
    high = np.zeros(len(matrix), dtype=np.uint64)
    low = np.zeros(len(matrix), dtype=np.uint64)
    for column in range(26 - LINE_CHARACTERS):
        high = high << np.uint64(5) | low >> np.uint64(59)
        low = low << np.uint64(5) | values[:, column]
    for _ in range(LINE_CHARACTERS):
        high = high << np.uint64(5) | low >> np.uint64(59)
        low = low << np.uint64(5)
    number = np.zeros(len(matrix), dtype=np.int64)
    for column in range(26 - LINE_CHARACTERS, 26):
        number = number << 5 | values[:, column].astype(np.int64)
    return high, low, number


def line_ulids(rows: Rows, counts: NDArray[np.int64], numbers: NDArray[np.int64]) -> pa.Array:
    """`counts[b]` ULIDs of batch `b`, in order, for lines with these `numbers`."""
    matrix = np.repeat(texts(rows), counts, axis=0)
    matrix[:, 23:] = _LAST[numbers & 0x7FFF]
    if len(numbers) and int(numbers.max()) >> 15:
        matrix[:, 22] = _DIGITS[numbers >> 15 & 31]
        matrix[:, 21] = _DIGITS[numbers >> 20 & 31]
    offsets = np.arange(len(matrix) + 1, dtype=np.int32) * np.int32(26)
    return pa.StringArray.from_buffers(len(matrix), pa.py_buffer(offsets), pa.py_buffer(matrix))
