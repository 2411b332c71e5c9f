"""The machine's disk and the simulated one keep one contract; syncs report failures."""

from __future__ import annotations

import asyncio
import errno
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, cast

import pytest

from tailrace.logstore.filesystem import (
    AioSyncer,
    Disk,
    File,
    FileSystem,
    QuickSyncer,
    ReservedDisk,
    ThreadSyncer,
    syncer_for,
)
from tests.contracts.filesystem import FileSystemContract
from tests.refusals import refused
from tests.simulation.powercut import DirectSyncer, PowerCutFileSystem


class TestDisk(FileSystemContract):
    @pytest.fixture
    def fs(self) -> FileSystem:
        return Disk()

    @pytest.fixture
    def root(self, tmp_path: Path) -> str:
        return str(tmp_path)


class TestReservedDisk(TestDisk):
    @pytest.fixture
    def fs(self) -> FileSystem:
        return ReservedDisk()


class TestPowerCutFileSystem(FileSystemContract):
    @pytest.fixture
    def fs(self) -> FileSystem:
        return PowerCutFileSystem()

    @pytest.fixture
    def root(self, fs: FileSystem) -> str:
        fs.make_folders("/data")
        return "/data"


def test_no_descriptor_is_inherited(tmp_path: Path) -> None:
    disk = Disk()
    file = disk.open(str(tmp_path / "f"), "create")
    disk.lock(str(tmp_path / "lock"), wait=True)
    assert not os.get_inheritable(file.fileno())
    child = "import os; print(*[os.readlink(f'/proc/self/fd/{n}') for n in (3, 4, 5, 6) "
    child += "if os.path.exists(f'/proc/self/fd/{n}')])"
    shown = subprocess.run(
        [sys.executable, "-c", child], capture_output=True, text=True, close_fds=False, check=True
    ).stdout
    assert str(tmp_path) not in shown


def test_a_lock_ends_with_its_process(tmp_path: Path) -> None:
    path = str(tmp_path / "lock")
    code = "from tailrace.logstore.filesystem import Disk\n"
    code += f"l = Disk().lock({path!r}, wait=True); print('held'); input()"
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "held\n"
        assert Disk().lock(path, wait=False) is None
        child.kill()
        child.wait()
    assert Disk().lock(path, wait=True) is not None


class RefusingContext:
    """A kernel that answers every request with `error`."""

    def __init__(self, error: BaseException) -> None:
        self._error = error

    async def fdsync(self, fd: int) -> None:
        raise self._error

    def close(self) -> None:
        return None


async def test_syncs_through_the_kernel(tmp_path: Path) -> None:
    syncer = syncer_for(asyncio.get_running_loop())
    files = [Disk().open(str(tmp_path / str(i)), "create") for i in range(40)]
    for file in files:
        file.write([b"x" * 10_000])
    await asyncio.gather(*[syncer.sync(file) for file in files])
    syncer.close()


async def test_syncs_in_a_thread(tmp_path: Path) -> None:
    file = Disk().open(str(tmp_path / "f"), "create")
    syncer = ThreadSyncer()
    await syncer.sync(file)
    syncer.close()


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC, errno.EDQUOT, errno.EROFS])
async def test_a_failed_sync_is_an_oserror(number: int, tmp_path: Path) -> None:
    file = Disk().open(str(tmp_path / "f"), "create")
    syncer = AioSyncer(RefusingContext(SystemError(os.strerror(number))))
    with refused(number):
        await syncer.sync(file)


async def test_a_failure_without_a_name_is_an_input_output_error(tmp_path: Path) -> None:
    file = Disk().open(str(tmp_path / "f"), "create")
    syncer = AioSyncer(RefusingContext(SystemError("unheard of")))
    with refused(errno.EIO):
        await syncer.sync(file)


@pytest.mark.parametrize("error", [OverflowError("queue full"), ValueError("cannot")])
async def test_a_request_that_was_not_taken_is_made_in_a_thread(
    error: Exception, tmp_path: Path
) -> None:
    file = Disk().open(str(tmp_path / "f"), "create")
    await AioSyncer(RefusingContext(error)).sync(file)
    file.close()
    with refused(errno.EBADF):
        await AioSyncer(RefusingContext(error)).sync(file)


