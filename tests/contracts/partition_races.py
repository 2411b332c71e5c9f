"""Coordinators in processes of their own over one store. Subclass it and give `opened`.

Those of a store whose answers say what time it is subclass `PartitionSkewContract`, too.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator

import pytest

from tailrace.coordination.partitions import NewPartition, Partition, Status
from tailrace.coordination.settings import CoordinatorLimits
from tests.coordination.remote import OpenPartitions, Remote

SOURCE = "races|file"
_SECONDS = 120.0
Start = Callable[..., Remote]


async def _create(opened: OpenPartitions, keys: list[str]) -> list[str]:
    async with opened(0) as (store, _):
        await store.start()
        made = await store.create(SOURCE, [NewPartition(key, progress=f"of {key}") for key in keys])
        await store.close()
        return made


async def _all(opened: OpenPartitions) -> dict[str, Partition]:
    async with opened(0) as (store, _):
        await store.start()
        page = await store.page(SOURCE)
        await store.close()
        return {one.key: one for one in page.partitions}


def create(opened: OpenPartitions, *keys: str) -> None:
    assert asyncio.run(_create(opened, list(keys))) == list(keys)


def acquired(remote: Remote, count: int = 1) -> list[tuple[str, int, str | None]]:
    """What it acquires, once it gets anything.

    A process that has just begun knows the store's time to the second only: what another made
    within that second is not due for it yet.
    """
    deadline = time.monotonic() + _SECONDS
    while not (found := remote.ask("acquire", count)):
        assert time.monotonic() < deadline, "nothing is free"
        time.sleep(0.05)
    return list(found)


class PartitionRacesContract:
    """Tests are no coroutines: each has a loop in each of its processes."""

    LEASE_SECONDS = 3.0
    """By the clocks that `opened` gives; a taker waits some seconds longer."""

    @pytest.fixture
    def opened(self) -> OpenPartitions:
        raise NotImplementedError

    @pytest.fixture
    def start(self, opened: OpenPartitions) -> Iterator[Start]:
        """Starts processes, by name, that end with the test."""
        started: list[Remote] = []

        def start(name: str, skew_ms: int = 0, lease_seconds: float = 600.0) -> Remote:
            limits = CoordinatorLimits(lease_seconds=lease_seconds, poll_seconds=0.2)
            started.append(Remote(opened, name, limits, skew_ms))
            return started[-1]

        yield start
        for remote in started:
            remote.end()

    def test_racing_processes_do_each_once(self, opened: OpenPartitions, start: Start) -> None:
        keys = [f"{i:03d}" for i in range(60)]
        create(opened, *keys)
        remotes = [start(name) for name in "ABC"]
        remotes[0].ask("finish")
        for remote in remotes:
            remote.begin("drain")
        done = [pair for remote in remotes for pair in remote.answer()]
        assert sorted([key for key, _ in done]) == keys
        found = asyncio.run(_all(opened))
        assert {one.status for one in found.values()} == {Status.COMPLETED}
        assert {key: one.epoch for key, one in found.items()} == dict(done)

    def test_the_killed_and_the_frozen_are_followed_and_the_frozen_changes_nothing(
        self, opened: OpenPartitions, start: Start
    ) -> None:
        create(opened, "a", "b")
        dead, zombie = (start(name, lease_seconds=self.LEASE_SECONDS) for name in "AZ")
        assert (dead.ask("ready"), zombie.ask("ready")) == (True, True)
        ((lost, lost_epoch, _),) = acquired(dead)
        ((kept, kept_epoch, _),) = acquired(zombie)
        dead.kill()
        zombie.freeze()
        successor = start("S")
        taken: dict[str, tuple[int, str]] = {}
        deadline = time.monotonic() + _SECONDS
        while len(taken) < 2:
            assert time.monotonic() < deadline, "nobody takes over"
            for key, epoch, progress in successor.ask("acquire", 2):
                taken[key] = (epoch, progress)
            time.sleep(0.05)
        assert (taken[lost][1], taken[kept][1]) == (f"of {lost}", f"of {kept}")
        assert taken[lost][0] > lost_epoch
        assert taken[kept][0] > kept_epoch
        before = asyncio.run(_all(opened))
        zombie.thaw()
        assert not zombie.ask("valid", kept)
        assert zombie.ask("save", kept, "late") == "LeaseLost"
        assert zombie.ask("complete", kept) == "LeaseLost"
        assert asyncio.run(_all(opened)) == before
        assert successor.ask("complete", kept) is None


class PartitionSkewContract(PartitionRacesContract):
    """For stores that tell the time: the clocks of machines do not matter."""

    def test_wrong_clocks_steal_nothing_and_lose_nothing(
        self, opened: OpenPartitions, start: Start
    ) -> None:
        create(opened, "a", "b", "c")
        remotes = [start(f"by {skew_ms}", skew_ms, 60.0) for skew_ms in (0, -60_000, 60_000)]
        keys = [acquired(remote)[0][0] for remote in remotes]
        assert sorted(keys) == ["a", "b", "c"]
        for turn in range(3):
            for remote, key in zip(remotes, keys, strict=True):
                assert remote.ask("acquire", 3) == []
                assert remote.ask("valid", key)
                assert remote.ask("save", key, str(turn)) is None
        until_ms = [one.until_ms for one in asyncio.run(_all(opened)).values()]
        assert max(until_ms) - min(until_ms) < 60_000
        for remote, key in zip(remotes, keys, strict=True):
            assert remote.ask("complete", key) is None
