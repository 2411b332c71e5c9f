from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import pytest

from tailrace.logstore.clock import SystemClock, system_entropy
from tailrace.logstore.errors import Conflict, InvalidName, PreconditionFailed
from tailrace.logstore.filesystem import Disk
from tailrace.logstore.objects.local import LocalStore, inline
from tailrace.logstore.objects.local_files import LocalFiles, Put
from tailrace.logstore.objects.store import ObjectInfo, ObjectStore
from tests.contracts.object_lists import keys_of
from tests.contracts.object_races import ObjectRacesContract, OpenStore
from tests.contracts.object_store import (
    FolderStoreContract,
    HashedObjectContract,
    LargeObjectContract,
    ObjectStoreContract,
)
from tests.simulation.faulty_store import FaultyStore, Schedule
from tests.simulation.powercut import PowerCutFileSystem


def open_local_store(root: str) -> ObjectStore:
    return LocalStore(root, Disk(), SystemClock(), system_entropy())


@asynccontextmanager
async def opened_local_store(root: str) -> AsyncIterator[ObjectStore]:
    yield open_local_store(root)


class TestLocalStore(
    LargeObjectContract, HashedObjectContract, FolderStoreContract, ObjectStoreContract
):
    @pytest.fixture
    def store(self, tmp_path: Path) -> ObjectStore:
        return open_local_store(str(tmp_path / "store"))


class TestLocalStoreRaces(ObjectRacesContract):
    @pytest.fixture
    def open_store(self, tmp_path: Path) -> OpenStore:
        return partial(opened_local_store, str(tmp_path / "store"))


class TestLocalStoreInMemory(HashedObjectContract, FolderStoreContract, ObjectStoreContract):
    @pytest.fixture
    def store(self) -> ObjectStore:
        return LocalStore("/store", PowerCutFileSystem(), SystemClock(), Random(1), run=inline)


class TestFaultyStore(HashedObjectContract, ObjectStoreContract):
    @pytest.fixture
    def store(self) -> ObjectStore:
        inner = LocalStore("/store", PowerCutFileSystem(), SystemClock(), Random(1), run=inline)
        return FaultyStore(inner, Schedule.none())


# -- what only the local store has


async def test_puts_that_come_at_once(store_of_folder: ObjectStore) -> None:
    """Groups of them: each has its own outcome, also if its caller is gone or its key refused."""
    store = store_of_folder

    async def put(number: int) -> ObjectInfo:
        metadata = {"of": str(number)} if number % 2 else {}
        key = f"runs/{number % 40}/text"
        return await store.put(key, b"%d" % number, if_absent=True, metadata=metadata)

    waiting = [asyncio.ensure_future(put(number)) for number in range(80)]
    refused = asyncio.ensure_future(store.put("../x", b"x"))
    await asyncio.sleep(0)
    waiting[79].cancel()
    outcomes = await asyncio.gather(*waiting, refused, return_exceptions=True)
    assert isinstance(outcomes.pop(), InvalidName)
    assert isinstance(outcomes[79], asyncio.CancelledError)
    made = [info for info in outcomes if isinstance(info, ObjectInfo)]
    assert len(made) == len({info.key for info in made}) == 40
    for info in made:
        found, body = await store.get(info.key)
        assert (found.etag, found.metadata) == (info.etag, info.metadata)
        assert body == info.metadata.get("of", body.decode()).encode()


@pytest.fixture
def store_of_folder(tmp_path: Path) -> ObjectStore:
    return open_local_store(str(tmp_path / "store"))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture
def local(root: Path) -> ObjectStore:
    return open_local_store(str(root))


async def test_objects_are_plain_files(local: ObjectStore, root: Path) -> None:
    await local.put("a/b.txt", b"text")
    assert (root / "a" / "b.txt").read_bytes() == b"text"
    assert local.uri("a/b.txt") == str(root / "a" / "b.txt")
    assert list((root / ".tmp").iterdir()) == []


async def test_a_list_for_threads_looks_at_no_file() -> None:
    """Each look gives the interpreter's lock away, for milliseconds beside ingest."""
    fs = PowerCutFileSystem()
    store = LocalStore("/store", fs, SystemClock(), Random(1), run=inline)
    for key in ("a/b", "a/c/d", "e"):
        await store.put(key, b"")
    before = len(fs.calls)
    assert [key for key, _ in store.listed("a/")] == ["a/b", "a/c/d"]
    assert {call.split()[0] for call in fs.calls[before:]} == {"scan"}


async def test_a_new_folder_costs_a_sync_of_its_parent_and_one_of_its_own() -> None:
    fs = PowerCutFileSystem()
    store = LocalStore("/store", fs, SystemClock(), Random(1), run=inline)
    await store.put("a/b/one", b"")
    before = len(fs.calls)
    await store.put("a/c/two", b"text", metadata={"of": "it"})
    syncs = [call for call in fs.calls[before:] if call.startswith("sync")]
    assert len(syncs) == 3, syncs
    assert syncs[1:] == ["sync_folder /store/a", "sync_folder /store/a/c"]


