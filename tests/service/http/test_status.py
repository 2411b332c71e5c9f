"""What OpenMetadata's client tells of a run: kept, given back, and heard by live streams."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import orjson
import pytest

from service.ingest.batch import IncomingBatch
from service.settings import OpenMetadataSettings
from service.tail import SseSettings
from tailrace.logstore.batch import RunKey
from tailrace.logstore.runs.deletions import RunRetention
from tests.service.http.conftest import Serve, Served
from tests.service.http.memory_node import MemoryNode
from tests.service.http.test_stream import drained, events, put, watching
from tests.settings import changed
from tests.simulation.faulty_store import Fault, FaultyStore, Schedule

ROOT = "/api/v1/services/ingestionPipelines"
KEY = RunKey("p", "r")


def status(run: str, state: str, timestamp: int = 1_700_000_000_000, **more: Any) -> dict[str, Any]:
    return {"runId": run, "pipelineState": state, "timestamp": timestamp, **more}


async def say(served: Served, value: Any, fqn: str = "p") -> httpx.Response:
    return await served.client.put(f"{ROOT}/{fqn}/pipelineStatus", json=value)


async def heard(served: Served, query: str = "", fqn: str = "p") -> list[str]:
    reply = (await served.client.get(f"{ROOT}/{fqn}/pipelineStatus{query}")).json()
    assert reply["paging"]["total"] == len(reply["data"])
    return [entry["runId"] for entry in reply["data"]]


async def test_a_status_is_given_back_as_it_was_sent(direct: Serve) -> None:
    served = await direct()
    value = status("r", "running", startDate=1, status=[{"name": "Source", "records": 3}], odd={})
    reply = await say(served, value)
    assert (reply.status_code, reply.json()) == (200, value)
    one = await served.client.get(f"{ROOT}/p/pipelineStatus/r")
    assert one.json() == value
    await say(served, status("r", "success"))
    assert (await served.client.get(f"{ROOT}/p/pipelineStatus/r")).json() == status("r", "success")


async def test_a_status_that_nobody_sent_has_no_content(direct: Serve) -> None:
    """Not an error: the client asks before it sends its first, and an error would stop it."""
    served = await direct()
    reply = await served.client.get(f"{ROOT}/p/pipelineStatus/r")
    assert (reply.status_code, reply.content) == (204, b"")
    assert await heard(served) == []


async def test_statuses_are_listed_by_time_within_bounds(direct: Serve) -> None:
    served = await direct()
    for number in (3, 1, 7, 2, 6, 5, 4):
        await say(served, status(f"r{number}", "success", number * 1000))
    await say(served, status("elsewhere", "success", 9000), fqn="q")
    assert await heard(served) == ["r7", "r6", "r5", "r4", "r3"]
    assert await heard(served, "?limit=2") == ["r7", "r6"]
    assert await heard(served, "?startTs=2000&endTs=4000") == ["r4", "r3", "r2"]
    assert await heard(served, "?startTs=1001") == ["r7", "r6", "r5", "r4", "r3", "r2"]
    assert await heard(served, "?endTs=2000&limit=1") == ["r2"]


@pytest.mark.parametrize(
    ("body", "field"),
    [
        (b"{", "body"),
        (b"[]", "body"),
        (b'{"pipelineState":"success"}', "runId"),
        (b'{"runId":"r","pipelineState":"done"}', "pipelineState"),
        (b'{"runId":"r","timestamp":"now"}', "timestamp"),
        (b'{"runId":"r","endDate":true}', "endDate"),
        (b'{"runId":""}', "runId"),
        (b'{"runId":7}', "runId"),
    ],
)
async def test_a_bad_status_is_refused_by_field(direct: Serve, body: bytes, field: str) -> None:
    served = await direct()
    reply = await served.client.put(f"{ROOT}/p/pipelineStatus", content=body)
    assert (reply.status_code, reply.json()["field"]) == (400, field)
    assert reply.json()["code"] == 400


async def test_too_much_is_refused(direct: Serve) -> None:
    served = await direct()
    reply = await say(served, status("r", "running", config={"x": "y" * (1 << 20)}))
    assert (reply.status_code, reply.json()["code"]) == (413, 413)


@pytest.mark.parametrize("path", ["a b/ü", "a%20b/%C3%BC", "a%20b%2F%C3%BC"])
async def test_names_come_quoted_or_not(direct: Serve, path: str) -> None:
    served = await direct()
    await say(served, status("r", "running"), fqn=path)
    await served.client.put(f"{ROOT}/progress/{path}/r", json={"n": 1})
    await served.client.post(f"{ROOT}/metrics/{path}/r", json={"m": 1})
    key = RunKey("a b/ü", "r")
    for found in (await served.node.status.get(key), await served.node.status.progress(key)):
        assert found is not None
    assert len((await served.node.status.metrics(key)).reports) == 1
    assert await heard(served, fqn=path) == ["r"]
    assert (await served.client.get(f"{ROOT}/{path}/pipelineStatus/r")).status_code == 200


async def test_progress_and_metrics_are_kept(direct: Serve) -> None:
    served = await direct()
    for n in (1, 2):
        reply = await served.client.put(f"{ROOT}/progress/p/r", json={"n": n})
        assert (reply.status_code, reply.content) == (200, b"")
        reply = await served.client.post(f"{ROOT}/metrics/p/r", json={"m": n})
        assert (reply.status_code, reply.content) == (200, b"")
    assert (await served.client.get(f"{ROOT}/progress/p/r")).json() == {"n": 2}
    assert (await served.client.get(f"{ROOT}/metrics/p/r")).json() == {"data": [{"m": 1}, {"m": 2}]}
    assert (await served.client.get(f"{ROOT}/progress/p/other")).status_code == 204


async def test_a_deleted_run_takes_its_reports_along(direct: Serve) -> None:
    served = await direct()
    for run in ("r", "s"):
        await say(served, status(run, "running"))
        await served.client.put(f"{ROOT}/progress/p/{run}", json={"n": 1})
        await served.client.post(f"{ROOT}/metrics/p/{run}", json={"m": 1})
    await served.client.delete(f"{ROOT}/logs/p/r")
    assert await heard(served) == ["s"]
    assert (await served.client.get(f"{ROOT}/progress/p/r")).status_code == 204
    assert (await served.client.get(f"{ROOT}/metrics/p/r")).json() == {"data": []}
    assert (await served.client.get(f"{ROOT}/metrics/p/s")).json() == {"data": [{"m": 1}]}


async def test_what_was_not_stored_is_not_acknowledged(direct: Serve) -> None:
    node = MemoryNode()
    faults = Schedule(dict.fromkeys(range(1, 100), Fault.UNAVAILABLE))
    node.status._reports._store = FaultyStore(node.store, faults)
    served = await direct(node)
    for reply in (
        await say(served, status("r", "running")),
        await served.client.put(f"{ROOT}/progress/p/r", json={}),
        await served.client.post(f"{ROOT}/metrics/p/r", json={}),
    ):
        assert (reply.status_code, reply.json()["code"]) == (503, 503)
        assert reply.json()["type"] == "store-unavailable"
        assert int(reply.headers["retry-after"]) > 0


def on_first_put(fault: Fault) -> Schedule:
    return Schedule({1: fault}, applies=lambda call: call.startswith("put"))


@pytest.mark.parametrize("fault", [Fault.UNKNOWN_DONE, Fault.UNKNOWN_NOT_DONE])
async def test_a_write_whose_answer_was_lost_is_looked_for(direct: Serve, fault: Fault) -> None:
    node = MemoryNode()
    store = FaultyStore(node.store, on_first_put(fault))
    node.status._reports._store = store
    served = await direct(node)
    assert (await say(served, status("r", "success"))).status_code == 200
    assert await heard(served) == ["r"]
    store.schedule = on_first_put(fault)
    assert (await served.client.post(f"{ROOT}/metrics/p/r", json={"m": 1})).status_code == 200
    assert len((await served.client.get(f"{ROOT}/metrics/p/r")).json()["data"]) == 1


QUICK: dict[str, Any] = {
    "openmetadata": changed(OpenMetadataSettings(), finish_grace_seconds=0.05),
    "look_seconds": 0.0,
}


@pytest.mark.parametrize("state", ["success", "failed", "partialSuccess", "stopped"])
async def test_a_stream_of_a_run_that_ended_replays_and_completes(serve: Serve, state: str) -> None:
    served = await serve(MemoryNode(**QUICK))
    await put(served.node, "a")
    await say(served, status("r", state))
    await asyncio.sleep(0.06)
    async with watching(served) as stream:
        assert await asyncio.wait_for(drained(stream), 120) == ["a"]


@pytest.mark.parametrize("state", ["queued", "running"])
async def test_a_run_that_goes_on_is_not_completed(serve: Serve, state: str) -> None:
    served = await serve(MemoryNode(**QUICK))
    await put(served.node, "a")
    await say(served, status("r", "success"))
    await say(served, status("r", state))
    async with watching(served) as stream:
        reading = asyncio.create_task(drained(stream))
        await asyncio.sleep(0.2)
        assert not reading.done()
        await served.node.close_run(KEY)
        assert await reading == ["a"]


async def test_a_status_said_to_another_node_is_found(serve: Serve) -> None:
    node = MemoryNode(sse=changed(SseSettings(), heartbeat_seconds=0.05), **QUICK)
    served = await serve(node)
    await put(node, "a")
    async with watching(served) as stream:
        reading = asyncio.create_task(drained(stream))
        await asyncio.sleep(0.1)
        other = MemoryNode()
        other.status._reports._store = node.store
        await other.status.put(KEY, status("r", "success"))
        assert await asyncio.wait_for(reading, 120) == ["a"]


async def test_a_store_that_is_away_is_not_the_end_of_a_run(serve: Serve) -> None:
    node = MemoryNode(sse=changed(SseSettings(), heartbeat_seconds=0.02), **QUICK)
    faults = dict.fromkeys(range(1, 10_000), Fault.UNAVAILABLE)
    node.status._reports._store = FaultyStore(node.store, Schedule(faults))
    served = await serve(node)
    await put(node, "a")
    async with watching(served) as stream:
        reading = asyncio.create_task(drained(stream))
        while node.status.endings.failures < 3:
            await asyncio.sleep(0.01)
        assert not reading.done()
        await node.close_run(KEY)
        assert await reading == ["a"]


async def test_readers_of_a_run_share_a_look_at_its_status() -> None:
    node = MemoryNode(look_seconds=60.0)
    store = FaultyStore(node.store, Schedule.none())
    node.status._reports._store = store
    assert await asyncio.gather(*[node.status.over(KEY) for _ in range(100)]) == [False] * 100
    assert store.calls == ["get coordination/status/p/r"]


async def test_progress_live(serve: Serve) -> None:
    """What was sent last, then each change, then the end; hostile text breaks no frame."""
    served = await serve()
    url = f"{ROOT}/progress/p/stream/r"
    await served.client.put(f"{ROOT}/progress/p/r", json={"text": "\n\n\u2028event: complete"})
    async with served.client.stream("GET", url) as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        stream = events(response)
        first = await anext(stream)
        assert orjson.loads(first["data"]) == {"text": "\n\n\u2028event: complete"}
        for n in range(3):
            await served.client.put(f"{ROOT}/progress/p/r", json={"n": n})
            change = await anext(stream)
            assert orjson.loads(change["data"]) == {"n": n}
            assert change["id"] > first["id"]
        await put(served.node, "a line is no progress")
        await served.node.close_run(KEY)
        assert await anext(stream) == {"event": "complete", "data": "{}"}
    assert served.counters.readers == 0


async def test_a_silent_progress_stream_beats_until_its_reader_leaves(serve: Serve) -> None:
    served = await serve(MemoryNode(sse=changed(SseSettings(), heartbeat_seconds=0.02)))
    async with served.client.stream("GET", f"{ROOT}/progress/p/stream/r") as response:
        assert "connection" not in response.headers
        stream = events(response)
        for _ in range(3):  # a comment, and the empty line after it
            assert [await anext(stream), await anext(stream)] == [{"comment": "heartbeat"}, {}]
        assert served.counters.readers == 1
    while served.counters.readers:
        await asyncio.sleep(0.01)
    assert served.node.tail.watched == {}


async def test_a_stop_ends_progress_without_complete(serve: Serve) -> None:
    served = await serve()
    await served.client.put(f"{ROOT}/progress/p/r", json={"n": 1})
    async with served.client.stream("GET", f"{ROOT}/progress/p/stream/r") as response:
        stream = events(response)
        assert orjson.loads((await anext(stream))["data"]) == {"n": 1}
        served.node.tail.stop()
        assert [event async for event in stream] == []


async def test_progress_ends_with_a_terminal_status(serve: Serve) -> None:
    served = await serve(MemoryNode(**QUICK))
    async with served.client.stream("GET", f"{ROOT}/progress/p/stream/r") as response:
        await say(served, status("r", "success"))
        assert await anext(events(response)) == {"event": "complete", "data": "{}"}


async def test_progress_of_another_node_is_seen_at_a_heartbeat(serve: Serve) -> None:
    node = MemoryNode(sse=changed(SseSettings(), heartbeat_seconds=0.05))
    served = await serve(node)
    async with served.client.stream("GET", f"{ROOT}/progress/p/stream/r") as response:
        other = MemoryNode()
        other.status._reports._store = node.store
        await other.status.put_progress(KEY, {"n": 1})
        async for event in events(response):
            if "data" in event:
                assert orjson.loads(event["data"]) == {"n": 1}
                break


async def test_reports_expire_with_their_runs() -> None:
    node = MemoryNode()
    kept, gone = RunKey("p", "kept"), RunKey("p", "gone")
    await node.append(IncomingBatch(kept, b"x\n", 1, 1))
    for key in (kept, gone):
        await node.status.put(key, status(key.run, "success"))
        await node.status.put_progress(key, {})
        await node.status.add_metrics(key, {})
    await node.status.expiry.sweep(RunRetention(expiration_days=100_000))
    assert node.status.expiry.removed == 0
    await node.status.expiry.sweep(
        RunRetention(expiration_days=30)
    )  # the store of the tests stands in the year 2023
    assert node.status.expiry.removed == 3
    assert await node.status.get(gone) is None
    assert await node.status.get(kept) is not None


async def test_a_status_after_a_deletion_that_leads_the_clock_is_seen() -> None:
    node = MemoryNode()
    ahead = (node.status._clock.now_ms() + 600_000) << 80
    await node.status.put(KEY, status("r", "running"))
    node.status._reports._horizon = lambda _: ahead
    assert await node.status.get(KEY) is None, "it was deleted"
    await node.status.put(KEY, status("r", "success"))
    found = await node.status.get(KEY)
    assert found is not None
    assert found.version > ahead


async def test_a_damaged_status_is_said_and_healed_by_the_next(direct: Serve) -> None:
    served = await direct()
    await served.node.store.put("coordination/status/p/r", b"{}")
    reply = await served.client.get(f"{ROOT}/p/pipelineStatus/r")
    assert (reply.status_code, reply.json()["type"]) == (500, "damaged")
    assert (await say(served, status("r", "success"))).status_code == 200
    assert await heard(served) == ["r"]
