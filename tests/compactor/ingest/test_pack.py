"""Small segments reach the engine as one file with all of their lines, which is gone afterwards."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from compactor.spark.engine import MergeInput, WrittenCounts
from compactor.verify import SMALL_BYTES, SmallSegments
from tailrace.logstore import keys
from tailrace.logstore.errors import Unavailable
from tailrace.logstore.segments.reader import open_segment
from tests.compactor.lake import NOON, Lake, batch
from tests.compactor.plain_engine import PlainEngine
from tests.simulation.faulty_store import Fault, FaultyStore, Schedule

STAGING = f"{keys.TABLE}/_staging/"


@dataclass
class Watched(PlainEngine):
    """Remembers the files of its last merge."""

    given: dict[str, int] = field(default_factory=dict)
    fails: bool = False

    def merge(self, work: MergeInput, folder: str) -> WrittenCounts:
        self.given = dict(work.segments)
        if self.fails:
            raise Unavailable("no engine")
        return super().merge(work, folder)


@pytest.fixture
def engine(lake: Lake) -> Watched:
    lake.session = Watched()
    return lake.session


def put_small(lake: Lake, count: int) -> list[str]:
    """Segments of which each has a batch of the one before."""
    batches = [batch("f", f"r{i}", NOON + i, 3, salt=i) for i in range(count + 1)]
    return [lake.put("a", batches[i : i + 2]) for i in range(count)]


def test_many_small_segments_are_one_file_and_a_large_one_is_itself(
    lake: Lake, engine: Watched
) -> None:
    put_small(lake, 10)
    key, first, _ = batch("f", "large", NOON + 500, 0)
    dice = random.Random(1)  # as bytes at random are not made smaller by compression
    text = "".join(f"{dice.randbytes(100).hex()}\n" for _ in range(2_000))
    large = lake.put("b", [(key, first, text.encode())])
    report = lake.compact()
    lake.holds(lake.taken)
    assert len(engine.given) == 2
    assert engine.given[lake.store.uri(large)] > SMALL_BYTES
    (packed,) = (address for address in engine.given if STAGING in address)
    assert packed.endswith(".parquet")
    assert report.segments == 11
    assert report.duplicates == 9 * 3
    assert lake.keys(STAGING) == []


def test_few_small_segments_are_themselves(lake: Lake, engine: Watched) -> None:
    put = put_small(lake, 3)
    lake.compact()
    lake.holds(lake.taken)
    assert set(engine.given) == {lake.store.uri(key) for key in put}


def test_nothing_is_left_of_a_merge_that_failed(lake: Lake, engine: Watched) -> None:
    put_small(lake, 10)
    engine.fails = True
    with pytest.raises(Unavailable):
        lake.compact()
    assert len(engine.given) == 1
    assert lake.keys(STAGING) == []


@pytest.mark.parametrize("verb", ["put", "delete"])
@pytest.mark.parametrize("lost", [Fault.UNKNOWN_DONE, Fault.UNKNOWN_NOT_DONE])
def test_a_lost_answer_does_not_end_the_pass(
    lake: Lake, engine: Watched, verb: str, lost: Fault
) -> None:
    put_small(lake, 10)
    schedule = Schedule({1: lost}, applies=lambda call: call.startswith(f"{verb} {STAGING}"))
    lake.store = FaultyStore(lake.store, schedule)
    lake.compact()
    lake.holds(lake.taken)
    assert schedule.fired == 1
    assert len(engine.given) == 1
    assert lake.keys(STAGING) == []


def test_what_is_kept_is_bounded() -> None:
    small = SmallSegments()
    for number in range(1000):
        small.add(str(number), bytes(SMALL_BYTES))
    small.add("large", bytes(SMALL_BYTES + 1))
    assert sum(map(len, small.bodies.values())) == 64 << 20
    assert "large" not in small.bodies


@pytest.mark.spark
def test_spark_finds_every_column_as_it_is_in_the_segments(warm: Lake) -> None:
    put = [warm.put("a", [batch("f", f"r{i}", NOON + i, 3)]) for i in range(12)]
    warm.compact()
    bodies = [warm.run(warm.store.get(key))[1] for key in put]
    expected = [row for body in bodies for row in _rows(open_segment(body).parquet.read())]
    files = [warm.run(warm.store.get(f"{keys.TABLE}/{f.path}"))[1] for f in warm.snapshot().files]
    found = [row for file in files for row in _rows(pq.read_table(pa.BufferReader(file)))]
    assert sorted(found, key=repr) == sorted(expected, key=repr)
    assert len(found) == 36


def _rows(table: Any) -> list[list[tuple[str, Any]]]:
    return [sorted(row.items()) for row in table.to_pylist()]