async def test_files_that_others_wrote_are_objects(local: ObjectStore, root: Path) -> None:
    names = ["_delta_log/0.json", ".0.json.crc", "_temporary/0/x", "date=2026-01-01/p.parquet"]
    for name in names:
        (root / "table" / name).parent.mkdir(parents=True, exist_ok=True)
        (root / "table" / name).write_bytes(name.encode())
    assert await keys_of(local, "table/") == sorted([f"table/{name}" for name in names])
    body = b"table says nothing"
    ours = await local.put("same", body)
    (root / "table" / "same").write_bytes(body)
    assert (await local.head("table/same")).etag == ours.etag


async def test_a_file_changed_behind_our_back_has_another_etag(
    local: ObjectStore, root: Path
) -> None:
    old = await local.put("k", b"one", metadata={"a": "b"})
    (root / "k").write_bytes(b"two")
    info, body = await local.get("k")
    assert (body, info.etag, info.metadata) == (b"two", (await local.put("x", b"two")).etag, {})
    with pytest.raises(PreconditionFailed):
        await local.put("k", b"three", if_match=old.etag)
    await local.put("k", b"three", if_match=info.etag)


@pytest.mark.parametrize("sidecar", [b"", b"{", b"[]", b"null", b"\0" * 99, b'{"etag":1}', None])
async def test_nothing_depends_on_what_is_remembered(
    local: ObjectStore, root: Path, sidecar: bytes | None
) -> None:
    put = await local.put("a/k", b"one" * 10_000)
    path = root / ".meta" / "a" / "k.json"
    if sidecar is None:
        path.unlink()
    else:
        path.write_bytes(sidecar)
    assert (await local.head("a/k")).etag == put.etag
    assert path.read_bytes().startswith(b'{"etag":"')
    await local.put("a/k", b"two", if_match=put.etag)


async def test_of_a_small_object_without_metadata_nothing_is_remembered(
    local: ObjectStore, root: Path
) -> None:
    put = await local.put("a/k", b"one")
    path = root / ".meta" / "a" / "k.json"
    assert ((await local.head("a/k")).etag, path.exists()) == (put.etag, False)
    large = await local.put("a/k", b"two", metadata={"a": "b"}, if_match=put.etag)
    assert (path.exists(), (await local.head("a/k")).metadata) == (True, {"a": "b"})
    await local.put("a/k", b"one", if_match=large.etag)
    assert ((await local.head("a/k")).metadata, path.exists()) == ({}, False)


async def test_what_is_remembered_never_stands_in_anothers_way(local: ObjectStore) -> None:
    for key in ("a", "a.json/b", "a.json%/c", "a.json%/c.json/d", "a.json.json/e"):
        await local.put(key, key.encode(), metadata={"key": key})
    for key in await keys_of(local, ""):
        assert (await local.head(key)).metadata == {"key": key}


@pytest.mark.parametrize(
    "key", [".meta/x.json", ".locks/00", ".tmp/x", "x" * 246, "x/" * 600 + "x"]
)
async def test_keys_that_the_store_keeps_to_itself(local: ObjectStore, key: str) -> None:
    with pytest.raises(InvalidName):
        await local.put(key, b"")


async def test_no_trace_is_left_of_what_was_deleted(local: ObjectStore, root: Path) -> None:
    await local.put("a/b/c", b"")
    await local.delete(["a/b/c"])
    assert sorted(path.name for path in root.iterdir()) == [".locks", ".meta", ".tmp"]
    assert list((root / ".meta").iterdir()) == []


async def test_what_a_crash_left_is_removed_after_a_day(root: Path) -> None:
    (root / ".tmp").mkdir(parents=True)
    for name, age_hours in (("old", 25), ("young", 23)):
        path = root / ".tmp" / name
        path.write_bytes(b"x")
        then = SystemClock().now_ms() / 1000 - age_hours * 3600
        os.utime(path, (then, then))
    local = open_local_store(str(root))
    assert [path.name for path in (root / ".tmp").iterdir()] == ["young"]
    assert await keys_of(local, "") == []


async def test_a_read_sees_one_object_while_it_is_replaced(local: ObjectStore) -> None:
    await local.put("k", b"a" * 3_000_000)
    pieces = local.stream("k")
    read = await anext(pieces)
    await local.put("k", b"b" * 10)
    assert read + b"".join([piece async for piece in pieces]) == b"a" * 3_000_000


async def test_a_root_that_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(Conflict):
        open_local_store(str(tmp_path / "file"))


async def test_small_texts_that_are_composed_of_given_bytes_are_written_in_groups(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[int] = []
    put_all = LocalFiles.put_all

    def counted(self: LocalFiles, puts: Sequence[Put]) -> Any:
        made.append(len(puts))
        return put_all(self, puts)

    monkeypatch.setattr(LocalFiles, "put_all", counted)
    store = LocalStore(str(tmp_path), Disk(), SystemClock(), system_entropy())
    await asyncio.gather(
        *[store.compose(f"p/{number}/partial.txt", [b"a", b"b"]) for number in range(34)]
    )
    assert sum(made) == 32, "two begin at once, the others wait for them"
    for number in range(34):
        assert (await store.get(f"p/{number}/partial.txt"))[1] == b"ab"
