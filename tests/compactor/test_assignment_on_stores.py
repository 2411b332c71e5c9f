"""Drivers on one real store: who they are, what they leave to each other, what the table has."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import orjson

from compactor.assignment import Alone, Assigner, Assignment, open_assigner
from compactor.report import PassReport
from compactor.runner import once
from compactor.settings import Compaction, CompactorSettings
from tailrace.coordination.admin import LeaseAdmin
from tailrace.coordination.lease import StoreTime
from tailrace.coordination.named_leases import StoredLeases
from tailrace.coordination.object_store.store import ObjectPartitions
from tailrace.coordination.settings import SourceCoordination
from tailrace.logstore import keys
from tailrace.logstore.clock import SystemClock, system_entropy
from tailrace.logstore.errors import PreconditionFailed
from tailrace.logstore.filesystem import Disk
from tests.compactor.drivers import leases_of
from tests.compactor.lake import Lake

NODES = ["a", "b", "c", "d"]
CLOCK, ENTROPY = SystemClock(), system_entropy()


def segments_without_rows(lake: Lake, count: int) -> None:
    """Segments that cannot be read: taking them in is a commit, and needs no Spark."""
    for node in NODES:
        for seq in range(1, count + 1):
            lake.put_bytes(keys.segment(node, seq), b"not a segment")


@asynccontextmanager
async def sharing_of(
    lake: Lake, data: Path | None = None, **settings: object
) -> AsyncIterator[Assigner]:
    known = CompactorSettings(data=str(data or lake.data), **settings)  # type: ignore[arg-type]
    async with open_assigner(known, lake.store, CLOCK, ENTROPY, Disk()) as assigner:
        yield assigner


async def compact(lake: Lake, assigner: Assigner) -> PassReport:
    return await once(replace(lake.compactor, assigner=assigner))


def test_a_driver_takes_all_in_and_leaves_all_free(lake: Lake) -> None:
    segments_without_rows(lake, 2)

    async def scenario() -> PassReport:
        async with sharing_of(lake) as assigner:
            report = await compact(lake, assigner)
            assert {entry.status.value for entry in await leases_of(lake.store)} == {"CLOSED"}
            before = await leases_of(lake.store)
            idle = await compact(lake, assigner)
            assert (idle.commits, idle.held_elsewhere, idle.leases) == (0, 0, {})
            assert [e.version for e in await leases_of(lake.store)] == [e.version for e in before]
            return report

    report = lake.run(scenario())
    assert (report.segments, report.held_elsewhere) == (8, 0)
    assert report.leases == {
        "partitionsCreatedCount": 4, "partitionsAcquired": 4, "partitionsClosed": 4
    }  # fmt: skip
    assert lake.snapshot().marks(NODES) == dict.fromkeys(NODES, 2)


def test_what_another_driver_holds_is_said_and_left_alone(lake: Lake) -> None:
    lake.put_bytes(keys.segment("a", 1), b"not a segment")

    async def scenario() -> None:
        async with sharing_of(lake) as one, sharing_of(lake) as other:
            async with one.joined() as assignment:
                assert await assignment.claim(["a"], ["a"]) == ["a"]
                report = await compact(lake, other)
                assert (report.commits, report.held_elsewhere, report.alarms) == (0, 1, [])
                assert orjson.loads(report.line())["held_elsewhere"] == 1
            assert (await compact(lake, other)).segments == 1

    lake.run(scenario())


def test_two_at_once_take_each_segment_in_once(lake: Lake) -> None:
    segments_without_rows(lake, 5)

    async def scenario() -> list[PassReport]:
        async with sharing_of(lake) as one, sharing_of(lake) as other:
            reports = await asyncio.gather(*[compact(lake, who) for who in (one, other)])
            return [*reports, await compact(lake, one)]

    reports = lake.run(scenario())
    assert sum(report.segments for report in reports) == 20
    assert reports[-1].held_elsewhere == 0
    assert lake.snapshot().marks(NODES) == dict.fromkeys(NODES, 5)


class LostOnce(Alone):
    """Another takes node `a` while a batch of it is merged."""

    lost = False

    @asynccontextmanager
    async def joined(self, kind: str = "") -> AsyncIterator[Assignment]:
        yield self

    async def claim(self, nodes: Sequence[str], waiting: Collection[str]) -> list[str]:
        return [node for node in nodes if node in waiting and not (self.lost and node == "a")]

    def check(self, nodes: Collection[str]) -> None:
        if not self.lost:
            self.lost = True
            raise PreconditionFailed("the lease of compact/a is lost")
        assert "a" not in nodes


def test_a_batch_of_a_lost_node_is_not_committed_and_the_rest_is_planned_anew(lake: Lake) -> None:
    segments_without_rows(lake, 1)
    report = lake.run(compact(lake, LostOnce()))
    assert (report.commits, report.segments, report.held_elsewhere) == (1, 3, 1)
    assert lake.snapshot().marks(NODES) == {"a": 0, "b": 1, "c": 1, "d": 1}


def test_a_node_that_an_operator_failed_waits_with_an_alarm(lake: Lake) -> None:
    segments_without_rows(lake, 1)

    async def scenario() -> None:
        async with sharing_of(lake) as assigner:
            await compact(lake, assigner)
            for node in NODES:
                await lake.store.put(keys.segment(node, 2), b"not a segment")
            time = StoreTime(CLOCK, None)
            partitions = ObjectPartitions(lake.store, CLOCK, ENTROPY, time)
            admin = LeaseAdmin(partitions, StoredLeases(lake.store, CLOCK, ENTROPY, time))
            await admin.fail("compactor|compact", "compact/b", reason="look at it first")
            report = await compact(lake, assigner)
            assert (report.segments, report.held_elsewhere) == (3, 1)
            others = [
                alarm
                for alarm in report.alarms
                if "is left out, because it is damaged" not in alarm
            ]
            assert others == ["compact/b is FAILED and waits to be reset: look at it first"]
            await admin.reset("compactor|compact", "compact/b")
            assert (await compact(lake, assigner)).segments == 1

    lake.run(scenario())


def test_only_who_locked_the_folder_is_the_successor_of_who_did_before(
    lake: Lake, tmp_path: Path
) -> None:
    lake.data.mkdir(exist_ok=True)
    host = socket.gethostname()

    async def owners() -> list[str | None]:
        return [
            entry.owner and entry.owner.rpartition("/")[0] for entry in await leases_of(lake.store)
        ]

    async def scenario() -> None:
        async with sharing_of(lake) as first:
            async with first.joined() as assignment:
                await assignment.claim(["a"], ["a"])
                assert await owners() == [f"{host}:{lake.data}"]
            async with sharing_of(lake) as second, second.joined() as assignment:
                await assignment.claim(["a"], ["a"])
                assert await owners() == [host]
        nowhere = tmp_path / "nowhere"
        async with sharing_of(lake, nowhere) as third, third.joined() as assignment:
            await assignment.claim(["a"], ["a"])
            assert await owners() == [host]
        assert not nowhere.exists()
        async with sharing_of(lake) as again, again.joined() as assignment:
            await assignment.claim(["a"], ["a"])
            assert await owners() == [f"{host}:{lake.data}"]

    lake.run(scenario())


def test_leases_in_memory_share_with_nobody(lake: Lake) -> None:
    segments_without_rows(lake, 1)
    memory = SourceCoordination.model_validate({"store": {"in_memory": None}})

    async def scenario() -> None:
        async with (
            sharing_of(lake, source_coordination=memory) as one,
            sharing_of(lake, source_coordination=memory) as other,
        ):
            async with one.joined() as assignment:
                assert await assignment.claim(NODES, NODES) == NODES
                assert (await compact(lake, other)).segments == 4
        assert [info.key async for info in lake.store.list(keys.PARTITIONS)] == []

    lake.run(scenario())


def test_the_lease_is_as_long_as_the_setting_says(lake: Lake) -> None:
    limits = Compaction(lease_seconds=77)

    async def scenario() -> None:
        async with sharing_of(lake, compaction=limits) as assigner, assigner.joined() as assignment:
            before = CLOCK.now_ms()
            await assignment.claim(["a"], ["a"])
            (entry,) = await leases_of(lake.store)
            assert before <= entry.until_ms - 77_000 <= CLOCK.now_ms()

    lake.run(scenario())
