"""The peer of large batches: a loop that writes and syncs them and encodes the same segments.

    python -m benchmarks.bare_loop FOLDER SECONDS < names of body files

No HTTP, no ids, no recovery: what the disk, zstd and pyarrow leave at best, on one core.
Prints MB/s of text.
"""

from __future__ import annotations

import io
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

_SEGMENT_BYTES = 64 << 20
_GROUP_BYTES = 8 << 20


def _messages(text: bytes) -> pa.Array:
    """The lines without their newlines, by vector."""
    data = np.frombuffer(text, np.uint8)
    ends = np.flatnonzero(data == 10)
    kept = data[data != 10]
    offsets = np.zeros(len(ends) + 1, np.int32)
    offsets[1:] = ends + 1 - np.arange(1, len(ends) + 1)
    return pa.Array.from_buffers(
        pa.string(), len(ends), [None, pa.py_buffer(offsets), pa.py_buffer(kept)]
    )


def encode(texts: Sequence[bytes]) -> int:
    """Encodes a segment of these texts with our columns; its size."""
    sink = io.BytesIO()
    writer: pq.ParquetWriter | None = None
    group: list[bytes] = []
    size = 0
    for text in [*texts, b""]:
        group.append(text)
        size += len(text)
        if size < _GROUP_BYTES and text:
            continue
        table = _table(_messages(b"".join(group)))
        if writer is None:
            writer = pq.ParquetWriter(
                sink,
                table.schema,
                compression="zstd",
                compression_level=1,
                use_dictionary=["fqn", "run_id", "level"],
                column_encoding={
                    "message": "DELTA_LENGTH_BYTE_ARRAY",
                    "ulid": "DELTA_BYTE_ARRAY",
                    "pos": "DELTA_BINARY_PACKED",
                    "ts": "DELTA_BINARY_PACKED",
                },
            )
        if len(table):
            writer.write_table(table)
        group, size = [], 0
    if writer is not None:
        writer.close()
    return sink.tell()


def _table(messages: pa.Array) -> pa.Table:
    count = len(messages)
    ids = np.tile(np.frombuffer(b"01JABCDEFGHJKMNPQRSTV00000", np.uint8), (count, 1))
    for place in range(5):
        ids[:, 25 - place] = 48 + (np.arange(count) >> (3 * place) & 7)
    offsets = np.arange(0, 26 * (count + 1), 26, dtype=np.int32)
    ulids = pa.Array.from_buffers(
        pa.string(), count, [None, pa.py_buffer(offsets), pa.py_buffer(ids)]
    )
    constant = pa.DictionaryArray.from_arrays(pa.array(np.zeros(count, np.int32)), ["name"])
    times = pa.array(np.full(count, 1_700_000_000_000_000)).cast(pa.timestamp("us", "UTC"))
    return pa.table(
        {
            "ulid": ulids,
            "ts": times,
            "fqn": constant,
            "run_id": constant,
            "pos": pa.array(np.arange(count)),
            "level": constant,
            "message": messages,
        }
    )


def run(folder: Path, bodies: Sequence[bytes], seconds: float) -> float:
    """MB/s of text over `seconds`; the files stay in `folder`."""
    journal = os.open(folder / "bare.wal", os.O_CREAT | os.O_WRONLY | os.O_TRUNC)
    taken, gathered, segments, at = 0, 0, 0, 0
    texts: list[bytes] = []
    start = time.perf_counter()
    while time.perf_counter() - start < seconds:
        body = bodies[at % len(bodies)]
        at += 1
        os.write(journal, body)
        os.fdatasync(journal)
        texts.append(body)
        taken += len(body)
        gathered += len(body)
        if gathered >= _SEGMENT_BYTES:
            encode(texts)
            segments += 1
            texts, gathered = [], 0
            os.ftruncate(journal, 0)
            os.lseek(journal, 0, os.SEEK_SET)
    encode(texts)
    elapsed = time.perf_counter() - start
    os.close(journal)
    return taken / elapsed / 1e6


def main() -> None:
    """Reads the names of the body files from standard input."""
    bodies = [Path(line.strip()).read_bytes() for line in sys.stdin if line.strip()]
    print(f"{run(Path(sys.argv[1]), bodies, float(sys.argv[2])):.1f}")


if __name__ == "__main__":
    main()
