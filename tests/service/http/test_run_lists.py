"""Lists of runs and pipelines over HTTP: pages, filters, and what each row says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx

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
            ({"outcome": "none", "name": "n*"}, ["night-1"]),
            ({"from": "now-1h"}, ["day", "night-1", "night-2"]),
            ({"to": "now-1h"}, []),
            ({"from": "now+20m"}, []),
        ):
            page = await listed(client, f"{LOGS}/p", **parameters)
            assert (sorted(page["runs"]), page["after"]) == (expected, None), parameters


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
            (f"{LOGS}/p", {"from": "yesterday"}, "from"),
            (f"{LOGS}/p", {"after": "7"}, "after"),
            (LOGS, {"state": "open"}, "state"),
            (LOGS, {"after": "x"}, "after"),
        ):
            reply = await client.get(path, params=parameters)
            assert (reply.status_code, reply.json()["field"]) == (400, field), parameters
        assert (await client.get(f"{LOGS}/nobody?state=open")).status_code == 404
