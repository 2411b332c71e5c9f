"""Keys of a source that change what the engine does with its files."""

from __future__ import annotations

import fcntl
import gzip
from pathlib import Path

import pytest
import zstandard

from tailrace.forwarder.delivery.targets import Shipment
from tests.forwarder.engine.world import World

# --- duplicates ---------------------------------------------------------------------


def test_duplicates_once_reads_one_of_several_copies(tmp_path: Path) -> None:
    world = World(tmp_path)
    expected = world.lines("a.log", 0, 100)
    world.path("a.log.1").write_bytes(world.path("a.log").read_bytes())
    world.poll()
    assert world.store.lines() == expected
    (said,) = [said for said in world.said if "a.log.1 is not read" in said]
    assert "a rotation or a copy of it" in said
    world.settle(5)
    assert len([said for said in world.said if "is not read" in said]) == 1


@pytest.mark.parametrize("lines", [1, 100], ids=["short", "long"])
@pytest.mark.parametrize(
    "names",
    [
        ("nightly-2026-11-27.log", "nightly-2026-11-28.log", "nightly-2026-11-29.log"),
        ("nightly.log.20261127", "nightly.log.20261128", "nightly.log.20261129"),
        ("attempt=1.log", "attempt=2.log", "attempt=3.log"),
        ("run1.log", "run2.log", "run10.log"),
        ("a.log", "b.log", "c.log"),
        ("1/job.log", "2/job.log", "3/job.log"),
    ],
)
@pytest.mark.parametrize("at_once", [True, False])
def test_logs_of_other_names_with_the_same_content_are_runs_of_their_own(
    tmp_path: Path, names: tuple[str, ...], lines: int, at_once: bool
) -> None:
    world = World(tmp_path, include=[str(tmp_path / "logs" / "**" / "*.log*")])
    text = "".join(f"line {number}\n" for number in range(lines))
    for name in names:
        world.path(name).parent.mkdir(exist_ok=True)
        world.path(name).write_text(text)
        if not at_once:
            world.poll()
            world.over()
            world.path(names[0]).unlink(missing_ok=True)  # a job cleans up after itself
    world.over()
    assert len(world.store.runs()) == len(names)
    assert [world.store.lines(run) for run in world.store.runs()] == [text.splitlines()] * 3
    world.restart()
    world.over()
    assert len(world.store.lines()) == lines * len(names)


def test_duplicates_each_reads_every_copy_once(tmp_path: Path) -> None:
    world = World(tmp_path, duplicates="each")
    expected = world.lines("a.log", 0, 100)
    text = world.path("a.log").read_bytes()
    world.poll()
    world.path("b.log").write_bytes(text)
    world.poll()
    assert world.store.lines() == expected * 2
    world.path("c.log").write_bytes(text)
    world.settle(3)
    assert world.store.lines() == expected * 3
    assert len(world.store.runs()) == 3
    world.restart()
    more = world.lines("b.log", 100, 110)
    world.poll()
    assert world.store.lines() == [*expected * 3, *more]


def test_duplicates_each_follows_every_copy_through_renames(tmp_path: Path) -> None:
    world = World(tmp_path, duplicates="each")
    expected = world.lines("a.log", 0, 100)
    world.path("b.log").write_bytes(world.path("a.log").read_bytes())
    world.settle(3)
    assert world.store.lines() == expected * 2
    world.path("a.log").rename(world.path("a.log.1"))
    world.poll()
    world.kill()
    world.path("b.log").rename(world.path("b.log.1"))
    world.path("a.log.1").rename(world.path("a.log.2"))
    world.start()
    world.over()
    assert world.store.lines() == expected * 2
    more = world.lines("a.log.2", 100, 105) + world.lines("b.log.1", 200, 205)
    world.poll()
    assert sorted(world.store.lines()[200:]) == sorted(more)


@pytest.mark.parametrize("stopped", [False, True])
def test_duplicates_each_reads_a_rotated_copy_as_a_file_of_its_own(
    tmp_path: Path, stopped: bool
) -> None:
    """A copy that stands beside its original is read; so is one that took its place."""
    world = World(tmp_path, duplicates="each")
    expected = world.lines("a.log", 0, 100)
    world.settle(3)
    if stopped:
        world.kill()
    text = world.path("a.log").read_bytes()
    world.path("a.log.1").write_bytes(text)
    world.path("a.log").write_bytes(b"")
    more = world.lines("a.log", 100, 105)
    if stopped:
        world.start()
    world.over()
    # The original had no content any more when the copy was seen: the copy is what is left of it.
    assert sorted(world.store.lines()) == sorted([*expected, *more])


