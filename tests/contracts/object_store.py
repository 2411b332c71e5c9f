"""What every `ObjectStore` does. Subclass it and give `store`, an empty one.

`tests/contracts/object_lists.py` has the lists, `tests/contracts/object_races.py` the part that
needs several processes.
"""

from __future__ import annotations

import asyncio
import tracemalloc
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from tailrace.logstore.errors import (
    Conflict,
    InvalidInput,
    InvalidName,
    NotFound,
    PreconditionFailed,
)
from tailrace.logstore.objects.store import ObjectInfo, ObjectPart, ObjectStore
from tests.contracts.object_lists import ObjectListContract, keys_of

MIB = 1 << 20


async def bytes_of(store: ObjectStore, key: str) -> bytes:
    return (await store.get(key))[1]


def is_same(written: ObjectInfo, read: ObjectInfo) -> bool:
    """A write may know its time only to the second of the answer."""
    close = abs(written.modified_ms - read.modified_ms) <= 2000
    return close and replace(written, modified_ms=read.modified_ms) == read


async def _streamed(pieces: AsyncIterator[bytes]) -> bytes:
    return b"".join([piece async for piece in pieces])


class ObjectStoreContract(ObjectListContract):
    """What every object store does; a subclass gives the store."""

    @pytest.fixture
    def store(self) -> ObjectStore:
        raise NotImplementedError

    # -- put, get, head

    @pytest.mark.parametrize("size", [256, 1025, 5000])
    async def test_a_key_that_cannot_be_is_not_there(self, store: ObjectStore, size: int) -> None:
        await store.put("a/b", b"x")
        name = "n" * size
        for prefix in (f"a/{name}/", f"a/{name}", f"{name}/"):
            assert await keys_of(store, prefix) == []
            assert [key async for key in store.folders(f"{name}/")] == []
        with pytest.raises((NotFound, InvalidName)):
            await store.get(f"a/{name}")
        with pytest.raises((NotFound, InvalidName)):
            await store.head(f"a/{name}/x")

    @pytest.mark.parametrize("body", [b"", b"x", b"\0\n\xff" * 1000, bytes(3 * MIB)])
    async def test_put_then_read(self, store: ObjectStore, body: bytes) -> None:
        put = await store.put("a/b/c.txt", body)
        info, got = await store.get("a/b/c.txt")
        assert got == body
        assert info == await store.head("a/b/c.txt")
        assert is_same(put, info)
        assert (info.key, info.size, info.metadata) == ("a/b/c.txt", len(body), {})
        assert info.etag
        assert info.modified_ms > 1_500_000_000_000
        assert await _streamed(store.stream("a/b/c.txt")) == body

    async def test_bodies_of_all_kinds(self, store: ObjectStore) -> None:
        await store.put("a", bytearray(b"array"))
        await store.put("v", memoryview(b"__view__")[2:6])
        assert await bytes_of(store, "a") == b"array"
        assert await bytes_of(store, "v") == b"view"

    async def test_what_is_not_there(self, store: ObjectStore) -> None:
        await store.put("folder/x", b"x")
        for key in ("absent", "absent/deep", "folder", "folder/x/y"):
            with pytest.raises(NotFound):
                await store.get(key)
            with pytest.raises(NotFound):
                await store.get(key, if_match="etag")
            with pytest.raises(NotFound):
                await store.head(key)
            with pytest.raises(NotFound):
                await _streamed(store.stream(key))

    @pytest.mark.parametrize("key", ["", "/a", "a/", "a//b", "../a", "a/../b", "a/./b", "a\0b"])
    async def test_what_is_no_key(self, store: ObjectStore, key: str) -> None:
        with pytest.raises(InvalidName):
            await store.put(key, b"")
        with pytest.raises(InvalidName):
            await store.get(key)

    @pytest.mark.parametrize(
        "key", ["ü/日本/\U0001f600", "%2E%2E/%2F%00", "a b/+&?#*'\"", "x" * 200 + "/" + "y" * 200]
    )
    async def test_unusual_keys(self, store: ObjectStore, key: str) -> None:
        await store.put(key, b"here")
        assert await bytes_of(store, key) == b"here"
        assert await keys_of(store, "") == [key]
        assert await keys_of(store, key) == [key]
        assert store.uri(key).endswith(key) or "%" in store.uri(key)
        await store.delete([key])
        assert await keys_of(store, "") == []

    @pytest.mark.parametrize(
        "range_", [(0, 0), (0, 4), (3, 4), (3, None), (8, 99), (10, 5), (99, 1), (99, None)]
    )
    async def test_ranges(self, store: ObjectStore, range_: tuple[int, int | None]) -> None:
        await store.put("r", b"0123456789")
        offset, size = range_
        expected = b"0123456789"[offset : None if size is None else offset + size]
        info, got = await store.get("r", offset=offset, size=size)
        assert got == expected
        assert info.size == 10
        assert await _streamed(store.stream("r", offset=offset, size=size)) == expected

    async def test_ranges_of_an_empty_object(self, store: ObjectStore) -> None:
        await store.put("e", b"")
        assert (await store.get("e", offset=0, size=5))[1] == b""
        assert (await store.get("e", offset=7))[1] == b""
        assert await _streamed(store.stream("e")) == b""

    async def test_no_range_begins_before_the_object(self, store: ObjectStore) -> None:
        await store.put("r", b"x")
        with pytest.raises(InvalidInput):
            await store.get("r", offset=-1)
        with pytest.raises(InvalidInput):
            await store.get("r", size=-1)

    async def test_reading_only_what_is_expected(self, store: ObjectStore) -> None:
        old = await store.put("k", b"old")
        assert (await store.get("k", if_match=old.etag))[1] == b"old"
        assert await _streamed(store.stream("k", if_match=old.etag)) == b"old"
        await store.put("k", b"new")
        with pytest.raises(PreconditionFailed):
            await store.get("k", if_match=old.etag)
        with pytest.raises(PreconditionFailed):
            await _streamed(store.stream("k", if_match=old.etag))

    async def test_metadata(self, store: ObjectStore) -> None:
        metadata = {"last-flushed-line": "12", "x": "v" * 1800}
        put = await store.put("k", b"1", metadata=metadata)
        assert put.metadata == metadata
        assert (await store.head("k")).metadata == metadata
        assert (await store.get("k"))[0].metadata == metadata
        assert [info.metadata async for info in store.list("k")] == [{}]
        composed = await store.compose("c", [ObjectPart("k")], metadata={"y": "2"})
        assert composed.metadata == (await store.head("c")).metadata == {"y": "2"}
        await store.put("k", b"1")
        assert (await store.head("k")).metadata == {}
        with pytest.raises(InvalidInput):
            await store.put("k", b"2", metadata={"x": "v" * 2048})
        assert await bytes_of(store, "k") == b"1"

    # -- conditions

    async def test_if_absent(self, store: ObjectStore) -> None:
        await store.put("k", b"first", if_absent=True)
        with pytest.raises(PreconditionFailed):
            await store.put("k", b"second", if_absent=True)
        with pytest.raises(PreconditionFailed):
            await store.compose("k", [b"third"], if_absent=True)
        assert await bytes_of(store, "k") == b"first"
        await store.delete(["k"])
        await store.put("k", b"again", if_absent=True)
        assert await bytes_of(store, "k") == b"again"

    async def test_if_match(self, store: ObjectStore) -> None:
        first = await store.put("k", b"first")
        second = await store.put("k", b"second", if_match=first.etag)
        with pytest.raises(PreconditionFailed):
            await store.put("k", b"late", if_match=first.etag)
        with pytest.raises(PreconditionFailed):
            await store.compose("k", [b"late"], if_match=first.etag)
        assert await bytes_of(store, "k") == b"second"
        third = await store.compose("k", [ObjectPart("k"), b"+"], if_match=second.etag)
        assert await bytes_of(store, "k") == b"second+"
        await store.put("k", b"fourth", if_match=third.etag)
        with pytest.raises(PreconditionFailed):
            await store.put("absent", b"x", if_match=first.etag)
        with pytest.raises(NotFound):
            await store.head("absent")

    async def test_of_racing_writers_one_wins(self, store: ObjectStore) -> None:
        async def create(i: int) -> bool:
            try:
                await store.put("race", str(i).encode(), if_absent=True)
            except PreconditionFailed:
                return False
            return True

        won = await asyncio.gather(*[create(i) for i in range(12)])
        assert sum(won) == 1
        assert await bytes_of(store, "race") == str(won.index(True)).encode()

    async def test_a_counter_by_compare_and_swap_loses_nothing(self, store: ObjectStore) -> None:
        await store.put("counter", b"0")

        async def count() -> None:
            while True:
                info, body = await store.get("counter")
                try:
                    await store.put("counter", str(int(body) + 1).encode(), if_match=info.etag)
                except PreconditionFailed:
                    continue
                return

        await asyncio.gather(*[count() for _ in range(20)])
        assert await bytes_of(store, "counter") == b"20"

    # -- compose

    async def test_compose_ranges_and_bytes(self, store: ObjectStore) -> None:
        await store.put("s", b"0123456789")
        await store.put("e", b"")
        parts: list[ObjectPart | bytes] = [
            b"<",
            ObjectPart("s"),
            ObjectPart("e"),
            b"",
            ObjectPart("s", 7),
            ObjectPart("s", 2, 3),
            ObjectPart("s", 8, 99),
            ObjectPart("s", 50, 2),
            ObjectPart("s", 0, 0),
            b">",
        ]
        composed = await store.compose("target", parts)
        expected = b"<0123456789" + b"789" + b"234" + b"89" + b">"
        info, got = await store.get("target")
        assert got == expected
        assert is_same(composed, info)

    async def test_compose_of_nothing(self, store: ObjectStore) -> None:
        assert (await store.compose("k", [])).size == 0
        assert await bytes_of(store, "k") == b""

    async def test_an_object_can_be_appended_to_itself(self, store: ObjectStore) -> None:
        await store.put("k", b"ab")
        for _ in range(3):
            await store.compose("k", [ObjectPart("k"), ObjectPart("k", 0, 1), b"."])
        assert await bytes_of(store, "k") == b"aba.a.a."

    async def test_conditions_on_sources(self, store: ObjectStore) -> None:
        old = await store.put("s", b"old")
        await store.compose("k", [ObjectPart("s", if_match=old.etag)])
        await store.put("s", b"new")
        with pytest.raises(PreconditionFailed):
            await store.compose("k", [ObjectPart("s", if_match=old.etag)])
        with pytest.raises(NotFound):
            await store.compose("k", [b"x", ObjectPart("absent")])
        assert await bytes_of(store, "k") == b"old"

    # -- delete

    async def test_delete(self, store: ObjectStore) -> None:
        for key in ("a/b/c", "a/b/d", "a/e", "f"):
            await store.put(key, b"x")
        await store.delete([])
        await store.delete(["a/b/c", "absent", "absent/deep", "f/below", "a/b", "f", "f"])
        assert await keys_of(store, "") == ["a/b/d", "a/e"]
        with pytest.raises(NotFound):
            await store.get("a/b/c")
        await store.put("a/b/c", b"again")
        assert await bytes_of(store, "a/b/c") == b"again"

    async def test_a_name_may_become_a_folder_and_back(self, store: ObjectStore) -> None:
        await store.put("n/x", b"file")
        await store.delete(["n/x"])
        await store.put("n/x/y/z", b"deep")
        await store.delete(["n/x/y/z"])
        await store.put("n/x", b"file")
        assert await keys_of(store, "") == ["n/x"]

    async def test_deletes_and_puts_in_one_folder_at_a_time(self, store: ObjectStore) -> None:
        async def churn(i: int) -> None:
            for _ in range(15):
                await store.put(f"churn/deep/{i}", b"x")
                await store.delete([f"churn/deep/{i}"])
            await store.put(f"churn/deep/{i}", b"last")

        await asyncio.gather(*[churn(i) for i in range(6)])
        assert await keys_of(store, "churn/") == [f"churn/deep/{i}" for i in range(6)]


