"""State objects that were changed, cut or emptied: no reader believes them, and verify names them.

A flipped bit that leaves valid JSON is the hard case. Each kind is taken with every bit of it.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from random import Random

import orjson
import pytest

from service.runtime.process import in_thread
from service.shipping.watermarks import Watermarks
from tailrace.logstore import keys
from tailrace.logstore.clock import SystemClock, system_entropy
from tailrace.logstore.errors import Damaged
from tailrace.logstore.objects.store import ObjectStore
from tailrace.logstore.runs.report import decode_watermark
from tailrace.logstore.state import STATE_KINDS, kind_of
from tailrace.verification.findings import Fault, Findings
from tailrace.verification.state import StateCheck, StateRepair, decode_state
from tests.edited import flips
from tests.simulation.backing import open_store
from tests.simulation.powercut import PowerCutFileSystem
from tests.tailrace.verification.samples import NODE, SAMPLES


def _is_json(body: bytes) -> bool:
    try:
        orjson.loads(body)
    except ValueError:
        return False
    return True


def test_each_kind_in_the_store_has_a_sample() -> None:
    assert SAMPLES.keys() == {kind.name for kind in STATE_KINDS if kind.place == "store"}
    for name, (key, body) in SAMPLES.items():
        found = kind_of(key)
        assert found is not None
        assert found.name == name
        decode_state(key, body)


@pytest.mark.parametrize("name", SAMPLES)
def test_no_reader_believes_an_object_with_a_flipped_bit(name: str) -> None:
    key, body = SAMPLES[name]
    believable = 0
    for changed in flips(body):
        believable += _is_json(changed)
        with pytest.raises(Damaged):
            decode_state(key, changed)
    assert believable > len(body), "most flips leave valid JSON"


@pytest.mark.parametrize("name", SAMPLES)
def test_no_reader_believes_an_object_that_is_cut_or_emptied(name: str) -> None:
    key, body = SAMPLES[name]
    for size in range(len(body)):
        with pytest.raises(Damaged):
            decode_state(key, body[:size])


@dataclass
class Checked:
    """A store in memory that is checked and repaired."""

    store: ObjectStore
    faults: list[Fault] = field(default_factory=list)

    def put(self, key: str, body: bytes) -> None:
        asyncio.run(self.store.put(key, body))

    def get(self, key: str) -> bytes:
        return asyncio.run(self.store.get(key))[1]

    def check(self, *, repair: bool = False) -> list[tuple[str, str]]:
        """The kinds and places of the faults, those of manifests too."""
        store, clock = self.store, SystemClock()
        marks = Watermarks(store, clock, system_entropy(), in_thread, lambda _: 5)
        state = StateRepair(store, marks, clock, system_entropy()) if repair else None
        self.faults = []
        check = StateCheck(store, Findings(self.faults.append), state)

        async def work() -> None:
            await check.check()
            async for info in store.list(keys.RUNS):
                await check.read(info.key)

        asyncio.run(work())
        return [(fault.kind, fault.place) for fault in self.faults]


@pytest.fixture
def checked() -> Checked:
    """A store with an intact object of each kind."""
    made = Checked(open_store(PowerCutFileSystem(), SystemClock(), Random(1)))
    for key, body in SAMPLES.values():
        made.put(key, body)
    assert made.check() == []
    return made


def test_verify_names_each_changed_object_and_turns_its_bit_back(checked: Checked) -> None:
    dice = Random(7)
    places = {key for key, _ in SAMPLES.values()}
    for _ in range(2):
        changed = {}
        for key, body in SAMPLES.values():
            changed[key] = dice.choice([one for one in flips(body) if _is_json(one)])
            checked.put(key, changed[key])
        found = checked.check()
        assert {place for _, place in found} == places
        assert [kind for kind, _ in found].count("manifest-damaged") == 1
        assert all("tailrace verify --repair" in fault.detail for fault in checked.faults)
        assert all(checked.get(key) == body for key, body in changed.items()), "only looked at"
        assert sorted(checked.check(repair=True)) == sorted(found)
        assert all(fault.repaired for fault in checked.faults)
        assert all(checked.get(key) == body for key, body in SAMPLES.values())
        assert checked.check() == []


@pytest.mark.parametrize("left", [0, 40])
def test_verify_names_each_object_that_is_emptied_or_cut(checked: Checked, left: int) -> None:
    for key, body in SAMPLES.values():
        checked.put(key, body[:left])
    assert {place for _, place in checked.check()} == {key for key, _ in SAMPLES.values()}


def test_an_object_at_the_key_of_another_is_named(checked: Checked) -> None:
    key, body = SAMPLES["consumer group"]
    checked.put(f"{key}-2", body)
    assert checked.check() == [("state-damaged", f"{key}-2")]


def test_what_can_be_computed_is_restored_from_an_empty_object(checked: Checked) -> None:
    for name in ("watermark", "deletion of a run", "quarantine marker", "shedding slots"):
        checked.put(SAMPLES[name][0], b"")
    places = {SAMPLES[name][0] for name in ("watermark", "deletion of a run", "quarantine marker")}
    checked.check(repair=True)
    assert {fault.place for fault in checked.faults if fault.repaired} == places
    assert checked.check() == [("state-damaged", keys.SHEDDING)]
    mark = decode_watermark(checked.get(keys.watermark(NODE)))
    assert (mark.seq, mark.low) == (5, 6), "what the table has"
