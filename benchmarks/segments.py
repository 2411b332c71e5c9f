"""Encoding a segment: `python -m benchmarks.segments [--megabytes 64]`, on one core.

Real lines as batches of 1,000 of 13 runs become one segment, with levels and times found.
Beside it, in the same rounds: zstd -1 over the same bytes, and a bare pyarrow encode of the
same texts with constant metadata. Then the same segment is verified, and read as batches.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable

import numpy as np
import pyarrow as pa

from benchmarks import bare_loop
from benchmarks.corpus import lines_of, source
from tailrace.logstore.batch import RunKey
from tailrace.logstore.segments.detect import Carry
from tailrace.logstore.segments.reader import SegmentBatches, open_segment, verify_segment
from tailrace.logstore.segments.writer import EncodedSegment, encode_segment
from tests.batches import make_batches

_LINES = 1000
_ROUNDS = 7
_START_MS = 1_700_000_000_000


def _texts(megabytes: int) -> list[bytes]:
    """Batches of 1,000 lines, together about so many MB, as the service would decode them."""
    size, lines = 0, lines_of(megabytes * 12_000)
    texts: list[bytes] = []
    for start in range(0, len(lines), _LINES):
        texts.append(b"".join(lines[start : start + _LINES]).decode(errors="replace").encode())
        size += len(texts[-1])
        if size >= megabytes * 1_000_000:
            break
    return texts


def _encoder(texts: list[bytes]) -> Callable[[], EncodedSegment]:
    entries = [
        (RunKey(f"svc.pipeline-{k % 13}", "run"), _START_MS + k << 80, text, "connector")
        for k, text in enumerate(texts)
    ]
    batches = make_batches("node", entries)
    return lambda: encode_segment(batches, node="node", seq=1, carry=Carry())


def _measure(works: dict[str, Callable[[], object]], size: int) -> dict[str, float]:
    """Median MB/s of text, the works in turn."""
    seconds: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(_ROUNDS):
        for name, work in works.items():
            start = time.perf_counter()
            work()
            seconds[name].append(time.perf_counter() - start)
    return {name: size / statistics.median(values) / 1e6 for name, values in seconds.items()}


def main() -> int:
    """Prints the figures; 1 if half of the bare encode is not reached."""
    parser = argparse.ArgumentParser(description="Encodes a segment beside a bare encode.")
    parser.add_argument("--megabytes", type=int, default=64)
    pa.set_cpu_count(1)
    texts = _texts(parser.parse_args().megabytes)
    whole = b"".join(texts)
    encode = _encoder(texts)
    segment = encode()
    zstd = pa.Codec("zstd", compression_level=1)
    every = np.arange(len(texts))
    speeds = _measure(
        {
            "zstd -1 of the same bytes": lambda: zstd.compress(whole),
            "bare pyarrow encode": lambda: bare_loop.encode(texts),
            "encode_segment": encode,
            "verify_segment": lambda: verify_segment(segment.body),
            "read as batches": lambda: SegmentBatches(open_segment(segment.body)).text(every),
        },
        len(whole),
    )
    print(f"{len(whole) / 1e6:.0f} MB of text, {segment.rows} lines, {source()}; MB/s of text")
    for name, speed in speeds.items():
        print(f"  {name:28} {speed:7.0f}")
    ratio = speeds["encode_segment"] / speeds["bare pyarrow encode"]
    sizes = {
        "segment": len(segment.body),
        "bare pyarrow": bare_loop.encode(texts),
        "zstd -1": len(zstd.compress(whole, asbytes=True)),
    }
    print("  size: " + ", ".join(f"{k} {v / len(whole):.3f} of the text" for k, v in sizes.items()))
    print(f"  encode_segment runs at {ratio:.2f} of the bare encode")
    return 0 if ratio >= 0.5 else 1


if __name__ == "__main__":
    sys.exit(main())
