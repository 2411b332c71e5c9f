"""Lists of runs and pipelines over HTTP: pages, filters, and what each row says."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import httpx

from service.settings import RunSettings
from tailrace.logstore import keys
from tailrace.logstore.batch import RunKey
from tests.service.test_main import PLAIN, service, settings_for

BASE = "/api/v1/services/ingestionPipelines"
LOGS = f"{BASE}/logs"


async def send(client: httpx.AsyncClient, fqn: str, run: str, text: str = "a\n") -> None:
    reply = await client.post(f"{LOGS}/{fqn}/{run}", content=text, headers=PLAIN)
    assert reply.status_code == 200


async def listed(client: httpx.AsyncClient, path: str, **parameters: str) -> dict[str, Any]:
    reply = await client.get(path, params=parameters)
    assert reply.status_code == 200, reply.text
    return dict(reply.json())


async def test_runs_are_listed_by_pages_with_what_is_known_of_each(tmp_path: Path) -> None:
    async with service(settings_for(tmp_path)) as (client, _):
        for number in range(7):
            await send(client, "p", f"run-{number}", "a\nb\n")
        await client.post(f"{LOGS}/p/run-3/close")
        status = {"runId": "run-5", "pipelineState": "failed", "metadata": {"attempt": 2}}
        assert (await client.put(f"{BASE}/p/pipelineStatus", json=status)).status_code == 200
        seen: list[dict[str, Any]] = []
        after: dict[str, str] = {}
        while True:
            page = await listed(client, f"{LOGS}/p", limit="3", **after)
            assert page["runs"] == [run["runId"] for run in page["details"]]
            assert len(page["runs"]) <= 3
            seen += page["details"]
            if page["after"] is None:
                break
            after = {"after": page["after"]}
            await send(client, "p", "run-0")  # changes while it is listed
        rows = {run["runId"]: run for run in seen}
        assert len(rows) == len(seen) == 7
        assert (rows["run-5"]["outcome"], rows["run-5"]["attempt"]) == ("failed", 2)
        assert (rows["run-4"]["outcome"], rows["run-4"]["attempt"]) == (None, None)
        assert (rows["run-3"]["state"], rows["run-3"]["lines"]) == ("closed", 2)
        assert rows["run-6"]["bytes"] == 4
        assert rows["run-6"]["first"] >= rows["run-5"]["last"]


async def test_pages_go_by_begin_and_agree_with_the_last_run(tmp_path: Path) -> None:
    """All that can happen to runs happens between two pages."""
    names = [f"run-{number:02d}" for number in range(12)]
    async with service(settings_for(tmp_path)) as (client, _):
        for name in names:
            await client.put(f"{BASE}/p/pipelineStatus", json={"runId": "first"})
            await send(client, "p", name)
            if name == "run-04":
                began = (await listed(client, f"{LOGS}/p", limit="1"))["details"][0]["began"]
        await client.put(f"{BASE}/p/pipelineStatus", json={"runId": "queued"})
        for name in names[:8]:  # the oldest change last
            await client.post(f"{LOGS}/p/{name}/close")
        seen: list[dict[str, Any]] = []
        after: dict[str, str] = {}
        changed = iter(names)
        while True:
            page = await listed(client, f"{LOGS}/p", limit="4", **after)
            seen += page["details"]
            if page["after"] is None:
                break
            after = {"after": page["after"]}
            name = next(changed)
            await send(client, "p", name)
            await client.post(f"{LOGS}/p/{name}/close")
            await client.put(f"{BASE}/p/pipelineStatus", json={"runId": next(changed)})
            await send(client, "p", "queued")
            await send(client, "p", f"late-{name}")
            last = await client.get(f"{LOGS}/p/last")
            assert last.headers["tailrace-run"] == f"late-{name}"
            assert (await listed(client, f"{LOGS}/p"))["runs"][0] == f"late-{name}"
        assert [run["runId"] for run in seen] == ["queued", *reversed(names), "first"]
        times = [run["began"] for run in seen]
        assert times == sorted(times, reverse=True)
        for parameters, expected in (
            ({"began_to": str(began)}, names[4::-1]),
            ({"began_from": str(began)}, names[:3:-1]),
            ({"last_to": str(began)}, ["run-03", "run-01"]),
            ({"last_from": str(began + 1), "began_to": str(began)}, ["run-04", "run-02", "run-00"]),
        ):
            page = await listed(client, f"{LOGS}/p", **parameters, limit="99", name="run")
            assert page["runs"] == expected


async def test_a_run_that_cannot_be_read_hides_no_other(tmp_path: Path) -> None:
    """Of one the manifest is damaged, of another one the status."""
    async with service(settings_for(tmp_path)) as (client, _):
        for number in range(3):
            await send(client, "p", f"run-{number}")
            await client.post(f"{LOGS}/p/run-{number}/close")
            status = {"runId": f"run-{number}", "pipelineState": "success"}
            assert (await client.put(f"{BASE}/p/pipelineStatus", json=status)).is_success
    store = tmp_path / "data" / "store"
    (store / keys.run_manifest(RunKey("p", "run-0"))).write_bytes(b"")
    (store / keys.run_report(keys.STATUS, RunKey("p", "run-1"))).write_bytes(b"garbage")
    async with service(settings_for(tmp_path)) as (client, _):
        reply = await client.get(f"{LOGS}/p")
        assert reply.status_code == 206
        rows = {row["runId"]: row["reported"] for row in reply.json()["details"]}
        assert rows == {"run-1": None, "run-2": "success"}
        assert sorted(reply.json()["damaged"]) == ["run-0", "run-1"]
        assert (await listed(client, LOGS))["pipelines"] == ["p"]


async def test_a_run_that_cannot_be_read_is_named_where_it_may_be_the_last(tmp_path: Path) -> None:
    async with service(settings_for(tmp_path)) as (client, _):
        for number in range(2):
            await send(client, "p", f"run-{number}")
            await client.post(f"{LOGS}/p/run-{number}/close")
    store = tmp_path / "data" / "store"
    manifests = [store / keys.run_manifest(RunKey("p", f"run-{number}")) for number in range(2)]
    manifests[1].write_bytes(b"")
    async with service(settings_for(tmp_path)) as (client, _):
        replies = [await client.get(f"{LOGS}/p/{path}") for path in ("last", "last/download")]
        assert replies[0].json()["ingestion_task"] == "a"
        assert [reply.status_code for reply in replies] == [206, 206]
        replies.append(await client.get(f"{LOGS}/p/stream/last"))
        assert "event: complete" in replies[-1].text
        for reply in replies:
            assert reply.headers["tailrace-damaged"] == "run-1"
        manifests[0].write_bytes(b"")
        for path in ("last", "last/download", "stream/last"):
            reply = await client.get(f"{LOGS}/p/{path}")
            assert (reply.status_code, reply.json()["type"]) == (500, "damaged")


async def test_filters_leave_out_what_is_not_wanted(tmp_path: Path) -> None:
    async with service(settings_for(tmp_path)) as (client, _):
        for name in ("night-1", "night-2", "day"):
            await send(client, "p", name)
        await client.post(f"{LOGS}/p/day/close")
        status = {"runId": "night-2", "pipelineState": "success"}
        await client.put(f"{BASE}/p/pipelineStatus", json=status)
        for parameters, expected in (
            ({"state": "closed"}, ["day"]),
            ({"state": "open,closed"}, ["day", "night-1", "night-2"]),
            ({"name": "night"}, ["night-1", "night-2"]),
            ({"name": "*-2"}, ["night-2"]),
            ({"outcome": "success"}, ["night-2"]),
            ({"outcome": "succeeded"}, ["night-2"]),
            ({"outcome": "none", "name": "n*"}, ["night-1"]),
            ({"outcome": "running,unknown"}, ["day", "night-1"]),
            ({"outcome": "lost"}, []),
            ({"from": "now-1h"}, ["day", "night-1", "night-2"]),
            ({"to": "now-1h"}, []),
            ({"from": "now+20m"}, []),
        ):
            page = await listed(client, f"{LOGS}/p", **parameters)
            assert (sorted(page["runs"]), page["after"]) == (expected, None), parameters


async def test_a_run_is_listed_from_its_first_status_on(tmp_path: Path) -> None:
    settings = settings_for(tmp_path).model_copy(
        update={"runs": RunSettings(lost_minutes=0.001, stream_timeout_minutes=1440)}
    )
    async with service(settings) as (client, _):
        start = {"runId": "r", "pipelineState": "running", "startDate": 1_800_000_000_000}
        reply = await client.put(f"{BASE}/p/pipelineStatus", json=start)
        assert "tailrace-heartbeat" not in reply.headers
        assert (await listed(client, LOGS))["pipelines"] == ["p"]
        assert (await client.get(f"{LOGS}/p/r")).status_code == 200
        (row,) = (await listed(client, f"{LOGS}/p", outcome="running"))["details"]
        assert (row["runId"], row["state"], row["outcome"]) == ("r", "open", None)
        assert (row["started"], row["took"], row["lines"]) == (1_800_000_000_000, None, 0)
        assert (await listed(client, f"{LOGS}/p", **{"from": "now-1h"}))["runs"] == ["r"]
        # Its client promises to be heard of, and is not.
        reply = await client.put(f"{BASE}/p/pipelineStatus", json=start | {"heartbeat": True})
        assert reply.headers["tailrace-heartbeat"] == "0.015"
        while not (await listed(client, f"{LOGS}/p", outcome="lost"))["runs"]:
            await asyncio.sleep(0.01)
        # It is heard of, and ends.
        end = start | {"pipelineState": "success", "endDate": 1_800_000_006_000}
        await client.put(f"{BASE}/p/pipelineStatus", json=end)
        await send(client, "p", "r")
        (row,) = (await listed(client, f"{LOGS}/p"))["details"]
        assert (row["outcome"], row["took"], row["tookFrom"]) == ("succeeded", 6000, "reported")
        await client.put(f"{BASE}/p/pipelineStatus", json={"runId": "s", "pipelineState": "failed"})
        assert (await listed(client, f"{LOGS}/p", limit="1"))["runs"] == ["s"], "it began last"
        assert (await client.delete(f"{LOGS}/p/s")).status_code == 200
        assert (await listed(client, f"{LOGS}/p"))["runs"] == ["r"]
        await client.delete(f"{LOGS}/p")
        assert (await listed(client, LOGS))["pipelines"] == []


async def test_a_closed_run_without_lines_is_one_in_the_list_and_on_its_page(
    tmp_path: Path,
) -> None:
    async def said() -> tuple[str, str, str | None, str]:
        (row,) = (await listed(client, f"{LOGS}/p"))["details"]
        page = await listed(client, f"{LOGS}/p/r")
        assert page["logs"] == ""
        stats = json.loads((await client.get(f"{LOGS}/p/r?format=ndjson")).text)["stats"]
        assert stats["state"] == page["state"]
        return row["runId"], row["state"], row["outcome"], page["state"]

    async with service(settings_for(tmp_path)) as (client, _):
        start = {"runId": "r", "pipelineState": "running", "startDate": 1_800_000_000_000}
        await client.put(f"{BASE}/p/pipelineStatus", json=start)
        assert await said() == ("r", "open", None, "open")
        for _ in range(2):
            reply = await client.post(f"{LOGS}/p/r/close")
            assert reply.json()["state"] == "closed"
            assert await said() == ("r", "closed", "unknown", "closed")
        assert (await listed(client, f"{LOGS}/p", outcome="unknown", state="closed"))["runs"]
    async with service(settings_for(tmp_path)) as (client, _):
        assert await said() == ("r", "closed", "unknown", "closed")
        assert (await client.get(f"{BASE}/p/pipelineStatus/r")).json() == start
        await client.put(f"{BASE}/p/pipelineStatus", json=start)
        assert await said() == ("r", "open", None, "open"), "it goes on"
        await client.post(f"{LOGS}/p/r/close")
        await client.put(f"{BASE}/p/pipelineStatus", json=start | {"pipelineState": "failed"})
        assert await said() == ("r", "closed", "failed", "closed")
        await client.post(f"{LOGS}/p/nobody/close")
        assert (await listed(client, f"{LOGS}/p"))["runs"] == ["r"], "nobody reported it"


async def test_a_close_without_an_outcome_ends_a_run_that_said_running(tmp_path: Path) -> None:
    async with service(settings_for(tmp_path)) as (client, _):
        await client.put(
            f"{BASE}/p/pipelineStatus", json={"runId": "r", "pipelineState": "running"}
        )
        await send(client, "p", "r")
        await client.post(f"{LOGS}/p/r/close")
        (row,) = (await listed(client, f"{LOGS}/p", outcome="unknown"))["details"]
        assert (row["state"], row["outcome"], row["reported"]) == ("closed", "unknown", "running")
        assert (await listed(client, f"{LOGS}/p", outcome="running"))["runs"] == []


async def test_pipelines_are_listed_by_pages_and_names(tmp_path: Path) -> None:
    async with service(settings_for(tmp_path)) as (client, _):
        names = ["a b", "alpha", "beta", "gamma", "n" * 220]
        for name in names:
            await send(client, name, "r")
        await client.post(f"{LOGS}/alpha/r/close")
        seen: list[str] = []
        after: dict[str, str] = {}
        while True:
            page = await listed(client, LOGS, limit="2", **after)
            seen += page["pipelines"]
            if page["after"] is None:
                break
            after = {"after": page["after"]}
        assert sorted(seen) == names
        assert (await listed(client, LOGS, name="*m*"))["pipelines"] == ["gamma"]
        assert (await listed(client, LOGS, name="nnn"))["pipelines"] == ["n" * 220]


async def test_typing_errors_are_refused_with_their_field(tmp_path: Path) -> None:
    async with service(settings_for(tmp_path)) as (client, _):
        await send(client, "p", "r")
        for path, parameters, field in (
            (f"{LOGS}/p", {"status": "open"}, "status"),
            (f"{LOGS}/p", {"state": "opened"}, "state"),
            (f"{LOGS}/p", {"outcome": "bad"}, "outcome"),
            (f"{LOGS}/p", {"from": "some day"}, "from"),
            (f"{LOGS}/p", {"after": "7"}, "after"),
            (LOGS, {"state": "open"}, "state"),
            (LOGS, {"after": "x"}, "after"),
            (LOGS, {"name": "*a" * 101}, "name"),
            (LOGS, {"name": "?" * 2000}, "name"),
            (f"{LOGS}/p", {"name": "*a" * 2000}, "name"),
            ("/query", {"q": "*a" * 101}, "q"),
            ("/query", {"fqn": "*a" * 101}, "fqn"),
        ):
            reply = await client.get(path, params=parameters)
            assert (reply.status_code, reply.json()["field"]) == (400, field), parameters
        assert (await client.get(f"{LOGS}/nobody?state=open")).status_code == 404
