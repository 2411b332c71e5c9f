"""What every `tailrace.logstore.filesystem.FileSystem` does. Subclass it and give `fs` and
`root`."""

from __future__ import annotations

import errno

import pytest

from tailrace.logstore.filesystem import File, FileSystem, Mode
from tests.refusals import refused

MORE_THAN_IOV_MAX = 3000


def _file(fs: FileSystem, path: str, data: bytes = b"") -> File:
    file = fs.open(path, "create")
    file.write([data])
    return file


class FileSystemContract:
    """`root` is an absolute path that exists."""

    @pytest.fixture
    def fs(self) -> FileSystem:
        raise NotImplementedError

    @pytest.fixture
    def root(self, fs: FileSystem) -> str:
        raise NotImplementedError

    def test_writes_append_all_pieces(self, fs: FileSystem, root: str) -> None:
        pieces = [bytes([i % 251]) * (i % 7) for i in range(MORE_THAN_IOV_MAX)]
        file = fs.open(f"{root}/f", "create")
        assert file.write([b"ab", bytearray(b"c"), memoryview(b"de")]) == 5
        assert file.write([]) == 0
        assert file.write(pieces) == sum(map(len, pieces))
        assert file.pread(1 << 20, 0) == b"abcde" + b"".join(pieces)
        assert file.size() == 5 + sum(map(len, pieces))

    def test_create_makes_and_append_keeps(self, fs: FileSystem, root: str) -> None:
        _file(fs, f"{root}/f", b"one").close()
        with pytest.raises(FileExistsError):
            fs.open(f"{root}/f", "create")
        again = fs.open(f"{root}/f", "append")
        again.write([b"two"])
        assert again.pread(100, 0) == b"onetwo"
        assert fs.open(f"{root}/new", "append").size() == 0

    def test_reading(self, fs: FileSystem, root: str) -> None:
        _file(fs, f"{root}/f", b"0123456789").close()
        file = fs.open(f"{root}/f", "read")
        assert file.pread(3, 4) == b"456"
        assert file.pread(100, 8) == b"89"
        assert file.pread(5, 10) == file.pread(5, 99) == file.pread(0, 0) == b""
        with refused(errno.EBADF):
            file.write([b"x"])

    def test_what_cannot_be_opened(self, fs: FileSystem, root: str) -> None:
        fs.make_folders(f"{root}/folder")
        _file(fs, f"{root}/file")
        with pytest.raises(FileNotFoundError):
            fs.open(f"{root}/absent", "read")
        with pytest.raises(FileNotFoundError):
            fs.open(f"{root}/absent/f", "create")
        with pytest.raises(NotADirectoryError):
            fs.open(f"{root}/file/f", "append")
        modes: list[Mode] = ["read", "append", "update"]
        for mode in modes:
            with pytest.raises(IsADirectoryError):
                fs.open(f"{root}/folder", mode)

    def test_a_closed_file_is_refused(self, fs: FileSystem, root: str) -> None:
        file = _file(fs, f"{root}/f", b"x")
        file.close()
        file.close()
        with refused(errno.EBADF):
            file.pread(1, 0)

    def test_truncate_then_write_goes_on_at_the_new_end(self, fs: FileSystem, root: str) -> None:
        file = _file(fs, f"{root}/f", b"0123456789")
        file.truncate(4)
        file.write([b"x"])
        assert file.pread(100, 0) == b"0123x"
        file.truncate(7)
        assert file.pread(100, 0) == b"0123x\0\0"

    def test_update_overwrites_where_it_is_told_to(self, fs: FileSystem, root: str) -> None:
        _file(fs, f"{root}/f", b"0123456789").close()
        file = fs.open(f"{root}/f", "update")
        assert file.write_at([b"a", bytearray(b"b"), memoryview(b"c")], 4) == 3
        assert file.write_at([], 4) == 0
        assert file.pread(100, 0) == b"0123abc789"
        assert file.write_at([b"xy"], 9) == 2
        assert file.write_at([b"z"], 13) == 1
        assert file.pread(100, 0) == b"0123abc78xy\0\0z"
        file.truncate(2)
        file.write_at([b"!"], 1)
        assert file.pread(100, 0) == b"0!"
        pieces = [bytes([i % 251]) * (i % 7) for i in range(MORE_THAN_IOV_MAX)]
        assert fs.open(f"{root}/new", "update").write_at(pieces, 5) == sum(map(len, pieces))
        assert fs.open(f"{root}/new", "read").pread(1 << 20, 0) == bytes(5) + b"".join(pieces)
        with refused(errno.EBADF):
            fs.open(f"{root}/f", "read").write_at([b"x"], 0)

    def test_stat(self, fs: FileSystem, root: str) -> None:
        file = _file(fs, f"{root}/f", b"abc")
        first = fs.stat(f"{root}/f")
        assert first is not None
        assert first == file.stat()
        assert first.size == 3
        assert fs.stat(f"{root}/absent") is None
        assert fs.stat(f"{root}/f/below") is None
        assert fs.stat(root) is None
        other = _file(fs, f"{root}/g", b"abc")
        assert other.stat().inode != first.inode

    def test_rename_replaces_and_open_files_stay(self, fs: FileSystem, root: str) -> None:
        old = _file(fs, f"{root}/target", b"old")
        new = _file(fs, f"{root}/source", b"new")
        fs.rename(f"{root}/source", f"{root}/target")
        assert fs.stat(f"{root}/source") is None
        assert fs.stat(f"{root}/target") == new.stat()
        assert old.pread(9, 0) == b"old"
        assert fs.open(f"{root}/target", "read").pread(9, 0) == b"new"

    def test_renames_that_are_refused(self, fs: FileSystem, root: str) -> None:
        fs.make_folders(f"{root}/folder/full")
        _file(fs, f"{root}/file")
        _file(fs, f"{root}/other")
        with pytest.raises(FileNotFoundError):
            fs.rename(f"{root}/absent", f"{root}/x")
        with pytest.raises(FileNotFoundError):
            fs.rename(f"{root}/file", f"{root}/absent/x")
        with pytest.raises(IsADirectoryError):
            fs.rename(f"{root}/file", f"{root}/folder")
        with pytest.raises(NotADirectoryError):
            fs.rename(f"{root}/file", f"{root}/other/x")

    def test_unlink(self, fs: FileSystem, root: str) -> None:
        file = _file(fs, f"{root}/f", b"x")
        fs.unlink(f"{root}/f")
        assert fs.stat(f"{root}/f") is None
        assert file.pread(1, 0) == b"x"
        with pytest.raises(FileNotFoundError):
            fs.unlink(f"{root}/f")
        fs.make_folders(f"{root}/folder")
        with pytest.raises(IsADirectoryError):
            fs.unlink(f"{root}/folder")

    def test_folders(self, fs: FileSystem, root: str) -> None:
        made = {f"{root}/a", f"{root}/a/b", f"{root}/a/b/c"}
        assert set(fs.make_folders(f"{root}/a/b/c")) == made
        assert not fs.make_folders(f"{root}/a/b/c")
        assert list(fs.make_folders(f"{root}/a/d", sync=False)) == [f"{root}/a/d"]
        fs.remove_folder(f"{root}/a/d")
        _file(fs, f"{root}/a/file")
        assert sorted(fs.scan(f"{root}/a")) == [("b", True), ("file", False)]
        assert list(fs.scan(f"{root}/absent")) == []
        fs.sync_folder(f"{root}/a")
        with refused(errno.ENOTEMPTY):
            fs.remove_folder(f"{root}/a/b")
        fs.remove_folder(f"{root}/a/b/c")
        assert list(fs.scan(f"{root}/a/b")) == []
        with pytest.raises(FileNotFoundError):
            fs.remove_folder(f"{root}/a/b/c")
        with pytest.raises(FileNotFoundError):
            fs.sync_folder(f"{root}/a/b/c")
        with pytest.raises(NotADirectoryError):
            fs.make_folders(f"{root}/a/file/x")
        with pytest.raises(NotADirectoryError):
            list(fs.scan(f"{root}/a/file"))

    def test_a_folder_that_is_held_open(self, fs: FileSystem, root: str) -> None:
        fs.make_folders(f"{root}/a")
        held = fs.open_folder(f"{root}/a")
        _file(fs, f"{root}/a/file").close()
        held.sync()
        held.sync()
        held.close()
        held.close()
        with refused(errno.EBADF):
            held.sync()
        with pytest.raises(FileNotFoundError):
            fs.open_folder(f"{root}/absent")
        with pytest.raises(NotADirectoryError):
            fs.open_folder(f"{root}/a/file")

    def test_files_and_folders_are_synced_together(self, fs: FileSystem, root: str) -> None:
        opened = [_file(fs, f"{root}/{number}", b"text") for number in range(20)]
        closed = _file(fs, f"{root}/closed")
        closed.close()
        folder = fs.open_folder(root)
        failed = fs.sync_all([*opened, closed, folder, *opened])
        assert [error and error.errno for error in failed] == [
            *[None] * 20,
            errno.EBADF,
            *[None] * 21,
        ]
        assert list(fs.sync_all([])) == []

    def test_a_lock_is_held_once(self, fs: FileSystem, root: str) -> None:
        held = fs.lock(f"{root}/lock", wait=True)
        assert held is not None
        assert fs.lock(f"{root}/lock", wait=False) is None
        other = fs.lock(f"{root}/other", wait=False)
        assert other is not None
        held.release()
        held.release()
        again = fs.lock(f"{root}/lock", wait=False)
        assert again is not None

    def test_copy_appends_a_range(self, fs: FileSystem, root: str) -> None:
        data = bytes(range(256)) * 40_000
        source = _file(fs, f"{root}/source", data)
        target = _file(fs, f"{root}/target", b"head")
        fs.copy(source, 100, 9_000_000, target)
        target.write([b"tail"])
        assert target.pread(1 << 24, 0) == b"head" + data[100:9_000_100] + b"tail"
        reader = fs.open(f"{root}/source", "read")
        fs.copy(reader, 0, 3, target)
        assert target.pread(9, target.size() - 7) == b"tail" + data[:3]
        with refused(errno.EINVAL):
            fs.copy(source, len(data) - 2, 3, target)

    def test_room_is_known(self, fs: FileSystem, root: str) -> None:
        assert fs.free_bytes(root) > 0
