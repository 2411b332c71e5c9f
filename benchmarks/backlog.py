"""Segments that wait for the compactor, as nodes of the service leave them.

    backlog = make(folder, Shape(megabytes=1_000, segments=4_000, runs=2_000))

Batches are blocks of real lines with rising ULIDs, spread over two nodes and over runs of
which few are large and most are small; a tenth of the batches went to both nodes. The text
repeats after 100 MB, further than any compression here looks back (a page of a Parquet
file is 1 MiB). The same shape is the same segments; a folder that holds them is not made again.
"""

from __future__ import annotations

import asyncio
import json
import math
import multiprocessing
import os
import random
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import cache
from itertools import cycle, islice
from pathlib import Path

from benchmarks.corpus import blocks
from tailrace.logstore import keys, ulid
from tailrace.logstore.batch import RunKey
from tailrace.logstore.clock import SystemClock, system_entropy
from tailrace.logstore.filesystem import Disk
from tailrace.logstore.objects.local import LocalStore
from tailrace.logstore.segments.detect import Carry
from tailrace.logstore.segments.writer import encode_segment
from tests.batches import make_batches

START_MS = 1_795_262_400_000  # 2026-11-21T12:00:00Z
DUPLICATED = 0.1
NODES = ("node-a", "node-b")
_SEGMENT_BYTES = 64 << 20
_UNEVEN = 1.0  # deviation of the logarithm of a segment's size
_DISTINCT = 100_000_000  # bytes of text before it repeats
_DESCRIPTION = "backlog.json"

Batch = tuple[RunKey, int, bytes]


@dataclass(frozen=True, slots=True)
class Shape:
    """How much, and how it is cut. `megabytes` are of text, without the duplicates.

    `segments` of uneven sizes, or 0: as many as 64 MiB each gives. `text_per_ms` in bytes
    says how long the text took: at 2,000 an hour has 7.2 GB.
    """

    megabytes: int
    segments: int = 0
    runs: int = 20
    batch_blocks: int = 5
    text_per_ms: int = 2_000

    @property
    def hours(self) -> int:
        """Hours that the lines lie in, the first at `START_MS`."""
        return math.ceil(self.megabytes * 1_000_000 / self.text_per_ms / 3_600_000)


@dataclass(frozen=True, slots=True)
class Backlog:
    """A folder of segments; `text` is bytes of lines in them, with the duplicates."""

    folder: Path
    shape: Shape
    text: int
    segments: int


def store_at(data: Path) -> LocalStore:
    """The object store of a data folder."""
    return LocalStore(str(data / "store"), Disk(), SystemClock(), system_entropy())


def make(folder: Path, shape: Shape) -> Backlog:
    """The backlog in the folder, made unless it is there already; one process per node."""
    described = folder / _DESCRIPTION
    if not described.exists():
        text()
        with multiprocessing.get_context("fork").Pool(len(NODES)) as pool:
            made = pool.starmap(_fill, [(folder, shape, node) for node in NODES])
        sums = {"text": sum(t for t, _ in made), "segments": sum(n for _, n in made)}
        described.write_text(json.dumps({"shape": asdict(shape), **sums}))
    found = json.loads(described.read_text())
    if found["shape"] != asdict(shape):
        raise SystemExit(f"{folder} holds another backlog: {found['shape']}")
    return Backlog(folder, shape, found["text"], found["segments"])


@cache
def text() -> tuple[bytes, ...]:
    """Blocks of 200 lines, `_DISTINCT` bytes of them, as the service decodes them."""
    found, size = [], 0
    for block in blocks(1):
        found.append(block.decode(errors="replace").encode())
        size += len(block)
        if size >= _DISTINCT:
            return tuple(found)
    raise AssertionError("blocks end")


def batches(shape: Shape) -> Iterator[tuple[int, Batch]]:
    """Batches with their numbers, `megabytes` of text in all."""
    dice = random.Random(1)
    done, number = 0, 0
    source = cycle(text())
    while done < shape.megabytes * 1_000_000:
        body = b"".join(islice(source, shape.batch_blocks))
        at = START_MS + done // shape.text_per_ms
        first = ulid.lowest_at(at) | dice.getrandbits(54) << ulid.LINE_BITS
        run = int(shape.runs * dice.random() ** 2)
        yield number, (RunKey(f"service.pipeline_{run % 100}", f"run-{run}"), first, body)
        done += len(body)
        number += 1


def _fill(folder: Path, shape: Shape, node: str) -> tuple[int, int]:
    """Writes the node's segments: bytes of text in them, and their number."""
    store, carry = store_at(folder), Carry()
    dice, sizes = random.Random(2), _sizes(shape, random.Random(node))
    pending: list[Batch] = []
    total = held = seq = pos = 0
    limit = next(sizes)

    async def cut() -> None:
        nonlocal seq, pos
        seq += 1
        rows = make_batches(node, pending, first_pos=pos)
        pos += int(rows.rows["records"].sum())
        body = encode_segment(rows, node=node, seq=seq, carry=carry).body
        await store.put(keys.segment(node, seq), body)
        # Uploaded when its last line came, however long making it took: nodes keep step.
        os.utime(
            folder / "store" / keys.segment(node, seq), (ulid.time_ms(pending[-1][1]) / 1000,) * 2
        )
        pending.clear()

    async def fill() -> None:
        nonlocal total, held, limit
        for number, batch in batches(shape):
            both = dice.random() < DUPLICATED
            if not both and NODES[number % len(NODES)] != node:
                continue
            pending.append(batch)
            total += len(batch[2])
            held += len(batch[2])
            if held >= limit:
                await cut()
                held, limit = 0, next(sizes)
        if pending:
            await cut()

    asyncio.run(fill())
    return total, seq


def _sizes(shape: Shape, dice: random.Random) -> Iterator[float]:
    """Bytes of text after which a segment is cut."""
    while True:
        if not shape.segments:
            yield _SEGMENT_BYTES
            continue
        mean = shape.megabytes * 1_000_000 * (1 + DUPLICATED) / shape.segments
        # A segment ends with a whole batch, on average half a batch late.
        mean -= shape.batch_blocks * _DISTINCT / len(text()) / 2
        yield dice.lognormvariate(math.log(mean) - _UNEVEN**2 / 2, _UNEVEN)
