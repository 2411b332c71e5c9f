"""Run logs over a real S3 server, through the fault proxy: crashes, races, long lives.

Other tests run the scenarios over a simulated disk, for every step, every fault and more seeds.
Here a process dies at every thirteenth step, and what the store's calls do is up to the
server and the proxy.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from tests.service.runs import test_crashes as crashes
from tests.service.runs import test_interleavings as interleavings
from tests.service.runs import test_sweeper_races as races
from tests.service.runs.openmetadata import test_import_crashes as adopt_crashes
from tests.simulation.faulty_store import Fault

pytestmark = pytest.mark.usefixtures("every_server")

Simulation = Callable[[], Awaitable[None]]
Killed = Callable[[], Awaitable[None]]

OURS, THEIRS = adopt_crashes.PLAIN, adopt_crashes.RUN
LOGS, PARTIAL = {"logs": b"a\nb\n"}, {"partial": b"a\nb"}
taken_in = adopt_crashes.test_killed_between_any_two_calls
delete_of_theirs = adopt_crashes.test_a_deletion_killed_anywhere_is_finished_or_did_not_happen

KILL = Fault.CRASH_AFTER
KILLED: dict[str, Killed] = {
    "flush": lambda: crashes.test_flush(KILL, 3),
    "close": lambda: crashes.test_close(KILL, True),
    "delete": lambda: crashes.test_delete(KILL),
    "taken in by a page": lambda: taken_in(KILL, 0, THEIRS, PARTIAL, b"a\nb\n"),
    "taken in by a flush": lambda: taken_in(KILL, 1, OURS, LOGS, b"a\nb\n"),
    "taken in by a close": lambda: taken_in(KILL, 2, THEIRS, LOGS, b"a\nb\n"),
    "taken in, deleted": lambda: delete_of_theirs(True, THEIRS),
}
SCENARIOS: dict[str, Simulation] = {
    "two flushers": crashes.test_two_flushers_race_on_one_manifest,
    "released segments": crashes.test_released_segments_are_flushed_from_the_store,
    "taken in by two": lambda: adopt_crashes.test_two_nodes_at_once(2, THEIRS),
    "taken in by two, in place": lambda: adopt_crashes.test_two_nodes_at_once(3, OURS),
    "taken in for many": adopt_crashes.test_many_readers_share_one_scan_and_outlive_the_first,
}


@pytest.mark.in_turn(4)
@pytest.mark.parametrize("act", KILLED)
async def test_killed(act: str) -> None:
    await KILLED[act]()


@pytest.mark.parametrize("scenario", SCENARIOS)
async def test_scenarios(scenario: str) -> None:
    await SCENARIOS[scenario]()


def test_a_long_life() -> None:
    interleavings.test_long_lives(3)


def test_a_close_keeps_what_only_a_segment_holds() -> None:
    interleavings.test_a_close_keeps_what_only_a_segment_holds()


@pytest.mark.in_turn(4)
def test_appends_closes_and_sweepers_race() -> None:
    races.test_appends_closes_and_sweepers_race(0)


@pytest.mark.in_turn(4)
def test_a_sweeper_dies_between_two_of_its_steps() -> None:
    assert races.died_at(7, seed=7)
    assert races.died_at(20, seed=20)
