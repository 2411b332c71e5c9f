"""The store is frozen again and again, and each node must answer what the nodes hold meanwhile.

Before a freeze a run begins. While the store is frozen, lines are written through each node, and
each node is asked for a page of the run: it has all lines that the node has acknowledged, and those
of the others that it does not name as silent, and it says that the store is silent. Other harm goes
on meanwhile: a node that is away, or that stands still, is left out. One that has started since the
freeze, or just before it, has not read which other nodes there are, and has its own lines. In the
end the lines of these runs are compared as those of all others.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from itertools import count
from typing import Any, Final

import httpx

from tailrace.logstore.batch import RunKey
from tests.e2e.clients import run_path
from tests.nodes.torture.harm import ANSWER, Harm
from tests.nodes.torture.nodes import Nodes, TorturedNode
from tests.nodes.torture.producers import Written

_PAUSE_SECONDS: Final = 6.0
_BETWEEN_SECONDS: Final = 0.5
_LINES: Final = 5
_ANSWER_SECONDS: Final = 8.0
_AWAY: Final = ("node-not-ready", "unavailable")
_JOINS_SECONDS: Final = 10.0
"""So long after its start a node has read the register, also on a loaded machine."""


class Frost:
    """Freezes the store; `faults` says what was wrong with an answer."""

    def __init__(
        self, server: int, nodes: Nodes, harm: Harm, client: httpx.AsyncClient, runs: list[Written]
    ) -> None:
        """`server` is the store's process; what is written is added to `runs`."""
        self._server = server
        self._nodes = nodes
        self._harm = harm
        self._client = client
        self._runs = runs
        self.faults: list[str] = []

    async def run(self) -> None:
        """Until enough harm was done."""
        for number in count():
            if self._harm.seen[ANSWER]:  # before that all nodes are there, or soon will be
                await asyncio.sleep(self._harm.dice.expovariate(1 / _PAUSE_SECONDS))
            if not self._harm.goes_on:
                return
            if self._harm.enough and self._harm.seen[ANSWER]:
                continue
            async with self._harm.store:
                await self._freeze(number)
            await asyncio.sleep(_BETWEEN_SECONDS)  # whoever else waits for the store has it

    async def _freeze(self, number: int) -> None:
        self._harm.done["freeze"] += 1
        print("the store: freeze", flush=True)
        written = Written(RunKey("torture.frozen", f"run-{number}"))
        os.kill(self._server, signal.SIGSTOP)
        os.waitid(os.P_PID, self._server, os.WSTOPPED)
        processes = {node.name: _process_with_register(node) for node in self._nodes.all}
        try:
            for node in self._nodes.all:
                await self._write(node, written, number)
            if written.by_producer:  # else nobody was there
                self._runs.append(written)
            for node in self._nodes.all:
                await self._look(node, written, processes)
        finally:
            os.kill(self._server, signal.SIGCONT)

    async def _write(self, node: TorturedNode, written: Written, number: int) -> None:
        lines = [f"frozen {number} {node.name} {line:04d}" for line in range(_LINES)]
        body = "".join([f"{line}\n" for line in lines]).encode()
        try:
            reply = await self._client.post(
                f"{node.url}{run_path(written.key)}",
                content=body,
                headers={"content-type": "text/plain"},
                timeout=_ANSWER_SECONDS,
            )
        except httpx.TransportError:
            written.unknown.update(lines)
            return
        if reply.status_code == 200:
            written.by_producer[node.name] = lines
        else:
            written.unknown.update(lines)

    async def _look(
        self, node: TorturedNode, written: Written, processes: dict[str, int | None]
    ) -> None:
        """Asks for a page; `processes` are those that knew the others before the freeze."""
        url = f"{node.url}{run_path(written.key)}"
        try:
            reply = await self._client.get(url, timeout=_ANSWER_SECONDS)
        except httpx.TransportError:
            return  # it is away, or stands still
        where = f"the page of {written.key} at {node.name} over a frozen store"
        page: dict[str, Any] = reply.json()
        if node.name not in written.by_producer or page.get("type", "").endswith(_AWAY):
            return
        if (reply.status_code, page.get("store")) != (206, "silent"):
            self.faults.append(f"{where} is {reply.status_code}: {reply.text[:300]}")
            return
        self._harm.seen[ANSWER] += 1
        there, silent = set(page["logs"].splitlines()), page.get("silent", [])
        for name, lines in written.by_producer.items():
            is_silent = any(one.startswith(f"{name[0]}-") for one in silent)
            knows = node.process is not None and processes.get(node.name) == node.process
            if (name == node.name or (knows and not is_silent)) and (left := set(lines) - there):
                self.faults.append(f"{where} lacks {len(left)} lines of {name}: {silent} silent")


def _process_with_register(node: TorturedNode) -> int | None:
    """The node's process, if it has been ready for long enough to know the other nodes."""
    return node.process if time.monotonic() - node.ready_at >= _JOINS_SECONDS else None