# --- acquire_fs_lock ----------------------------------------------------------------


def test_a_file_that_another_process_has_locked_waits(tmp_path: Path) -> None:
    world = World(tmp_path, acquire_fs_lock=True)
    locked = world.lines("a.log", 0, 10)
    free = world.lines("b.log", 0, 10)
    with world.path("a.log").open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        world.settle(10)
        assert world.store.lines() == free
        locked += world.lines("a.log", 10, 20)
        world.settle(10)
        assert world.store.lines() == free
    world.settle(2)
    assert world.store.lines() == [*free, *locked]
    assert world.tally.lost_bytes == 0


def test_a_file_is_locked_while_it_is_read(tmp_path: Path) -> None:
    world = World(tmp_path, acquire_fs_lock=True)
    expected = world.lines("a.log", 0, 10)
    world.poll()
    assert world.store.lines() == expected
    with world.path("a.log").open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        fcntl.flock(file, fcntl.LOCK_UN)
        with pytest.raises(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        world.kill()
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_a_locked_file_that_rotates_is_read_when_it_is_free(tmp_path: Path) -> None:
    world = World(tmp_path, acquire_fs_lock=True)
    expected = world.lines("a.log", 0, 10)
    with world.path("a.log").open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        world.settle(3)
        world.path("a.log").rename(world.path("a.log.1"))
        more = world.lines("a.log", 10, 20)
        world.settle(3)
    world.over()
    assert world.store.lines() == [*expected, *more]


def test_without_the_key_locks_do_not_matter(tmp_path: Path) -> None:
    world = World(tmp_path)
    expected = world.lines("a.log", 0, 10)
    with world.path("a.log").open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        world.poll()
        assert world.store.lines() == expected


# --- compression --------------------------------------------------------------------


@pytest.mark.parametrize("compression", ["", "gzip", "zstd", "auto"])
def test_each_file_is_what_its_first_bytes_say(tmp_path: Path, compression: str) -> None:
    """Whatever the key says: a log that is compressed while it is rotated is no other log."""
    world = World(tmp_path, compression=compression, max_concurrent_files=4)
    world.path("a.log.gz").write_bytes(gzip.compress(b"in gzip\n"))
    world.path("b.log.zst").write_bytes(zstandard.compress(b"in zstd\n"))
    world.path("c.log").write_bytes(b"in neither\n")
    world.over()
    assert sorted(world.store.lines()) == ["in gzip", "in neither", "in zstd"]


@pytest.mark.parametrize(("compression", "plain"), [("", True), ("auto", False)])
def test_nop_reads_bytes_as_they_are(tmp_path: Path, compression: str, plain: bool) -> None:
    world = World(tmp_path, compression=compression, encoding="nop", unfinished_wait=0)
    body = gzip.compress(b"hello\n", mtime=0)
    world.path("a.log.gz").write_bytes(body)
    world.over()
    assert [body for _, body in world.store.batches.values()] == [body if plain else b"hello\n"]


# --- delete_after_read --------------------------------------------------------------


@pytest.mark.parametrize("acknowledged", [False, True])
def test_a_crash_around_the_deletion_loses_and_repeats_nothing(
    tmp_path: Path, acknowledged: bool
) -> None:
    """The file is deleted when all is acknowledged; the log may learn that a second later."""
    world = World(tmp_path, delete_after_read=True)
    expected = world.lines("a.log", 0, 60_000)  # several batches
    while world.path("a.log").exists():
        world.engine.round()
        waiting = [each for each in world.post.waiting if isinstance(each, Shipment)]
        world.post.carry()
        if not acknowledged and world.store.lines() == expected:
            break
        assert waiting or not world.path("a.log").exists()
    assert world.store.lines() == expected
    assert world.path("a.log").exists() is not acknowledged
    world.restart()
    world.over()
    assert not world.path("a.log").exists()
    assert world.store.lines() == expected
    assert world.tally.lost_bytes == 0
    assert set(world.store.closed) == set(world.store.runs()), "closing again changes nothing"


def test_a_deleted_file_that_a_power_cut_brings_back_is_deleted_again(tmp_path: Path) -> None:
    """The folder is not synced: after a power cut the name may be there again."""
    world = World(tmp_path, delete_after_read=True)
    expected = world.lines("a.log", 0, 100)
    text = world.path("a.log").read_bytes()
    world.settle(3)
    assert not world.path("a.log").exists()
    world.kill()
    world.path("a.log").write_bytes(text)
    world.start()
    world.over()
    assert world.store.lines() == expected
    assert not world.path("a.log").exists()
