"""Three real nodes on one bucket, and what may happen to each.

A node has its own folder, its own clock, its own way to the bucket, and an address at which only
the other nodes ask it; ways and addresses are links that can be cut. Clients come to it directly.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.e2e.service_process import ServiceProcess
from tests.e2e.torture.torture import SETTINGS as FLUSHES_SOON
from tests.e2e.torture_store import TorturedStore
from tests.faults.link import Link
from tests.nodes.torture.clock import AHEAD

NAMES = ("a", "b", "c")
SETTINGS = {
    **FLUSHES_SOON,
    "TAILRACE_NODES__SECRET": "the secret of all nodes of the torture",
    "TAILRACE_NODES__REFRESH_SECONDS": "0.5",
    "TAILRACE_QUEUE__POLL_SECONDS": "0.2",
    "TAILRACE_QUEUE__RETRY_SECONDS": "0.05",
    "TAILRACE_SSE__HEARTBEAT_SECONDS": "1",
}
_APART_MS = (-30_000, 0, 30_000)


@dataclass
class TorturedNode:
    """A node, its way to the bucket, and the others' way to it."""

    name: str
    service: ServiceProcess
    to_store: Link
    to_node: Link
    stopped: bool = False

    @property
    def url(self) -> str:
        """Where clients ask it."""
        return self.service.url

    async def kill(self) -> None:
        """kill -9."""
        await asyncio.to_thread(self.service.kill)

    async def start(self) -> None:
        """Returns when it is ready."""
        await asyncio.to_thread(self.service.start)

    def stop(self) -> None:
        """SIGSTOP."""
        os.kill(self.service.pid, signal.SIGSTOP)

    def resume(self) -> None:
        """SIGCONT."""
        os.kill(self.service.pid, signal.SIGCONT)


class Nodes:
    """The three, by name."""

    def __init__(self, by_name: dict[str, TorturedNode], dice: random.Random) -> None:
        self.by_name = by_name
        self._dice = dice

    @property
    def all(self) -> list[TorturedNode]:
        """In the order of their names."""
        return list(self.by_name.values())

    def any_url(self) -> str:
        """Where one of them is asked, whatever its state."""
        return self._dice.choice(self.all).url

    def asking(self, port: int) -> str:
        """The node whose connection has this local port."""
        inode = _inode_of(port)
        for node in self.all:
            if node.service.running and _holds(node.service.pid, inode):
                return node.name
        return ""


@asynccontextmanager
async def three_nodes(
    folder: Path, store: TorturedStore, dice: random.Random
) -> AsyncIterator[Nodes]:
    """They run until the context ends, and are killed then if they still do."""
    assert store.bucket is not None
    nodes = Nodes({}, dice)
    clocks = dice.sample(_APART_MS, len(_APART_MS))
    async with AsyncExitStack() as stack:
        upstream = store.settings["TAILRACE_S3__ENDPOINT_URL"]
        for name, ahead_ms in zip(NAMES, clocks, strict=True):
            service = ServiceProcess(folder / name, store=None, **SETTINGS)
            service.module = "tests.nodes.torture.clock"
            to_store = await stack.enter_async_context(Link(upstream))
            to_node = await stack.enter_async_context(Link(service.url, asks=nodes.asking))
            service.settings |= {
                **store.bucket.through(to_store.url).environment,
                AHEAD: f"{ahead_ms}",
                "TAILRACE_NODE_ID": name,
                "TAILRACE_NODES__URL": to_node.url,
            }
            nodes.by_name[name] = TorturedNode(name, service, to_store, to_node)
        try:
            await asyncio.gather(*[node.start() for node in nodes.all])
            yield nodes
        finally:
            for node in nodes.all:
                if node.service.running:
                    await node.kill()


def _inode_of(port: int) -> str:
    """The socket on this machine's side of a local connection from `port`."""
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        if int(fields[1].partition(":")[2], 16) == port:
            return fields[9]
    return ""


def _holds(pid: int, inode: str) -> bool:
    """Whether a process has this socket open."""
    try:
        files = list(Path(f"/proc/{pid}/fd").iterdir())
    except FileNotFoundError:
        return False  # killed just now
    return any(_target(file) == f"socket:[{inode}]" for file in files)


def _target(file: Path) -> str:
    try:
        return os.readlink(file)
    except FileNotFoundError:
        return ""  # closed just now
