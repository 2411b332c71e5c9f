"""The order of events, beside a plain model that sorts them all."""

from __future__ import annotations

import random
from itertools import pairwise

import pyarrow as pa
import pytest

from tailrace.logstore import ulid
from tailrace.pipelines.events import EVENTS, ORDER, EventBuffer, EventCounts, Origin, ordered
from tests.pipelines.events import BASE_MS, events
from tests.seeds import seeds

US = 1000


def messages(table: pa.Table) -> list[str]:
    found: list[str] = table.column("message").to_pylist()
    return found


def test_events_come_in_the_order_of_their_time() -> None:
    buffer = EventBuffer(None)
    buffer.add(Origin("n", 1), events(["4", "5"], at_ms=BASE_MS + 40, step_ms=10))
    buffer.add(Origin("m", 1), events(["1", "2", "3"], at_ms=BASE_MS + 10, step_ms=10, batch=1))
    assert messages(buffer.take((BASE_MS + 40) * US)) == ["1", "2", "3", "4"]
    assert buffer.oldest("m") is None
    assert buffer.oldest("n") == 1
    assert messages(buffer.take((BASE_MS + 49) * US)) == []
    assert messages(buffer.take((BASE_MS + 50) * US)) == ["5"]
    assert buffer.counts == EventCounts()


def test_an_event_that_comes_too_late_goes_first_and_is_counted() -> None:
    buffer = EventBuffer(None)
    buffer.add(Origin("n", 1), events(["2"], at_ms=BASE_MS + 20))
    assert messages(buffer.take((BASE_MS + 30) * US)) == ["2"]
    buffer.add(Origin("n", 2), events(["1", "3"], at_ms=BASE_MS + 10, step_ms=15))
    buffer.add(Origin("m", 1), events(["2b"], at_ms=BASE_MS + 21))
    taken = buffer.take((BASE_MS + 22) * US)
    assert messages(taken) == ["1", "2b"]
    assert taken.column(ORDER).to_pylist() == ["late", None]
    assert ORDER not in buffer.take((BASE_MS + 30) * US).column_names
    assert buffer.counts == EventCounts(late=1)


def test_more_than_fits_goes_before_its_time() -> None:
    buffer = EventBuffer(None)
    # As CDAP's testBasicSort: what is far in the future does not fill the memory.
    many = events([f"{n:03d}" for n in range(500)], at_ms=BASE_MS + 10_000, step_ms=1)
    buffer.add(Origin("n", 1), many)
    assert buffer.force(1 << 20).num_rows == 0
    forced = buffer.force(1024)
    assert messages(forced) == [f"{n:03d}" for n in range(250)]
    assert forced.column(ORDER).to_pylist() == ["forced"] * 250
    assert buffer.counts.forced == 250
    assert messages(buffer.take((BASE_MS + 11_000) * US)) == [f"{n:03d}" for n in range(250, 500)]


def test_what_is_given_at_once_is_bounded_and_in_order() -> None:
    buffer = EventBuffer(None)
    for node, first in (("n", 0), ("m", 1)):
        texts = [f"{2 * n + first:04d}" + "x" * 1000 for n in range(500)]
        buffer.add(Origin(node, 1), events(texts, at_ms=BASE_MS + first, step_ms=2))
    found, most = list[pa.Table](), 100_000
    while (taken := buffer.take((BASE_MS + 899) * US, most)).num_rows:
        assert taken.nbytes <= most * 1.1
        found.append(taken)
        assert buffer.more == (sum(one.num_rows for one in found) < 900)
        assert buffer.frontier is not None
        assert buffer.frontier.moment == (BASE_MS + int(messages(taken)[-1][:4])) * US
    assert len(found) >= 9
    given = [message[:4] for one in found for message in messages(one)]
    assert given == [f"{n:04d}" for n in range(900)]
    assert len(buffer) == 100


def test_all_that_is_late_goes_at_once() -> None:
    buffer = EventBuffer(None)
    buffer.add(Origin("n", 1), events(["last"], at_ms=BASE_MS + 5000))
    buffer.take((BASE_MS + 5000) * US)
    buffer.add(Origin("n", 2), events(["x" * 1000] * 100, at_ms=BASE_MS, step_ms=1))
    assert buffer.late_wait
    assert buffer.take(0, 10_000).num_rows == 100
    assert not buffer.late_wait


def test_what_is_held_is_what_is_counted() -> None:
    """Also where most of a segment has gone: the rest of it does not hold the whole."""
    before, buffer = pa.total_allocated_bytes(), EventBuffer(None)
    for number in range(4):
        texts = ["x" * 1000] * 1000
        table = events(texts, at_ms=BASE_MS + 1000 * number, step_ms=1)
        buffer.add(Origin("n", number + 1), table.take(pa.array(range(1000))))
    del table, texts
    held = []
    for last in range(0, 4000, 50):
        taken = buffer.take((BASE_MS + last) * US)
        assert taken.num_rows <= 50
        del taken
        held.append(pa.total_allocated_bytes() - before)
        assert held[-1] <= buffer.size * 1.01 + 10_000  # it is allocated in pieces
        assert buffer.size <= 2.1 * 1100 * (len(buffer) + 50)
    assert held[0] > 4_000_000
    assert buffer.take((BASE_MS + 4000) * US).num_rows == 49
    assert buffer.size == 0


