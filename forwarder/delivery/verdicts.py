"""What is asked of the delivery, and what comes back.

A verdict is definite: while the service is away, refuses for now or does not know the token,
there is none, and the request is made again.

| kind | what the service did | what the engine does |
| --- | --- | --- |
| `acknowledged` | stored the batch; `duplicate`: had it already | moves the checkpoint |
| `deleted` | the run was deleted behind the batch | drops the batch and counts it |
| `conflict` | has other bytes under this id | stops the file with an alarm |
| `refused` | will never take this body | stops the file with an alarm |
| `renew` | refuses the id's time, and the run lacks the batch | sends the bytes under a new id |
| `present`, `missing` | answered whether the run has a batch | as after a crash |
| `closed` | closed the run | |
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from forwarder.model import Kind

VerdictKind = Literal[
    "acknowledged", "deleted", "conflict", "refused", "renew", "present", "missing", "closed"
]


@dataclass(frozen=True, slots=True)
class Shipment:
    """A batch of a file, to be sent under its id."""

    file: str
    fqn: str
    run: str
    batch: str
    body: bytes
    kind: Kind
    attributes: str = ""
    """`Tailrace-Attributes`, if it is sent."""


@dataclass(frozen=True, slots=True)
class Question:
    """Whether a run has a batch."""

    file: str
    fqn: str
    run: str
    batch: str


@dataclass(frozen=True, slots=True)
class CloseRun:
    """A run that is to be closed behind what was submitted for its file."""

    file: str
    fqn: str
    run: str
    outcome: str | None = None


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of a request about `batch`, which is empty for the closing of a run.

    `reason` also says what a service that acknowledged lacks. `service_ms` is the service's clock,
    if it refused the id's time and said its own.
    """

    kind: VerdictKind
    batch: str = ""
    duplicate: bool = False
    reason: str = ""
    service_ms: int | None = None


Task = Shipment | Question | CloseRun
