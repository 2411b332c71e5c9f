"""What the service answers, and what becomes of the batch, the file, and its run."""

from __future__ import annotations

from pathlib import Path

import pytest

from forwarder.delivery.verdicts import Shipment, VerdictKind
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


@pytest.mark.parametrize("kind", ["conflict", "refused"])
def test_a_batch_that_is_refused_stops_its_file_alone(tmp_path: Path, kind: VerdictKind) -> None:
    world = World(tmp_path)
    world.lines("a.log", 0, 10)
    world.engine.round()
    world.store.refusals[_run_of(world)] = kind
    world.poll()
    expected = world.lines("b.log", 0, 10)
    world.lines("a.log", 10, 20)
    world.poll()
    assert world.store.lines() == expected
    assert world.tally.failed_files == 1
    assert any(said.startswith("ALARM") for said in world.said)
    world.restart()
    world.poll()
    assert world.store.lines() == expected


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
