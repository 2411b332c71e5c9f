"""Watermarks, the lineage of a node's segment numbers, and callers that wait for confirmations.

**Watermarks.** `Watermarks` reads how far the table and the run logs have consumed a node's
segments. A node cannot start without its watermark, and a damaged one is useless. Its content can
be recomputed from the store, since a segment is removed only when table and run logs have its
lines. All segments below the lowest stored one are therefore consumed; if none is stored, all
segments that the table has. For stored segments the manifests of their runs show the lines that are
in chunks; the other lines are brought into chunks again, as after any start. Quarantined segments
are not removed and are not considered. The new watermark is written on the condition that the
damaged one is still stored. The damage is reported as a problem for as long as the process lives.

**Lineage.** `Lineage` checks from the content of the store that a node's segment numbers are its
own. If a data folder was cloned, or restored from an older copy, another node may have continued
its incarnation. A number belongs to the node that put its segment first, but that segment does not
remain as evidence for ever:

    not used ──put──► in the store ──► consumed: marks are at or above it ──► removed

The evidence for a number:

- It is above our last cut, and stored or consumed: another node used it.
- It is ours by our journal, and consumed, and its segment is absent: another node used it, or we
  did and died before we recorded that. This cannot be decided. Shipping the lines again under a new
  incarnation loses and doubles nothing.
- Our put succeeded. That alone proves nothing: a segment of another node may have been removed
  before. But `low` in the watermark is raised before anything is removed (`compactor/cleanup.py`).
  A `low` that was read after the put and is not above the number shows that no segment of that
  number was ever removed, so ours is the only one.

A number is consumed if the table's mark, the watermark or its `low` reaches it. The store may also
be older than the journal: it then lacks confirmed segments (`service.shipping.missing`).

The lineage is checked when the node starts, before its first cut if the store answers, and every
ten minutes, even if nothing is shipped. `low` is read after each put. Cuts may be made before a
check, and while the store is unavailable: a cut is a number in the journal, and a fork renumbers
all unconfirmed cuts.

**Confirmations.** `Confirmations` is one list of waiting callers for all incarnations of a node. If
a node finds that its folder is a copy, it continues under another name with the same positions, and
another shipper confirms the lines that callers wait for. The list therefore belongs to the node and
outlives its shippers, so that no caller waits for a shipper that has ended.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

from service.journal.journal import Journal
from service.runtime.process import Offload
from service.shipping.missing import MissingSegments, find_missing
from tailrace.logstore import keys
from tailrace.logstore import ulid as ulids
from tailrace.logstore.clock import Clock, Entropy
from tailrace.logstore.errors import (
    Conflict,
    Damaged,
    NodeNotReady,
    NotFound,
    PreconditionFailed,
    UnsupportedVersion,
)
from tailrace.logstore.objects.store import ObjectStore
from tailrace.logstore.runs.report import Watermark, decode_watermark
from tailrace.logstore.segments.reader import read_footer
from tailrace.logstore.state import encode_checked

log = logging.getLogger(__name__)


class Watermarks:
    """The watermarks of any node. `table_mark` blocks, so `offload` calls it."""

    def __init__(
        self,
        store: ObjectStore,
        clock: Clock,
        entropy: Entropy,
        offload: Offload,
        table_mark: Callable[[str], int],
    ) -> None:
        self._store = store
        self._clock = clock
        self._entropy = entropy
        self._offload = offload
        self._table_mark = table_mark
        self._problems: list[str] = []
        self.taken_again = 0

    def problems(self) -> list[str]:
        """Sentences about damaged watermarks."""
        return list(self._problems)

    async def table(self, node: str) -> int:
        """The last segment of the node that the table has. Raises `StoreUnavailable`."""
        return await self._offload(lambda: self._table_mark(node))

    async def both(self, node: str) -> tuple[Watermark, int]:
        """The node's watermark and the table's mark. Raises as `watermark`."""
        return await self.watermark(node), await self.table(node)

    async def watermark(self, node: str) -> Watermark:
        """The node's watermark. Raises `StoreUnavailable`, `OutcomeUnknown`."""
        return (await self.watermark_and_health(node))[0]

    async def check(self, nodes: Sequence[str]) -> None:
        """Recomputes the damaged watermarks of these nodes. Raises as `watermark`."""
        for node in nodes:
            await self.watermark(node)

    async def watermark_and_health(self, node: str) -> tuple[Watermark, bool]:
        """Returns the watermark, and False if it was recomputed: `low` may then be too low."""
        whole = True
        while True:
            try:
                info, body = await self._store.get(keys.watermark(node))
            except NotFound:
                return Watermark(), whole
            try:
                return decode_watermark(body), whole
            except Damaged as error:
                whole = False
                await self._take_again(node, info.etag, error)

    async def _take_again(self, node: str, etag: str, error: Damaged) -> None:
        mark = await self._from_store(node)
        try:
            await self._store.put(keys.watermark(node), encode_checked(mark), if_match=etag)
        except PreconditionFailed:
            return  # another process was first: its watermark is read
        problem = (
            f"the watermark of {node} was damaged ({error}), and was taken again as segment"
            f" {mark.seq} from what table and segments say"
        )
        log.error("%s", problem)
        self._problems.append(problem)
        self.taken_again += 1

    async def _from_store(self, node: str) -> Watermark:
        prefix = keys.quarantine_marker(node, 0).rsplit("/", 1)[0] + "/"
        quarantined = {info.key.rsplit("/", 1)[1] async for info in self._store.list(prefix)}
        seq, pos = await self.table(node), 0
        async for info in self._store.list(keys.segments_of(node)):
            parsed = keys.parse_segment(info.key)
            if parsed is None or f"{parsed[1]:020d}" in quarantined:
                continue
            seq, pos = parsed[1] - 1, await self._first_pos(info.key)
            break
        version = ulids.fresh_text(self._clock, self._entropy)
        return Watermark(seq, pos, seq + 1, version)

    async def _first_pos(self, key: str) -> int:
        """The first position of a segment; 0, which is never too high, if it cannot be read."""
        try:
            ranges = (await read_footer(self._store, key)).ranges
        except UnsupportedVersion:
            raise
        except (NotFound, Damaged):
            return 0
        return ranges[0][0] if ranges else 0


