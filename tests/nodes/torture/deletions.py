"""Runs that are written, deleted at some node and begun anew, while nodes are harmed.

Once a deletion is answered, no node that the answer does not name shows a deleted line: not the
one that was stopped meanwhile, not the one that was killed and returns, not a copy. Lines that are
written after it are there once, also if a node was silent and the deletion is of ids to come, and
if the writer's clock is slow. What a silent node takes may be deleted with the rest, so writers
leave such nodes out.
"""

from __future__ import annotations

import asyncio
from typing import Final

import httpx

from tailrace.logstore.batch import RunKey
from tailrace_client import system as client_system
from tailrace_client.records import BatchIds
from tests.e2e.clients import run_path
from tests.nodes.torture.harm import SILENT, SLOW, Harm
from tests.nodes.torture.nodes import Nodes, TorturedNode
from tests.nodes.torture.producers import Named, Written

_ROUNDS: Final = 3
_BATCHES: Final = 10
_PAUSE_SECONDS: Final = 0.05
_ACCEPTED: Final = 202
_MOST_SLOW_MS: Final = 90_000


class DeletedRun:
    """A run that is deleted again and again; `written` is what is not deleted."""

    def __init__(self, key: RunKey, nodes: Nodes, harm: Harm, client: httpx.AsyncClient) -> None:
        self.written = Written(key)
        self.deleted: set[str] = set()
        self.deletions = 0
        self.faults: list[str] = []
        self._nodes = nodes
        self._harm = harm
        self._dice = harm.dice
        self._client = client

    async def live(self) -> None:
        """Rounds of lines, of which each but the last is deleted."""
        silent: list[str] = []
        for number in range(self._dice.randint(1, _ROUNDS)):
            await self._write(number, silent)
            silent = await self._delete()
            await self._look(silent)
        await self._write(_ROUNDS, silent)

    async def _write(self, number: int, silent: list[str]) -> None:
        """Writes with a clock that is right, or slow by up to `_MOST_SLOW_MS`."""
        slow_ms = self._dice.choice((0, self._dice.randint(1, _MOST_SLOW_MS)))
        if not self._harm.seen[SLOW] and self.deletions:
            slow_ms = _MOST_SLOW_MS

        def url() -> str:
            urls = [node.url for node in self._nodes.all if not _named(node, silent)]
            return self._dice.choice(urls) if urls else self._nodes.any_url()

        ids = BatchIds(now_ms=lambda: client_system.now_ms() - slow_ms)
        producer = Named(f"p{number}", self._nodes, self.written, self._dice, ids, url)
        try:
            await producer.write(_BATCHES, _PAUSE_SECONDS)
            self._harm.seen[SLOW] += slow_ms > 0 and self.deletions > 0
        finally:
            producer.close()
            self.faults += producer.faults

    async def _delete(self) -> list[str]:
        """The nodes that were silent."""
        gone = set(self.written.lines)
        self.written = Written(self.written.key)
        if not self._harm.seen[SILENT]:
            self._harm.deleting.set()
            await self._harm.stopped.wait()
        while True:
            there = [node.url for node in self._nodes.all if node.name != self._harm.standing]
            where = self._nodes.any_url() if self._harm.met.is_set() else self._dice.choice(there)
            url = f"{where}{run_path(self.written.key)}"
            try:
                reply = await self._client.delete(url, timeout=30)
            except httpx.TransportError:
                await asyncio.sleep(_PAUSE_SECONDS)
                continue
            if reply.status_code in (200, _ACCEPTED):
                self.deleted |= gone
                self.deletions += 1
                silent = list(reply.json().get("silent", ()))
                self._harm.seen[SILENT] += bool(silent)
                if silent:
                    self._harm.met.set()
                return silent
            if reply.status_code not in (500, 503, 507):
                raise RuntimeError(f"{reply.status_code}: {reply.text}")
            await asyncio.sleep(_PAUSE_SECONDS)

    async def _look(self, silent: list[str]) -> None:
        for node in self._nodes.all:
            if not _named(node, silent):
                self.check(f"node {node.name}", await self.shown(node))

    def check(self, where: str, lines: list[str]) -> None:
        """Notes it if one of these lines is deleted."""
        found = sorted(self.deleted.intersection(lines))
        if found:
            self.faults.append(
                f"{where} shows {len(found)} deleted lines of {self.written.key}: {found[0][:40]}"
            )

    async def shown(self, node: TorturedNode) -> list[str]:
        """What a node shows of the run; nothing if it shows nothing at all just now."""
        url = f"{node.url}{run_path(self.written.key, verb='download')}"
        try:
            reply = await self._client.get(url, timeout=5)
        except httpx.TransportError:
            return []
        if reply.status_code in (404, 500, 503):
            return []
        return reply.raise_for_status().text.splitlines()


def _named(node: TorturedNode, silent: list[str]) -> bool:
    """Whether it is one of these, or a copy."""
    return any(name.startswith(f"{node.name[0]}-") for name in silent)
