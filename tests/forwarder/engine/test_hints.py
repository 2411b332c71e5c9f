"""Hints of the kernel: with them a line is read at once, and without them nothing is missed."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import cast

import pytest

from tailrace.forwarder.delivery.targets import Shipment
from tailrace.forwarder.engine.watch import Hints, is_remote
from tailrace.logstore.clock import SystemClock
from tests.forwarder.engine.world import HandClock, Post, World

_PATIENCE_SECONDS = 30.0
_QUEUED = int(Path("/proc/sys/fs/inotify/max_queued_events").read_text())


class _Immediate(Post):
    """Delivers what is submitted as soon as the engine is idle."""

    def submit(self, shipment: Shipment) -> None:
        super().submit(shipment)
        assert self.engine is not None
        self.engine.post(self._carry)

    def _carry(self) -> None:
        self.carry()


class Live(World):
    """The engine in a thread of its own, with the machine's clock."""

    def start(self, post: type[Post] = _Immediate, *, hinted: bool = False) -> None:
        self.clock = cast(HandClock, SystemClock())
        super().start(post, hinted=self.config.hints or hinted)

    @contextmanager
    def running(self) -> Iterator[None]:
        thread = threading.Thread(target=self.engine.run)
        thread.start()
        try:
            yield
        finally:
            self.engine.stop()
            thread.join()

    def until(self, there: Callable[[], bool]) -> None:
        """Waits for something that the engine's thread does."""
        clock = SystemClock()
        until = clock.monotonic() + _PATIENCE_SECONDS
        while not there():
            assert clock.monotonic() < until, self.said
            threading.Event().wait(0.005)

    def until_stored(self, lines: list[str]) -> None:
        self.until(lambda: self.store.lines() == lines)


def test_appended_lines_are_hinted(tmp_path: Path) -> None:
    """No scan sees them: the next one is an hour away."""
    world = Live(tmp_path, hints=True, reconcile_interval="1h", poll_interval="1h")
    expected = world.lines("a.log", 0, 5)
    with world.running():
        world.until(lambda: world.store.lines() == expected)
        scans = world.tally.scans
        for number in range(5, 20):
            expected += world.lines("a.log", number, number + 1)
            world.until_stored(expected)
        assert world.tally.scans == scans


def test_new_and_rotated_files_are_hinted(tmp_path: Path) -> None:
    world = Live(tmp_path, hints=True, reconcile_interval="1h", poll_interval="1h")
    expected = world.lines("a.log", 0, 5)
    with world.running():
        world.until(lambda: world.store.lines() == expected)
        for number in range(5):
            world.path("a.log").rename(world.path(f"a.log.{number}"))
            expected += world.lines("a.log", number * 10, number * 10 + 10)
            world.until_stored(expected)


def test_new_folders_are_hinted(tmp_path: Path) -> None:
    include = [str(tmp_path / "logs" / "*" / "*" / "*.log")]
    world = Live(tmp_path, hints=True, include=include, reconcile_interval="1h")
    with world.running():
        world.until(lambda: world.tally.scans > 0)
        (tmp_path / "logs" / "pod" / "container").mkdir(parents=True)
        expected = world.lines("pod/container/0.log", 0, 5)
        world.until(lambda: world.store.lines() == expected)
        expected += world.lines("pod/container/0.log", 5, 9)
        world.until(lambda: world.store.lines() == expected)


def test_without_hints_files_are_polled(tmp_path: Path) -> None:
    world = Live(tmp_path, hints=True, poll_interval="20ms", reconcile_interval="20ms")
    expected = world.lines("a.log", 0, 5)
    with world.running():
        world.until(lambda: world.store.lines() == expected)
        world.engine._hints_failed(OSError("no space left on device"))
        world.until(lambda: any("polled" in said for said in world.said))
        world.path("a.log").rename(world.path("a.log.1"))
        expected += world.lines("a.log", 5, 9)
        world.until(lambda: world.store.lines() == expected)


