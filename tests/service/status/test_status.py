"""Reports of runs in a whole node: what a kill, a deletion and expiry leave of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import orjson
import pytest

from tailrace.logstore.batch import RunKey
from tests.openmetadata.server import FQN, KEY, NODE, OTHER, ROOT, RUN, Server, play
from tests.settings import settings_with
from tests.simulation.powercut import PowerCutFileSystem


async def heard(server: Server) -> list[str]:
    reply = await server.client.get(f"{ROOT}/{FQN}/pipelineStatus", params={"limit": 100})
    return [entry["runId"] for entry in reply.json()["data"]]


def test_what_was_acknowledged_is_there_after_a_kill() -> None:
    async def scenario(server: Server) -> None:
        await server.says("running", OTHER)
        await server.passes(seconds=1)
        await server.says("running")
        url = f"{ROOT}/progress/{FQN}/{RUN}"
        assert (await server.client.put(url, json={"n": 1})).status_code == 200
        assert (await server.client.post(f"{ROOT}/metrics/{FQN}/{RUN}", json={})).status_code == 200
        await server.kill()
        assert await heard(server) == [RUN, OTHER]
        assert (await server.client.get(url)).json() == {"n": 1}
        assert len((await server.node.status.metrics(KEY)).reports) == 1

    play(scenario)


def test_a_deletion_that_is_killed_half_way_shows_no_report() -> None:
    async def scenario(server: Server) -> None:
        await server.append("a\n")
        await server.says("running")
        server.outage.words.add("delete coordination/status")
        reply = await server.client.delete(f"{ROOT}/logs/{FQN}/{RUN}")
        assert (reply.status_code, reply.json()["code"]) == (503, 503)
        assert await heard(server) == []
        await server.kill()
        assert await heard(server) == []
        await server.passes(seconds=1)
        await server.says("success")
        assert await heard(server) == [RUN]
        server.outage.words.clear()
        await server.passes(seconds=20)  # the deletion goes on, and takes no later report
        assert server.node.run_logs.deleter.unfinished == 0
        assert await heard(server) == [RUN]
        await server.delete()
        assert await heard(server) == []
        assert [info async for info in server.disk_store.list("coordination/status/")] == []

    play(scenario)


def test_a_pipelines_deletion_takes_runs_that_have_only_a_status() -> None:
    async def scenario(server: Server) -> None:
        await server.says("queued", OTHER)
        await server.append("a\n")
        await server.says("running")
        await server.delete(None)
        assert await heard(server) == []
        assert (await server.client.get(f"{ROOT}/logs/{FQN}")).status_code == 404

    play(scenario)


def test_reports_go_when_their_run_has_expired() -> None:
    """Not before, however old they are, and those of runs that never had a line go too."""
    settings = settings_with(NODE, runs={"cleanup_interval_minutes": 10.0, "expiration_days": 1})
    disk = PowerCutFileSystem()

    async def begin(server: Server) -> None:
        await server.append("a\n")
        await server.says("running")
        await server.says("queued", OTHER)

    async def go_on(server: Server) -> None:
        await server.append("b\n")
        await server.passes(minutes=15)
        assert sorted(await heard(server)) == [RUN, OTHER]

    async def a_day_later(server: Server) -> None:
        await server.passes(minutes=15)
        assert await heard(server) == [RUN], "its run has a line that is younger"

    async def two_days_later(server: Server) -> None:
        await server.passes(minutes=25)
        assert await heard(server) == []
        assert await server.runs() == []

    play(begin, settings=settings, fs=disk)
    play(go_on, settings=settings, fs=disk, hours=12)
    play(a_day_later, settings=settings, fs=disk, hours=26)
    play(two_days_later, settings=settings, fs=disk, hours=50)


def test_a_page_of_the_last_run_reads_only_statuses_that_changed() -> None:
    """OpenMetadata's page asks for it every few seconds."""

    async def scenario(server: Server) -> None:
        for number in range(20):
            await server.says("success", f"run-{number}")
        await server.passes(seconds=1)
        await server.append("a\n")
        await server.says("running")
        url = f"{ROOT}/logs/{FQN}/last"
        assert (await server.client.get(url)).json()["ingestion_task"] == "a"
        before = len(server.calls("get coordination/status"))
        for _ in range(5):
            assert (await server.client.get(url)).json()["ingestion_task"] == "a"
        assert len(server.calls("get coordination/status")) == before
        await server.says("success")
        assert await heard(server)
        assert len(server.calls("get coordination/status")) == before + 2

    play(scenario)


