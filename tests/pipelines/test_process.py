"""Processes of pipelines over a store in a folder: what fails, what is deleted, what is kept."""

from __future__ import annotations

import asyncio
import json
import os
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tailrace.coordination.groups import change_group, evict, pipeline_group, read_group
from tailrace.coordination.pipelines import change_control
from tailrace.logstore import keys
from tailrace.logstore.errors import InvalidInput
from tailrace.logstore.objects.config import PipelineSettings
from tailrace.logstore.runs.deletions import Deletion, encode_deletion
from tailrace.pipelines.definition import PipelineConfig, PipelineFolder
from tailrace.pipelines.world import rows
from tests.pipelines.lake import Lake
from tests.pipelines.remembering import (
    PATIENCE_SECONDS,
    Remembering,
    forget,
    has,
    named,
    pipeline,
    until,
)

__all__ = ["forget"]  # a fixture for each test here


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(tmp_path)


async def test_a_failing_appender_holds_up_nobody_and_gets_everything_once(lake: Lake) -> None:
    Remembering.failing = {"broken"}
    await lake.put("1", "2", "3", "4")
    async with lake.running(pipeline("whole", "broken")) as process:
        await until(has("whole", "1", "2", "3", "4"))
        await until(lambda: any(one.counts.failures > 3 for one in process.workers))
        await lake.put("5")
        await until(has("whole", "1", "2", "3", "4", "5"))
        Remembering.failing = set()
        await until(has("broken", "1", "2", "3", "4", "5"))


@pytest.mark.in_turn(4)
async def test_appenders_that_hang_hold_up_nobody_and_no_stop(
    lake: Lake, caplog: pytest.LogCaptureFixture
) -> None:
    lake.settings = lake.settings.model_copy(
        update={"pipelines": PipelineSettings(poll_seconds=0.05, stop_seconds=0.2)}
    )
    await lake.put("1")
    names = [
        f"hangs{n}" for n in range((os.cpu_count() or 1) + 8)
    ]  # more than asyncio's own threads
    async with lake.running(pipeline("whole", *names)) as process:
        await until(has("whole", "1"))
        await until(lambda: len(process.workers) == len(names) + 1)
        await lake.put("2")
        await until(has("whole", "1", "2"))
    assert "p/hangs0/0 hangs: events that it has not saved will be sent again" in caplog.text
    Remembering.hanging = threading.Event()  # those that hang do so for ever
    Remembering.hanging.set()
    async with lake.running(pipeline("whole", "hangs0")):
        await until(has("hangs0", "1", "2"))
        assert Remembering.lines["whole"] == ["1", "2"]


async def test_a_process_goes_on_where_the_last_one_was(lake: Lake) -> None:
    await lake.put("1", "2")
    async with lake.running(pipeline("a")):
        await until(has("a", "1", "2"))
    Remembering.lines["a"].append("never synced")
    await lake.put("3")
    async with lake.running(pipeline("a")) as process:
        await until(has("a", "1", "2", "3"))
        assert process.workers[0].counts.given == 1


async def test_a_pipeline_may_begin_with_what_comes(lake: Lake) -> None:
    await lake.put("old")
    async with lake.running(pipeline("a", start="now")) as process:
        await until(lambda: any(one.counts.checkpoints for one in process.workers))
        await lake.put("new")
        await until(has("a", "new"))


async def test_lines_of_a_deleted_run_that_wait_are_not_given(lake: Lake) -> None:
    await lake.put("kept", fqn="other")
    last = await lake.put("deleted", run="gone")
    deletion = Deletion("shop.load", "gone", last | 0xFFFF, "v")
    async with lake.running(pipeline("a", event_delay_ms=100_000, idle_node_ms=1500)) as process:
        await until(lambda: any(one.counts.checkpoints for one in process.workers))
        await lake.store.put(deletion.key, encode_deletion(deletion))
        await until(has("a", "kept"))
        await until(lambda: process.workers[0].counts.deleted == 1)
        await lake.put("again", run="gone")
        await until(has("a", "kept", "again"))
    async with lake.world() as world:
        (row,) = await rows(world, ["p"])
    assert (row["events"], row["deleted"]) == (2, 1)


async def test_a_damaged_segment_is_skipped_and_counted(lake: Lake) -> None:
    await lake.store.put(keys.segment("n", 1), b"no segment")
    lake.seqs["n"] = 1
    await lake.put("2")
    async with lake.running(pipeline("a")) as process:
        await until(has("a", "2"))
        assert process.workers[0].counts.damaged == 1


async def test_segments_that_were_removed_unread_are_counted(lake: Lake) -> None:
    await lake.put("1")
    async with lake.running(pipeline("a")):
        await until(has("a", "1"))
    for line in ("2", "3", "4"):
        await lake.put(line)
    from tailrace.logstore.runs.report import raise_watermark

    await raise_watermark(lake.store, "n", fresh_id=lambda: "v", low=4)
    await lake.store.delete([keys.segment("n", 2), keys.segment("n", 3)])
    async with lake.running(pipeline("a")) as process:
        await until(has("a", "1", "4"))
        assert process.workers[0].counts.lost == 2