def test_a_folder_that_was_made_anew_is_watched_again(tmp_path: Path) -> None:
    heard: set[str] = set()
    folder = tmp_path / "logs"
    folder.mkdir()
    hints = Hints(heard.update, lambda: None, _not_to_fail)
    assert hints.watch({str(folder)})
    assert not hints.watch({str(folder)})
    folder.rename(tmp_path / "old")
    folder.mkdir()
    assert hints.watch({str(folder)})
    (folder / "a.log").write_text("hello\n")
    _until(lambda: str(folder / "a.log") in heard)
    hints.close()


def test_a_folder_with_two_names_is_hinted_by_both(tmp_path: Path) -> None:
    heard: set[str] = set()
    folder, link = tmp_path / "logs", tmp_path / "link"
    folder.mkdir()
    link.symlink_to(folder)
    hints = Hints(heard.update, lambda: None, _not_to_fail)
    assert hints.watch({str(folder), str(link)})
    (folder / "a.log").write_text("hello\n")
    _until(lambda: heard >= {str(folder / "a.log"), str(link / "a.log")})
    assert hints.watch({str(link)})
    heard.clear()
    (folder / "b.log").write_text("hello\n")
    _until(lambda: str(link / "b.log") in heard)
    assert str(folder / "b.log") not in heard
    hints.close()


def test_a_full_queue_of_the_kernel_is_noticed(tmp_path: Path) -> None:
    """The kernel drops what does not fit, and says so."""
    reading, go_on, missed = threading.Event(), threading.Event(), threading.Event()

    def hold(_: set[str]) -> None:
        reading.set()
        assert go_on.wait(_PATIENCE_SECONDS)

    hints = Hints(hold, missed.set, _not_to_fail)
    hints.watch({str(tmp_path)})
    with (tmp_path / "a").open("wb", 0) as a, (tmp_path / "b").open("wb", 0) as b:
        assert reading.wait(_PATIENCE_SECONDS)
        for _ in range(_QUEUED // 2 + 1):  # the same event twice in turn would be one
            a.write(b"x")
            b.write(b"x")
    assert not missed.is_set()
    go_on.set()
    assert missed.wait(_PATIENCE_SECONDS)
    hints.close()


def test_where_hints_are_missing_everything_is_looked_at(tmp_path: Path) -> None:
    """Nobody tells of a file behind a link: its folder is not watched."""
    world = Live(tmp_path, hints=True, reconcile_interval="1h", poll_interval="1h")
    elsewhere = tmp_path / "elsewhere.txt"
    elsewhere.write_text("a\n")
    world.path("a.log").parent.mkdir(parents=True, exist_ok=True)
    world.path("a.log").symlink_to(elsewhere)
    with world.running():
        world.until_stored(["a"])
        scans = world.tally.scans
        with elsewhere.open("a") as file:
            file.write("b\n")
        assert world.tally.scans == scans
        world.engine._hints_missed()
        world.until_stored(["a", "b"])


def _until(there: Callable[[], bool]) -> None:
    until = SystemClock().monotonic() + _PATIENCE_SECONDS
    while not there():
        assert SystemClock().monotonic() < until
        threading.Event().wait(0.005)


def _not_to_fail(error: OSError) -> None:
    pytest.fail(str(error))


def test_network_file_systems() -> None:
    mounts = (
        "/dev/sda1 / ext4 rw 0 0\nserver:/logs /mnt/logs nfs4 rw 0 0\n"
        "tmpfs /mnt/logs/fast tmpfs rw 0 0\nx /mnt/s fuse.sshfs rw 0 0\n"
    )
    assert not is_remote("/var/log/*.log", mounts)
    assert is_remote("/mnt/logs/a/*.log", mounts)
    assert not is_remote("/mnt/logs/fast/*.log", mounts)
    assert not is_remote("/mnt/logsy/*.log", mounts)
    assert is_remote("/mnt/s/a.log", mounts)
    assert not is_remote("/anything", "")