class HashedObjectContract:
    """For stores whose ETags are hashes of the bytes: all but S3 with keys of its key store."""

    async def test_an_etag_is_of_the_bytes(self, store: ObjectStore) -> None:
        one = await store.put("one", b"same")
        other = await store.put("two", b"same", metadata={"a": "b"})
        changed = await store.put("one", b"else")
        assert one.etag == other.etag
        assert changed.etag != one.etag
        assert (await store.head("one")).etag == changed.etag

    async def test_how_an_object_was_made_does_not_show(self, store: ObjectStore) -> None:
        await store.put("s", b"0123456789")
        composed = await store.compose("k", [b"<", ObjectPart("s", 2, 3), b">"])
        assert composed.etag == (await store.put("same", b"<234>")).etag


class LargeObjectContract:
    """For stores whose objects are not in this process's memory."""

    async def test_a_large_object_takes_little_memory(self, store: ObjectStore) -> None:
        block = bytes(range(256)) * 4096 * 4
        await store.put("block", block)
        await store.compose("large", [ObjectPart("block")] * 16)
        tracemalloc.start()
        try:
            assert (await store.compose("larger", [ObjectPart("large"), b"!"])).size == 64 * MIB + 1
            total = 0
            async for piece in store.stream("larger", offset=1):
                assert len(piece) <= 2 * MIB
                total += len(piece)
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert total == 64 * MIB
        assert peak < 16 * MIB
        assert (await store.get("larger", offset=64 * MIB - 1))[1] == block[-1:] + b"!"


class FolderStoreContract:
    """What only a store of folders refuses."""

    async def test_an_object_in_the_way(self, store: ObjectStore) -> None:
        await store.put("x/y", b"kept")
        for key in ("x", "x/y/z"):
            with pytest.raises(Conflict) as caught:
                await store.put(key, b"refused")
            assert caught.value.hint
        assert await keys_of(store, "") == ["x/y"]
        assert await bytes_of(store, "x/y") == b"kept"
