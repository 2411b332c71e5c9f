"""What a restore refuses, what a backup leaves that was killed, and what the next one copies."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from service.runtime.identity import DataFolder
from tailrace.backups.repository import Backup, BackupEntry, BackupFolder
from tailrace.backups.restore import Restore
from tailrace.cli.main import main
from tailrace.logstore import keys
from tailrace.logstore.batch import RunKey
from tailrace.logstore.clock import SystemClock, system_entropy
from tailrace.logstore.errors import Conflict, StoreUnavailable
from tailrace.logstore.filesystem import Disk
from tailrace.logstore.objects.local import LocalStore
from tailrace.logstore.runs.manifest import Chunk, Manifest, decode_manifest, encode_manifest
from tests.simulation.powercut import PowerCutFileSystem

LARGE = bytes(range(256)) * (5 << 12)
KEY = RunKey("p", "r")


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A data folder whose store has objects of several kinds."""
    store = local(tmp_path / "data" / "store")
    objects = {
        keys.segment("n", 1): LARGE,
        "pipeline-logs/p/r/partial.txt": b"of OpenMetadata\n",
        keys.group("g"): b'{"group":"g"}',
        keys.peer("n", "0" * 26): b"{}",
        "of-a-later-version/x": b"x",
    }
    for key, body in objects.items():
        asyncio.run(store.put(key, body, metadata={"total-bytes": str(len(body))}))
    return tmp_path / "data"


def local(folder: Path) -> LocalStore:
    return LocalStore(str(folder), Disk(), SystemClock(), system_entropy())


def call(verb: str, backups: Path, data: Path, *flags: str) -> int:
    return main([verb, str(backups), "--data", str(data), *flags])


def restore(backups: Path, data: Path, *flags: str) -> int:
    """Restores the store, which is all that these backups hold."""
    return call("restore", backups, data, "--only", "store", *flags)


def lists(backups: Path) -> list[Path]:
    return sorted((backups / "backups").glob("*.jsonl.gz"))


def contents(backups: Path) -> dict[str, int]:
    return {path.name: path.stat().st_ino for path in (backups / "objects").glob("*/*")}


def objects_of(folder: Path) -> dict[str, bytes]:
    paths = [path for path in folder.rglob("*") if path.is_file()]
    found = {str(path.relative_to(folder)): path.read_bytes() for path in paths}
    return {key: body for key, body in found.items() if not key.startswith(".")}


def test_all_but_what_holds_for_processes_of_now_comes_back(data: Path, tmp_path: Path) -> None:
    assert call("backup", tmp_path / "b", data) == 0
    assert restore(tmp_path / "b", tmp_path / "new") == 0
    before = objects_of(data / "store")
    del before[keys.peer("n", "0" * 26)]
    assert objects_of(tmp_path / "new" / "store") == before
    head = asyncio.run(local(tmp_path / "new" / "store").head(keys.segment("n", 1)))
    assert head.metadata == {"total-bytes": str(len(LARGE))}


def flip(path: Path) -> None:
    body = bytearray(path.read_bytes())
    body[len(body) // 2] ^= 1
    path.write_bytes(body)


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


@pytest.mark.parametrize("of", ["list", "content"])
@pytest.mark.parametrize("harm", [flip, cut, Path.unlink])
def test_a_damaged_backup_is_refused_and_nothing_is_written(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], of: str, harm: object
) -> None:
    assert call("backup", tmp_path / "b", data) == 0
    (made,) = lists(tmp_path / "b")
    large = max((tmp_path / "b" / "objects").glob("*/*"), key=lambda path: path.stat().st_size)
    harmed = made if of == "list" else large
    assert callable(harm)
    harm(harmed)
    for flags in (["--check"], []):
        capsys.readouterr()
        assert restore(tmp_path / "b", tmp_path / "new", *flags) == 1
        said = capsys.readouterr().err
        absent = of == "list" and harm is Path.unlink
        assert ("holds no backup" if absent else str(harmed)) in said
        assert of == "list" or keys.segment("n", 1) in said
    assert objects_of(tmp_path / "new" / "store") == {}


