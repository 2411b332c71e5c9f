"""Leases by two ends of what is known of the store's time, and bounds of what is remembered."""

from __future__ import annotations

from dataclasses import replace

import pytest

from service.queue import transitions
from service.queue.catalog import Segment, SegmentName, parse_id
from service.queue.transitions import TimeInterval
from service.settings import QueueSettings
from tailrace.coordination.groups import (
    ConsumerGroup,
    FailedSegment,
    GroupCursor,
    GroupStart,
    State,
    decode_group,
    encode_group,
)
from tailrace.logstore.errors import Damaged, LeaseLost, UnsupportedVersion
from tests.edited import edited
from tests.settings import changed

SETTINGS = QueueSettings()
NAME = SegmentName("a", 1)
SEGMENTS = [
    Segment(SegmentName("a", seq), 10, "e", 0, 1, f"{seq:026}", f"{seq:026}") for seq in (1, 2, 3)
]
GROUP = ConsumerGroup("g", State.ACTIVE, GroupStart.OLDEST, 0, 0)


def at(at_least_ms: int, at_most_ms: int | None = None) -> TimeInterval:
    return TimeInterval(at_least_ms, at_least_ms if at_most_ms is None else at_most_ms)


def leased(
    group: ConsumerGroup, moment: TimeInterval, lease_ms: int = 10_000
) -> tuple[ConsumerGroup, int]:
    after, found = transitions.lease(group, SEGMENTS, str(moment), lease_ms, moment, SETTINGS)
    assert found is not None
    assert found.name == NAME
    return after, found.epoch


def test_a_lease_counts_from_the_latest_and_ends_at_the_earliest_that_it_may_be() -> None:
    group, epoch = leased(GROUP, at(100_000, 103_000))
    assert group.cursor("a").pending[1].until_ms == 113_000
    transitions.commit(group, NAME, epoch, at(112_999, 120_000))
    with pytest.raises(LeaseLost):
        transitions.commit(group, NAME, epoch, at(113_000))
    after, _ = transitions.lease(group, SEGMENTS[:1], "x", 1, at(114_999, 200_000), SETTINGS)
    assert after == group, "nobody takes it before it is surely over"
    leased(group, at(115_000, 116_000))


def test_what_was_applied_already_is_known_again() -> None:
    group, epoch = leased(GROUP, at(0))
    again, found = transitions.lease(group, SEGMENTS, str(at(0)), 10_000, at(5), SETTINGS)
    assert (again, found and found.epoch) == (group, epoch)
    done, _ = transitions.commit(group, NAME, epoch, at(1))
    assert transitions.commit(done, NAME, epoch, at(99_999_999))[0] == done
    back, _ = transitions.fail(group, NAME, epoch, "r", at(1), SETTINGS)
    assert transitions.fail(back, NAME, epoch, "r", at(1), SETTINGS)[0] == back
    gone, _ = transitions.given_back(group, str(at(0)))
    assert gone.cursor("a").pending[1].attempts == 0
    assert transitions.given_back(gone, str(at(0)))[0] == gone


def test_epochs_rise_when_the_clock_does_not() -> None:
    group, first = leased(GROUP, at(1_000_000))
    after, found = transitions.lease(group, SEGMENTS, "x", 1, at(500), SETTINGS)
    assert found is not None
    assert (found.name.seq, found.epoch) == (2, first + 1)
    anew, found = transitions.lease(GROUP, SEGMENTS, "x", 1, at(2_000_000), SETTINGS)
    assert found is not None
    assert found.epoch > after.epoch, "also over a removal of the group"
    assert anew.epoch == found.epoch


def test_a_repetition_is_known_for_hundreds_of_commits_and_not_for_ever() -> None:
    group, first = leased(GROUP, at(0))
    group, _ = transitions.commit(group, NAME, first, at(0))
    for seq in range(2, 1000):
        segment = Segment(SegmentName("a", seq), 10, "e", 0, 1, f"{seq:026}", f"{seq:026}")
        group, found = transitions.lease(group, [segment], str(seq), 1000, at(seq), SETTINGS)
        assert found is not None
        group, _ = transitions.commit(group, found.name, found.epoch, at(seq))
        if seq == 500:
            assert transitions.commit(group, NAME, first, at(seq))[0] == group
    with pytest.raises(LeaseLost):
        transitions.commit(group, NAME, first, at(1000))
    assert group.committed_segments == 999
    assert len(encode_group(group)) < 16_000


def test_a_consumer_that_fails_everything_is_remembered_within_bounds() -> None:
    settings = changed(QueueSettings(), max_attempts=1)
    group = GROUP
    for seq in range(1, 1101):
        segment = Segment(SegmentName("a", seq), 10, "e", 0, 1, f"{seq:026}", f"{seq:026}")
        group, found = transitions.lease(group, [segment], str(seq), 1000, at(seq), settings)
        assert found is not None
        group, _ = transitions.fail(group, found.name, found.epoch, "x" * 900, at(seq), settings)
    failed = group.cursor("a").failed
    assert (len(failed), min(failed), group.dropped) == (1000, 101, 100)
    assert all(len(one.reason) == 200 for one in failed.values())


@pytest.mark.parametrize(("name", "fails"), [("g", True), ("pipeline:audit@http", False)])
def test_processes_of_a_pipeline_that_die_fail_no_segment(name: str, fails: bool) -> None:
    """It reads without leases, and its checkpoint says what it has."""
    group, time = replace(GROUP, name=name), 0
    for number in range(SETTINGS.max_attempts * 3):
        claim = f"{number}"
        group, found = transitions.lease(group, SEGMENTS[:1], claim, 1000, at(time), SETTINGS)
        if fails and number >= SETTINGS.max_attempts:
            assert found is None
            assert group.cursor("a").failed.keys() == {1}
            return
        assert found is not None
        if number % 2 == 0:
            group, _ = transitions.fail(group, NAME, found.epoch, "ended", at(time), SETTINGS)
        time += 10_000
    assert not fails
    pending = group.cursor("a").pending[1]
    assert pending.available_ms == time - 10_000 + SETTINGS.retry_seconds * 1000, "not doubled"


def test_a_group_is_the_same_after_a_write_and_keeps_what_it_does_not_know() -> None:
    group, epoch = leased(GROUP, at(7))
    group, _ = transitions.commit(group, NAME, epoch, at(8))
    group, _ = transitions.lease(group, SEGMENTS, "x", 1000, at(9), SETTINGS)
    cursor = GroupCursor(
        5, {4: group.cursor("a").pending[2]}, {3: FailedSegment(1, 2, 3, "why", "low", 9)}
    )
    group = group.at("b", cursor)
    body = encode_group(group)
    assert decode_group("key", body) == group
    newer = edited(body, later=[1])
    assert decode_group("key", encode_group(decode_group("key", newer))).others == {"later": [1]}
    with pytest.raises(UnsupportedVersion):
        decode_group("key", edited(body, format=2))
    for damaged in (b"", b"[]", b"{}", body[:-1], edited(body, start="soon")):
        with pytest.raises(Damaged):
            decode_group("key", damaged)


@pytest.mark.parametrize("text", ["a-1", "node-01-01HF7YAVYGMDNNS70GMHHZVXGJ-12", "a.b_c-9"])
def test_an_id_names_its_segment(text: str) -> None:
    assert parse_id(text).id == text
