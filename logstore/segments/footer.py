"""The description of a segment, in the key-value metadata of its Parquet footer.

    key                    value
    tailrace.segment       JSON: "version", "node", "seq", "ranges" ([[first, end) of `pos`]),
                           "rows", "low", "high" (ULIDs of the first and last row),
                           "checksums" (one per row group, 16 hex digits)
    tailrace.segment.runs  base64 of zstd of JSON: [[fqn, run, rows, first pos, last pos,
                           [row groups that hold rows of it]], …]

A row group's checksum is XXH3-64 over its rows' (ulid, pos, message), column by column:
the ULIDs' characters, `pos` as 8 bytes and the messages' lengths as 4 bytes (both
little-endian), the messages' bytes.
"""

from __future__ import annotations

import base64
import binascii
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import orjson
import pyarrow as pa
import xxhash
from numpy.typing import NDArray

from logstore.batch import RunKey
from logstore.errors import Damaged, UnsupportedVersion
from logstore.segments.schema import VERSION

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


def decode(metadata: Mapping[bytes, bytes] | None) -> Footer:
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
