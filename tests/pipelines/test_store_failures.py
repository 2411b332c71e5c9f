"""Pipelines whose store is away, does not answer, or has something that is damaged."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from tailrace.coordination.groups import pipeline_group, read_group
from tailrace.coordination.leases import Lease
from tailrace.logstore import keys
from tailrace.logstore.errors import OutcomeUnknown, StoreUnavailable
from tailrace.pipelines.appenders.registry import AppenderRegistry
from tailrace.pipelines.definition import parse
from tailrace.pipelines.sources.segments import SegmentSource
from tailrace.pipelines.world import rows
from tests.pipelines.lake import Lake
from tests.pipelines.remembering import FAST, Remembering, forget, has, named, pipeline, until

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
    async with lake.world() as world:
        broken_row, whole_row = await rows(world, ["x", "y"])
    assert (broken_row["pipeline"], broken_row["state"]) == ("x", "damaged")
    assert broken_row["reason"]
    assert (whole_row["pipeline"], whole_row["state"], whole_row["events"]) == ("y", "running", 3)


async def test_a_flipped_digit_of_a_checkpoint_stops_its_appender_alone(lake: Lake) -> None:
    made = pipeline("a", "b")
    await lake.put("1", "2")
    async with lake.running(made):
        await until(has("a", "1", "2"))
        await until(has("b", "1", "2"))
    async with lake.world() as world:
        parts = (await world.partitions.page("pipelines|p", after=None)).partitions
        (one,) = [part for part in parts if part.key.startswith("a/")]
        assert one.progress is not None
        flipped = one.progress.replace('"n":[2,2,', '"n":[2,3,')  # one bit: a segment is read
        assert flipped != one.progress
        await world.partitions.change(one, replace(one, progress=flipped))
    await lake.put("3")
    async with lake.running(made) as process:
        await until(has("b", "1", "2", "3"))
        await until(lambda: any(one.failure for one in process.workers))
    assert Remembering.lines["a"] == ["1", "2"]
    async with lake.world() as world:
        found = {row["appender"]: row for row in await rows(world, ["p"])}
    assert (found["a"]["state"], found["b"]["state"]) == ("damaged", "running")
    assert "the checkpoint of a/0-1 cannot be read" in found["a"]["reason"]
    assert (found["b"]["events"], found["b"]["error"]) == (3, None)


async def test_older_checkpoints_that_were_put_back_double_no_line(
    lake: Lake, tmp_path: Path
) -> None:
    """A store is restored from a copy, and the files of its pipelines are not."""
    appenders = [
        {"type": "rolling_file", "name": "files", "dir": str(tmp_path / "out"), "path": "all.log"},
        {"type": "rolling_object", "name": "objects", "store": str(tmp_path / "bucket")},
    ]
    made = parse({"name": "p", "appenders": appenders, **FAST}, AppenderRegistry())
    state = tmp_path / "store" / "coordination"

    def lines() -> list[str]:
        files = [*(tmp_path / "out").glob("*.log"), *(tmp_path / "bucket" / "logs").rglob("*.txt")]
        return sorted(line for file in files for line in file.read_text().split())

    await lake.put("1")
    async with lake.running(made):
        await until(lambda: lines() == ["1", "1"])
    shutil.copytree(state, tmp_path / "copy")
    await lake.put("2")
    async with lake.running(made):
        await until(lambda: lines() == ["1", "1", "2", "2"])
    shutil.move(state, tmp_path / "newer")
    shutil.copytree(tmp_path / "copy", state)
    await lake.put("3")
    async with lake.running(made) as process:
        await until(lambda: [bool(one.failure) for one in process.workers] == [True, True])
        failures = [str(one.failure) for one in process.workers]
    assert all("an older copy of the store was put back" in failure for failure in failures)
    assert lines() == ["1", "1", "2", "2"]
    shutil.rmtree(state)
    shutil.move(tmp_path / "newer", state)
    async with lake.running(made):
        await until(lambda: lines() == ["1", "1", "2", "2", "3", "3"])


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
