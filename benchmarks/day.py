"""A day of segments: three nodes, one every ten seconds, more by day than by night.

A tenth of the batches went to the next node, too. One node's store is out of reach for two
hours, so that what it cut meanwhile comes after these hours are over. Runs begin and end:
an hour has a hundred of its own.

    {folder}/{node}/{seq}.parquet     to be uploaded at `Day.uploaded_ms(node, seq)`
"""

from __future__ import annotations

import math
import multiprocessing
import random
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pyarrow as pa

from benchmarks.backlog import Batch, text
from tailrace.logstore import ulid
from tailrace.logstore.batch import RunKey
from tailrace.logstore.segments.detect import Carry
from tailrace.logstore.segments.writer import encode_segment
from tests.batches import make_batches

NODES = ("node-a", "node-b", "node-c")
HOUR_MS = 3_600_000
TICK_MS = 10_000
DUPLICATED = 0.1
PIECE_LINES = 50
_RUNS = 100  # of an hour
_AWAY = ("node-c", 9, 11, 11.5)  # from, to, and when it uploads what it has: hours


@dataclass(frozen=True, slots=True)
class Day:
    """The day that begins at `start_ms`; `pieces` of fifty lines are a segment's mean."""

    start_ms: int
    pieces: int
    hours: int = 24

    @property
    def ticks(self) -> int:
        """Segments of each node."""
        return self.hours * HOUR_MS // TICK_MS

    @property
    def end_ms(self) -> int:
        """When its last segments are uploaded."""
        return self.start_ms + self.ticks * TICK_MS

    def uploaded_ms(self, node: str, seq: int) -> int:
        """When the node's segment is in the store."""
        at = self.start_ms + seq * TICK_MS
        away, since, until, back = _AWAY
        hour = (at - self.start_ms) / HOUR_MS
        if node == away and since <= hour < until:
            return self.start_ms + int(back * HOUR_MS)
        return at


@dataclass(frozen=True, slots=True)
class Text:
    """Bytes of lines: with the copies, without them, and these as `zstd -3` has them."""

    sent: int
    distinct: int
    compressed: int


def make(folder: Path, day: Day) -> Text:
    """Writes the segments, a process per node."""
    text()
    with multiprocessing.get_context("fork").Pool(len(NODES)) as pool:
        found = pool.starmap(_fill, [(folder / node, day, i) for i, node in enumerate(NODES)])
    return Text(*map(sum, zip(*found, strict=True)))


def path_of(folder: Path, node: str, seq: int) -> Path:
    """Where `make` wrote the segment."""
    return folder / node / f"{seq}.parquet"


def _fill(folder: Path, day: Day, index: int) -> tuple[int, int, int]:
    folder.mkdir(parents=True)
    codec, carry = pa.Codec("zstd", compression_level=3), Carry()
    node, before = NODES[index], (index - 1) % len(NODES)
    sent = distinct = compressed = pos = 0
    hour: list[bytes] = []
    for tick in range(day.ticks):
        own = [batch for batch, _ in _batches(day, index, tick)]
        copies = [batch for batch, both in _batches(day, before, tick) if both]
        rows = make_batches(node, own + copies, first_pos=pos)
        pos += int(rows.rows["records"].sum())
        body = encode_segment(rows, node=node, seq=tick + 1, carry=carry).body
        path_of(folder.parent, node, tick + 1).write_bytes(body)
        hour += [batch[2] for batch in own]
        sent += sum(len(batch[2]) for batch in own + copies)
        if (tick + 1) % (HOUR_MS // TICK_MS) == 0 or tick + 1 == day.ticks:
            lines = b"".join(hour)
            distinct += len(lines)
            compressed += len(codec.compress(lines))
            hour = []
    return sent, distinct, compressed


def _batches(day: Day, index: int, tick: int) -> Iterator[tuple[Batch, bool]]:
    """What the node's clients send it in these ten seconds, and whether a copy goes elsewhere."""
    number = tick * len(NODES) + index
    dice, pieces = random.Random(number), _pieces()
    at = day.start_ms + tick * TICK_MS
    hour = at // HOUR_MS
    # Twice as much by day as by night, and never the same.
    mean = day.pieces * (1 + math.sin(tick / day.ticks * math.tau - math.pi / 2) / 3)
    for place in range(max(round(mean * dice.lognormvariate(-0.125, 0.5)), 1)):
        first = ulid.lowest_at(at + dice.randrange(TICK_MS))
        run = int(_RUNS * dice.random() ** 2)
        key = RunKey(f"service.pipeline_{run % 20}", f"run-{hour}-{run}")
        body = pieces[(number * day.pieces * 2 + place) % len(pieces)]
        batch = key, first | dice.getrandbits(54) << ulid.LINE_BITS, body
        yield batch, dice.random() < DUPLICATED


@cache
def _pieces() -> tuple[bytes, ...]:
    found = []
    for block in text():
        lines = [line + b"\n" for line in block.split(b"\n")[:-1]]
        found += [b"".join(lines[i : i + PIECE_LINES]) for i in range(0, len(lines), PIECE_LINES)]
    return tuple(found)