@pytest.mark.parametrize(("room", "held"), [(100_000, True), (50_000, False)])
def test_bodies_of_reports_are_held_as_far_as_there_is_room(room: int, held: bool) -> None:
    """By their bytes: 60 of a MiB each were once held for good."""

    async def scenario(server: Server) -> None:
        text = {"runId": "", "pipelineState": "success", "text": "x" * 20_000}
        for number in range(4):
            report = {**text, "runId": f"run-{number}"}
            url = f"{ROOT}/{FQN}/pipelineStatus"
            assert (await server.client.put(url, json=report)).status_code == 200
        assert len(await heard(server)) == 4
        before = len(server.calls("get coordination/status"))
        assert len(await heard(server)) == 4
        again = len(server.calls("get coordination/status")) - before
        assert (again == 0) == held
        assert again <= 4

    play(scenario, settings=settings_with(NODE, openmetadata={"report_cache_bytes": room}))


def test_progress_that_is_shown_live_is_held_by_its_bytes_too() -> None:
    async def scenario(server: Server) -> None:
        for run in (OTHER, RUN):
            url = f"{ROOT}/progress/{FQN}/{run}"
            assert (await server.client.put(url, json={"text": "x" * 600})).status_code == 200
        status = server.node.status
        assert status.progress_here(RunKey(FQN, OTHER)) is None
        assert status.progress_here(KEY) is not None
        assert await status.progress(RunKey(FQN, OTHER)) is not None, "the store has it"

    play(scenario, settings=settings_with(NODE, openmetadata={"report_cache_bytes": 1000}))


def test_the_live_view_of_the_last_run() -> None:
    """OpenMetadata's page may ask for the run `last`."""

    async def scenario(server: Server) -> None:
        await server.append("old\n", OTHER)
        await server.passes(seconds=1)
        await server.append("new\n")
        viewer = await server.watch(run="last")
        assert viewer.text == "new\n"
        assert viewer.last["runId"] == RUN

    play(scenario)


STARTED = {"runId": RUN, "pipelineState": "running", "startDate": 5, "timestamp": 5}


async def put(server: Server, value: dict[str, Any]) -> float | None:
    """Reports a status; gives the seconds after which the service wants it again."""
    reply = await server.client.put(f"{ROOT}/{FQN}/pipelineStatus", json=value)
    assert reply.status_code == 200
    seconds = reply.headers.get("Tailrace-Heartbeat")
    return None if seconds is None else float(seconds)


async def state_and_outcome(server: Server) -> tuple[str, str | None]:
    reply = await server.client.get(f"{ROOT}/logs/{FQN}")
    (row,) = reply.json()["details"]
    return row["state"], row["outcome"]


@pytest.mark.parametrize("ended", ["success", None])
def test_a_report_that_a_connection_held_up_does_not_replace_the_end(ended: str | None) -> None:
    async def scenario(server: Server) -> None:
        let_go = asyncio.Event()
        late = {**STARTED, "heartbeat": True, "reporter": "forwarder"}

        async def trickle() -> AsyncIterator[bytes]:
            body = orjson.dumps(late)
            yield body[:20]
            await let_go.wait()
            yield body[20:]

        await server.append("a\n")
        await put(server, late)
        url = f"{ROOT}/{FQN}/pipelineStatus"
        waiting = asyncio.create_task(server.client.put(url, content=trickle()))
        await server.passes(seconds=1)
        end = {"runId": RUN, "pipelineState": ended, "startDate": 5, "timestamp": 9, "endDate": 9}
        assert await put(server, end) is None
        assert await server.close() == "closed"
        let_go.set()
        assert (await waiting).json() == end, "the reply has the status that is kept"
        assert (await server.client.get(f"{url}/{RUN}")).json() == end
        assert await state_and_outcome(server) == ("closed", "succeeded" if ended else "unknown")
        await put(server, {**late, "startDate": 10, "timestamp": 10})
        assert (await server.client.get(f"{url}/{RUN}")).json()["startDate"] == 10, "a new start"

    play(scenario)
