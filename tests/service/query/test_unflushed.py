"""Records of unflushed lines that are kept for the next search, beside those encoded at once."""

from __future__ import annotations

from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from service.query import unflushed
from service.query.unflushed import EncodedLines, Selected
from tailrace.logstore.batch import Batches, RunKey
from tailrace.logstore.segments.detect import Carry
from tailrace.logstore.segments.writer import record_batches
from tailrace.logstore.table.schema import RECORD_SCHEMA
from tests.batches import make_batches
from tests.seeds import seeds

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


def made(random: Random, count: int) -> Batches:
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


@pytest.fixture
def all_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unflushed, "_LEAST_KEPT", 1)


@pytest.mark.usefixtures("all_kept")
@pytest.mark.parametrize("seed", seeds(20))
def test_records_that_are_kept_equal_those_encoded_at_once(seed: int) -> None:
    random = Random(seed)
    carry, count = carried(random), 40
    batches = made(random, count)
    encode = EncodedLines(lambda: carry)
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


@pytest.mark.usefixtures("all_kept")
def test_a_search_encodes_the_batches_that_are_new(monkeypatch: pytest.MonkeyPatch) -> None:
    encoded = []

    def noting(batches: Batches, *given: object, **more: object) -> object:
        encoded.append(len(batches.rows))
        return record_batches(batches, *given, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(unflushed, "record_batches", noting)
    batches, encode = made(Random(1), 30), EncodedLines(Carry)
    for end in (10, 10, 25, 30, 30):
        list(encode(part(batches, list(range(end)))))
    assert encoded == [10, 0, 15, 5, 0]
    encode.drop()
    list(encode(part(batches, list(range(30)))))
    assert encoded[-1] == 30


@pytest.mark.usefixtures("all_kept")
def test_records_that_were_not_all_read_or_are_too_many_are_not_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    batches, encode = made(Random(2), 30), EncodedLines(Carry)
    reading = encode(part(batches, list(range(30))))
    next(reading)
    reading.close()  # type: ignore[attr-defined]
    assert len(encode._kept) == 0
    monkeypatch.setattr(unflushed, "_KEPT_BYTES", 100)
    whole = table(list(encode(part(batches, list(range(30))))))
    assert whole == table(list(record_batches(batches, Carry())))
    assert len(encode._kept) == 0
