"""One question to one node, and the three ways in which it may end.

- The node **answers**: bytes.
- It is **silent** (`PeerSilent`): no connection, no answer in time, or an answer that breaks off.
  It may have done what was asked.
- It **refuses** (`PeerRefused`): it has another secret, is another process than was asked, does
  not know the question, or cannot answer now. It did not do what was asked.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from logstore.errors import Unavailable


class PeerSilent(Unavailable):
    """A node gave no answer."""


class PeerRefused(Unavailable):
    """A node answered that it will not."""


@dataclass(frozen=True, slots=True)
class Address:
    """Where a process of a node is asked; `instance` is the ULID that it took at its start."""

    node: str
    instance: str
    url: str


class Transport(Protocol):
    """The way to other nodes."""

    async def ask(self, address: Address, verb: str, body: bytes, seconds: float) -> bytes:
        """The answer to a question. Raises `PeerSilent`, `PeerRefused`."""
        ...

    async def close(self) -> None:
        """Ends all connections."""
        ...


@dataclass(frozen=True, slots=True)
class Network:
    """The way to other nodes, and the URL under which they reach this one."""

    url: str
    transport: Transport
