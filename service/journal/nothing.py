"""The journal of a node that takes nothing: it is empty, and stays so."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from logstore.batch import RunKey
from logstore.errors import NodeNotReady
from service.journal.view import JournalPin

ONLY_READS: Final = "this node only reads (server.role is query)"
ELSEWHERE: Final = "Send it to a node of another role."


class Nothing(NamedTuple):
    """No close and no deletion is to be carried out."""

    closes: Mapping[RunKey, int]
    tombstones: Mapping[tuple[str, str | None], int]


class NoJournal:
    """What run logs need of a journal, without one. `node` is who is asked for its lines."""

    def __init__(self, node: str) -> None:
        self._node = node

    @property
    def state(self) -> Nothing:
        """Requests that are not carried out: none."""
        return Nothing({}, {})

    def pin(self) -> JournalPin:
        """An empty hot part."""
        return JournalPin(self._node, (), first_pos=0, confirmed_pos=0, confirmed_seq=0, end_pos=0)

    async def record_close(self, key: RunKey) -> int:
        """Raises `NodeNotReady`."""
        raise NodeNotReady(f"{ONLY_READS}: it cannot close {key.run!r}", hint=ELSEWHERE)

    def finish_close(self, key: RunKey, pos: int) -> None:
        """There is none."""

    async def record_tombstone(self, fqn: str, run: str | None, t: int) -> None:
        """Keeps nothing: the next start reads all deletions from the store."""

    def finish_deletion(self, fqn: str, run: str | None, t: int) -> None:
        """There is none."""
