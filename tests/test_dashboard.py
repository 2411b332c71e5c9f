"""Grafana's dashboard: a real Prometheus that scrapes a real service answers its queries."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tailrace.cli.canary import Canary
from tailrace.logstore.prometheus import serve
from tests.servers.ports import free_port
from tests.servers.prometheus import running_prometheus
from tests.service.test_main import service, settings_for
from tests.test_alerts import METRIC, exported

FILE = Path(__file__).parents[1] / "deploy" / "grafana" / "tailrace.json"
DASHBOARD: dict[str, Any] = json.loads(FILE.read_text())
# These programs do not run in the test.
_NOT_HERE = re.compile("tailrace_(compactor|forwarder|pipelines)_")
# It has a series once a door, a group or another node is used.
_BY_USE = re.compile("tailrace_(door_records|queue_(lag|failed)|node_questions)")


def panels() -> Iterator[dict[str, Any]]:
    for panel in DASHBOARD["panels"]:
        if panel["type"] != "row":
            yield panel


def queries() -> list[str]:
    return [target["expr"] for panel in panels() for target in panel["targets"]]


def test_its_panels_fit_and_are_about_metrics_that_there_are() -> None:
    assert set(METRIC.findall(" ".join(queries()))) <= exported()
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        at = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(at["x"], at["x"] + at["w"])
            for y in range(at["y"], at["y"] + at["h"])
        }
        assert max(x for x, _ in cells) < 24
        assert not cells & taken, panel["title"]
        taken |= cells


@pytest.mark.prometheus
@pytest.mark.in_turn(2)
async def test_prometheus_answers_every_query(tmp_path: Path) -> None:
    listen, stop = f"127.0.0.1:{free_port()}", asyncio.Event()
    async with service(settings_for(tmp_path)) as (client, _):
        canary = Canary(client, "p", every=0.05, late=1000, patience=1000)
        stop_metrics = serve(listen, canary.metrics)
        writing = asyncio.create_task(canary.run(stop))
        targets = {"tailrace": f"{client.base_url.host}:{client.base_url.port}", "canary": listen}
        try:
            # It starts while the service answers, so not in this thread.
            context = running_prometheus(targets, tmp_path)
            url = await asyncio.to_thread(context.__enter__)
            try:
                async with httpx.AsyncClient(base_url=url, timeout=120) as prometheus:
                    await _look(prometheus)
            finally:
                context.__exit__(None, None, None)
        finally:
            stop.set()
            await writing
            await asyncio.to_thread(stop_metrics)


async def _look(prometheus: httpx.AsyncClient) -> None:
    # Two samples of each job, and appends between them, are what rates need.
    lines = "changes(tailrace_canary_read_lines_total[5m])"
    enough = f"min(count_over_time(tailrace_ready[5m])) > 2 and min({lines}) > 0"
    while not await _result(prometheus, enough):
        await asyncio.sleep(0.1)
    for query in queries():
        found = await _result(prometheus, query)
        assert found or _NOT_HERE.search(query) or _BY_USE.search(query), query
    variable = DASHBOARD["templating"]["list"][1]["query"]["query"]
    assert await _result(prometheus, re.sub(r"label_values\((\w+), \w+\)", r"\1", variable))


async def _result(prometheus: httpx.AsyncClient, query: str) -> list[Any]:
    expression = query.replace("$instance", ".*").replace("$__rate_interval", "5m")
    answer = await prometheus.get("/api/v1/query", params={"query": expression})
    said = answer.json()
    assert said["status"] == "success", (query, said)
    result: list[Any] = said["data"]["result"]
    return result
