"""Every kind of rotation: each line once, in the order in which it was written."""

from __future__ import annotations

import gzip
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import zstandard

from tests.forwarder.engine.world import World

Zip = Callable[[bytes], bytes]


def _out(tmp_path: Path) -> Path:
    """A folder that no pattern matches."""
    (tmp_path / "logs" / "old").mkdir(exist_ok=True, parents=True)
    return tmp_path / "logs" / "old"


def _only(tmp_path: Path) -> list[str]:
    return [str(tmp_path / "logs" / "a.log")]


@pytest.mark.parametrize("inside", [True, False], ids=["in the pattern", "out of it"])
@pytest.mark.parametrize("read", [True, False], ids=["read before", "unread tail"])
def test_rename(tmp_path: Path, inside: bool, read: bool) -> None:
    world = World(tmp_path, **({} if inside else {"include": _only(tmp_path)}))
    expected = world.lines("a.log", 0, 10)
    world.poll()
    expected += world.lines("a.log", 10, 15)
    if read:
        world.poll()
    world.path("a.log").rename(world.path("a.log.1"))
    expected += world.lines("a.log", 15, 20)
    world.poll()
    assert world.store.lines() == expected
    world.over()
    assert len(world.store.runs()) == 2
    assert world.store.closed == world.store.runs()[:1]


@pytest.mark.parametrize("inside", [True, False], ids=["in the pattern", "out of it"])
@pytest.mark.parametrize("restarted", [True, False], ids=["while stopped", "while running"])
def test_copy_and_truncate_with_an_unread_tail(
    tmp_path: Path, inside: bool, restarted: bool
) -> None:
    world = World(tmp_path, **({} if inside else {"include": _only(tmp_path)}))
    expected = world.lines("a.log", 0, 10)
    world.poll()
    if restarted:
        world.kill()
    expected += world.lines("a.log", 10, 15)
    shutil.copy(world.path("a.log"), world.path("a.log.1"))
    os.truncate(world.path("a.log"), 0)
    expected += world.lines("a.log", 15, 20)
    if restarted:
        world.start()
    world.poll()
    assert sorted(world.store.lines()) == sorted(expected)
    assert world.store.lines() == expected
    assert world.tally.lost_bytes == 0


def test_a_copy_is_seen_before_the_original_is_truncated(tmp_path: Path) -> None:
    world = World(tmp_path)
    expected = world.lines("a.log", 0, 50)
    world.poll()
    expected += world.lines("a.log", 50, 60)
    shutil.copy(world.path("a.log"), world.path("a.log.1"))
    world.poll()
    assert world.store.lines() == expected
    world.store.away = True
    expected += world.lines("a.log", 60, 70)
    shutil.copy(world.path("a.log"), world.path("a.log.1"))
    os.truncate(world.path("a.log"), 0)
    world.poll()
    expected += world.lines("a.log", 70, 80)
    world.store.away = False
    world.poll()
    assert world.store.lines() == expected
    assert world.tally.duplicate_files == 1


def test_a_copy_that_is_still_being_written_is_no_new_file(tmp_path: Path) -> None:
    world = World(tmp_path)
    expected = world.lines("a.log", 0, 200)
    world.poll()
    whole = world.path("a.log").read_bytes()
    for part in (10, 900, 1500, 5000, len(whole)):
        world.path("a.log.1").write_bytes(whole[:part])
        world.poll()
    assert world.store.lines() == expected
    os.truncate(world.path("a.log"), 0)
    expected += world.lines("a.log", 200, 210)
    world.poll()
    assert world.store.lines() == expected


def test_truncated_and_grown_beyond_the_old_offset_with_the_same_beginning(tmp_path: Path) -> None:
    world = World(tmp_path)
    preamble = "".join(f"preamble {number}\n" for number in range(100))
    assert len(preamble) > 1000
    world.write("a.log", preamble)
    first = world.lines("a.log", 0, 10)
    world.poll()
    world.path("a.log").write_text(preamble)
    second = world.lines("a.log", 10, 50)
    world.poll()
    assert world.store.lines() == preamble.splitlines() + first + preamble.splitlines() + second
    assert world.tally.truncations == 1


def test_fast_rotation_with_the_same_fingerprint(tmp_path: Path) -> None:
    """OpenTelemetry's proposed test of this name documents that only the last line arrives."""
    world = World(tmp_path, include=_only(tmp_path))
    expected: list[str] = []
    preamble = "".join(f"preamble {number}\n" for number in range(100))
    for generation in range(5):
        world.path("a.log").write_text(preamble)
        expected += preamble.splitlines() + world.lines("a.log", generation, generation + 1)
        world.poll()
        world.path("a.log").rename(_out(tmp_path) / f"{generation}")
    world.poll()
    assert world.store.lines() == expected


