"""What the caches of chunk indexes count is what they take, also for many small runs."""

from __future__ import annotations

import random
import tracemalloc
from pathlib import Path

from service.run_log.chunks import Chunks
from tailrace.logstore.batch import RunKey
from tailrace.logstore.cache import Cache
from tailrace.logstore.clock import SystemClock
from tailrace.logstore.filesystem import Disk
from tailrace.logstore.objects.local import LocalStore
from tailrace.logstore.runs.chunk_index import encode_tail
from tailrace.logstore.runs.manifest import Chunk
from tests.logstore.runs.test_index import built

_RUNS = 500


async def test_the_index_of_a_small_run_is_counted_with_its_objects(tmp_path: Path) -> None:
    blocks, text, body, directory = built([(RunKey("f", "r"), 1 << 80, b"one\ntwo\nthree\n")])
    index = body + (tail := encode_tail(directory))
    chunks = Chunks(LocalStore(str(tmp_path), Disk(), SystemClock(), random.Random(1)), "runs")
    tracemalloc.start()
    try:
        for number in range(_RUNS):
            chunk = Chunk(
                f"{number:026d}", "chunk", len(text), 3, 3, 1, 1, len(blocks), len(index),
                len(tail), {}, text=text, index=index,
            )  # fmt: skip
            await chunks.piece(RunKey("f", "r"), chunk, 0)
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    counted = sum(cache.bytes for cache in vars(chunks).values() if isinstance(cache, Cache))
    assert taken < 1.2 * counted
