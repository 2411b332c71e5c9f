"""What the service answers, and what becomes of the batch, the file, and its run."""

from __future__ import annotations

from pathlib import Path

import pytest

from tailrace.forwarder.delivery.targets import Shipment, VerdictKind
from tailrace_client import system
from tailrace_client.records import BatchIds
from tests.forwarder.engine.world import World


def _run_of(world: World) -> str:
    (file,) = world.shared.registry.files.values()
    return file.run


def test_a_deleted_run_drops_what_was_made_before_and_counts_it(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.lines("a.log", 0, 10)
    world.engine.round()
    world.store.refusals[_run_of(world)] = "deleted"
    world.poll()
    assert world.store.lines() == []
    assert world.tally.dropped_records == 10
    del world.store.refusals[_run_of(world)]
    expected = world.lines("a.log", 10, 20)
    world.poll()
    assert world.store.lines() == expected


@pytest.mark.parametrize("killed", [False, True])
def test_what_was_read_after_a_deletion_is_sent_once_with_ids_above_it(
    tmp_path: Path, killed: bool
) -> None:
    """Also where the forwarder is killed when the batches have their new ids."""
    world = World(tmp_path)
    world.lines("a.log", 0, 10)
    world.engine.round()
    world.store.deleted_ms = system.steady_ms() + 1
    while system.steady_ms() < world.store.deleted_ms:
        """The clock goes on."""
    world.store.deleted_through = BatchIds(now_ms=lambda: world.clock.now_ms() + 660_000).mint()
    expected: list[str] = []
    for number in range(1, 4):
        expected += world.lines("a.log", number * 10, number * 10 + 10)
        world.engine.round()
        world.poll()
        if killed:
            world.kill()
            world.start()
    world.poll()
    assert world.store.lines() == expected
    assert world.tally.dropped_records == (0 if killed else 10)
    assert any("10 records from before that are dropped" in said for said in world.said)
    assert min(world.store.batches) > world.store.deleted_through
    assert list(world.store.batches) == sorted(world.store.batches)


@pytest.mark.parametrize("kind", ["conflict", "refused"])
def test_a_batch_that_is_refused_stops_its_file_alone(tmp_path: Path, kind: VerdictKind) -> None:
    world = World(tmp_path)
    refused = world.lines("a.log", 0, 10)
    world.engine.round()
    world.store.refusals[_run_of(world)] = kind
    world.poll()
    expected = world.lines("b.log", 0, 10)
    refused += world.lines("a.log", 10, 20)
    world.poll()
    assert world.store.lines() == expected
    assert world.tally.failed_files == 1
    for alarms in (1, 3):
        assert sum(said.startswith("ALARM") for said in world.said) == alarms
        world.restart()
        world.poll()
        assert world.store.lines() == expected
    world.store.refusals.clear()
    world.restart()
    world.poll()
    assert sorted(world.store.lines()) == sorted(expected + refused)
    world.lines("a.log", 20, 30)
    world.poll()
    assert len(world.store.lines()) == 40


def test_a_batch_that_is_too_old_gets_a_new_id(tmp_path: Path) -> None:
    world = World(tmp_path)
    expected = world.lines("a.log", 0, 30_000)
    world.engine.round()
    world.engine.round()
    (first,) = world.post.waiting
    assert isinstance(first, Shipment)
    world.store.refusals[_run_of(world)] = "renew"
    world.poll()
    assert world.store.lines() == expected
    assert first.batch not in world.store.batches
    assert list(world.store.batches) == sorted(world.store.batches)


@pytest.mark.parametrize("arrived", [True, False])
def test_a_batch_whose_bytes_are_gone_is_asked_for(tmp_path: Path, arrived: bool) -> None:
    world = World(tmp_path)
    expected = world.lines("a.log", 0, 10)
    world.engine.round()
    (sent,) = world.post.waiting
    assert isinstance(sent, Shipment)
    if arrived:
        world.store.take(sent.run, sent.batch, sent.body)
    world.kill()
    world.path("a.log").unlink()
    world.start()
    world.over()
    assert world.store.lines() == (expected if arrived else [])
    assert world.tally.lost_bytes == (0 if arrived else len(sent.body))


@pytest.mark.parametrize("restarts", [0, 1])
@pytest.mark.parametrize("read_before", [0, 10])
def test_a_file_whose_batch_was_asked_for_is_known_when_it_comes_back(
    tmp_path: Path, read_before: int, restarts: int
) -> None:
    world = World(tmp_path)
    expected = world.lines("a.log", 0, read_before)
    world.poll()
    expected += world.lines("a.log", read_before, 3_000)
    world.clock.move(1)
    world.engine.round()
    (sent,) = world.post.waiting
    assert isinstance(sent, Shipment)
    world.store.take(sent.run, sent.batch, sent.body)  # and its answer is lost
    world.kill()
    away = tmp_path / "away.log"
    world.path("a.log").rename(away)
    world.start()
    world.over()
    assert world.store.closed == world.store.runs()
    for _ in range(restarts):
        world.restart()
    away.rename(world.path("a.log"))
    expected += world.lines("a.log", 3_000, 3_010)
    world.over()
    assert world.store.lines() == expected
    assert len(world.store.runs()) == 1
    assert world.tally.lost_bytes == 0


@pytest.mark.parametrize("arrived", [True, False])
def test_a_batch_that_would_be_made_differently_now_is_asked_for(
    tmp_path: Path, arrived: bool
) -> None:
    world = World(tmp_path)
    expected = world.lines("a.log", 0, 10)
    world.engine.round()
    (sent,) = world.post.waiting
    assert isinstance(sent, Shipment)
    if arrived:
        world.store.take(sent.run, sent.batch, sent.body)
    world.kill()
    world.prefix = b"changed "  # as a new configuration would
    expected += world.lines("a.log", 10, 12)
    world.start()
    world.poll()
    changed = [f"changed {line}" for line in expected]
    assert world.store.lines() == ([*expected[:10], *changed[10:]] if arrived else changed)


def test_a_file_that_is_deleted_after_it_was_read(tmp_path: Path) -> None:
    world = World(tmp_path, delete_after_read=True)
    expected = world.lines("a.log", 0, 10)
    world.store.away = True
    world.poll()
    assert world.path("a.log").exists()
    world.store.away = False
    world.poll()
    assert not world.path("a.log").exists()
    assert world.store.lines() == expected
    assert world.store.closed == world.store.runs()
    expected += world.lines("a.log", 10, 20)
    world.write("a.log", "unfinished")
    world.poll()
    assert world.path("a.log").exists()
    world.flush()
    assert not world.path("a.log").exists()
    assert world.store.lines() == [*expected, "unfinished"]


def test_a_run_of_an_idle_file_is_closed(tmp_path: Path) -> None:
    world = World(tmp_path, close_after="60s")
    expected = world.lines("a.log", 0, 10)
    world.settle(50)
    expected += world.lines("a.log", 10, 20)
    world.settle(50)
    assert world.store.closed == []
    world.settle(20)
    assert world.store.closed == world.store.runs()
    expected += world.lines("a.log", 20, 30)
    world.poll()
    assert world.store.lines() == expected
    world.settle(70)
    assert world.store.closed == world.store.runs() * 2


def test_a_run_of_several_files_is_closed_with_the_last(tmp_path: Path) -> None:
    world = World(tmp_path, run="all")
    world.lines("a.log", 0, 10)
    world.lines("b.log", 0, 10)
    world.poll()
    world.path("a.log").unlink()
    world.over()
    assert world.store.closed == []
    world.path("b.log").unlink()
    world.over()
    assert world.store.closed == ["all"]


def test_a_run_is_closed_after_a_restart_in_between(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.lines("a.log", 0, 10)
    world.poll()
    world.path("a.log").unlink()
    world.settle(1)
    assert world.store.closed == []
    world.restart()
    world.over()
    assert world.store.closed == world.store.runs()
    world.restart()
    world.over()
    assert world.store.closed == world.store.runs()


def test_what_is_gone_for_long_is_forgotten(tmp_path: Path) -> None:
    world = World(tmp_path, forget_after="1d")
    world.lines("a.log", 0, 10)
    world.lines("b.log", 0, 10)
    world.poll()
    world.path("a.log").unlink()
    world.over()
    assert len(world.checkpoints.files) == 2
    for _ in range(26):
        world.clock.move(3600)
        world.poll()
    assert [Path(state.path).name for state in world.checkpoints.files.values()] == ["b.log"]