async def test_the_pipelines_group_moves_with_its_lowest_checkpoint(lake: Lake) -> None:
    Remembering.failing = {"broken"}
    for line in ("1", "2", "3"):
        await lake.put(line)
    async with lake.running(pipeline("whole", "broken")) as process:
        await until(has("whole", "1", "2", "3"))
        await until(lambda: sum(one.counts.checkpoints > 1 for one in process.workers) == 1)
        await process.move_groups()
        group = await read_group(lake.store, pipeline_group("p"))
        assert group is not None
        assert group.holds("n", 1)
        Remembering.failing = set()
        async with asyncio.timeout(PATIENCE_SECONDS):
            while group.holds("n", 3):
                await asyncio.sleep(0.01)
                await process.move_groups()
                group = await read_group(lake.store, pipeline_group("p"))
                assert group is not None
        assert group.holds("n", 4)


async def test_a_pipeline_that_was_evicted_does_nothing_and_says_why(
    lake: Lake, caplog: pytest.LogCaptureFixture
) -> None:
    await lake.put("1")
    async with lake.running(pipeline("a")):
        await until(has("a", "1"))
    await change_group(
        lake.store,
        pipeline_group("p"),
        lambda group: evict(group, 1, "it kept 1100 bytes"),
        fresh_id=lambda: "v2",
    )
    await lake.put("2")
    async with lake.running(pipeline("a")):
        await until(lambda: "p: it is evicted and does nothing: it kept 1100 bytes" in caplog.text)
    assert Remembering.lines["a"] == ["1"]


async def test_a_batch_that_was_sent_to_two_nodes_is_given_once(lake: Lake) -> None:
    first = await lake.put("1", "2", node="a")
    await lake.put("other", node="b", fqn="other")
    async with lake.running(pipeline("x")) as process:
        await until(lambda: len(Remembering.lines.get("x", ())) == 3)
        await lake.put("1", "2", node="b", ulid_=first)  # the copy, and what was never there
        await lake.put("0", node="b", ulid_=first - (1 << 30))
        await until(lambda: len(Remembering.lines["x"]) == 4)
        await lake.put("3", node="b")
        await until(lambda: len(Remembering.lines["x"]) == 5)
        assert sorted(Remembering.lines["x"]) == ["0", "1", "2", "3", "other"]
        await until(lambda: process.workers[0].counts.checkpoints > 1)
    async with lake.world() as world:
        (row,) = await rows(world, ["p"])
    assert (row["late"], row["copies"]) == (1, 2)


