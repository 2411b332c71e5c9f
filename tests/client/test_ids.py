"""Batch ids rise, whatever the clock does, and the service takes them for batch ids."""

from __future__ import annotations

from random import Random

from hypothesis import given
from hypothesis import strategies as st

from tailrace.logstore import ulid
from tailrace_client.records import BatchIds, decode, encode, is_batch_id


@given(st.lists(st.integers(min_value=0, max_value=(1 << 47)), min_size=1), st.integers())
def test_ids_rise_whatever_the_clock_does(times: list[int], seed: int) -> None:
    clock = iter(times)
    ids = BatchIds(now_ms=lambda: next(clock), random_bits=Random(seed).getrandbits)
    minted = [ids.mint() for _ in times]
    assert minted == sorted(set(minted))
    assert all(is_batch_id(text) for text in minted)
    assert [ulid.encode(ulid.decode(text)) for text in minted] == minted
    assert [ulid.batch_of(ulid.decode(text)) for text in minted] == [*map(decode, minted)]


@given(st.integers(min_value=0, max_value=(1 << 128) - 1))
def test_a_ulid_is_written_as_the_service_writes_it(number: int) -> None:
    assert encode(number) == ulid.encode(number)
    assert decode(encode(number)) == number


def test_two_processes_that_go_on_from_one_id_mint_different_ones() -> None:
    first, second = BatchIds(now_ms=lambda: 5), BatchIds(now_ms=lambda: 5)
    start = first.mint()
    second.go_above(start)
    assert len({start, *(ids.mint() for ids in (first, second) for _ in range(100))}) == 201


def test_a_clock_that_is_wrong_by_days_is_corrected() -> None:
    now = 1_795_000_000_000
    for wrong in (-8 * 86_400_000, 3_600_000):
        ids = BatchIds(now_ms=lambda wrong=wrong: now + wrong)  # type: ignore[misc]
        before = ids.mint()
        ids.correct(now)
        assert ulid.time_ms(ulid.decode(ids.mint())) == now
        assert abs(ulid.time_ms(ulid.decode(before)) - now) == abs(wrong)


def test_what_is_no_batch_id() -> None:
    for text in ("", "01M8431QHH9H0AQHNATVQ00001", "01M8431QHH9H0AQHNATVQ0000", "I" * 26):
        assert not is_batch_id(text)
