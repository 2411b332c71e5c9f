"""What is between nodes, and between a node and the bucket, and can be cut.

With `Links` a node has its own way to the bucket, and an address at which only the other nodes ask
it; ways and addresses are links. With `Cables` it has a network namespace, as has the bucket's
server, and the kernel cuts. Clients come to a node directly, whatever is cut.
"""

from __future__ import annotations

import os
from contextlib import AsyncExitStack
from pathlib import Path
from types import TracebackType
from typing import Final, Protocol, Self

from tests.e2e.service_process import ServiceProcess
from tests.faults.link import Cut, Link
from tests.servers.minio import Bucket
from tests.servers.namespaces import Namespaces

STORE: Final = "the bucket"


class Network(Protocol):
    """Places for nodes, and what can be cut between them."""

    async def join(self, name: str, service: ServiceProcess) -> None:
        """Gives a node that does not run yet its addresses and its way to the bucket."""
        ...

    def cut(self, node: str, other: str, how: Cut) -> None:
        """Lets nothing pass between a node and another one, or `STORE`."""
        ...

    async def mend(self, node: str, other: str) -> None:
        """Ends that cut."""
        ...


class Links:
    """A network of links on this machine. As a context manager it ends them."""

    def __init__(self, bucket: Bucket) -> None:
        self._bucket = bucket
        self._services: dict[str, ServiceProcess] = {}
        self._to_store: dict[str, Link] = {}
        self._to_node: dict[str, Link] = {}
        self._links = AsyncExitStack()

    async def join(self, name: str, service: ServiceProcess) -> None:
        """As the protocol says."""
        to_store = await self._links.enter_async_context(Link(self._bucket.endpoint_url))
        to_node = await self._links.enter_async_context(Link(service.url, asks=self._asking))
        self._to_store[name], self._to_node[name] = to_store, to_node
        self._services[name] = service
        service.settings |= self._bucket.through(to_store.url).environment
        service.settings["TAILRACE_NODES__URL"] = to_node.url

    def cut(self, node: str, other: str, how: Cut) -> None:
        """As the protocol says."""
        if other == STORE:
            self._to_store[node].cut(how)
        else:
            self._to_node[node].cut(how, other)
            self._to_node[other].cut(how, node)

    async def mend(self, node: str, other: str) -> None:
        """As the protocol says."""
        if other == STORE:
            await self._to_store[node].mend()
        else:
            await self._to_node[node].mend(other)
            await self._to_node[other].mend(node)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._links.aclose()

    def _asking(self, port: int) -> str:
        """The node whose connection has this local port."""
        inode = _inode_of(port)
        for name, service in self._services.items():
            if service.running and _holds(service.pid, inode):
                return name
        return ""


class Cables:
    """A network of namespaces, whose bucket has the place `STORE` in it."""

    def __init__(self, namespaces: Namespaces, bucket: Bucket) -> None:
        self._namespaces = namespaces
        self._bucket = bucket

    async def join(self, name: str, service: ServiceProcess) -> None:
        """As the protocol says."""
        place = self._namespaces.place(name)
        service.within = place.within
        service.url = f"http://{place.host}:{service.port}"
        service.settings |= self._bucket.environment
        service.settings |= {
            "TAILRACE_SERVER__HOST": place.host,
            "TAILRACE_SERVER__INSECURE": "true",
            "TAILRACE_NODES__URL": service.url,
        }

    def cut(self, node: str, other: str, how: Cut) -> None:
        """As the protocol says."""
        self._namespaces.cut(node, other, how)

    async def mend(self, node: str, other: str) -> None:
        """As the protocol says."""
        self._namespaces.mend(node, other)


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
