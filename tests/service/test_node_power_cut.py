"""The power goes at any call of a whole node: journal, folder, store and texts at once.

A scenario of many kinds of steps is run over a simulated disk. At each call the disk is kept
as it might be after a power cut. On each of those a new node starts; clients send again
what was not acknowledged; then everything is read back in every way and held against
what the clients were told. Some of those nodes lose their power again.

Of all calls the suite takes every `STRIDE`th, others in each run (`tests.seeds.first_of`), so that
over time each has its turn; `make sim SEED=…` takes all of them.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from copy import deepcopy
from dataclasses import dataclass
from hashlib import blake2b
from random import Random

import pytest

from tests.seeds import CHOICE, choose, first_of, seeds
from tests.service.client_model import Clients
from tests.service.node_simulation import end_well, first_life
from tests.service.simulated_node import START_MS, Life
from tests.simulation.powercut import PowerCutFileSystem
from tests.simulation.virtual_time import VirtualClock, simulate

ALL = "TAILRACE_SIM_SEED" in os.environ
SOME = 122
STRIDE = 1 if ALL else SOME


@dataclass
class Moment:
    """The disk after a power cut at one call, and what clients knew by then."""

    call: int
    fs: PowerCutFileSystem
    clients: Clients


def told(seed: int, calls: Iterable[int]) -> tuple[PowerCutFileSystem, list[Moment]]:
    """Tells the first life whole, keeping the disk as it may be after a cut at `calls`."""
    fs, clients = PowerCutFileSystem(), Clients(seed)
    kept: list[Moment] = []
    wanted = set(calls)

    def keep(call: int) -> None:
        if call in wanted:
            kept.append(Moment(call, fs.after_power_cut(seed), deepcopy(clients)))

    async def go(clock: VirtualClock) -> None:
        await first_life(Life(fs, clock, seed=seed), clients)

    fs.at_cut_point = keep
    simulate(go, start_ms=START_MS)
    return fs, kept


def settle(moment: Moment, seed: int, *, again: int | None = None) -> Moment | None:
    """Goes on from a moment to the end; gives the moment of its own call `again`."""
    fs, clients = moment.fs, moment.clients
    kept: list[Moment] = []

    def keep(call: int) -> None:
        if call == again:
            kept.append(Moment(call, fs.after_power_cut(seed), deepcopy(clients)))

    fs.at_cut_point = keep
    end_well(fs, clients, seed)
    return kept[0] if kept else None


@pytest.mark.in_turn(4)
@pytest.mark.parametrize("seed", seeds(3))
def test_the_power_goes_at_any_call(seed: int) -> None:
    fs, _ = told(seed, [])
    total = len(fs.calls)
    _, moments = told(seed, range(first_of(STRIDE, seed) + 1, total + 1, STRIDE))
    failures: list[str] = []
    for moment in moments:
        again = 1 + Random(f"{seed} {moment.call}").randrange(300)
        try:
            second = settle(moment, seed, again=again)
            if second is not None and moment.call % 3 == 0:
                # Other dice than before, as in life: or it mints the same ids once more.
                settle(second, seed + 5)
        except Exception as error:  # noqa: BLE001 -- all failing calls are wanted, to replay
            failures.append(f"seed {seed} call {moment.call}, then {again}: {error!r}")
    assert not failures, "\n".join([choose(), *failures])


def test_every_call_has_its_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    firsts = set()
    for number in range(1000):
        monkeypatch.setenv(CHOICE, str(number))
        assert choose() == f"{CHOICE}={number}", "who is told a choice makes that one"
        firsts.add(first_of(SOME, 0))
    assert firsts == set(range(SOME))


def trace(seed: int) -> str:
    """A digest of all calls of a scenario."""
    fs, _ = told(seed, [])
    return blake2b("\n".join(fs.calls).encode()).hexdigest()


def test_a_seed_gives_the_same_scenario_each_time() -> None:
    assert trace(1) == trace(1)
    assert trace(1) != trace(2)
