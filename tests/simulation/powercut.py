"""A file system in memory that loses power: `tailrace.logstore.filesystem.FileSystem` for tests.

    fs = PowerCutFileSystem(fail_at=7)      # the 7th call and all later raise PowerCut
    with pytest.raises(PowerCut): work(fs)
    fs = fs.reboot(seed=1)                  # what a disk may hold after that

Tests run `fail_at` = 1, 2, 3… until the work gets through. A call that changes something
is done, but not synced, when it raises; a sync is not done. `fail_with` makes calls
raise `OSError` instead. `calls` names every call made.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass
from random import Random

from tailrace.logstore.filesystem import File, Lock, Mode, OpenFolder, Stat, sync_one_by_one
from tests.simulation.inodes import Folder, Inode, Node, Rename
from tests.simulation.simulated_files import (
    SimulatedFile,
    SimulatedFolder,
    SimulatedLock,
    error_of,
    stat_of,
)

EPOCH_NS = 1_700_000_000_000_000_000
TICK_NS = 1_000_000
_GROWING = frozenset({"create", "write", "copy", "mkdir"})
_OPENING = frozenset({"open", "create", "sync_folder", "open_folder", "scan", "lock"})


class PowerCut(BaseException):
    """The power is gone. Nothing but a test catches it."""


@dataclass(frozen=True)
class Fault:
    """Calls from number `at` on, to paths below `under`, raise `OSError(number)`; only the
    first if `once`.

    A full disk (ENOSPC) fails only calls that need room; of a write, half is done. A process
    without descriptors (EMFILE) fails only calls that open something.
    """

    number: int
    at: int
    once: bool
    under: str


class PowerCutFileSystem:
    """Counts calls from 1. `capacity_bytes` bounds what all files may hold."""

    def __init__(self, *, fail_at: int | None = None, capacity_bytes: int = 1 << 40) -> None:
        self.fail_at = fail_at
        self.capacity_bytes = capacity_bytes
        self.calls: list[str] = []
        self.dead = False
        self.at_cut_point: Callable[[int], None] | None = None
        self._fault: Fault | None = None
        self._root = Folder()
        self.grown_bytes = 0
        self._locked: set[int] = set()
        self._now_ns = EPOCH_NS

    def fail_with(self, number: int, *, at: int, once: bool = False, under: str = "/") -> None:
        """Lets call `at` (counted from the first of all) fail, and later ones unless `once`."""
        self._fault = Fault(number, at, once, under)

    @property
    def fault_pending(self) -> bool:
        """Whether a fault is set that no call has met, or that lasts."""
        return self._fault is not None

    def heal(self) -> None:
        """No more faults; the power stays as it is."""
        self._fault = None

    def reboot(self, seed: int) -> PowerCutFileSystem:
        """A file system as the disk may be after a power cut now; this one is dead."""
        self.dead = True
        return self.after_power_cut(seed)

    def end_processes(self) -> None:
        """As kill -9: locks are free, files are as the programs left them."""
        self._locked.clear()

    def after_power_cut(self, seed: int) -> PowerCutFileSystem:
        """What `reboot` would give now; this one lives on.

        Called from `at_cut_point`, which is told the number of each call at the moment
        where the power may go, it spares telling a long scenario anew for every call.
        """
        dice = Random(seed)
        copies: dict[int, Inode] = {}

        def copy_of(inode: Inode) -> Inode:
            if inode.number not in copies:
                copies[inode.number] = inode.after_power_cut(dice)
            return copies[inode.number]

        root = deepcopy(self._root)  # so that another seed throws the dice anew
        root.decide(dice)
        after = PowerCutFileSystem(capacity_bytes=self.capacity_bytes)
        after._root = root.after_power_cut(copy_of)
        after.grown_bytes = after._used(after._root)
        after._now_ns = self._now_ns + 3600 * 1_000_000_000
        return after

    # -- the file system as the product calls it

    def open(self, path: str, mode: Mode) -> File:
        folder, name = self._parent(path)
        found = folder.get(name)
        if isinstance(found, Folder):
            raise error_of(errno.EISDIR, path)
        if found is not None and mode == "create":
            raise error_of(errno.EEXIST, path)
        if found is None and mode == "read":
            raise error_of(errno.ENOENT, path)
        with self.call("open" if found is not None else "create", path):
            if found is None:
                found = Inode(modified_ns=self.tick())
                folder.set(name, found)
        return SimulatedFile(self, path, found, mode)

    def rename(self, source: str, target: str) -> None:
        old_folder, old_name = self._parent(source)
        new_folder, new_name = self._parent(target)
        node, replaced = old_folder.get(old_name), new_folder.get(new_name)
        if node is None:
            raise error_of(errno.ENOENT, source)
        _check_replaceable(node, replaced, target)
        with self.call("rename", f"{source} {target}"):
            if node is not replaced:
                rename = Rename(new_folder.name(new_name))
                new_folder.set(new_name, node, rename)
                old_folder.set(old_name, None, rename)

    def unlink(self, path: str) -> None:
        folder, name = self._parent(path)
        found = folder.get(name)
        if found is None:
            raise error_of(errno.ENOENT, path)
        if isinstance(found, Folder):
            raise error_of(errno.EISDIR, path)
        with self.call("unlink", path):
            folder.set(name, None)

    def make_folders(self, path: str, *, sync: bool = True) -> Sequence[str]:
        made: list[str] = []
        parts = path.strip("/").split("/")
        for depth in range(1, len(parts) + 1):
            folder = "/" + "/".join(parts[:depth])
            if self._node(folder) is None:
                with self.call("mkdir", folder):
                    parent, name = self._parent(folder)
                    parent.set(name, Folder())
                made.append(folder)
                if sync:
                    self.sync_folder(os.path.dirname(folder))
            elif isinstance(self._node(folder), Inode):
                raise error_of(errno.ENOTDIR, folder)
        return made

    def remove_folder(self, path: str) -> None:
        parent, name = self._parent(path)
        folder = self._folder(path)
        if any(True for _ in folder.entries()):
            raise error_of(errno.ENOTEMPTY, path)
        with self.call("rmdir", path):
            parent.set(name, None)

    def sync_folder(self, path: str) -> None:
        folder = self._folder(path)
        with self.call("sync_folder", path, before=True):
            folder.sync()

    def open_folder(self, path: str) -> OpenFolder:
        folder = self._folder(path)
        with self.call("open_folder", path):
            return SimulatedFolder(self, path, folder)

    def sync_all(self, opened: Sequence[File | OpenFolder]) -> Sequence[OSError | None]:
        return sync_one_by_one(opened)

    def scan(self, path: str) -> Iterator[tuple[str, bool]]:
        with self.call("scan", path):
            node = self._node(path)
        if isinstance(node, Inode):
            raise error_of(errno.ENOTDIR, path)
        # Newest first: nobody may rely on an order.
        found = list(node.entries()) if node is not None else []
        yield from [(name, isinstance(entry, Folder)) for name, entry in reversed(found)]

    def stat(self, path: str) -> Stat | None:
        with self.call("stat", path):
            try:
                node = self._node(path)
            except NotADirectoryError:
                return None
        return stat_of(node) if isinstance(node, Inode) else None

    def lock(self, path: str, *, wait: bool) -> Lock | None:
        file = self.open(path, "append")
        number = file.stat().inode
        with self.call("lock", path):
            if number not in self._locked:
                self._locked.add(number)
                return SimulatedLock(self._locked, number)
        if wait:  # nobody else runs who could release it
            raise error_of(errno.EDEADLK, path)
        return None

    def copy(self, source: File, offset: int, size: int, target: File) -> None:
        assert isinstance(source, SimulatedFile)
        assert isinstance(target, SimulatedFile)
        data = bytes(source.inode.current[offset : offset + size])
        if len(data) < size:
            raise error_of(errno.EINVAL, source.path)
        with self.call("copy", target.path):
            self.grow(target.inode, data)

    def contents(self, path: str) -> Iterator[tuple[str, bytes]]:
        """Paths and bytes of all files below a folder, as programs see them now."""
        for name, is_folder in sorted(self.scan(path)):
            if is_folder:
                yield from self.contents(f"{path}/{name}")
            elif isinstance(node := self._node(f"{path}/{name}"), Inode):
                yield f"{path}/{name}", bytes(node.current)

    def free_bytes(self, path: str) -> int:
        return max(0, self.capacity_bytes - self._used(self._root))

    def free_inodes(self, path: str) -> int:
        return 1 << 40

    # -- what files use

    def call(self, name: str, path: str, *, before: bool = False) -> _Call:
        """Counts a call. `before`: a power cut comes before its effect, else after."""
        return _Call(self, name, path, before)

    def count(self, name: str, path: str) -> None:
        if self.dead:
            raise PowerCut(f"{name} {path}")
        self.calls.append(f"{name} {path}")
        fault = self._fault
        if fault is None or len(self.calls) < fault.at or not path.startswith(fault.under):
            return
        if fault.number == errno.ENOSPC and name not in _GROWING:
            return
        if fault.number == errno.EMFILE and name not in _OPENING:
            return
        if fault.once:
            self._fault = None
        raise error_of(fault.number, path)

    def cut_power_if_due(self, name: str, path: str) -> None:
        if self.at_cut_point is not None:
            self.at_cut_point(len(self.calls))
        if self.fail_at is not None and len(self.calls) >= self.fail_at:
            self.dead = True
            raise PowerCut(f"{name} {path}")

    def grow(self, inode: Inode, data: bytes, offset: int | None = None) -> None:
        """Writes at `offset`, or appends, as far as there is room."""
        at = len(inode.current) if offset is None else offset
        room = self._room(max(at + len(data) - len(inode.current), 0))
        room += max(len(inode.current) - at, 0)
        inode.write_at(data[:room], at)
        inode.modified_ns = self.tick()
        if len(data) > room:
            raise error_of(errno.ENOSPC, "write")

    def _room(self, wanted: int) -> int:
        """At least `wanted` bytes, or exactly how many are free.

        All files are measured only where they might be too many: no file is larger than the sum of
        what was ever added, and scenarios write some hundred thousand times to thousands of files.
        """
        self.grown_bytes += wanted
        return wanted if self.grown_bytes <= self.capacity_bytes else self.free_bytes("/")

    def tick(self) -> int:
        self._now_ns += TICK_NS
        return self._now_ns

    def _used(self, folder: Folder) -> int:
        nodes = [node for _, node in folder.entries()]
        return sum([len(n.current) if isinstance(n, Inode) else self._used(n) for n in nodes])

    def _parent(self, path: str) -> tuple[Folder, str]:
        folder, _, name = path.rpartition("/")
        return self._folder(folder), name

    def _folder(self, path: str) -> Folder:
        node = self._node(path)
        if node is None:
            raise error_of(errno.ENOENT, path)
        if isinstance(node, Inode):
            raise error_of(errno.ENOTDIR, path)
        return node

    def _node(self, path: str) -> Node | None:
        node: Node | None = self._root
        for part in [part for part in path.split("/") if part]:
            if isinstance(node, Inode):
                raise error_of(errno.ENOTDIR, path)
            node = node.get(part) if node is not None else None
        return node


class _Call:
    """One counted call: a context in which it takes effect."""

    def __init__(self, fs: PowerCutFileSystem, name: str, path: str, before: bool) -> None:
        self._fs, self._name, self._path, self._before = fs, name, path, before

    def __enter__(self) -> None:
        self._fs.count(self._name, self._path)
        if self._before:
            self._fs.cut_power_if_due(self._name, self._path)

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None and not self._before:
            self._fs.cut_power_if_due(self._name, self._path)


class DirectSyncer:
    """`tailrace.logstore.filesystem.Syncer` for simulated files."""

    async def sync(self, file: File, _size: int = 0, /) -> None:
        file.sync()

    def close(self) -> None:
        """Holds nothing."""


def _check_replaceable(node: Node, replaced: Node | None, path: str) -> None:
    if isinstance(replaced, Folder):
        if isinstance(node, Inode):
            raise error_of(errno.EISDIR, path)
        if any(True for _ in replaced.entries()):
            raise error_of(errno.ENOTEMPTY, path)
    elif replaced is not None and isinstance(node, Folder):
        raise error_of(errno.ENOTDIR, path)
