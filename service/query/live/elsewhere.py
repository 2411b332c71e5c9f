"""What a live search asks of other nodes: their new records, and those that are in no segment.

`OtherNodes` is the seam; `service/peers/journals.py` implements it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa

from service.query.request import QueryRequest


@dataclass(frozen=True, slots=True)
class Fed:
    """A node's records of the positions from `start` to before `end`, with columns of `SCHEMA`.

    Without `records` those below `end` are to be read where they are stored.
    """

    node: str
    end: int
    records: pa.Table | None


@dataclass(frozen=True, slots=True)
class Held:
    """What a node holds beyond its confirmed segments, the last of which is `confirmed_seq`."""

    records: pa.Table
    confirmed_seq: int
    confirmed_pos: int
    end_pos: int


@dataclass(frozen=True, slots=True)
class Began:
    """A process in the register: when it began, and its first position that is new since."""

    time_ms: int
    pos: int


class OtherNodes(Protocol):
    """The other nodes, as long as anybody follows a search."""

    @property
    def met(self) -> bool:
        """Whether of each node that can be asked it is known up to where it is read.

        While the store does not answer, nodes that need it for that are not waited for.
        """
        ...

    @property
    def listed(self) -> bool:
        """Whether the store has said which nodes have left, and up to where they are read."""
        ...

    @property
    def silent(self) -> Sequence[str]:
        """Nodes that do not answer, in order."""
        ...

    def began(self, node: str) -> Began | None:
        """The beginning of a process, or of this one; None if it is not in the register."""
        ...

    def confirmed(self, node: str) -> int | None:
        """The position up to which a node's records were last heard to be in segments."""
        ...

    def start(self) -> None:
        """Begins to follow them; again, from their present ends on, after a `stop`."""
        ...

    def stop(self) -> None:
        """Ends it."""
        ...

    def take(self) -> list[Fed]:
        """What has come since, in order for each node."""
        ...

    async def held(self, request: QueryRequest) -> Mapping[str, Held]:
        """What nodes that answer hold within the request's time, run or pipeline."""
        ...
