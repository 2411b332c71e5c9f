"""Three real nodes on one bucket, copies of their folders, and what may happen to each.

Each has its own folder and its own clock.
"""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import signal
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Final

from tests.e2e.service_process import ServiceProcess
from tests.e2e.torture.torture import SETTINGS as FLUSHES_SOON
from tests.nodes.torture.clock import AHEAD
from tests.nodes.torture.network import Network

NAMES: Final = ("a", "b", "c")
LEASE_SECONDS: Final = 15.0
SETTINGS: Final = {
    **FLUSHES_SOON,
    "TAILRACE_NODES__SECRET": "the secret of all nodes of the torture",
    "TAILRACE_NODES__REFRESH_SECONDS": "0.5",
    "TAILRACE_COORDINATION__LEASE_SECONDS": f"{LEASE_SECONDS}",
    "TAILRACE_SERVER__STORE_SECONDS": "1",
    "TAILRACE_QUEUE__POLL_SECONDS": "0.2",
    "TAILRACE_QUEUE__RETRY_SECONDS": "0.05",
    "TAILRACE_SSE__HEARTBEAT_SECONDS": "1",
}
_TO_BE_STARTED: Final = ("lines are only in the journal", "stays in the register")
_MOST_ENDS: Final = 5
_FRAME_LINES: Final = 24
_LAST_LINES: Final = 12
APART_MS: Final = 30_000
"""The clocks of two nodes are so far from the third one's."""


@dataclass
class TorturedNode:
    """A node as a process, and what may happen to it."""

    name: str
    service: ServiceProcess
    ready_at: float = 0.0
    """The monotonic time at which its process was ready."""

    @property
    def url(self) -> str:
        """Where clients ask it."""
        return self.service.url

    @property
    def process(self) -> int | None:
        """Its number; None if it does not run."""
        return self.service.pid if self.service.running else None

    async def kill(self) -> None:
        """kill -9."""
        await asyncio.to_thread(self.service.kill)

    async def start(self) -> None:
        """Returns when it is ready."""
        await asyncio.to_thread(self.service.start)
        self.ready_at = time.monotonic()

    async def end(self) -> list[str]:
        """kill -TERM; what is wrong with how it ended, in sentences."""
        status = await asyncio.to_thread(self.service.stop)
        output = self.service.output()
        found = []
        if status:
            last = "\n".join(output.splitlines()[-_LAST_LINES:])
            found.append(f"node {self.name} ended with status {status}; it said:\n{last}")
        _, traceback, trace = output.partition("Traceback")
        return found + ([f"node {self.name} logged: {_end_of(trace)}"] if traceback else [])

    async def end_for_good(self) -> list[str]:
        """As `end`, and again as often as it says that it has to start once more."""
        for _ in range(_MOST_ENDS):
            said = len(self.service.output())
            found = await self.end()
            if not any(words in self.service.output()[said:] for words in _TO_BE_STARTED):
                return found
            await self.start()
        return [*await self.end(), f"node {self.name} has ended {_MOST_ENDS} times, and not left"]

    def stop(self) -> None:
        """SIGSTOP."""
        os.kill(self.service.pid, signal.SIGSTOP)

    def resume(self) -> None:
        """SIGCONT."""
        os.kill(self.service.pid, signal.SIGCONT)


def _end_of(trace: str) -> str:
    """Of a traceback that begins there, the innermost frames and the error."""
    frames = list(takewhile(lambda line: line.startswith(" "), trace.splitlines()[1:]))
    error = trace.splitlines()[len(frames) + 1 :][:1]
    return "\n".join([*frames[-_FRAME_LINES:], *error])


class Nodes:
    """The three, and copies of them as long as they run, by name."""

    def __init__(self, folder: Path, network: Network, dice: random.Random) -> None:
        self.by_name: dict[str, TorturedNode] = {}
        self.network = network
        self._folder = folder
        self._dice = dice
        self._made: list[TorturedNode] = []

    @property
    def all(self) -> list[TorturedNode]:
        """In the order in which they came."""
        return list(self.by_name.values())

    def any_url(self) -> str:
        """Where one of them is asked, whatever its state."""
        return self._dice.choice(self.all).url

    async def add(self, name: str, ahead_ms: int) -> TorturedNode:
        """A node on the folder of its name, which does not run yet."""
        service = ServiceProcess(self._folder / name, store=None, **SETTINGS)
        service.module = "tests.nodes.torture.clock"
        service.settings |= {AHEAD: f"{ahead_ms}", "TAILRACE_NODE_ID": name[0]}
        await self.network.join(name, service)
        self._made.append(TorturedNode(name, service))
        return self._made[-1]

    async def copy(self, node: TorturedNode) -> TorturedNode:
        """A node on a copy of the folder of one that does not run; it does not run either."""
        name = f"{node.name}{len(self._made)}"
        await asyncio.to_thread(shutil.copytree, self._folder / node.name, self._folder / name)
        return await self.add(name, self._dice.randint(-APART_MS, APART_MS))

    async def kill_all(self) -> None:
        """Those that still run, in whatever state."""
        for node in self._made:
            if node.service.running:
                await node.kill()


@asynccontextmanager
async def three_nodes(folder: Path, network: Network, dice: random.Random) -> AsyncIterator[Nodes]:
    """They run until the context ends, and are killed then if they still do."""
    nodes = Nodes(folder, network, dice)
    clocks = dice.sample((-APART_MS, 0, APART_MS), len(NAMES))
    for name, ahead_ms in zip(NAMES, clocks, strict=True):
        nodes.by_name[name] = await nodes.add(name, ahead_ms)
    try:
        await asyncio.gather(*[node.start() for node in nodes.all])
        yield nodes
    finally:
        await nodes.kill_all()
