"""The machine's disk, and beside it what a power cut would leave of it.

Spark, delta-rs and pyarrow write to real folders, so they cannot be under `PowerCutFileSystem`.
What they wrote is found before each call of ours, and told to such a file system as it came to
be: with nothing of it synced. Our calls go to both. At each of them `cut_points` may take what
the disk would hold then (`left`), as a folder that everybody can open.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from tailrace.logstore.filesystem import (
    Disk,
    File,
    Lock,
    Mode,
    OpenFolder,
    Stat,
    sync_one_by_one,
)
from tests.simulation.inodes import Folder, Inode
from tests.simulation.powercut import PowerCutFileSystem

Signature = tuple[int, int, int]  # size, time, inode


class ShadowedDisk:
    """`FileSystem` of the machine, shadowed below `root`, which is durable as it stands."""

    def __init__(self, root: Path) -> None:
        self.root = str(root)
        self.real = Disk()
        self.shadow = PowerCutFileSystem()
        self._known: dict[str, Signature] = {}
        self.real.make_folders(self.root)
        self.shadow.make_folders(self.root)

    def cut_points(self, look: Callable[[int], None] | None) -> None:
        """Calls `look` with a rising number at each moment where the power may go."""
        self.shadow.at_cut_point = look

    def left(self, seed: int, folder: Path) -> None:
        """Writes what a power cut now would leave of `root` into the folder."""
        after = self.shadow.after_power_cut(seed)
        node = after._root
        for part in self.root.strip("/").split("/"):
            inner = node.get(part)
            assert isinstance(inner, Folder)
            node = inner
        _write(node, folder)

    # -- the file system as the product calls it

    def open(self, path: str, mode: Mode) -> File:
        self._note()
        real = self.real.open(path, mode)
        file = ShadowedFile(self, real, self.shadow.open(path, mode), path)
        self._learn(path)
        return file

    def rename(self, source: str, target: str) -> None:
        self._note()
        self.real.rename(source, target)
        self._known[target] = self._known.pop(source)
        self.shadow.rename(source, target)

    def unlink(self, path: str) -> None:
        self._note()
        self.real.unlink(path)
        self._known.pop(path, None)
        self.shadow.unlink(path)

    def make_folders(self, path: str, *, sync: bool = True) -> Sequence[str]:
        self._note()
        self.real.make_folders(path, sync=sync)
        return self.shadow.make_folders(path, sync=sync)

    def remove_folder(self, path: str) -> None:
        self._note()
        self.real.remove_folder(path)
        self.shadow.remove_folder(path)

    def sync_folder(self, path: str) -> None:
        self._note()
        self.shadow.sync_folder(path)

    def open_folder(self, path: str) -> OpenFolder:
        self._note()
        return ShadowedFolder(self, self.shadow.open_folder(path))

    def sync_all(self, opened: Sequence[File | OpenFolder]) -> Sequence[OSError | None]:
        return sync_one_by_one(opened)

    def scan(self, path: str) -> Iterator[tuple[str, bool]]:
        self._note()
        return self.real.scan(path)

    def stat(self, path: str) -> Stat | None:
        return self.real.stat(path)

    def lock(self, path: str, *, wait: bool) -> Lock | None:
        self._note()
        self.shadow.open(path, "append")
        lock = self.real.lock(path, wait=wait)
        self._learn(path)
        return lock

    def copy(self, source: File, offset: int, size: int, target: File) -> None:
        assert isinstance(source, ShadowedFile)
        assert isinstance(target, ShadowedFile)
        self._note()
        self.real.copy(source.real, offset, size, target.real)
        self.shadow.copy(source.shadow, offset, size, target.shadow)
        self._learn(target.path)

    def free_bytes(self, path: str) -> int:
        return self.real.free_bytes(path)

    def free_inodes(self, path: str) -> int:
        return self.real.free_inodes(path)

    # -- what others did

    def _note(self) -> None:
        """Tells the shadow what is there now and was not told: nothing of it is synced."""
        folders, files = self._tree()
        for path in [path for path in self._known if path not in files]:
            del self._known[path]
            self._folder(os.path.dirname(path)).set(os.path.basename(path), None)
        for path in folders:
            parent = self._folder(os.path.dirname(path))
            if parent.get(os.path.basename(path)) is None:
                parent.set(os.path.basename(path), Folder())
        for path, signature in files.items():
            if self._known.get(path) != signature:
                self._take_over(path)
                self._known[path] = signature

    def _take_over(self, path: str) -> None:
        parent, name = self._folder(os.path.dirname(path)), os.path.basename(path)
        inode = Inode(modified_ns=self.shadow.tick())
        inode.append(Path(path).read_bytes())
        parent.set(name, inode)

    def _tree(self) -> tuple[list[str], dict[str, Signature]]:
        folders, files = [], {}
        for inner, names, others in os.walk(self.root):
            folders += [os.path.join(inner, name) for name in names]
            for name in others:
                path = os.path.join(inner, name)
                files[path] = _signature(path)
        return folders, files

    def _folder(self, path: str) -> Folder:
        node = self.shadow._folder(path)
        assert isinstance(node, Folder)
        return node

    def _learn(self, path: str) -> None:
        self._known[path] = _signature(path)


class ShadowedFolder:
    """An open folder; the real one needs no sync."""

    def __init__(self, disk: ShadowedDisk, shadow: OpenFolder) -> None:
        self._disk = disk
        self._shadow = shadow

    def sync(self) -> None:
        self._disk._note()
        self._shadow.sync()

    def fileno(self) -> int:
        return -1

    def close(self) -> None:
        self._shadow.close()


class ShadowedFile:
    """Open on both; what is read is the machine's."""

    def __init__(self, disk: ShadowedDisk, real: File, shadow: File, path: str) -> None:
        self.real, self.shadow, self.path = real, shadow, path
        self._disk = disk

    def write(self, pieces: Sequence[bytes | bytearray | memoryview]) -> int:
        self.real.write(pieces)
        self._disk._learn(self.path)
        return self.shadow.write(pieces)

    def write_at(self, pieces: Sequence[bytes | bytearray | memoryview], offset: int) -> int:
        self.real.write_at(pieces, offset)
        self._disk._learn(self.path)
        return self.shadow.write_at(pieces, offset)

    def pread(self, size: int, offset: int) -> bytes:
        return self.real.pread(size, offset)

    def sync(self) -> None:
        self.shadow.sync()

    def truncate(self, size: int) -> None:
        self.real.truncate(size)
        self._disk._learn(self.path)
        self.shadow.truncate(size)

    def size(self) -> int:
        return self.real.size()

    def stat(self) -> Stat:
        return self.real.stat()

    def fileno(self) -> int:
        return self.real.fileno()

    def close(self) -> None:
        self.real.close()
        self.shadow.close()


def _signature(path: str) -> Signature:
    found = os.stat(path)
    return found.st_size, found.st_mtime_ns, found.st_ino


def _write(folder: Folder, place: Path) -> None:
    place.mkdir(parents=True, exist_ok=True)
    for name, node in folder.entries():
        if isinstance(node, Folder):
            _write(node, place / name)
        else:
            (place / name).write_bytes(bytes(node.current))