async def test_an_appender_that_keeps_failing_is_disabled_and_can_be_enabled(
    lake: Lake, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    dead = tmp_path / "dead"
    made = pipeline("a", error_threshold=3, dead_letter_dir=str(dead))
    await lake.put("1", "2")
    async with lake.running(made) as process:
        await until(has("a", "1", "2"))
        await until(lambda: any(one.counts.checkpoints > 1 for one in process.workers))
        Remembering.failing = {"a"}
        await lake.put("3", "4")
        letters = dead / "p.a.0.json"
        await until(lambda: letters.exists() and letters.read_text().count("\n") == 2)
        assert [json.loads(line)["message"] for line in letters.read_text().splitlines()] == [
            "3",
            "4",
        ]
        async with lake.world() as world:
            await until(lambda: any(one.disabled for one in process.workers))
            await asyncio.sleep(0.3)
            (row,) = await rows(world, ["p"])
            assert row["state"] == "disabled"
            assert row["reason"].startswith("it failed 3 times in a row: AppenderFailed")
    caplog.clear()
    async with lake.running(made) as process:
        await until(lambda: any(one.disabled for one in process.workers))
        assert "p/a/0 is disabled: it failed 3 times in a row: AppenderFailed" in caplog.text
        async with lake.world() as world:
            Remembering.failing = set()
            await change_control(
                world.store, "p", lambda one: one.enable("a"), fresh_id=world.fresh_id
            )
        await until(lambda: not any(one.disabled for one in process.workers))
        await lake.put("5")
        await until(has("a", "1", "2", "5"))
    async with lake.world() as world:
        (row,) = await rows(world, ["p"])
    assert (row["events"], row["dead"], row["state"]) == (5, 2, "running")


async def test_files_that_change_are_taken_over_without_a_restart(
    lake: Lake, caplog: pytest.LogCaptureFixture
) -> None:
    """One is changed, one added, one removed; what runs of a file that is wrong goes on."""
    caplog.set_level("INFO")

    def of_file(name: str, appender: str, **settings: Any) -> PipelineConfig:
        return replace(named(name, pipeline(appender, **settings)), path=f"{name}.yaml")

    files = [of_file("x", "a"), of_file("y", "b")]
    wrong: dict[str, InvalidInput] = {}

    def read_again() -> PipelineFolder:
        if "" in wrong:
            raise wrong[""]
        return PipelineFolder(list(files), dict(wrong))

    await lake.put("INFO 1")
    async with lake.running(*files, read_again=read_again) as process:
        await until(lambda: len(Remembering.lines) == 2 and all(Remembering.lines.values()))
        untouched = next(one for one in process.workers if one.pipeline == "y")
        files[:] = [
            of_file("x", "a", filter={"level": "ERROR"}),
            of_file("y", "b"),
            of_file("z", "c"),
        ]
        await until(has("c", "INFO 1"))
        await lake.put("INFO 2", "ERROR 3")
        await until(has("a", "INFO 1", "ERROR 3"))
        await until(has("b", "INFO 1", "INFO 2", "ERROR 3"))
        assert untouched in process.workers
        wrong["z.yaml"] = InvalidInput("z.yaml: unknown key filtr")
        files[:] = [of_file("y", "b")]
        await until(lambda: sorted(one.pipeline for one in process.workers) == ["y", "z"])
        assert "continues with the last valid file: z.yaml: unknown key filtr" in caplog.text
        assert process.problems == ["z.yaml: unknown key filtr"]
        await until(lambda: process.unready)
        await lake.put("INFO 4")
        await until(has("c", "INFO 1", "INFO 2", "ERROR 3", "INFO 4"))
        wrong[""] = InvalidInput("the folder x cannot be read")
        await until(lambda: "nothing is changed: the folder x cannot be read" in caplog.text)
        assert len(process.workers) == 2
        wrong.clear()
        await until(lambda: [one.pipeline for one in process.workers] == ["y"])
        await until(lambda: not process.unready)
    assert "pipeline x was changed" in caplog.text
    assert "pipeline z was added" in caplog.text
    assert "pipeline z was removed" in caplog.text


async def test_a_paused_pipeline_does_nothing_until_it_is_resumed(lake: Lake) -> None:
    await lake.put("1")
    async with lake.running(pipeline("a")) as process, lake.world() as world:
        await until(has("a", "1"))

        async def say(*, paused: bool) -> None:
            await change_control(
                world.store, "p", lambda one: replace(one, paused=paused), fresh_id=world.fresh_id
            )

        await say(paused=True)
        await until(lambda: process.workers == [])
        await lake.put("2")
        await asyncio.sleep(0.3)
        assert Remembering.lines["a"] == ["1"]
        await say(paused=False)
        await until(has("a", "1", "2"))


async def test_a_copy_may_be_the_first_that_a_node_sends(lake: Lake) -> None:
    first = await lake.put("1", "2", node="a")
    async with lake.running(pipeline("x")):
        await until(has("x", "1", "2"))
        await lake.put("1", "2", node="b", ulid_=first)
        await lake.put("3", node="b")
        await until(lambda: "3" in Remembering.lines["x"])
        assert Remembering.lines["x"] == ["1", "2", "3"]


async def test_parts_cannot_be_changed_behind_a_checkpoint(
    lake: Lake, caplog: pytest.LogCaptureFixture
) -> None:
    await lake.put("1")
    async with lake.running(pipeline("a")):
        await until(has("a", "1"))
    async with lake.running(pipeline("a", parts=2)):
        await until(lambda: "p: the appender a was divided into 1 parts" in caplog.text)
    assert Remembering.lines["a"] == ["1"]


async def test_parts_share_the_pipelines(lake: Lake) -> None:
    names = [f"shop.p{n}" for n in range(8)]
    for name in names:
        await lake.put(name, fqn=name)
    async with lake.running(pipeline("a", parts=3)) as process:
        await until(lambda: sorted(Remembering.lines.get("a", ())) == names)
        assert sorted(one.name for one in process.workers) == ["p/a/0", "p/a/1", "p/a/2"]


async def test_status_says_how_far_each_appender_is(lake: Lake) -> None:
    Remembering.failing = {"broken"}
    await lake.put("1", "2")
    async with lake.running(pipeline("whole", "broken")) as process:
        await until(lambda: any(one.counts.given for one in process.workers))
        await until(lambda: sum(one.counts.checkpoints > 1 for one in process.workers) == 1)
    await lake.put("3")
    async with lake.world() as world:
        found = {row["appender"]: row for row in await rows(world, ["p"])}
    assert (found["whole"]["events"], found["whole"]["segments_behind"]) == (2, 1)
    assert (found["broken"]["events"], found["broken"]["segments_behind"]) == (0, 2)
    assert found["broken"]["error"] == "AppenderFailed: its disk is full"
    assert found["whole"]["error"] is None
    assert found["broken"]["bytes_behind"] > found["whole"]["bytes_behind"] > 0
    assert found["broken"]["checkpoint_at"] > 0


async def test_the_group_has_the_bound_of_its_pipelines_file(lake: Lake) -> None:
    """Which may change, and be taken back."""
    files = [pipeline("x", segments_max_bytes="1MiB")]

    async def bound() -> int | None:
        group = await read_group(lake.store, pipeline_group("p"))
        return None if group is None else group.max_bytes

    async def becomes(most_bytes: int) -> None:
        async with asyncio.timeout(PATIENCE_SECONDS):
            while await bound() != most_bytes:
                await asyncio.sleep(0.02)

    async with lake.running(*files, read_again=lambda: PipelineFolder(files)):
        await becomes(1 << 20)
        files[:] = [pipeline("x")]
        await becomes(0)