def test_look_alikes_are_two_files(tmp_path: Path) -> None:
    """`messages` and `syslog`: the first kilobyte is the same."""
    world = World(tmp_path)
    preamble = "".join(f"boot {number}\n" for number in range(200))
    world.write("messages.log", preamble)
    world.write("syslog.log", preamble)
    one, two = world.lines("messages.log", 0, 5), world.lines("syslog.log", 0, 5)
    world.poll()
    assert sorted(world.store.lines()) == sorted(preamble.splitlines() * 2 + one + two)
    one, two = world.lines("messages.log", 5, 9), world.lines("syslog.log", 5, 9)
    world.poll()
    assert set(world.store.lines()) >= {*one, *two}
    assert len(world.store.runs()) == 2


def test_small_files_are_one_until_they_differ(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.write("a.log", "starting\n")
    world.write("a.log.1", "starting\n")
    world.poll()
    assert world.store.lines() == ["starting"]
    world.write("a.log.1", "b\n")
    world.poll()
    assert sorted(world.store.lines()) == ["b", "starting", "starting"]
    world.write("a.log", "a\n")
    world.poll()
    assert sorted(world.store.lines()) == ["a", "b", "starting", "starting"]
    runs = [world.store.lines(run) for run in world.store.runs()]
    assert sorted(runs) == [["starting", "a"], ["starting", "b"]]


@pytest.mark.parametrize("zipped", [gzip.compress, zstandard.compress], ids=["gzip", "zstd"])
@pytest.mark.parametrize("inside", [True, False], ids=["in the pattern", "out of it"])
def test_rotated_and_compressed_while_stopped(tmp_path: Path, zipped: Zip, inside: bool) -> None:
    world = World(tmp_path, **({} if inside else {"include": _only(tmp_path)}))
    expected = world.lines("a.log", 0, 100)
    world.poll()
    world.kill()
    expected += world.lines("a.log", 100, 150)
    world.path("a.log.1.gz").write_bytes(zipped(world.path("a.log").read_bytes()))
    world.path("a.log").unlink()
    expected += world.lines("a.log", 150, 160)
    world.start()
    world.poll()
    world.over()
    assert world.store.lines() == expected
    assert world.tally.lost_bytes == 0


def test_rotated_and_compressed_while_running(tmp_path: Path) -> None:
    world = World(tmp_path)
    expected = world.lines("a.log", 0, 200)
    world.poll()
    world.path("a.log").rename(world.path("a.log.1"))
    expected += world.lines("a.log", 200, 210)
    world.poll()
    archive = gzip.compress(world.path("a.log.1").read_bytes())
    for part in (3, 20, len(archive) // 2, len(archive)):
        world.path("a.log.1.gz").write_bytes(archive[:part])
        world.poll()
    world.path("a.log.1").unlink()
    world.poll()
    world.over()
    assert world.store.lines() == expected
    world.restart()
    world.over()
    assert world.store.lines() == expected


def test_renamed_while_stopped_with_a_successor(tmp_path: Path) -> None:
    world = World(tmp_path, include=_only(tmp_path))
    expected = world.lines("a.log", 0, 100)
    world.poll()
    world.kill()
    expected += world.lines("a.log", 100, 110)
    world.path("a.log").rename(world.path("a.log.1"))
    expected += world.lines("a.log", 110, 120)
    world.start()
    world.poll()
    assert world.store.lines() == expected


def test_several_rotations_while_stopped(tmp_path: Path) -> None:
    world = World(tmp_path, run="all")
    expected = world.lines("a.log", 0, 100)
    world.poll()
    world.kill()
    for generation in range(3):
        expected += world.lines("a.log", 100 + 10 * generation, 110 + 10 * generation)
        os.utime(world.path("a.log"), (1000 + generation, 1000 + generation))
        for number in range(3, 0, -1):
            older = world.path(f"a.log.{number}")
            if older.exists():
                older.rename(world.path(f"a.log.{number + 1}"))
        world.path("a.log").rename(world.path("a.log.1"))
    expected += world.lines("a.log", 200, 210)
    world.start()
    world.poll()
    assert world.store.lines("all") == expected


def test_late_lines_of_a_rotated_file_are_read(tmp_path: Path) -> None:
    world = World(tmp_path, include=_only(tmp_path))
    expected = world.lines("a.log", 0, 10)
    world.poll()
    with world.path("a.log").open("a") as late:
        world.path("a.log").rename(_out(tmp_path) / "gone")
        world.settle(3)
        late.write("late\n")
        late.flush()
        world.settle(3)
        late.write("later\n")
        late.flush()
        world.settle(3)
    assert world.store.lines() == [*expected, "late", "later"]


def test_a_deleted_file_is_read_to_its_end(tmp_path: Path) -> None:
    world = World(tmp_path)
    expected = world.lines("a.log", 0, 10)
    world.poll()
    expected += world.lines("a.log", 10, 20)
    world.path("a.log").unlink()
    world.poll()
    assert world.store.lines() == expected
    world.over()
    assert world.store.closed == world.store.runs()
    assert world.tally.lost_bytes == 0


def test_bytes_that_vanished_unread_are_counted(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.lines("a.log", 0, 10)
    world.poll()
    world.store.away = True
    for _ in range(3):
        world.lines("a.log", 10, 40_000)
        world.settle(2)
    seen = world.path("a.log").stat().st_size
    world.kill()
    world.path("a.log").unlink()
    world.store.away = False
    world.start()
    world.over()
    stored = sum(len(line) + 1 for line in world.store.lines())
    assert world.tally.lost_bytes == seen - stored
    assert any("before they were read" in said for said in world.said)


def test_an_inode_that_is_used_again_is_another_file(tmp_path: Path) -> None:
    world = World(tmp_path)
    expected = world.lines("a.log", 0, 10)
    world.poll()
    world.kill()
    before = world.path("a.log").stat().st_ino
    world.path("a.log").unlink()
    for number in range(50):
        name = f"b{number}.log"
        expected += world.lines(name, 0, 30)
        if world.path(name).stat().st_ino == before:
            break
    else:
        # This file system does not give an inode again at once: the same, by writing anew.
        pass
    world.start()
    world.poll()
    assert sorted(world.store.lines()) == sorted(expected)


def test_a_symbolic_link_is_pointed_elsewhere(tmp_path: Path) -> None:
    world = World(tmp_path, include=_only(tmp_path))
    expected: list[str] = []
    for number in range(30):
        target = _out(tmp_path) / f"{number}"
        lines = [f"{number} line {line}" for line in range(100)]
        target.write_text("".join(f"{line}\n" for line in lines))
        expected += lines
        link = world.path("link")
        link.symlink_to(target)
        link.rename(world.path("a.log"))
        world.poll()
    assert world.store.lines() == expected


def test_moved_within_the_pattern(tmp_path: Path) -> None:
    world = World(tmp_path)
    expected = world.lines("a.log", 0, 10)
    world.poll()
    world.path("a.log").rename(world.path("b.log"))
    world.poll()
    assert world.store.lines() == expected
    expected += world.lines("b.log", 10, 20)
    world.poll()
    assert world.store.lines() == expected
    assert len(world.store.runs()) == 1


def test_truncated_and_written_again(tmp_path: Path) -> None:
    world = World(tmp_path)
    expected = world.lines("a.log", 0, 10)
    world.poll()
    os.truncate(world.path("a.log"), 0)
    expected += world.lines("a.log", 10, 11)
    world.poll()
    assert world.store.lines() == expected


@pytest.mark.parametrize("zipped", [bytes, gzip.compress], ids=["a copy", "an archive"])
def test_a_copy_that_is_seen_while_it_is_empty(tmp_path: Path, zipped: Zip) -> None:
    world = World(tmp_path)
    expected = world.lines("a.log", 0, 200)
    world.poll()
    world.path("a.log.1").touch()
    world.poll()
    world.path("a.log.1").write_bytes(zipped(world.path("a.log").read_bytes()))
    os.truncate(world.path("a.log"), 0)
    expected += world.lines("a.log", 200, 210)
    world.poll()
    world.over()
    assert world.store.lines() == expected


def test_a_shorter_file_is_not_the_one_that_was_seen_and_not_read(tmp_path: Path) -> None:
    same = "the same first line\n" * 100
    world = World(tmp_path, include=_only(tmp_path))
    first, second = same + "first\n", same + "second\n" * 50
    world.write("a.log", first)
    world.store.away = True
    world.poll()
    world.restart()  # what was sent of the first one is to be sent again, and the file is gone
    world.path("a.log").unlink()
    world.write("a.log", second)
    world.poll()
    world.restart()  # the second one waited for the first
    world.path("a.log").unlink()
    world.write("a.log", same + "third\n")
    world.store.away = False
    world.settle(20)
    assert world.store.lines()[-1] == "third"
    assert world.store.lines().count("third") == 1
    assert world.tally.lost_bytes == len(first) + len(second)


def test_a_file_that_is_cut_off_behind_what_was_read(tmp_path: Path) -> None:
    world = World(tmp_path, force_flush_period=0, fingerprint_size=100)
    expected = world.lines("a.log", 0, 10)
    world.poll()
    size = world.path("a.log").stat().st_size
    world.write("a.log", "an unfinished line")
    world.poll()
    os.truncate(world.path("a.log"), size)
    world.poll()
    assert world.tally.lost_bytes == len("an unfinished line")
    expected += world.lines("a.log", 10, 11)
    world.poll()
    assert world.store.lines() == expected
    assert world.tally.lost_bytes == len("an unfinished line")


def test_an_empty_generation_does_not_let_its_successor_go_first(tmp_path: Path) -> None:
    world = World(tmp_path, run="all")
    expected: list[str] = []
    for number, lines in ((3, 60_000), (2, 0), (1, 10)):
        name = f"a.log.{number}"
        world.write(name, "")
        first = len(expected)
        text = [f"line {first + each} {'x' * 40}" for each in range(lines)]
        world.write(name, "".join(f"{line}\n" for line in text))
        os.utime(world.path(name), (2000 - number, 2000 - number))
        expected += text
    world.poll()
    assert world.store.lines() == expected