def test_a_target_that_is_not_empty_is_replaced_only_if_told(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call("backup", tmp_path / "b", data) == 0
    before = objects_of(data / "store")
    asyncio.run(local(data / "store").put(keys.segment("n", 2), b"of later"))
    assert restore(tmp_path / "b", data) == 1
    assert "--replace" in capsys.readouterr().err
    assert objects_of(data / "store").keys() > before.keys()
    assert restore(tmp_path / "b", data, "--replace") == 0
    del before[keys.peer("n", "0" * 26)]
    assert objects_of(data / "store") == before


def test_a_restore_that_was_cut_off_starts_no_node(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "new"

    def identify() -> None:
        folder = DataFolder(Disk(), str(target), SystemClock(), system_entropy())
        try:
            folder.identity("node")
        finally:
            folder.release()

    async def away(self: LocalStore, key: str, *_: object, **__: object) -> None:
        raise StoreUnavailable(f"{self.uri(key)}: away")

    assert call("backup", tmp_path / "b", data) == 0
    with monkeypatch.context() as broken:
        broken.setattr(LocalStore, "put", away)
        broken.setattr(LocalStore, "compose", away)
        assert restore(tmp_path / "b", target) == 1
    with pytest.raises(Conflict, match="did not end"):
        identify()
    assert restore(tmp_path / "b", target, "--replace") == 0
    identify()
    before = objects_of(data / "store")
    del before[keys.peer("n", "0" * 26)]
    assert objects_of(target / "store") == before


def test_a_folder_in_use_is_not_restored_into(data: Path, tmp_path: Path) -> None:
    assert call("backup", tmp_path / "b", data) == 0
    held = DataFolder(Disk(), str(tmp_path / "new"), SystemClock(), system_entropy())
    assert restore(tmp_path / "b", tmp_path / "new") == 1
    held.release()
    assert restore(tmp_path / "b", tmp_path / "new") == 0


def test_the_next_backup_copies_what_is_new_and_old_ones_go(data: Path, tmp_path: Path) -> None:
    assert call("backup", tmp_path / "b", data) == 0
    first = contents(tmp_path / "b")
    asyncio.run(local(data / "store").put(keys.segment("n", 2), b"new"))
    asyncio.run(local(data / "store").delete([keys.segment("n", 1)]))
    assert call("backup", tmp_path / "b", data) == 0
    both = contents(tmp_path / "b")
    assert both.items() > first.items()
    assert len(both) == len(first) + 1
    (tmp_path / "b" / "objects" / "left.new").touch()
    assert call("backup", tmp_path / "b", data, "--keep", "1") == 0
    assert len(lists(tmp_path / "b")) == 1
    left = contents(tmp_path / "b")
    assert len(left) == len(first)
    assert first.keys() - left.keys()
    assert not (tmp_path / "b" / "objects" / "left.new").exists()
    assert restore(tmp_path / "b", tmp_path / "new") == 0


def test_a_backup_that_is_killed_is_no_backup(data: Path, tmp_path: Path) -> None:
    """It stands still at an object that does not answer, and is killed there."""
    assert call("backup", tmp_path / "b", data) == 0
    earlier, before = lists(tmp_path / "b"), contents(tmp_path / "b")
    newer = keys.group("newer")
    asyncio.run(local(data / "store").put(newer, b'{"group":"newer"}'))
    stuck = data / "store" / keys.watermark("n")
    stuck.parent.mkdir(parents=True)
    os.mkfifo(stuck)
    command = [sys.executable, "-m", "tailrace", "backup", str(tmp_path / "b"), "--data", str(data)]
    backup = subprocess.Popen(command)
    try:
        deadline = time.monotonic() + 120
        while contents(tmp_path / "b").keys() == before.keys():
            assert backup.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.02)
    finally:
        backup.send_signal(signal.SIGKILL)
        backup.wait()
    assert lists(tmp_path / "b") == earlier
    assert restore(tmp_path / "b", tmp_path / "old") == 0
    assert newer not in objects_of(tmp_path / "old" / "store")
    stuck.unlink()
    assert call("backup", tmp_path / "b", data) == 0
    assert restore(tmp_path / "b", tmp_path / "new") == 0
    assert newer in objects_of(tmp_path / "new" / "store")


def test_a_folder_within_what_is_backed_up_is_refused(data: Path, tmp_path: Path) -> None:
    assert call("backup", data / "store" / "b", data) == 1
    assert call("backup", data / "b", data) == 1
    assert not (data / "b").exists()
    assert call("backup", tmp_path / "b", tmp_path / "nothing") == 1
    assert lists(tmp_path / "b") == []


def test_a_backup_without_a_data_folder_is_not_taken_for_one_with_it(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call("backup", tmp_path / "b", data) == 0
    assert call("restore", tmp_path / "b", tmp_path / "new") == 1
    said = capsys.readouterr().err
    assert "holds a data folder and a store" in said
    assert "--only store" in said


async def _bytes(body: bytes) -> AsyncIterator[bytes]:
    yield body


async def test_a_manifest_names_the_etag_that_the_new_store_gives(tmp_path: Path) -> None:
    """S3 gives another one to an object that was uploaded in parts; here in pieces of 4 MiB."""
    fs, clock, entropy = Disk(), SystemClock(), system_entropy()
    folder = BackupFolder(fs, str(tmp_path / "b"), clock, entropy)
    chunk = Chunk("c", "logs", len(LARGE), 1, 1, 0, 0, 1, 1, 1, {}, "of-two-parts-2")
    named = keys.logs("logs", KEY), LARGE, "of-two-parts-2"
    manifest = encode_manifest(Manifest(KEY, "closed", chunks=(chunk,), version="v"))
    entries = []
    for key, body, etag in (named, (keys.run_manifest(KEY), manifest, "m")):
        sha256, size = await folder.keep(_bytes(body))
        entries.append(BackupEntry("store", key, size, sha256, etag))
    backup = Backup("0" * 26, 0, "1", "s3://b", "logs", entries=tuple(entries))
    store = local(tmp_path / "store")
    data = str(tmp_path / "data")
    work = Restore(folder, backup, fs, data, store, False, clock, entropy, put_bytes=4 << 20)
    await work.run(replace_all=False)
    info, body = await store.get(named[0])
    assert body == LARGE
    restored = decode_manifest((await store.get(keys.run_manifest(KEY)))[1])
    assert restored.chunks[0].etag == info.etag
    assert restored.version != "v"


def test_contents_that_a_killed_backup_left_outlive_a_power_cut_with_the_next_one() -> None:
    fs, clock, entropy = PowerCutFileSystem(), SystemClock(), system_entropy()

    async def one() -> AsyncIterator[bytes]:
        yield LARGE

    with BackupFolder(fs, "/backups", clock, entropy).held():
        sha256, size = asyncio.run(BackupFolder(fs, "/backups", clock, entropy).keep(one()))
    later = BackupFolder(fs, "/backups", clock, entropy)
    assert later.has(sha256, size)
    entry = BackupEntry("store", "k", size, sha256)
    later.write(Backup(later.fresh_id(), 1, "1", "/s", "p", entries=(entry,)))
    for seed in range(8):
        left = BackupFolder(fs.after_power_cut(seed), "/backups", clock, entropy)
        asyncio.run(left.check(left.chosen(None, ["store"]).entries))
