"""Ids that are ahead of the clock, of a deletion or of a client, are those of one run."""

from __future__ import annotations

from random import Random

from hypothesis import given
from hypothesis import strategies as st

from tailrace.logstore import ulid as ulids
from tailrace.logstore.runs.deletions import horizon_above, moment_of
from tests.simulation.clocks import ManualClock

ULID = st.integers(0, (1 << 127) - 1)
MOMENT = st.integers(0, ulids.MAX_TIME_MS - 1)


def test_ids_after_a_deletion_that_is_ahead_rise_with_the_clock_and_move_no_others() -> None:
    clock = ManualClock()
    minter = ulids.Minter(clock, Random(5))
    deleted = horizon_above(ulids.lowest_at(clock.now_ms() + 660_000), clock.now_ms())
    last = deleted
    for _ in range(700):
        minted = minter.mint(deleted=deleted)
        if clock.now_ms() <= ulids.time_ms(deleted):
            assert ulids.time_ms(minted) == ulids.time_ms(deleted) + 1
            assert ulids.made_ms(minted) == clock.now_ms()
        assert minted > last, "also if nobody knows the run's last id"
        last = minted
        assert ulids.time_ms(minter.mint()) == clock.now_ms()
        clock.ms += 1_000
    assert ulids.time_ms(last) == clock.now_ms() - 1_000


def test_an_id_above_a_runs_last_moves_no_others() -> None:
    clock = ManualClock()
    minter = ulids.Minter(clock, Random(6))
    ahead = ulids.lowest_at(clock.now_ms() + 600_000)
    assert minter.mint(ahead) > ahead
    assert ulids.time_ms(minter.mint()) == clock.now_ms()


@given(ULID, MOMENT, MOMENT)
def test_a_deletion_reaches_all_that_is_known_and_says_when_it_was(
    known: int, moment_ms: int, later_ms: int
) -> None:
    t = horizon_above(known, moment_ms)
    assert t >= known
    assert moment_of(t) == moment_ms
    if later_ms > moment_ms:
        assert horizon_above(t, later_ms) > t


@given(MOMENT)
def test_deletions_of_earlier_versions_do_not_say_when(moment_ms: int) -> None:
    assert moment_of(ulids.highest_at(moment_ms)) is None
