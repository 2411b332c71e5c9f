from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.logstore.batch import BATCH, Batches, RunKey, of_run
from tailrace.logstore.clock import SystemClock, system_entropy
from tailrace.logstore.errors import Damaged, NotFound
from tailrace.logstore.objects.store import ObjectInfo, ObjectStore
from tailrace.logstore.segments.detect import Carry
from tailrace.logstore.segments.reader import (
    SegmentBatches,
    fetch_segment,
    open_segment,
    read_footer,
)
from tailrace.logstore.segments.slices import Limits
from tailrace.logstore.segments.writer import encode_segment, record_batches
from tests.batches import MemoryBatches, make_batches
from tests.logstore.segments.corpora import many_batches
from tests.logstore.segments.model import rows_of
from tests.logstore.segments.test_columns import table_of
from tests.simulation.backing import open_store
from tests.simulation.faulty_store import FaultyStore, Schedule
from tests.simulation.powercut import PowerCutFileSystem

KEY = "segments/node-1/00000000000000000001.parquet"
A, B = RunKey("svc.a", "1"), RunKey("svc.b", "2")


def body_of(batches: Batches, limits: Limits | None = None) -> bytes:
    return encode_segment(batches, node="node-1", seq=1, carry=Carry(), limits=limits).body


def content(batches: Batches) -> list[tuple[object, ...]]:
    """All that a reader of batches sees, but for what goes with records beside their text."""
    others = ("offset", "run", "connector", "meta", "flags")
    own = [name for name in BATCH.names or () if name not in others]
    return [
        (
            batches.runs[row["run"]],
            batches.connectors[row["connector"]],
            batches.text(np.array([index])),
            *row[own].tolist(),
        )
        for index, row in enumerate(batches.rows)
    ]


def test_a_whole_batch_comes_back_as_it_was() -> None:
    batches = make_batches("node-1", [(B, 9 << 80, b"x\r\n\n", "c"), (A, 8 << 80, b"y\n")], 5)
    stored = SegmentBatches(open_segment(body_of(batches)))
    assert content(stored) == content(batches)
    assert stored.node == "node-1"
    assert stored.text(np.array([1, 0])) == b"y\nx\r\n\n"
    assert stored.text(np.array([], dtype=np.int64)) == b""


@settings(deadline=None, max_examples=40)
@given(many_batches(repeat=False), st.integers(0, 40), st.integers(0, 40))
def test_a_slice_is_a_part_of_one_text(batches: MemoryBatches, low: int, high: int) -> None:
    for limits in (None, Limits(rows=2)):
        stored = SegmentBatches(open_segment(body_of(batches, limits)))
        for index in range(len(stored.rows)):
            assert stored.slice(index, low, high) == stored.text(np.array([index]))[low:high]


@settings(deadline=None, max_examples=40)
@given(many_batches(repeat=False))
def test_batches_come_back_whatever_the_row_groups(batches: MemoryBatches) -> None:
    body = body_of(batches, Limits(text=60, rows=4))
    assert content(SegmentBatches(open_segment(body))) == content(batches)
    for key in batches.runs:
        ours = SegmentBatches(open_segment(body), key)
        assert content(ours) == content(batches.of(key))
        assert len(of_run(ours, key)) == len(ours.rows)


@pytest.mark.in_turn(3)
@settings(deadline=None, max_examples=40)
@given(many_batches(repeat=False))
def test_records_come_back_with_what_they_carry(batches: MemoryBatches) -> None:
    stored = SegmentBatches(open_segment(body_of(batches, Limits(text=60, rows=4))))
    messages = [(row.pos, row.message, row.attributes) for row in rows_of(batches)]
    again = list(record_batches(stored, Carry()))
    found = [
        (pos, message.encode(), None if a is None else dict(a))
        for b in again
        for pos, message, a in zip(
            *(b[name].to_pylist() for name in ("pos", "message", "attributes")), strict=True
        )
    ]
    assert found == messages
    assert sum(b.num_rows for b in again) == table_of(batches).num_rows


class MeteredStore(FaultyStore):
    """Counts the bytes that each `get` gave, and never fails."""

    def __init__(self, inner: ObjectStore) -> None:
        super().__init__(inner, Schedule.none())
        self.gets: list[int] = []

    async def get(
        self, key: str, *, offset: int = 0, size: int | None = None, if_match: str | None = None
    ) -> tuple[ObjectInfo, bytes]:
        answer = await super().get(key, offset=offset, size=size, if_match=if_match)
        self.gets.append(len(answer[1]))
        return answer


@pytest.fixture
def store(every_store: object) -> MeteredStore:
    return MeteredStore(open_store(PowerCutFileSystem(), SystemClock(), system_entropy()))


def noise(seed: int, lines: int) -> bytes:
    dice = np.random.default_rng(seed)
    return b"".join(dice.bytes(60).hex().encode() + b"\n" for _ in range(lines))


async def test_the_footer_takes_one_get_however_large_the_segment(store: MeteredStore) -> None:
    batches = make_batches("node-1", [(A, 1 << 80, noise(1, 5000))])
    await store.put(KEY, body_of(batches))
    assert (await read_footer(store, KEY)).rows == 5000
    assert store.gets == [64 << 10]


async def test_a_footer_larger_than_the_tail_takes_two(store: MeteredStore) -> None:
    names = [RunKey(noise(k, 1).decode()[:-1], "r") for k in range(3000)]
    batches = make_batches("node-1", [(n, k + 1 << 80, b"x\n") for k, n in enumerate(names)])
    await store.put(KEY, body_of(batches))
    assert len((await read_footer(store, KEY)).runs) == 3000
    assert len(store.gets) == 2


async def test_one_run_takes_only_its_row_groups(store: MeteredStore) -> None:
    texts = [(A if k == 3 else B, k + 1 << 80, noise(k, 2000)) for k in range(8)]
    batches = make_batches("node-1", texts)
    body = body_of(batches, Limits(rows=2000))
    await store.put(KEY, body)
    segment = await fetch_segment(store, KEY, run=A)
    assert content(SegmentBatches(segment, A)) == content(batches.of(A))
    assert sum(store.gets) < len(body) / 2
    absent = await fetch_segment(store, KEY, run=RunKey("svc.c", "1"))
    assert len(SegmentBatches(absent, RunKey("svc.c", "1")).rows) == 0
    whole = SegmentBatches(await fetch_segment(store, KEY))
    assert content(whole) == content(batches)


async def test_damage_in_the_store_is_found(store: MeteredStore) -> None:
    body = body_of(make_batches("node-1", [(A, 1 << 80, noise(1, 3000))]), Limits(rows=1000))
    with pytest.raises(NotFound):
        await read_footer(store, KEY)
    for size in (0, 5, 11, 12, 100, len(body) // 2, len(body) - 1):
        await store.put(KEY, body[:size])
        with pytest.raises(Damaged):
            await read_footer(store, KEY)
    for place in (100, len(body) // 2, len(body) - 100_000):
        await store.put(KEY, body[:place] + bytes([body[place] ^ 1]) + body[place + 1 :])
        with pytest.raises(Damaged):
            SegmentBatches(await fetch_segment(store, KEY, run=A), A)
