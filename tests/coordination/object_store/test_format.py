"""What lies in the store: what is read back, what newer versions wrote, and damage."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import orjson
import pytest
import zstandard

from tailrace.coordination.object_store.shard import (
    PLAIN_BYTES,
    Shard,
    compressed,
    decode_shard,
    decompressed,
    encode_shard,
    read_row,
    shard_of,
    spelled,
)
from tailrace.coordination.partitions import NewPartition, Partition, Status, completed
from tailrace.logstore import keys
from tailrace.logstore.errors import Damaged, UnsupportedVersion
from tailrace.logstore.objects.store import ObjectStore
from tests.coordination.object_store.counted import (
    SOURCE,
    START_MS,
    claim_at,
    many,
    on_disk,
    process,
    take,
)
from tests.edited import edited
from tests.simulation.virtual_time import VirtualClock, simulate

EMPTY = Shard(SOURCE, 0, 1)
KEY = keys.partition_shard(SOURCE, 0)
PLAIN = Partition(SOURCE, "a", version="V", created_ms=7, available_ms=7)


@pytest.mark.parametrize(
    "changed",
    [
        {},
        {"available_ms": 0},
        {"status": Status.ASSIGNED, "owner": "host/1", "epoch": 3, "until_ms": 9},
        {"status": Status.COMPLETED, "ended_ms": 5, "progress": ""},
        {"status": Status.FAILED, "last_error": "", "attempts": 2, "closed_count": 1},
        {"priority": -0.1, "place": 2**40},
    ],
)
def test_a_row_is_read_back(changed: dict[str, Any]) -> None:
    partition = replace(PLAIN, **changed)
    stored = orjson.loads(orjson.dumps(spelled(partition)))
    assert read_row(SOURCE, "a", stored) == partition


def test_what_is_as_when_it_was_made_takes_no_room() -> None:
    assert spelled(PLAIN) == {"version": "V", "created_at": 7}


def test_a_key_stays_in_its_shard_for_ever() -> None:
    assert [shard_of(key, 64) for key in ("a", "b", "日本", "")] == [31, 63, 0, 2]


async def _edit(objects: ObjectStore, key: str, **changed: Any) -> None:
    await objects.put(key, edited((await objects.get(key))[1], **changed))


def test_what_newer_versions_wrote_survives() -> None:
    async def scenario(clock: VirtualClock) -> None:
        disk = on_disk(clock)
        await process(disk, clock, shards=1).create(SOURCE, many(2))
        rows = orjson.loads((await disk.get(KEY))[1])["partitions"]
        rows["000000"]["colour"] = {"of": "hope"}
        await _edit(disk, KEY, partitions=rows, seal=[1, 2])
        store = process(disk, clock)
        (held,) = await take(store, clock, 1)
        await store.change(held, completed(held, clock.now_ms()))
        value = orjson.loads((await disk.get(KEY))[1])
        assert value["seal"] == [1, 2]
        assert value["partitions"]["000000"]["colour"] == {"of": "hope"}
        assert value["partitions"]["000000"]["status"] == "COMPLETED"

    simulate(scenario, start_ms=START_MS)


def test_shards_are_counted_by_who_made_the_source() -> None:
    async def scenario(clock: VirtualClock) -> None:
        disk = on_disk(clock)
        await process(disk, clock, shards=3).create(SOURCE, many(50))
        other = process(disk, clock, shards=7)
        assert await other.create(SOURCE, many(60)) == [one.key for one in many(60)[50:]]
        found = [info.key async for info in disk.list(keys.PARTITIONS)]
        assert found == [
            *[keys.partition_shard(SOURCE, number) for number in range(3)],
            keys.partition_source(SOURCE),
        ]

    simulate(scenario, start_ms=START_MS)


def test_a_newer_format_stops_us() -> None:
    async def scenario(clock: VirtualClock) -> None:
        disk = on_disk(clock)
        await process(disk, clock, shards=1).create(SOURCE, many(2))
        for key in (KEY, keys.partition_source(SOURCE)):
            await _edit(disk, key, format=2)
            before = (await disk.get(key))[1]
            store = process(disk, clock)
            with pytest.raises(UnsupportedVersion):
                await take(store, clock, 1)
            with pytest.raises(UnsupportedVersion):
                await store.create(SOURCE, [NewPartition("new")])
            with pytest.raises(UnsupportedVersion):
                await store.get(SOURCE, "000000")
            assert (await disk.get(key))[1] == before
            await _edit(disk, key, format=1)
        assert len(await take(process(disk, clock), clock, 9)) == 2

    simulate(scenario, start_ms=START_MS)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"{}",
        b'{"format":1}',
        encode_shard(replace(EMPTY, shards=2)),
        encode_shard(replace(EMPTY, number=1)),
        encode_shard(replace(EMPTY, source="another")),
        edited(encode_shard(EMPTY), partitions=[1]),
    ],
    ids=range(8),
)
def test_what_is_no_shard(body: bytes) -> None:
    assert decode_shard(EMPTY, encode_shard(EMPTY)) == EMPTY
    with pytest.raises(Damaged):
        decode_shard(EMPTY, body)


def test_small_ones_can_be_read_by_people_and_large_ones_are_packed() -> None:
    async def scenario(clock: VirtualClock) -> None:
        disk = on_disk(clock)
        store = process(disk, clock, shards=1)
        await store.create(SOURCE, many(100))
        plain = (await disk.get(KEY))[1]
        assert orjson.loads(plain)["partitions"].keys() == {one.key for one in many(100)}
        assert await store.create(SOURCE, many(2000)) == [one.key for one in many(2000)[100:]]
        packed = (await disk.get(KEY))[1]
        assert max(PLAIN_BYTES, 5 * len(packed)) < len(decompressed(KEY, packed))
        other = process(disk, clock, seed=5)
        assert len(await take(other, clock, 3000)) == 2000
        assert (await other.counts(SOURCE)) == {Status.ASSIGNED: 2000}
        await disk.put(KEY, decompressed(KEY, packed))
        assert len(await take(process(disk, clock), clock, 3000)) == 2000, "large, but as it was"

    simulate(scenario, start_ms=START_MS)


LARGE = compressed(b'{"format":1,"a":"' + bytes(range(32, 90)) * 2000 + b'"}')


@pytest.mark.parametrize(
    "body",
    [
        LARGE[:4],
        LARGE[:40],
        LARGE[:-1],
        LARGE[:-6] + b"~" + LARGE[-5:],
        LARGE[:-1] + bytes([LARGE[-1] ^ 1]),
        zstandard.ZstdCompressor(write_content_size=False).compress(b"{}"),
        b"\x28\xb5\x2f\xfd\xe0" + b"\xff" * 7 + b"\x00" * 9,
    ],
    ids=range(7),
)
def test_what_is_no_frame(body: bytes) -> None:
    assert len(decompressed(KEY, LARGE)) > PLAIN_BYTES
    with pytest.raises(Damaged, match=KEY):
        decompressed(KEY, body)


@pytest.mark.parametrize(
    "row",
    [1, {}, {"version": "V"}, {"version": "V", "created_at": 1, "status": "LOST"}],
    ids=range(4),
)
@pytest.mark.parametrize("random", [True, False])
def test_what_is_no_row(row: Any, random: bool) -> None:
    async def scenario(clock: VirtualClock) -> None:
        disk = on_disk(clock)
        store = process(disk, clock, shards=1)
        await store.create(SOURCE, many(2))
        await _edit(disk, KEY, partitions={"000000": row})
        with pytest.raises(Damaged):
            await store.get(SOURCE, "000000")
        with pytest.raises(Damaged):
            await store.acquire(SOURCE, claim_at(clock), 1, random=random)
        with pytest.raises(Damaged):
            await store.counts(SOURCE)

    simulate(scenario, start_ms=START_MS)


def test_one_damaged_shard_stops_no_work_in_others() -> None:
    async def scenario(clock: VirtualClock) -> None:
        disk = on_disk(clock)
        await process(disk, clock).create(SOURCE, many(80))
        await disk.put(keys.partition_shard(SOURCE, 3), b"{")
        store = process(disk, clock, seed=7)
        taken = await take(store, clock, 80)
        assert 40 < len(taken) < 80
        with pytest.raises(Damaged):
            await take(store, clock, 80)

    simulate(scenario, start_ms=START_MS)


def test_epochs_go_on_when_all_is_gone() -> None:
    async def scenario(clock: VirtualClock) -> None:
        disk = on_disk(clock)
        epochs = []
        for life in range(4):
            store = process(disk, clock, seed=life)
            await store.create(SOURCE, many(1))
            (held,) = await take(store, clock, 1)
            epochs.append(held.epoch)
            if life % 2:
                await store.delete(held)
            else:
                await store.change(held, completed(held, clock.now_ms()))
                assert await store.purge(SOURCE, clock.now_ms() + 1) == 1
            assert await store.sources() == []
        assert epochs == sorted(set(epochs))

    simulate(scenario, start_ms=START_MS)
