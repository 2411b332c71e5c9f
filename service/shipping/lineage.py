"""Checks that the node's segment numbers are its own, from what the store holds.

If a data folder was cloned, or restored from an older copy, another node may have continued its
incarnation. A number belongs to the node that put its segment first, but that segment
does not remain as evidence for ever:

    not used ──put──► in the store ──► consumed: marks are at or above it ──► removed

The evidence for a number:

- It is above our last cut, and stored or consumed: another node used it.
- It is ours by our journal, and consumed, and its segment is absent: another node used
  it, or we did and died before we recorded that. Nobody can tell then. Shipping the
  lines again under a new incarnation loses and doubles nothing.
- Our put succeeded. That alone proves nothing: a segment of another node may have been
  removed before. But `low` in the watermark is raised before anything is removed
  (`compactor/maintenance/cleanup.py`). A `low` that was read after the put and is not above the
  number shows that no segment of that number was ever removed, so ours is the only one.

A number is consumed if the table's mark, the watermark or its `low` reaches it.

The store may also be the older one of the two: it then lacks segments that were confirmed
(`missing`).

All of this is checked when the node starts, before its first cut if the store answers,
and every ten minutes, whether anything is shipped or not. `low` is read after each put.
Cuts may be made before that, and while the store is unavailable: a cut is a number in the
journal, and a fork renumbers everything that is not confirmed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from logstore import keys
from logstore.clock import Clock
from logstore.errors import Conflict
from logstore.objects.store import ObjectStore
from service.journal.journal import Journal
from service.shipping.missing import MissingSegments, find_missing
from service.shipping.watermarks import Watermarks

LOOK_SECONDS = 600.0


class Forked(Conflict):
    """The store holds segments of this incarnation that this folder did not write.

    Or it lacks some that this folder did write: those are `missing`.
    `files` are the journal files of the process that wrote them, as far as it could be asked.
    """

    def __init__(
        self, message: str, *, files: Sequence[str] = (), missing: MissingSegments | None = None
    ) -> None:
        super().__init__(message)
        self.files = files
        self.missing = missing


class Lineage:
    """The lineage of one incarnation. All numbers up to `taken` were consumed at the last check."""

    def __init__(
        self,
        journal: Journal,
        store: ObjectStore,
        clock: Clock,
        marks: Watermarks,
    ) -> None:
        self._journal = journal
        self._store = store
        self._clock = clock
        self._marks = marks
        self._looked: float | None = None
        self._tried = asyncio.Event()
        self.taken = 0

    @property
    def due_seconds(self) -> float:
        """Seconds until the next check."""
        if self._looked is None:
            return 0.0
        return max(self._looked + LOOK_SECONDS - self._clock.monotonic(), 0.0)

    async def tried(self) -> None:
        """Returns when a check was made, or failed because the store was unavailable."""
        await self._tried.wait()

    async def look_if_due(self) -> None:
        """Checks as `look`, if the last check is too long ago."""
        if self.due_seconds == 0:
            await self.look()

    async def look(self) -> None:
        """Compares the store with our cuts. Raises `Forked`, `Unavailable`."""
        try:
            await self._look()
        finally:
            self._tried.set()

    async def _look(self) -> None:
        began = self._clock.monotonic()
        state = self._journal.state
        node, known, confirmed = state.node, state.last_cut().seq, state.confirmed
        text, table = await self._marks.both(node)
        consumed = max(table, text.seq, text.low - 1)
        newest = known
        async for found in self._store.list(
            keys.segments_of(node), after=keys.segment(node, known)
        ):
            parsed = keys.parse_segment(found.key)
            newest = max(newest, parsed[1] if parsed else 0)
        last = state.last_cut().seq  # of now: cuts go on meanwhile
        if consumed > last:
            raise Forked(f"segments of {node} up to {consumed} were consumed, we cut {last}")
        if newest > last:
            raise Forked(f"the store holds segment {newest} of {node}, we cut up to {last}")
        missing = await find_missing(self._store, node, confirmed, lambda: self._marks.both(node))
        if missing is not None:
            raise Forked(missing.sentence(), missing=missing)
        self.taken = consumed
        self._looked = began

    async def check_put(self, seq: int) -> None:
        """Checks that our segment, now in the store, is the first of its number.

        Raises `Forked`, `Unavailable`.
        """
        node = self._journal.state.node
        mark, whole = await self._marks.watermark_and_health(node)
        if mark.low > seq:
            raise Forked(
                f"segments of {node} below {mark.low} were removed, and we put {seq} only now"
            )
        # Of `low` nothing is known then: was ours consumed this quickly, or somebody else's?
        if not whole and await self._marks.table(node) >= seq:
            raise Forked(f"segment {seq} of {node} was consumed, and nobody can tell whose it was")


def forked_in(error: BaseException | None) -> Forked | None:
    """The `Forked` in an error, which may be a group of errors."""
    if isinstance(error, Forked):
        return error
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            found = forked_in(inner)
            if found is not None:
                return found
    return None
