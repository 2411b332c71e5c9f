"""Files that grow: what was there, what comes, unfinished lines, restarts."""

from __future__ import annotations

from pathlib import Path

from tailrace.forwarder.delivery.targets import Shipment
from tests.forwarder.engine.world import World


def test_lines_that_are_there_and_lines_that_come(tmp_path: Path) -> None:
    world = World(tmp_path)
    expected = world.lines("a.log", 0, 10)
    world.poll()
    assert world.store.lines() == expected
    expected += world.lines("a.log", 10, 20)
    world.poll()
    assert world.store.lines() == expected
    expected += world.lines("b.log", 0, 5)
    world.poll()
    assert world.store.lines() == expected
    assert len(world.store.runs()) == 2


def test_an_unfinished_line_waits_for_its_rest(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.write("a.log", "one\nhalf")
    world.poll()
    assert world.store.lines() == ["one"]
    world.write("a.log", " and half\nthird")
    world.poll()
    assert world.store.lines() == ["one", "half and half"]
    world.flush()
    assert world.store.lines() == ["one", "half and half", "third"]


def test_new_bytes_begin_the_wait_again(tmp_path: Path) -> None:
    world = World(tmp_path)
    for _ in range(5):
        world.write("a.log", "piece ")
        world.settle(0.3)
    assert world.store.lines() == []
    world.flush()
    assert world.store.lines() == ["piece " * 5]


def test_without_a_flush_period_an_unfinished_line_waits_for_ever(tmp_path: Path) -> None:
    world = World(tmp_path, force_flush_period=0)
    world.write("a.log", "one\nhalf")
    world.settle(3600)
    assert world.store.lines() == ["one"]


def test_start_at_end_skips_what_was_there_and_nothing_else(tmp_path: Path) -> None:
    world = World(tmp_path, start_at="end")
    world.lines("a.log", 0, 10)
    world.poll()
    assert world.store.lines() == []
    expected = world.lines("a.log", 10, 12)
    world.poll()
    assert world.store.lines() == expected
    expected += world.lines("b.log", 0, 3)
    world.poll()
    assert world.store.lines() == expected
    world.restart()
    expected += world.lines("a.log", 12, 14)
    expected += world.lines("c.log", 0, 2)
    world.poll()
    assert sorted(world.store.lines()) == sorted(expected)


def test_a_large_file_is_read_in_blocks(tmp_path: Path) -> None:
    world = World(tmp_path)
    expected = world.lines("a.log", 0, 100_000)
    world.poll()
    assert world.store.lines() == expected
    assert len(world.store.batches) >= 3
    assert all(len(body) <= 1 << 20 for _, body in world.store.batches.values())


def test_a_restart_goes_on_where_the_last_acknowledgement_was(tmp_path: Path) -> None:
    world = World(tmp_path)
    expected = world.lines("a.log", 0, 10)
    world.poll()
    world.restart()
    expected += world.lines("a.log", 10, 20)
    world.poll()
    assert world.store.lines() == expected


def test_a_batch_whose_answer_was_lost_keeps_its_id(tmp_path: Path) -> None:
    world = World(tmp_path)
    expected = world.lines("a.log", 0, 10)
    world.engine.round()
    shipment = world.post.waiting[0]
    assert isinstance(shipment, Shipment)
    world.store.take(shipment.run, shipment.batch, shipment.body)
    world.restart()
    expected += world.lines("a.log", 10, 20)
    world.poll()
    assert world.store.lines() == expected
    assert world.tally.duplicate_batches == 1


def test_a_service_that_is_away_makes_it_read_less(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.store.away = True
    expected = world.lines("a.log", 0, 200_000)
    world.settle(10)
    assert world.engine.sending.bytes <= 2 << 20
    world.store.away = False
    world.poll()
    assert world.store.lines() == expected
    assert world.engine.sending.bytes == 0


def test_a_log_that_begins_as_one_whose_batch_is_resent_is_another_one(tmp_path: Path) -> None:
    """A banner longer than the fingerprint; the service has the batch, and its answer was lost."""
    world = World(tmp_path, fingerprint_size=1000, run="{stem}")
    banner = "".join(f"banner {number}\n" for number in range(120))
    world.write("a.log", banner)
    old = world.lines("a.log", 0, 10)
    world.store.away = True
    world.settle(0.1)
    for shipment in list(world.post.waiting):
        assert isinstance(shipment, Shipment)
        world.store.take(shipment.run, shipment.batch, shipment.body)
    world.restart()
    world.path("a.log").unlink()
    world.write("a.log", banner)
    new = world.lines("a.log", 100, 200)
    world.store.away = False
    world.poll()
    world.settle(1)
    world.over()
    stored = world.store.lines()
    assert [line for line in stored if "banner" not in line] == old + new
    assert stored.count("banner 7") == 2
