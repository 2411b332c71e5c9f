"""Runs that are written, deleted at some node and begun anew, while nodes are harmed.

Once a deletion is answered, no node that the answer does not name shows a deleted line: not the
one that was stopped meanwhile, not the one that was killed and returns, not a copy.
"""

from __future__ import annotations

import asyncio
import random
from typing import Final

import httpx

from logstore.batch import RunKey
from tailrace_client import RunDeleted
from tailrace_client import system as client_system
from tailrace_client.ids import BatchIds
from tests.e2e.clients import run_path
from tests.nodes.torture.nodes import APART_MS, Nodes, TorturedNode
from tests.nodes.torture.producers import Named, Written

_ROUNDS: Final = 3
_BATCHES: Final = 10
_PAUSE_SECONDS: Final = 0.05
_ACCEPTED: Final = 202


class DeletedRun:
    """A run that is deleted again and again; `written` is what is not deleted."""

    def __init__(
        self, key: RunKey, nodes: Nodes, dice: random.Random, client: httpx.AsyncClient
    ) -> None:
        self.written = Written(key)
        self.deleted: set[str] = set()
        self.deletions = 0
        self.faults: list[str] = []
        self._nodes = nodes
        self._dice = dice
        self._client = client

    async def live(self) -> None:
        """Ends early if a node was silent in a deletion: no id is above that one for a while."""
        for number in range(self._dice.randint(1, _ROUNDS)):
            if not await self._write(number):
                return
            silent = await self._delete()
            await self._look(silent)
            if silent:
                return
        await self._write(_ROUNDS)

    async def _write(self, number: int) -> bool:
        """Whether it could be written to; the client's clock is ahead of every deletion's."""

        def ahead() -> int:
            return client_system.now_ms() + number * 2 * APART_MS

        key, ids = self.written.key, BatchIds(now_ms=ahead)
        producer = Named(f"p{number}", self._nodes, self.written, self._dice, ids)
        try:
            await producer.write(_BATCHES, _PAUSE_SECONDS)
        except RunDeleted:
            return False
        finally:
            producer.close()
        return bool(self.written.by_producer) and key is not None

    async def _delete(self) -> list[str]:
        """The nodes that were silent."""
        gone = set(self.written.lines)
        self.written = Written(self.written.key)
        while True:
            url = f"{self._nodes.any_url()}{run_path(self.written.key)}"
            try:
                reply = await self._client.delete(url, timeout=30)
            except httpx.TransportError:
                await asyncio.sleep(_PAUSE_SECONDS)
                continue
            if reply.status_code in (200, _ACCEPTED):
                self.deleted |= gone
                self.deletions += 1
                return list(reply.json().get("silent", ()))
            if reply.status_code not in (500, 503, 507):
                raise RuntimeError(f"{reply.status_code}: {reply.text}")
            await asyncio.sleep(_PAUSE_SECONDS)

    async def _look(self, silent: list[str]) -> None:
        for node in self._nodes.all:
            if not any(name.startswith(f"{node.name[0]}-") for name in silent):
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
