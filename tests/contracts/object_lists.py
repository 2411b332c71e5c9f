"""What lists of every `ObjectStore` give; a part of `tests/contracts/object_store.py`."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import replace

import pytest

from tailrace.logstore.objects.store import ObjectStore

# In the order of their bytes. No key is another's folder: a local store has no place for that.
ORDERED = [
    "o/%00",
    "o/A",
    "o/a!x",
    "o/a-b",
    "o/a.b",
    "o/a/b",
    "o/a/c/d",
    "o/a0",
    "o/ab",
    "o/z",
    "o/~",
    "o/é",
    "o/\uffee",
    "o/\U0001f600/x",
]


async def keys_of(store: ObjectStore, prefix: str, after: str = "") -> list[str]:
    """The keys of a list, which is the same for coroutines and for threads."""
    infos = [info async for info in store.list(prefix, after=after)]
    listed = await asyncio.to_thread(lambda: [*store.listed(prefix, after=after)])
    assert [key for key, _ in listed] == [info.key for info in infos]
    assert all(size in (None, info.size) for (_, size), info in zip(listed, infos, strict=True))
    return [info.key for info in infos]


class ObjectListContract:
    """The part of `ObjectStoreContract` about lists."""

    async def test_a_list_is_in_the_order_of_keys(self, store: ObjectStore) -> None:
        for key in reversed(ORDERED):
            await store.put(key, key.encode())
        assert sorted(ORDERED, key=str.encode) == ORDERED
        infos = [info async for info in store.list("o/")]
        assert [info.key for info in infos] == ORDERED
        for info in infos:
            head = await store.head(info.key)
            assert info == replace(head, metadata={})

    async def test_a_list_by_prefix_and_after_any_key(self, store: ObjectStore) -> None:
        for key in ORDERED:
            await store.put(key, b"")
        ends = [key[:size] for key in ORDERED for size in range(len(key) + 1)]
        ends += ["o/a/", "p", "o/a/~"]
        for after in sorted(set(ends)):
            expected = [key for key in ORDERED if key.encode() > after.encode()]
            assert await keys_of(store, "", after) == expected, after
        for prefix in sorted(set(ends)):
            expected = [key for key in ORDERED if key.startswith(prefix)]
            assert await keys_of(store, prefix) == expected, prefix
            later = [key for key in expected if key > "o/a/b"]
            assert await keys_of(store, prefix, "o/a/b") == later, prefix

    @pytest.mark.parametrize("behind", ["a/1", "a/2", "a/b", "a/b/1", "a/b/3", "a/c", "a/d", "b"])
    async def test_a_list_for_threads_goes_on_behind_a_key_that_is_sent(
        self, store: ObjectStore, behind: str
    ) -> None:
        keys = ["a/1", "a/2", "a/3", "a/b/1", "a/b/2", "a/b/4", "a/c/1", "a/d/1", "b/1"]
        for key in keys:
            await store.put(key, b"")

        def listed() -> list[str]:
            listing = store.listed("a/")
            found = [next(listing).key]
            with suppress(StopIteration):
                found.append(listing.send(behind).key)
                found += [key for key, _ in listing]
            return found

        expected = ["a/1", *[key for key in keys if key > behind and key.startswith("a/")]]
        assert await asyncio.to_thread(listed) == expected

    async def test_lists_of_nothing(self, store: ObjectStore) -> None:
        await store.put("a/b", b"")
        for prefix in ("x", "x/", "a/b/", "a/b/c", "a//", "../", "/"):
            assert await keys_of(store, prefix) == []
        for prefix in ("x/", "a/", "a/b/", "a//"):
            assert [name async for name in store.folders(prefix)] == []

    async def test_folders(self, store: ObjectStore) -> None:
        for key in ("t/a/1", "t/a/2/3", "t/a-b/1", "t/a0/1", "t/file", "t/z/y/x", "u/1", "top"):
            await store.put(key, b"")
        # `a-` sorts before `a/`, as the objects below them do.
        assert [n async for n in store.folders("t/")] == ["a-b", "a", "a0", "z"]
        assert [n async for n in store.folders("t/", after="a")] == ["a0", "z"]
        assert [n async for n in store.folders("t/", after="z")] == []
        assert [n async for n in store.folders("t/a/")] == ["2"]
        assert [n async for n in store.folders("")] == ["t", "u"]
        await store.delete(["t/z/y/x"])
        assert [n async for n in store.folders("t/")] == ["a-b", "a", "a0"]

    async def test_a_long_list(self, store: ObjectStore) -> None:
        for key in (keys := [f"n/{i:04d}" for i in range(600)]):
            await store.put(key, b"")
        assert await keys_of(store, "n/") == keys
        await store.delete(keys)
        assert await keys_of(store, "") == []
