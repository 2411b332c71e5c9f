"""Two nodes that do not reach each other, and reach the store: real processes on cut links."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

from tailrace.logstore.batch import RunKey
from tests.e2e.clients import run_path
from tests.e2e.doors import HEARTBEATS, disagreements, statements
from tests.e2e.service_process import ServiceProcess
from tests.faults.link import Cut, Link
from tests.service.peers.test_contact import problems, samples
from tests.service.peers.test_over_http import SECRET
from tests.waiting import PATIENCE_SECONDS

SETTINGS = {
    "TAILRACE_NODES__SECRET": SECRET,
    "TAILRACE_NODES__REFRESH_SECONDS": "30",  # deletions are read from the store so often
    "TAILRACE_FLUSH__SEGMENT_SECONDS": "3600",
    "TAILRACE_RUNS__CLOSE_WAIT_SECONDS": "2",
    **HEARTBEATS,
}
PLAIN = {"content-type": "text/plain"}


class Pair:
    """Nodes `a` and `b`; what they ask each other goes over links."""

    def __init__(self, nodes: dict[str, ServiceProcess], links: list[Link]) -> None:
        self.a, self.b = nodes["a"], nodes["b"]
        self._links = links

    async def part(self) -> None:
        """Cuts them off from each other; both know it then."""
        for link in self._links:
            link.cut(Cut.SILENT)
        for node in (self.a, self.b):
            await until(lambda: samples(node, "nodes_unheard") == {"": 1.0})  # noqa: B023

    async def heal(self) -> None:
        for link in self._links:
            await link.mend()


@asynccontextmanager
async def pair(folder: Path) -> AsyncIterator[Pair]:
    nodes: dict[str, ServiceProcess] = {}
    for name in "ab":
        made = ServiceProcess(folder / name, store=folder / "store", **SETTINGS)
        made.settings["TAILRACE_NODE_ID"] = name
        nodes[name] = made
    async with Link(nodes["a"].url) as to_a, Link(nodes["b"].url) as to_b:
        nodes["a"].settings["TAILRACE_NODES__URL"] = to_a.url
        nodes["b"].settings["TAILRACE_NODES__URL"] = to_b.url
        try:
            for node in nodes.values():
                await asyncio.to_thread(node.start)
            yield Pair(nodes, [to_a, to_b])
        finally:
            for node in nodes.values():
                with suppress(AssertionError):
                    await asyncio.to_thread(node.kill)


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not await asyncio.to_thread(holds):
            await asyncio.sleep(0.05)


async def post(node: ServiceProcess, key: RunKey, text: str) -> httpx.Response:
    async with httpx.AsyncClient(base_url=node.url, timeout=60) as client:
        reply = await client.post(run_path(key), content=text, headers=PLAIN)
        return reply.raise_for_status()


async def ask(node: ServiceProcess, method: str, path: str) -> httpx.Response:
    async with httpx.AsyncClient(base_url=node.url, timeout=60) as client:
        return (await client.request(method, path)).raise_for_status()


async def shown(node: ServiceProcess, key: RunKey) -> dict[str, Any]:
    """The page of a run; an empty one of a pipeline without runs."""
    async with httpx.AsyncClient(base_url=node.url, timeout=60) as client:
        reply = await client.get(run_path(key))
    if reply.status_code == 404:
        return {"logs": ""}
    return dict(reply.raise_for_status().json())


@pytest.mark.in_turn(4)
async def test_no_side_of_a_partition_says_that_a_run_is_closed(tmp_path: Path) -> None:
    key = RunKey("svc.parted", "run")
    async with pair(tmp_path) as nodes:
        for node in (nodes.a, nodes.b):
            await post(node, key, "one\n" * 10)
        await nodes.part()
        closed = await ask(nodes.a, "POST", run_path(key, verb="close"))
        assert closed.json()["state"] == "closing"
        for node in (nodes.a, nodes.b):
            said = await statements(node.url, key)
            assert disagreements(said) == []
            assert not [one.door for one in said if one.ended]
            assert {one.silent for one in said if one.silent is not None} != {()}
        await nodes.heal()
        async with asyncio.timeout(PATIENCE_SECONDS):
            while closed.json()["state"] != "closed":
                closed = await ask(nodes.a, "POST", run_path(key, verb="close"))
        for node in (nodes.a, nodes.b):
            said = await statements(node.url, key)
            assert disagreements(said, 20) == []
            assert [one.door for one in said if one.ended is False] == []


@pytest.mark.in_turn(4)
async def test_what_a_deletion_takes_back_behind_a_cut_was_announced_and_is_counted(
    tmp_path: Path,
) -> None:
    key = RunKey("svc.taken", "run")
    async with pair(tmp_path) as nodes:
        a, b = nodes.a, nodes.b
        together = await post(b, key, "before\n")
        assert "silent" not in together.json()
        await nodes.part()
        assert (await ask(a, "DELETE", run_path(key))).status_code == 202
        reply = await post(b, key, "after\nafter\n")
        (silent,) = reply.json()["silent"]
        assert silent.startswith("a-")
        assert reply.headers["tailrace-silent"] == silent
        page = await shown(b, key)
        if page["logs"]:  # else it has read the deletion from the store by now
            assert (page["logs"], page["silent"]) == ("before\nafter\nafter", [silent])
        await nodes.heal()
        await until(lambda: samples(b, "lines_taken_back") == {"": 2.0})
        assert (await shown(b, key))["logs"] == ""
        assert "removes 2 lines" in b.output()
        await until(lambda: problems(b) == [])
        assert samples(a, "lines_taken_back") == {"": 0.0}