@pytest.mark.parametrize("make", [lambda: syncer_for(asyncio.get_running_loop()), ThreadSyncer])
async def test_a_file_that_cannot_be_synced(make: type[ThreadSyncer], tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    pipe = Disk().open(str(tmp_path / "pipe"), "append")
    with refused(errno.EINVAL):
        await make().sync(pipe)


class Interrupted:
    """A context of the kernel; signals interrupt the first looks at what has ended."""

    def __init__(self, context: Any, times: int) -> None:
        self._context = context
        self.left = times

    def process_events(self, *given: Any) -> Any:
        if self.left:
            self.left -= 1
            raise SystemError(errno.EINTR, os.strerror(errno.EINTR))
        return self._context.process_events(*given)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._context, name)


async def test_a_signal_leaves_no_sync_without_an_end(tmp_path: Path) -> None:
    syncer = syncer_for(asyncio.get_running_loop())
    if not isinstance(syncer, AioSyncer):
        pytest.skip("the kernel has no asynchronous I/O here")
    context: Any = syncer._context
    context.context = interrupted = Interrupted(context.context, 3)
    file = Disk().open(str(tmp_path / "f"), "create")
    file.write([b"x"])
    async with asyncio.timeout(60):
        await syncer.sync(file)
    assert interrupted.left == 0
    syncer.close()
    file.close()


async def test_the_simulated_sync_fails_as_told() -> None:
    fs = PowerCutFileSystem()
    file = fs.open("/f", "create")
    fs.fail_with(errno.EIO, at=2, once=True)
    with refused(errno.EIO):
        await DirectSyncer().sync(file)


class SlowSyncs:
    """A disk whose syncs take what a test says: as the inner syncer, and as the file."""

    def __init__(self) -> None:
        self.seconds = 0.0001
        self.now = 0.0
        self.handed_out = 0
        self.in_place = 0
        self.failure: OSError | None = None

    def now_ms(self) -> int:
        return int(self.now * 1000)

    def monotonic(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.now += seconds

    async def handed(self, file: File, _size: int = 0, /) -> None:
        self.handed_out += 1
        self.now += self.seconds

    def sync(self) -> None:
        self.in_place += 1
        self.now += self.seconds
        if self.failure is not None:
            raise self.failure


class HandedOut:
    def __init__(self, disk: SlowSyncs) -> None:
        self.sync = disk.handed
        self.closed = False

    def close(self) -> None:
        self.closed = True


async def test_a_disk_that_stays_quick_is_synced_in_place_until_it_is_slow_on_average() -> None:
    disk = SlowSyncs()
    inner = HandedOut(disk)
    syncer = QuickSyncer(inner, disk)
    file = cast("File", disk)

    async def handed_out(count: int) -> int:
        before = disk.handed_out
        for _ in range(count):
            await syncer.sync(file)
        return disk.handed_out - before

    first = await handed_out(100)
    assert 0 < first < 100, "nobody knows at the start that it is quick"
    disk.seconds = 0.005
    assert await handed_out(1) == 0, "nor before that it is slow"
    disk.seconds = 0.0001
    assert await handed_out(1) == 0, "a slow one now and then is borne"
    disk.seconds = 0.01
    slow = await handed_out(100)
    assert 90 < slow < 100
    disk.seconds = 0.0001
    assert 0 < await handed_out(100) < 100
    assert disk.in_place == 302 - disk.handed_out
    syncer.close()
    assert inner.closed


async def test_what_is_large_is_handed_out_on_the_quickest_disk() -> None:
    disk = SlowSyncs()
    syncer = QuickSyncer(HandedOut(disk), disk)
    file = cast("File", disk)
    for _ in range(100):
        await syncer.sync(file, 1000)
    before, small = disk.in_place, disk.handed_out
    assert before
    await syncer.sync(file, 60 << 20)
    assert (disk.in_place, disk.handed_out) == (before, small + 1)


async def test_a_failure_in_place_is_the_same_oserror() -> None:
    disk = SlowSyncs()
    syncer = QuickSyncer(HandedOut(disk), disk)
    file = cast("File", disk)
    disk.failure = OSError(errno.EIO, "gone")
    with refused(errno.EIO):
        for _ in range(100):
            await syncer.sync(file)
