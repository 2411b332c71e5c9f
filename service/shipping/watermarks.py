"""What table and run logs say of a node's segments; a watermark that is damaged is taken again.

Without its watermark a node cannot start, and its bytes say nothing any more. What they
said is in the store all the same: a segment is removed only when table and run logs have it, so
all below the lowest that is there are dealt with; or all that the table has, if none is
there. Of those that are there the manifests of their runs know what is in chunks, and
what is not is brought there again, as after any start. Segments that are set aside stay
behind and say nothing.

The new mark is written under the condition that the damaged one is still there, and told as
a problem for as long as the process lives.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

import orjson

from logstore import keys
from logstore import ulid as ulids
from logstore.clock import Clock
from logstore.entropy import Entropy
from logstore.errors import Damaged, NotFound, PreconditionFailed, UnsupportedVersion
from logstore.objects.store import ObjectStore
from logstore.runs.watermark import Watermark, decode_watermark
from logstore.segments.reader import read_footer
from service.runtime.threads import Offload

log = logging.getLogger(__name__)


class Watermarks:
    """Of any node. `table_mark` blocks, and is asked by `offload`."""

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
        """Watermarks that were damaged, as sentences."""
        return list(self._problems)

    async def table(self, node: str) -> int:
        """The last of the node's segments that the table has. Raises `StoreUnavailable`."""
        return await self._offload(lambda: self._table_mark(node))

    async def watermark(self, node: str) -> Watermark:
        """The node's watermark. Raises `StoreUnavailable`, `OutcomeUnknown`."""
        return (await self.watermark_and_health(node))[0]

    async def check(self, nodes: Sequence[str]) -> None:
        """Takes those again that are damaged. Raises as `watermark`."""
        for node in nodes:
            await self.watermark(node)

    async def watermark_and_health(self, node: str) -> tuple[Watermark, bool]:
        """Likewise, and False if it had to be taken again: then `low` may be below the truth."""
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
            await self._store.put(keys.watermark(node), orjson.dumps(mark), if_match=etag)
        except PreconditionFailed:
            return  # somebody else was first: what is there now is read
        problem = (
            f"the watermark of {node} was damaged ({error}), and was taken again as segment"
            f" {mark.seq} from what table and segments say"
        )
        log.error("%s", problem)
        self._problems.append(problem)
        self.taken_again += 1

    async def _from_store(self, node: str) -> Watermark:
        prefix = keys.aside(node, 0).rsplit("/", 1)[0] + "/"
        aside = {info.key.rsplit("/", 1)[1] async for info in self._store.list(prefix)}
        seq, pos = await self.table(node), 0
        async for info in self._store.list(keys.segments_of(node)):
            parsed = keys.parse_segment(info.key)
            if parsed is None or f"{parsed[1]:020d}" in aside:
                continue
            seq, pos = parsed[1] - 1, await self._first_pos(info.key)
            break
        version = ulids.encode(ulids.fresh(self._clock, self._entropy))
        return Watermark(seq, pos, seq + 1, version)

    async def _first_pos(self, key: str) -> int:
        """0, which is never too high, for a segment that cannot be read."""
        try:
            ranges = (await read_footer(self._store, key)).ranges
        except UnsupportedVersion:
            raise
        except (NotFound, Damaged):
            return 0
        return ranges[0][0] if ranges else 0
