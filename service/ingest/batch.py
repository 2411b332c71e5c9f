"""The batch that the HTTP API passes to the node, and the node's receipt.

Both are created for every batch on the hot path, so they are plain slotted classes: freezing one
costs a microsecond per instance. `KnownBatch` is a batch that a client may send again: the data to
recognise it, and a future that is done when it is durable.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import orjson

from tailrace.logstore.batch import RunKey, digest


@dataclass(slots=True)
class KnownBatch:
    """A batch that a client may send again; `end` is one past its last position.

    `done` is None if the journal certainly has the batch. `attributes` is its `attributes_digest`;
    None if records have their own attributes, or if it is unknown: a run's log does not have it.
    """

    digest: int
    records: int
    end: int
    done: asyncio.Future[None] | None = None
    attributes: int | None = None

    @property
    def refused(self) -> bool:
        """Whether the journal accepted the batch and then could not write it."""
        return self.done is not None and self.done.done() and not self.held

    @property
    def held(self) -> bool:
        """Whether the journal certainly has the batch."""
        done = self.done
        return done is None or (done.done() and not done.cancelled() and done.exception() is None)


Durability = Literal["fast", "durable", "bulk"]


@dataclass(slots=True)
class IncomingBatch:
    """A decoded batch: `text` is valid UTF-8, not empty, and ends with a newline."""

    key: RunKey
    text: bytes
    records: int
    lines: int
    ulid: int | None = None
    """The client's batch id, low 25 bits zero; None lets the node mint one."""
    above: int = 0
    """The run's last ULID as the client echoes it; 0 if it echoes none."""
    connector: str | None = None
    meta: bytes = b""
    """What its records carry beside their text, or the attributes that all its lines have, as the
    journal keeps it; else nothing."""
    durability: Durability = "durable"
    replaced: int = 0
    """How many characters of `text` stand for something that was no UTF-8."""
    unknown_levels: Sequence[str] = ()
    """Some levels that its records state and that are none of ours, for the receipt."""


@dataclass(slots=True)
class AppendReceipt:
    """The result of an acknowledged batch; `last` is the ULID of its last record."""

    ulid: int
    records: int
    duplicate: bool
    durability: str
    last: int


def attributes_digest(attributes: Mapping[str, str] | None) -> int:
    """A digest for comparing the constant attributes of batches; 0 without attributes."""
    if not attributes:
        return 0
    return digest(orjson.dumps(attributes, option=orjson.OPT_SORT_KEYS))


class Submitted(NamedTuple):
    """A batch that is being written: the ULID of its last record, and when it is durable."""

    last: int
    done: asyncio.Future[None]
