"""What is asked of the delivery, and what comes back.

A verdict is definite: while the service is away, refuses for now or does not know the token,
there is none, and the request is made again.

| kind | what the service did | what the engine does |
| --- | --- | --- |
| `acknowledged` | stored the batch; `duplicate`: had it already | moves the checkpoint |
| `deleted` | deleted the run, up to this id | drops it, or sends it as `next_batch` if read since |
| `conflict` | has other bytes under this id | stops the file with an alarm; tries later |
| `refused` | does not take this body | stops the file with an alarm; tries later |
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
    given: bool = False
    """The service gave its id, after a deletion."""


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
    started_ms: int | None = None
    ended_ms: int | None = None
    """When the run began and ended, if its start was reported."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of a request about `batch`, which is empty for the closing of a run.

    `reason` also says what a service that acknowledged lacks. `service_ms` is the service's clock,
    if it refused the id and said its own. `moment_ms` is when the run was deleted, by the client's
    `system.steady_ms`, and `next_batch` the id for what was read since; a service of an earlier
    version says neither.
    """

    kind: VerdictKind
    batch: str = ""
    duplicate: bool = False
    reason: str = ""
    service_ms: int | None = None
    moment_ms: int | None = None
    next_batch: str = ""


Task = Shipment | Question | CloseRun
