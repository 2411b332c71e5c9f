"""The local store on a disk that fails at any one of its calls.

Whatever the call: afterwards an object is the whole old one or the whole new one, and if
the operation had returned, the new one. Full and failing disks are errors of ours.
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Awaitable, Callable
from contextlib import suppress
from copy import deepcopy
from functools import cache
from random import Random
from typing import TypeVar

import pytest

from tailrace.logstore.clock import SystemClock
from tailrace.logstore.errors import (
    NotFound,
    OutcomeUnknown,
    PreconditionFailed,
    StoreUnavailable,
    TailraceError,
)
from tailrace.logstore.objects.local import LocalStore, inline
from tailrace.logstore.objects.local_files import Condition, LocalFiles, Put
from tailrace.logstore.objects.store import ObjectInfo, ObjectPart, ObjectStore
from tests.seeds import seeds, some
from tests.simulation.powercut import PowerCut, PowerCutFileSystem

OLD, NEW = b"old" * 3000, b"new!" * 5000
SEEDS = seeds(6)
T = TypeVar("T")
Operation = Callable[[ObjectStore], Awaitable[object]]


def _open(fs: PowerCutFileSystem) -> LocalStore:
    return LocalStore("/data/store", fs, SystemClock(), Random(1), run=inline)


@cache
def _template() -> PowerCutFileSystem:
    fs = PowerCutFileSystem()
    store = _open(fs)
    asyncio.run(store.put("a/k", OLD))
    asyncio.run(store.put("parts/one", NEW[:7000]))
    return fs


def _prepared() -> PowerCutFileSystem:
    return deepcopy(_template())


def _found(fs: PowerCutFileSystem, key: str) -> bytes | None:
    store = _open(fs)
    try:
        info, body = asyncio.run(store.get(key))
    except NotFound:
        return None
    assert asyncio.run(store.put("again", body)).etag == info.etag
    return body


async def _put(store: ObjectStore) -> None:
    await store.put("a/k", NEW, metadata={"x": "y"})


async def _put_elsewhere(store: ObjectStore) -> None:
    await store.put("b/c/k", NEW)


async def _swap(store: ObjectStore) -> None:
    info = await store.head("a/k")
    await store.put("a/k", NEW, if_match=info.etag)


async def _create(store: ObjectStore) -> None:
    await store.put("b/c/k", NEW, if_absent=True)


async def _compose(store: ObjectStore) -> None:
    await store.compose("a/k", [ObjectPart("parts/one"), NEW[7000:]])


async def _delete(store: ObjectStore) -> None:
    await store.delete(["a/k"])


CASES = [
    pytest.param(_put, "a/k", OLD, NEW, id="put"),
    pytest.param(_put_elsewhere, "b/c/k", None, NEW, id="put in a new folder"),
    pytest.param(_swap, "a/k", OLD, NEW, id="compare and swap"),
    pytest.param(_create, "b/c/k", None, NEW, id="create"),
    pytest.param(_compose, "a/k", OLD, NEW, id="compose"),
    pytest.param(_delete, "a/k", OLD, None, id="delete"),
]


@pytest.mark.parametrize(("operation", "key", "old", "new"), CASES)
def test_a_power_cut_at_any_call(
    operation: Operation, key: str, old: bytes | None, new: bytes | None
) -> None:
    found = set()
    for step in range(1, 200):
        fs = _prepared()
        store = _open(fs)
        last = fs.fail_at = len(fs.calls) + step
        with suppress(PowerCut):
            asyncio.run(_run(operation, store))
        cut_off = len(fs.calls) >= last
        after = {_found(fs.reboot(seed), key) for seed in SEEDS}
        assert after <= ({old, new} if cut_off else {new}), fs.calls[-1]
        found |= after
        if not cut_off:
            break
    else:
        pytest.fail("the operation never ended")
    assert found == {old, new}


async def _run(operation: Operation, store: ObjectStore) -> None:
    await operation(store)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO, errno.EDQUOT, errno.EROFS])
@pytest.mark.parametrize(("operation", "key", "old", "new"), CASES)
def test_a_disk_that_fails_at_any_call(
    operation: Operation, key: str, old: bytes | None, new: bytes | None, number: int
) -> None:
    for step in some(range(1, 200), 3, f"{operation.__name__} {key} {number}"):
        fs = _prepared()
        store = _open(fs)
        fs.fail_with(number, at=len(fs.calls) + step, once=True)
        failure = asyncio.run(_failure_of(operation, store))
        ended = fs.fault_pending
        fs.heal()
        if failure is not None:
            assert failure.hint
            assert number != errno.ENOSPC or isinstance(failure, StoreUnavailable)
            may_be_done = isinstance(failure, OutcomeUnknown) or operation is _delete
            assert _found(fs, key) in ((old, new) if may_be_done else (old,)), fs.calls[-1]
            asyncio.run(_again(operation, store))
        assert _found(fs, key) == new
        assert _found(fs.reboot(step), key) == new
        if ended:
            return
    pytest.fail("the operation never ended")


@pytest.mark.parametrize("conditional", [True, False])
def test_a_kill_at_any_call_leaves_each_object_with_its_own_metadata(conditional: bool) -> None:
    """Also to a second writer who is killed: the first may have got no further than the sidecar."""
    bodies = {b"1" * 3000: {"of": "1"}, b"2" * 3000: {"of": "2"}, b"3" * 3000: {"of": "3"}}
    first, *others = bodies
    found: set[bytes] = set()
    for step in range(1, 60):
        fs = PowerCutFileSystem()
        asyncio.run(_open(fs).put("a/k", first, metadata=bodies[first]))
        for body in others:
            _killed(fs, step, body, bodies[body], conditional=conditional)
            info, stored = asyncio.run(_open(fs).get("a/k"))
            assert info.metadata == bodies[stored], (step, fs.calls[-20:])
            found.add(stored)
    assert found == set(bodies)


def _killed(
    fs: PowerCutFileSystem, step: int, body: bytes, metadata: dict[str, str], *, conditional: bool
) -> None:
    """Replaces the object in a process that ends at its call `step`, as after kill -9."""
    store = _open(fs)

    async def swap() -> None:
        etag = (await store.head("a/k")).etag if conditional else None
        await store.put("a/k", body, if_match=etag, metadata=metadata)

    fs.fail_at = len(fs.calls) + step
    with suppress(PowerCut):
        asyncio.run(swap())
    fs.fail_at, fs.dead = None, False
    fs.end_processes()


GROUP = {"a/k": OLD, "parts/two": None, **{f"runs/{n}/k": None for n in range(6)}}


async def _turn(work: Callable[[], T]) -> T:
    """A runner that lets other puts come first, so that the later ones make a group."""
    await asyncio.sleep(0)
    return work()


async def _put_group(fs: PowerCutFileSystem, kept: dict[str, TailraceError | None]) -> None:
    """Puts all of `GROUP` at once; `kept` gets the outcome of each when it is known."""
    store = LocalStore("/data/store", fs, SystemClock(), Random(1), run=_turn)
    etag = (await store.head("a/k")).etag

    async def put(key: str) -> None:
        try:
            await store.put(key, NEW, if_match=etag if key == "a/k" else None, metadata={"of": key})
        except TailraceError as error:
            kept[key] = error
        else:
            kept[key] = None

    # The first two are made alone.
    await asyncio.gather(*[put(key) for key in ("first", "second", *GROUP)])


def test_a_group_of_puts_shares_its_syncs() -> None:
    fs, kept = _prepared(), dict[str, TailraceError | None]()
    before = len(fs.calls)
    asyncio.run(_put_group(fs, kept))
    calls = fs.calls[before:]
    assert calls.count("sync_open_folder /data/store/runs") == 1
    renamed = [at for at, call in enumerate(calls) if call.startswith("rename") and "runs" in call]
    synced = [at for at, call in enumerate(calls) if call.startswith("sync /data/store/.tmp")]
    assert max(synced) < min(renamed)
    assert set(kept.values()) == {None}


def test_a_power_cut_at_any_call_of_a_group_of_puts() -> None:
    torn = set[int]()
    for step in some(range(1, 250), 4, "group of puts"):
        fs, kept = _prepared(), dict[str, TailraceError | None]()
        last = fs.fail_at = len(fs.calls) + step
        with suppress(PowerCut):
            asyncio.run(_put_group(fs, kept))
        after = fs.reboot(step)
        for key, old in GROUP.items():
            assert _found(after, key) in ((NEW,) if key in kept else (old, NEW)), fs.calls[-1]
        torn.add(len(kept))
        if len(fs.calls) < last:
            return
    pytest.fail(f"the group never ended: {torn}")


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO, errno.EMFILE])
def test_a_disk_that_fails_at_any_call_of_a_group_of_puts(number: int) -> None:
    for step in some(range(1, 250), 9, f"group of puts {number}"):
        fs, kept = _prepared(), dict[str, TailraceError | None]()
        _open(fs)
        fs.fail_with(number, at=len(fs.calls) + step, once=True)
        with suppress(StoreUnavailable):  # of the look before
            asyncio.run(_put_group(fs, kept))
        ended = fs.fault_pending
        fs.heal()
        for key, error in kept.items():
            assert error is None or isinstance(error, StoreUnavailable | OutcomeUnknown)
            assert _found(fs, key) == NEW or error is not None
        after = fs.reboot(step)
        for key in [key for key, error in kept.items() if error is None]:
            assert _found(after, key) == NEW, fs.calls[-1]
        if ended:
            return
    pytest.fail("the group never ended")


def test_a_group_does_not_wait_for_another_writers_lock() -> None:
    fs, kept = _prepared(), dict[str, TailraceError | None]()
    lock_of = _open(fs)._files.paths.lock
    fs.lock(lock_of("runs/3/k"), wait=True)
    asyncio.run(_put_group(fs, kept))
    # The simulation has no process that could release it, so the puts alone do not wait either.
    failed = {key for key, error in kept.items() if error is not None}
    assert failed == {key for key in kept if lock_of(key) == lock_of("runs/3/k")}


@pytest.mark.parametrize("grouped", [False, True])
def test_few_of_many_folders_are_remembered_and_all_are_durable(grouped: bool) -> None:
    fs = PowerCutFileSystem()
    files = LocalFiles("/data/store", fs, SystemClock(), Random(1), most_folders=10)
    files.make()
    puts = [Put(f"runs/{n}/text", NEW, Condition(True, None), {}) for n in range(60)]
    for start in range(0, 60, 5):
        if grouped:
            made = files.put_all(puts[start : start + 5])
            assert all(isinstance(info, ObjectInfo) for info in made)
        else:
            for put in puts[start : start + 5]:
                files.put(put)
        assert len(files._durable_folders) <= 10
    after = _open(fs.reboot(1))
    assert len(asyncio.run(_keys_of(after))) == 60


async def _keys_of(store: ObjectStore) -> list[str]:
    return [info.key async for info in store.list("")]


async def _failure_of(operation: Operation, store: ObjectStore) -> TailraceError | None:
    try:
        await operation(store)
    except (StoreUnavailable, OutcomeUnknown) as error:
        return error
    return None


async def _again(operation: Operation, store: ObjectStore) -> None:
    """What a caller does after a failure: the same again; `create` may find its own object."""
    try:
        await operation(store)
    except PreconditionFailed:
        assert operation is _create


def test_a_full_disk_still_reads_lists_and_deletes() -> None:
    fs = _prepared()
    store = _open(fs)
    fs.fail_with(errno.ENOSPC, at=1)

    async def run() -> None:
        with pytest.raises(StoreUnavailable) as caught:
            await store.put("x", b"x")
        assert "space" in caught.value.hint
        assert (await store.get("a/k"))[1] == OLD
        assert [info.key async for info in store.list("")] == ["a/k", "parts/one"]
        await store.delete(["a/k", "parts/one"])
        assert [info.key async for info in store.list("")] == []

    asyncio.run(run())


def test_an_object_that_was_found_in_the_way_stays_there() -> None:
    """Its writer died between the rename and the sync; the next one relies on it."""
    for seed in range(30):
        fs = _prepared()
        store = _open(fs)
        fs.fail_with(errno.EIO, at=_call_of(fs, store, "sync_folder /data/store/b/c"), once=True)
        with pytest.raises(OutcomeUnknown):
            asyncio.run(_run(_create, store))
        with pytest.raises(PreconditionFailed):
            asyncio.run(_run(_create, store))
        assert _found(fs.reboot(seed), "b/c/k") == NEW


def _call_of(fs: PowerCutFileSystem, store: ObjectStore, call: str) -> int:
    """The number that the call would have, found by a rehearsal on another disk."""
    other = _prepared()
    rehearsal = _open(other)
    asyncio.run(_run(_create, rehearsal))
    return other.calls.index(call) + 1