def test_appenders_that_take_all_of_a_segment_share_it() -> None:
    backward = pa.concat_tables(
        [events(["x" * 1000] * 500, at_ms=BASE_MS + at, batch=n) for n, at in enumerate((9, 5))]
    )
    table = ordered(backward)
    assert ordered(table) is table
    assert table.column("ts")[0].as_py() < table.column("ts")[-1].as_py()
    before = pa.total_allocated_bytes()
    buffers = [EventBuffer(None) for _ in range(20)]
    for buffer in buffers:
        buffer.add(Origin("n", 1), table)
    assert pa.total_allocated_bytes() - before < 500_000
    assert all(buffer.size > 500_000 for buffer in buffers)


def test_a_clock_that_is_wrong_by_years_holds_up_nothing() -> None:
    buffer = EventBuffer(None, ahead_ms=60_000)
    future = events(["future"], at_ms=BASE_MS + 10**10, received_ms=BASE_MS)
    buffer.add(Origin("n", 1), future)
    assert messages(buffer.take((BASE_MS + 59_999) * US)) == []
    copy = events(["copy"], at_ms=BASE_MS + 10**10, received_ms=BASE_MS)
    buffer.add(Origin("m", 1), copy)
    buffer.add(Origin("n", 2), events(["now"], at_ms=BASE_MS, batch=1))
    assert messages(buffer.take((BASE_MS + 60_000) * US)) == ["now", "future"]
    assert buffer.counts == EventCounts(copies=1, clamped=1)


def test_copies_of_a_record_are_one_event() -> None:
    buffer = EventBuffer(None)
    for node in ("n", "m"):
        buffer.add(Origin(node, 1), events(["a", "b"], step_ms=1))
    buffer.add(Origin("n", 2), events(["a"], fqn="other"))
    assert messages(buffer.take((BASE_MS + 1) * US)) == ["a", "a", "b"]
    assert buffer.counts == EventCounts(copies=2)


def test_what_was_given_out_before_a_crash_is_not_given_out_again() -> None:
    first = EventBuffer(None)
    segment = events(["1", "2", "3"], at_ms=BASE_MS, step_ms=10)
    first.add(Origin("n", 1), segment)
    assert messages(first.take((BASE_MS + 10) * US)) == ["1", "2"]
    second = EventBuffer(first.frontier)
    second.add(Origin("n", 1), segment, known=True)
    assert messages(second.take((BASE_MS + 99) * US)) == ["3"]
    assert second.counts.late == 0


@pytest.mark.parametrize("seed", seeds(30))
def test_random_streams_with_crashes_are_given_out_once_and_in_order(seed: int) -> None:
    """Segments of two nodes come bit by bit; a new buffer goes on from checkpoints at random."""
    dice = random.Random(seed)
    segments = {
        (node, seq): _segment(dice, node, seq) for node in ("a", "b") for seq in range(1, 8)
    }
    after: dict[str, int] = {"a": 1, "b": 1}
    buffer, given = EventBuffer(None), list[str]()
    saved = dict(after), dict(after), buffer.frontier, 0
    late = 0
    while min(after.values()) < 8 or len(buffer):
        action = dice.random()
        if action < 0.5 and (left := [node for node in after if after[node] < 8]):
            node = dice.choice(left)
            buffer.add(Origin(node, after[node]), segments[node, after[node]])
            after[node] += 1
        elif action < 0.85:
            given += messages(buffer.take((BASE_MS + dice.randrange(1200)) * US))
        elif action < 0.95 and not buffer.late_wait:
            lows = {node: buffer.oldest(node) or after[node] for node in after}
            saved = dict(after), lows, buffer.frontier, len(given)
        elif action >= 0.95:  # a crash: everything is as the checkpoint says
            late += buffer.counts.late
            after, lows, given = dict(saved[0]), saved[1], given[: saved[3]]
            buffer = EventBuffer(saved[2])
            for node, low in lows.items():
                for seq in range(low, after[node]):
                    buffer.add(Origin(node, seq), segments[node, seq], known=True)
    every = [message for table in segments.values() for message in messages(table)]
    assert sorted(given) == sorted(every)
    backward = sum(one[:13] > other[:13] for one, other in pairwise(given))
    assert backward <= late + buffer.counts.late


def _segment(dice: random.Random, node: str, seq: int) -> pa.Table:
    """Records with times around that of the segment; a message begins with its time."""
    tables = [EVENTS.empty_table()]
    for batch in range(dice.randrange(4)):
        at = BASE_MS + seq * 100 + dice.randrange(-150, 150)
        texts = [f"{at + n} {node} {seq} {batch} {n}" for n in range(dice.randrange(1, 5))]
        number = (seq << 4 | batch) << 1 | (node == "a")
        tables.append(events(texts, at_ms=at, step_ms=1, batch=number, fqn=dice.choice("xy")))
    return pa.concat_tables(tables)


def test_the_time_of_a_ulid_is_read_as_ulids_are() -> None:
    table = events(["a"], received_ms=BASE_MS)
    assert ulid.time_ms(ulid.decode(table.column("ulid")[0].as_py())) == BASE_MS
