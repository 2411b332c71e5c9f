"""What run logs ask of other nodes: lines that these hold and that are in no chunk yet.

`RemoteLines` is the seam; `service/peers/hot.py` implements it. Rows come at once, texts only as
far as they are small: a read of another text raises `Unfetched`, and is repeated once it is there.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from logstore.batch import RunKey
from logstore.position import Position
from service.runs.selection import Source


class Unfetched(Exception):
    """A text of another node is not here yet; `fetch` brings it. That raises `Moved`."""

    def __init__(self, fetch: Callable[[], Awaitable[None]]) -> None:
        super().__init__("a text of another node is not here yet")
        self.fetch = fetch


@dataclass(frozen=True, slots=True)
class Fork:
    """A node that continues a copy of another's folder: from `base` on its lines are its own.

    `files` are the journal files that held such lines when it forked: (file, first pos, end pos).
    """

    node: str
    parents: tuple[str, ...]
    base: int
    files: tuple[tuple[str, int, int], ...]


@dataclass(frozen=True, slots=True)
class Elsewhere:
    """What other nodes hold of a run; `silent` are those that did not say.

    `positions` gives the place of a line of a node, for cursors.
    """

    sources: Sequence[Source] = ()
    silent: tuple[str, ...] = ()
    forks: Sequence[Fork] = ()
    positions: Callable[[str, int], Position | None] = field(default=lambda _, __: None)
    alone: bool = True
    """Whether the register has no other node."""


NOWHERE = Elsewhere()


class RemoteLines(Protocol):
    """Asks the other nodes."""

    async def of(self, key: RunKey) -> Elsewhere:
        """Lines of the run beyond the chunks. To be asked before the manifest is read."""
        ...


class NoRemoteLines:
    """There is no other node."""

    async def of(self, key: RunKey) -> Elsewhere:  # noqa: ARG002
        return NOWHERE
