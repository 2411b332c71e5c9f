"""The next batch's segments are verified beside a merge, once, and nothing else is done to them."""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from compactor.intake.take_in import take_in_all
from compactor.report import Report
from compactor.settings import Compaction
from compactor.spark.merge_input import MergeInput
from logstore import keys
from logstore.clock import SystemClock
from logstore.disk import Disk
from logstore.entropy import system_entropy
from logstore.objects.local import LocalStore
from logstore.objects.store import ObjectInfo
from tests.compactor.elsewhere import elsewhere
from tests.compactor.lake import NOON, Batch, Lake, batch
from tests.compactor.plain_engine import PlainEngine

_PATIENCE: float = 60.0  # seconds: how long a failing test takes, and no other


class ReadStore(LocalStore):
    """Tells which segments were read."""

    def __init__(self, root: str) -> None:
        super().__init__(root, Disk(), SystemClock(), system_entropy())
        self.read = Counter[str]()
        self.change = threading.Condition()

    async def get(
        self, key: str, *, offset: int = 0, size: int | None = None, if_match: str | None = None
    ) -> tuple[ObjectInfo, bytes]:
        found = await super().get(key, offset=offset, size=size, if_match=if_match)
        with self.change:
            self.read[key] += key.startswith("segments/")
            self.change.notify_all()
        return found

    def wait_for(self, key: str) -> bool:
        with self.change:
            return self.change.wait_for(lambda: self.read[key] > 0, _PATIENCE)


@dataclass
class Patient(PlainEngine):
    """A merge ends when the segment behind its own was read, if there is one."""

    store: ReadStore = field(kw_only=True)
    last: int = 0
    waited: list[bool] = field(default_factory=list)

    def merge(self, work: MergeInput, folder: str) -> int:
        seq = max(int(Path(path).stem) for path in work.segments)
        if seq < self.last:
            self.waited.append(self.store.wait_for(keys.segment("a", seq + 1)))
        return super().merge(work, folder)


@pytest.fixture
def store(lake: Lake) -> ReadStore:
    lake.store = found = ReadStore(lake.settings.store_folder)
    return found


@pytest.fixture
def engine(lake: Lake, store: ReadStore) -> Patient:
    lake.session = found = Patient(store=store)
    return found


def put(lake: Lake, engine: Patient, count: int, *, in_a_batch: int = 1) -> list[Batch]:
    """Segments of one node, so many of them in each batch."""
    sent = [batch("f", "r", NOON + i, 20) for i in range(count)]
    listed = [lake.run(lake.store.head(lake.put("a", [one]))).size for one in sent]
    lake.limits = Compaction(batch_bytes=in_a_batch * max(listed) + min(listed) // 2)
    engine.last = count
    return sent


def took_in(lake: Lake) -> Report:
    report = Report()
    lake.run(take_in_all(lake.compactor, report))
    return report


@pytest.mark.parametrize("in_a_batch", [1, 3])
def test_segments_are_read_once_and_before_it_is_their_turn(
    lake: Lake, store: ReadStore, engine: Patient, in_a_batch: int
) -> None:
    sent = put(lake, engine, 9, in_a_batch=in_a_batch)
    report = took_in(lake)
    lake.holds(sent)
    assert report.commits == 9 // in_a_batch
    assert engine.waited == [True] * (report.commits - 1)
    assert set(store.read.values()) <= {0, 1}
    assert sum(store.read.values()) == 9


def test_another_driver_was_quicker_than_what_was_looked_at(
    lake: Lake, store: ReadStore, engine: Patient
) -> None:
    """It takes in the batch that is merged here, and the one that is looked at."""
    sent = put(lake, engine, 4)
    other = Lake(lake.data, session=PlainEngine(), limits=lake.limits)
    other.reached = Killed(after=2)
    steps: list[str] = []

    def reached(step: str) -> None:
        steps.append(step)
        if steps == ["written"]:
            elsewhere(lambda: killed(other))

    lake.reached = reached
    report = took_in(lake)
    lake.holds(sent)
    assert (report.commits, report.segments, report.rows_out) == (2, 2, 40)
    assert steps.count("committed") == 2


def test_a_damaged_segment_is_set_aside_when_it_is_its_turn(
    lake: Lake, store: ReadStore, engine: Patient
) -> None:
    sent = put(lake, engine, 3)
    key = keys.segment("a", 2)
    body = bytearray(lake.run(store.get(key))[1])
    body[50] ^= 1
    lake.put_bytes(key, bytes(body))
    store.read.clear()
    lake.reached = Killed(after=1)
    killed(lake)
    assert (store.read[key], lake.keys(keys.ASIDE)) == (1, [])
    lake.reached = lambda _step: None
    assert took_in(lake).set_aside == 1
    assert lake.keys(keys.ASIDE) == [keys.aside("a", 2)]
    lake.holds([sent[0], sent[2]])


class Kill(BaseException):
    """The end of a driver."""


@dataclass
class Killed:
    """Ends a driver when it has committed so often."""

    after: int

    def __call__(self, step: str) -> None:
        self.after -= step == "committed"
        if not self.after:
            raise Kill


def killed(lake: Lake) -> None:
    with pytest.raises(Kill):
        took_in(lake)
