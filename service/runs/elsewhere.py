"""What run logs ask of other nodes, and tell them.

`OtherNodes` is the seam; `service/peers/others.py` implements it. Of lines that other nodes hold,
rows come at once, texts only as far as they are small: a read of another text raises `Unfetched`,
and is repeated once it is there.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from logstore.batch import RunKey
from logstore.position import Position
from service.runs.selection import Source
from service.shipping.missing import MissingSegments


class Unfetched(Exception):
    """A text of another node is not here yet; `fetch` brings it. That raises `Moved`."""

    def __init__(self, fetch: Callable[[], Awaitable[None]]) -> None:
        super().__init__("a text of another node is not here yet")
        self.fetch = fetch


@dataclass(frozen=True, slots=True)
class Fork:
    """A node that continues a copy of another's folder: from `base` on its lines are its own.

    `files` are the journal files that held such lines when it forked: (file, first pos, end pos).
    `shared` are those of them that the original has as well. `missing` are segments of its
    parents that the store lacked then.
    """

    node: str
    parents: tuple[str, ...]
    base: int
    files: tuple[tuple[str, int, int], ...]
    shared: tuple[str, ...] = ()
    missing: tuple[MissingSegments, ...] = ()


async def _no_forks(_: Collection[str]) -> Sequence[Fork]:
    return ()


@dataclass(frozen=True, slots=True)
class Elsewhere:
    """What other nodes hold of a run; `silent` are those that did not say.

    `positions` gives the place of a line of a node, for cursors. `forks` are nodes of the register,
    `left` gives those of other nodes that are forks; it raises `StoreUnavailable`.
    """

    sources: Sequence[Source] = ()
    silent: tuple[str, ...] = ()
    forks: Sequence[Fork] = ()
    positions: Callable[[str, int], Position | None] = field(default=lambda _, __: None)
    left: Callable[[Collection[str]], Awaitable[Sequence[Fork]]] = field(default=_no_forks)
    alone: bool = True
    """Whether there is no other node, and none comes without a restart of this one."""
    flushed: Mapping[str, int] = field(default_factory=dict)
    """Of lines held without the store: each node's lines below this position are in chunks."""


NOWHERE = Elsewhere()


class RunsElsewhere(NamedTuple):
    """Runs with lines beyond the chunks at other nodes, and their newest ids; who did not say."""

    runs: Sequence[tuple[RunKey, int]] = ()
    silent: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Told:
    """Nodes that did not answer a change, and whether one that answered still works on it.

    `let_go` are nodes that an operator let go: nobody asks them, and they are lost. `idle` are
    nodes that answered a close and do not close the run themselves.
    """

    silent: tuple[str, ...] = ()
    working: bool = False
    let_go: tuple[str, ...] = ()
    idle: tuple[str, ...] = ()


class OtherNodes(Protocol):
    """Asks and tells the other nodes. What tells them raises `Unavailable` without the register."""

    def __bool__(self) -> bool:
        """Whether there may be any."""
        ...

    async def lines(self, key: RunKey, *, held: bool = False) -> Elsewhere:
        """Lines of the run beyond the chunks. To be asked before the manifest is read.

        `held`: nobody asks the store, and those that answer give what their journals hold.
        """
        ...

    async def runs(self, fqn: str | None, *, held: bool = False) -> RunsElsewhere:
        """Runs with lines beyond the chunks, of a pipeline or of all; `held`: as in `lines`."""
        ...

    async def highest(self, fqn: str, run: str | None) -> tuple[int, tuple[str, ...]]:
        """The highest ULID that they know of a run or a pipeline's runs; who did not say."""
        ...

    async def deleted(self, fqn: str, run: str | None, t: int) -> Told:
        """Tells them of a deletion."""
        ...

    async def close(self, key: RunKey) -> Told:
        """Asks them to close the run for their own lines."""
        ...

    async def ended(self, key: RunKey) -> None:
        """Tells them that the run is closed, so that live streams end."""
        ...


class NoOtherNodes:
    """There is no other node."""

    def __bool__(self) -> bool:
        return False

    async def lines(self, key: RunKey, *, held: bool = False) -> Elsewhere:  # noqa: ARG002
        return NOWHERE

    async def runs(self, fqn: str | None, *, held: bool = False) -> RunsElsewhere:  # noqa: ARG002
        return RunsElsewhere()

    async def highest(self, fqn: str, run: str | None) -> tuple[int, tuple[str, ...]]:  # noqa: ARG002
        return 0, ()

    async def deleted(self, fqn: str, run: str | None, t: int) -> Told:  # noqa: ARG002
        return Told()

    async def close(self, key: RunKey) -> Told:  # noqa: ARG002
        return Told()

    async def ended(self, key: RunKey) -> None:
        """Nobody is to be told."""
