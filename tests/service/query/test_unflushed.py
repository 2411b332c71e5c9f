"""Records of unflushed lines that are kept for the next search, beside those encoded at once."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from service.node import Node
from service.query.unflushed import EncodedLines, Selected
from service.settings import Settings
from service.wiring import make_sources
from tailrace.logstore import keys
from tailrace.logstore import ulid as ulids
from tailrace.logstore.batch import Batches, Indexes, RunKey
from tailrace.logstore.segments.detect import Carry
from tailrace.logstore.segments.writer import record_batches
from tailrace.logstore.table.schema import RECORD_SCHEMA
from tests.batches import MemoryBatches, make_batches
from tests.seeds import seeds
from tests.service.client_model import Sent
from tests.service.metrics.watched import Watched
from tests.simulation.virtual_time import VirtualClock

RUNS = [RunKey("p", "one"), RunKey("p", "two"), RunKey("q", "one")]
LINES = [
    b"2026-11-29 10:00:00 ERROR failed\n",
    b"Traceback (most recent call last):\n",
    b'  File "job.py", line 3, in <module>\n',
    b"KeyError: 'total'\n",
    b"plain line\n",
    b"INFO started\n",
    b"\tat com.example.Dao.find(Dao.java:7)\n",
    b"Caused by: x\n",
]


def made(random: Random, count: int) -> MemoryBatches:
    """Batches of some runs, most of them in the order of their ids."""
    some = []
    for number in range(count):
        at = number if random.random() < 0.9 else random.randrange(count)
        lines = random.choices(LINES, k=random.randint(1, 4))
        some.append((random.choice(RUNS), (1 << 100) + (at << 40) + number, b"".join(lines)))
    return make_batches("node", some)


def part(batches: Batches, indexes: list[int]) -> Selected:
    chosen = np.array(indexes, np.int64)
    return Selected(batches, chosen, batches.rows[chosen])


def carried(random: Random) -> Carry:
    """The state after lines that are in segments by now."""
    carry = Carry()
    list(record_batches(made(random, 6), carry, save=True))
    return carry


def table(records: list[pa.RecordBatch]) -> Any:
    whole = pa.Table.from_batches(
        [one.select(RECORD_SCHEMA.names).cast(RECORD_SCHEMA) for one in records], RECORD_SCHEMA
    )
    return whole.sort_by([("ulid", "ascending"), ("pos", "ascending")]).to_pylist()


@dataclass(frozen=True, slots=True)
class Noting(MemoryBatches):
    """Batches that note which of their texts were asked for."""

    asked: set[int] = field(default_factory=set)

    def text(self, indexes: Indexes) -> bytes:
        self.asked.update(indexes.tolist())
        return MemoryBatches.text(self, indexes)


@pytest.mark.parametrize("seed", seeds(20))
def test_records_that_are_kept_equal_those_encoded_at_once(seed: int) -> None:
    random = Random(seed)
    carry, count = carried(random), 40
    batches = made(random, count)
    encode = EncodedLines(lambda: carry, least=1)
    end = 0
    while end < count:
        end = min(end + random.randint(0, 12), count)
        whole = list(range(end))
        run = random.randrange(len(RUNS))
        of_run = [n for n in whole if batches.rows["run"][n] == run]
        for indexes in (whole, of_run, whole[random.randint(0, end) :]):
            expected = table(list(record_batches(part(batches, indexes), carry.copy())))
            for _ in range(2):
                assert table(list(encode(part(batches, indexes)))) == expected


def test_a_search_encodes_the_batches_that_are_new() -> None:
    batches = made(Random(1), 30)
    fields = (batches.node, batches.rows, batches.runs, batches.connectors, batches.content)
    noting, encode = Noting(*fields), EncodedLines(Carry, least=1)

    def read(end: int) -> list[int]:
        """The batches that this search encodes."""
        noting.asked.clear()
        list(encode(part(noting, list(range(end)))))
        return sorted(noting.asked)

    assert read(10) == [*range(10)]
    assert read(10) == []
    assert read(25) == [*range(10, 25)]
    assert read(30) == [*range(25, 30)]
    assert read(30) == []
    encode.drop()
    assert read(30) == [*range(30)]


def test_records_that_were_not_all_read_or_are_too_many_or_few_are_not_kept() -> None:
    batches, encode = made(Random(2), 30), EncodedLines(Carry, least=1)
    reading = encode(part(batches, list(range(30))))
    next(reading)
    reading.close()  # type: ignore[attr-defined]  # it is a generator
    assert encode.bytes == 0
    records = int(batches.rows["records"].sum())
    for bounded in (
        EncodedLines(Carry, least=1, most_bytes=100),
        EncodedLines(Carry, least=records + 1),
    ):
        whole = table(list(bounded(part(batches, list(range(30))))))
        assert whole == table(list(record_batches(batches, Carry())))
        assert bounded.bytes == 0
    list(encode(part(batches, list(range(30)))))
    assert encode.bytes > 0


def test_a_node_forgets_them_once_their_segment_is_stored(tmp_path: Path) -> None:
    async def scenario(node: Node, clock: VirtualClock) -> None:
        sources = make_sources(Settings(data=str(tmp_path)), node)
        assert isinstance(sources.encode, EncodedLines)
        sent = Sent(0, RUNS[0], b"a line\n" * 5_000, ulids.lowest_at(clock.now_ms()), "durable")
        await node.append(sent.incoming())
        with node.pin() as pin:
            assert sum(one.num_rows for one in sources.encode(pin.batches())) == 5_000
        assert sources.encode.bytes > 0
        async with asyncio.timeout(600):
            while sources.encode.bytes:
                await clock.sleep(0.1)
        assert [info.key async for info in node.store.list(keys.SEGMENTS)]

    Watched(tmp_path).live(scenario)