LOOK_SECONDS = 600.0


class Forked(Conflict):
    """The store holds segments of this incarnation that this folder did not write.

    Or it lacks segments that this folder did write: they are in `missing`. `files` are the journal
    files of the process that wrote the foreign segments, as far as it could be asked.
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
        self, journal: Journal, store: ObjectStore, clock: Clock, marks: Watermarks
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
        """Waits until a check was made, or failed because the store was unavailable."""
        await self._tried.wait()

    async def look_if_due(self) -> None:
        """Checks as `look` if a check is due."""
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
        last = state.last_cut().seq  # read now: cuts go on meanwhile
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
        # `low` proves nothing then: our segment may be consumed already, or that of another node.
        if not whole and await self._marks.table(node) >= seq:
            raise Forked(f"segment {seq} of {node} was consumed, and nobody can tell whose it was")


def forked_in(error: BaseException | None) -> Forked | None:
    """Returns the `Forked` in an error, which may be a group of errors."""
    if isinstance(error, Forked):
        return error
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            found = forked_in(inner)
            if found is not None:
                return found
    return None


class Confirmations:
    """The waiting callers of a node. Used from one event loop."""

    def __init__(self) -> None:
        self._waiting: list[tuple[int, asyncio.Future[None]]] = []
        self._change: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._stopped = False

    @property
    def wanted(self) -> int:
        """The highest position that a caller waits for, -1 without one."""
        return max([pos for pos, done in self._waiting if not done.done()], default=-1)

    def through(self, pos: int) -> asyncio.Future[None]:
        """Returns a future, done when all lines below `pos` are confirmed.

        Raises `NodeNotReady` at the stop.
        """
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if self._stopped:
            done.set_exception(_stopping())
        else:
            self._waiting.append((pos, done))
        return done

    async def next(self) -> None:
        """Waits until more lines are confirmed, or the present shipper has ended."""
        await asyncio.shield(self._change)

    def confirmed(self, end: int) -> None:
        """Records that all lines below `end` are in confirmed segments."""
        self.notify()
        waiting, self._waiting = self._waiting, []
        for pos, done in waiting:
            if pos > end:
                self._waiting.append((pos, done))
            elif not done.done():
                done.set_result(None)

    def notify(self) -> None:
        """Wakes the callers of `next`."""
        waiting, self._change = self._change, asyncio.get_running_loop().create_future()
        waiting.set_result(None)

    def stop(self) -> None:
        """Ends all waits with an error, since the node stops."""
        self._stopped = True
        waiting, self._waiting = self._waiting, []
        for _, done in waiting:
            if not done.done():
                done.set_exception(_stopping())
        self.notify()


def _stopping() -> NodeNotReady:
    return NodeNotReady(
        "the node stops before the object store has these lines: they are in its journal",
        hint="Send the batch again with the same id, to this node when it is back, or another.",
    )
