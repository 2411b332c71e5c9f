"""Pipelines whose store is away, does not answer, or has something that is damaged."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from coordination.coordinator.lease import Lease
from coordination.groups import pipeline_group, read_group
from logstore import keys
from logstore.errors import OutcomeUnknown, StoreUnavailable
from pipelines.sources.segments import SegmentSource
from pipelines.status import rows
from tests.pipelines.lake import Lake
from tests.pipelines.remembering import Remembering, forget, has, named, pipeline, until

__all__ = ["forget"]  # a fixture for each test here


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(tmp_path)


async def test_a_stop_while_the_store_is_away_disables_no_appender(
    lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = pipeline("a", error_threshold=1, dead_letter_dir=str(tmp_path / "dead"))

    async def away(self: object, *_: object) -> None:
        raise StoreUnavailable("no answer")

    monkeypatch.setattr(SegmentSource, "refresh", away)
    async with lake.running(made) as process:
        await until(lambda: any("no answer" in (w.failure or "") for w in process.workers))
    async with lake.world() as world:
        (row,) = await rows(world, ["p"])
    assert row["state"] == "running"


async def test_a_checkpoint_that_is_not_saved_fails_nothing(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store refuses it, or does not say that it has it: the next one is as good."""
    save, refused = Lease.save, 0

    async def perhaps(self: Lease, progress: str) -> None:
        nonlocal refused
        if not Remembering.lines.get("a") or refused == 4:
            await save(self, progress)
            return
        refused += 1
        if refused % 2:
            raise StoreUnavailable("it is away")
        await save(self, progress)
        raise OutcomeUnknown("its answer is lost")

    monkeypatch.setattr(Lease, "save", perhaps)
    async with lake.running(pipeline("a", error_threshold=1, dead_letter_dir="/none")) as process:
        for number in range(4):
            await lake.put(str(number))
            await until(lambda: refused > number)  # noqa: B023
        await until(has("a", "0", "1", "2", "3"))
        before = process.workers[0].counts.checkpoints
        await lake.put("4")
        await until(lambda: process.workers[0].counts.checkpoints > before)
        assert process.workers[0].counts.failures == 0
    async with lake.running(pipeline("a")):
        await lake.put("5")
        await until(has("a", "0", "1", "2", "3", "4", "5"))


@pytest.mark.parametrize("what", ["control", "group", "partitions"])
async def test_what_is_stored_of_a_pipeline_is_damaged_and_the_others_go_on(
    lake: Lake, what: str
) -> None:
    broken, whole = named("x", pipeline("a")), named("y", pipeline("b"))
    await lake.put("1")
    async with lake.running(broken, whole):
        await until(has("b", "1"))
        await until(has("a", "1"))
    where = {
        "control": keys.pipeline_control("x"),
        "group": keys.group(pipeline_group("x")),
    }
    if what == "partitions":
        async with lake.world() as world:
            (one,) = (await world.partitions.page("pipelines|x", after=None)).partitions
            await world.partitions.change(one, replace(one, progress="{ torn"))
    else:
        await lake.store.put(where[what], b"{ torn")
    await lake.put("2")
    async with lake.running(broken, whole) as process:
        await until(has("b", "1", "2"))
        await until(lambda: bool(process.problems or [w for w in process.workers if w.failure]))
        await process.move_groups()
        await lake.put("3")
        await until(has("b", "1", "2", "3"))
        assert Remembering.lines["a"] == ["1"]
    group = await read_group(lake.store, pipeline_group("y"))
    assert group is not None
    assert group.cursor("n").seq > 0, "whose group has moved"


@pytest.mark.parametrize("what", ["watermark", "deletion"])
async def test_what_is_damaged_of_another_owner_holds_up_nobody(
    lake: Lake, what: str, tmp_path: Path
) -> None:
    made = pipeline("a", error_threshold=1, dead_letter_dir=str(tmp_path / "dead"))
    key = keys.watermark("other") if what == "watermark" else keys.deleted_pipeline("shop.gone")
    await lake.put("0", node="other")
    await lake.store.put(key, b"{ torn")
    async with lake.running(made) as process:
        await lake.put("1")
        await until(lambda: sorted(Remembering.lines.get("a", [])) == ["0", "1"])
        assert not any(one.disabled for one in process.workers)
        assert sum(one.failures for one in process.counts.values()) == 0
