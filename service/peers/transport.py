"""One question to one node, and how it may end; each error says which outcome it is.

- The node **answers**: bytes.
- It is **silent** (`PeerSilent`): no connection, no answer in time, or an answer that breaks off.
  It may have done what was asked.
- It **refuses** (`PeerRefused`): it has another secret, is another process than was asked, does
  not know the question, or cannot answer now. It did not do what was asked.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from logstore.errors import Unavailable


class AskOutcome(StrEnum):
    """What came of a question; `service/peers/contact.py` says what each means."""

    ANSWERED = "answered"
    DECLINED = "declined"
    UNKNOWN_QUESTION = "unknown-question"
    UNREADABLE = "unreadable"
    NOT_ADMITTED = "wrong-secret"
    ANOTHER_PROCESS = "another-process"
    TIMED_OUT = "timed-out"
    UNREACHABLE = "unreachable"
    FAILED = "failed"


class PeerSilent(Unavailable):
    """A node gave no answer."""

    def __init__(self, message: str, outcome: AskOutcome = AskOutcome.UNREACHABLE) -> None:
        super().__init__(message)
        self.outcome = outcome


class PeerRefused(Unavailable):
    """A node answered that it will not."""

    def __init__(self, message: str, outcome: AskOutcome = AskOutcome.DECLINED) -> None:
        super().__init__(message)
        self.outcome = outcome


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
