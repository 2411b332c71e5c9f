"""The simulated disk itself: what a power cut keeps, what it may take, what it must not."""

from __future__ import annotations

import errno

import pytest

from tailrace.logstore.filesystem import FileSystem
from tests.refusals import refused
from tests.seeds import seeds
from tests.simulation.powercut import PowerCut, PowerCutFileSystem

SEEDS = seeds(60)


def _text(fs: FileSystem, path: str) -> bytes | None:
    if fs.stat(path) is None:
        return None
    return fs.open(path, "read").pread(1 << 20, 0)


def _after(fs: PowerCutFileSystem, path: str) -> set[bytes | None]:
    return {_text(fs.reboot(seed), path) for seed in SEEDS}


def test_what_was_synced_is_kept() -> None:
    fs = PowerCutFileSystem()
    fs.make_folders("/a/b")
    file = fs.open("/a/b/f", "create")
    file.write([b"kept"])
    file.sync()
    fs.sync_folder("/a/b")
    assert _after(fs, "/a/b/f") == {b"kept"}


def test_a_name_is_kept_once_its_open_folder_was_synced() -> None:
    fs = PowerCutFileSystem()
    fs.make_folders("/a")
    held = fs.open_folder("/a")
    file = fs.open("/a/f", "create")
    file.write([b"kept"])
    file.sync()
    assert any(fs.after_power_cut(seed).stat("/a/f") is None for seed in range(20))
    held.sync()
    assert _after(fs, "/a/f") == {b"kept"}


def test_unsynced_bytes_are_lost_kept_cut_or_zeroed() -> None:
    fs = PowerCutFileSystem()
    file = fs.open("/f", "create")
    fs.sync_folder("/")
    file.write([b"kept"])
    file.sync()
    file.write([b"x" * 10_000])
    found = _after(fs, "/f")
    assert {b"kept", b"kept" + b"x" * 10_000} < found
    assert all(text is not None and text.startswith(b"kept") for text in found)
    assert any(text is not None and b"\0x" in text for text in found)
    assert len(found) > 6


def test_an_unsynced_overwrite_leaves_old_new_or_mixed_pages() -> None:
    fs = PowerCutFileSystem()
    file = fs.open("/f", "update")
    fs.sync_folder("/")
    file.write_at([b"o" * 12_000], 0)
    file.sync()
    file.write_at([b"n" * 8_000], 3_000)
    found = _after(fs, "/f")
    assert {b"o" * 12_000, b"o" * 3_000 + b"n" * 8_000 + b"o" * 1_000} < found
    for text in found:
        assert text is not None
        assert len(text) == 12_000
        assert set(text) <= set(b"on")
        assert set(text[:3_000] + text[11_000:]) == set(b"o")
    pages = {(text[3_000:4_096], text[4_096:8_192]) for text in found if text is not None}
    assert (b"o" * 1_096, b"n" * 4_096) in pages
    assert (b"n" * 1_096, b"o" * 4_096) in pages
    assert any(0 < text.count(b"n", 4_096, 8_192) < 4_096 for text in found if text is not None)


def test_an_unsynced_name_may_be_lost() -> None:
    fs = PowerCutFileSystem()
    file = fs.open("/f", "create")
    file.sync()
    assert _after(fs, "/f") == {None, b""}


def test_an_unsynced_rename_is_done_or_not_but_never_loses_the_file() -> None:
    fs = PowerCutFileSystem()
    for name in ("old", "new"):
        file = fs.open(f"/{name}", "create")
        file.write([name.encode()])
        file.sync()
    fs.sync_folder("/")
    fs.rename("/new", "/old")
    assert _after(fs, "/old") == {b"old", b"new"}
    for seed in SEEDS:
        after = fs.reboot(seed)
        assert b"new" in (_text(after, "/old"), _text(after, "/new"))


def test_a_rename_between_folders_is_kept_with_its_first_synced_half() -> None:
    fs = PowerCutFileSystem()
    fs.make_folders("/a")
    fs.make_folders("/b")
    file = fs.open("/a/f", "create")
    file.write([b"x"])
    file.sync()
    fs.sync_folder("/a")
    fs.rename("/a/f", "/b/f")
    fs.sync_folder("/a")
    assert _after(fs, "/b/f") == {b"x"}


def test_an_unsynced_unlink_may_come_undone() -> None:
    fs = PowerCutFileSystem()
    fs.open("/f", "create").sync()
    fs.sync_folder("/")
    fs.unlink("/f")
    assert _after(fs, "/f") == {None, b""}


def test_power_fails_at_the_call_and_for_ever() -> None:
    fs = PowerCutFileSystem(fail_at=2)
    file = fs.open("/f", "create")
    with pytest.raises(PowerCut):
        file.write([b"x"])
    with pytest.raises(PowerCut):
        file.sync()
    with pytest.raises(PowerCut):
        fs.stat("/f")
    file.close()
    assert fs.calls == ["create /f", "write /f"]
    assert fs.reboot(1).fail_at is None


def test_a_sync_that_is_cut_did_not_happen() -> None:
    fs = PowerCutFileSystem(fail_at=3)
    file = fs.open("/f", "create")
    file.write([b"x"])
    with pytest.raises(PowerCut):
        fs.sync_folder("/")
    assert None in _after(fs, "/f")


def test_a_failed_sync_cannot_be_made_good() -> None:
    fs = PowerCutFileSystem()
    file = fs.open("/f", "create")
    fs.sync_folder("/")
    file.write([b"lost"])
    fs.fail_with(errno.EIO, at=4, once=True)
    with refused(errno.EIO):
        file.sync()
    file.sync()
    assert file.pread(9, 0) == b"lost"
    assert _after(fs, "/f") == {b""}


def test_a_full_disk_takes_half_a_write_and_still_reads_and_deletes() -> None:
    fs = PowerCutFileSystem()
    file = fs.open("/f", "create")
    fs.fail_with(errno.ENOSPC, at=2)
    for _ in range(2):
        with refused(errno.ENOSPC):
            file.write([b"1234"])
    file.sync()
    assert file.pread(9, 0) == b"1212"
    fs.unlink("/f")
    fs.heal()
    fs.open("/g", "create").write([b"x"])


def test_capacity() -> None:
    fs = PowerCutFileSystem(capacity_bytes=10)
    file = fs.open("/f", "create")
    file.write([b"12345678"])
    with refused(errno.ENOSPC):
        file.write([b"9abc"])
    assert file.pread(99, 0) == b"123456789a"
    assert fs.free_bytes("/") == 0
    fs.unlink("/f")
    assert fs.free_bytes("/") == 10


def test_the_same_seed_gives_the_same_disk() -> None:
    def texts(seed: int) -> list[bytes | None]:
        fs = PowerCutFileSystem()
        for i in range(20):
            fs.open(f"/{i}", "create").write([b"x" * 9000])
        after = fs.reboot(seed)
        return [_text(after, f"/{i}") for i in range(20)]

    assert texts(5) == texts(5)
    assert texts(5) != texts(6)
