"""The table's and the run logs' marks of a node's segments; damaged watermarks are recomputed.

A node cannot start without its watermark, and the bytes of a damaged one are useless. Its
content can be recomputed from the store, since a segment is removed only when table and run logs
have its lines. All segments below the lowest stored one are therefore dealt with; if none is
stored, all that the table has. For stored segments the manifests of their runs tell what is in
chunks; the rest is brought into chunks again, as after any start. Quarantined segments are not
removed and are not considered.

The new watermark is written on the condition that the damaged one is still stored. It is reported
as a problem for as long as the process lives.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from logstore import keys
from logstore import ulid as ulids
from logstore.checked import encode_checked
from logstore.clock import Clock, Entropy
from logstore.errors import Damaged, NotFound, PreconditionFailed, UnsupportedVersion
from logstore.objects.store import ObjectStore
from logstore.runs.watermark import Watermark, decode_watermark
from logstore.segments.reader import read_footer
from service.runtime.threads import Offload

log = logging.getLogger(__name__)


class Watermarks:
    """The watermarks of any node. `table_mark` blocks, and is called by `offload`."""

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
        """Reports of watermarks that were damaged, as sentences."""
        return list(self._problems)

    async def table(self, node: str) -> int:
        """The node's last segment that the table has. Raises `StoreUnavailable`."""
        return await self._offload(lambda: self._table_mark(node))

    async def both(self, node: str) -> tuple[Watermark, int]:
        """The node's watermark and the table's mark. Raises as `watermark`."""
        return await self.watermark(node), await self.table(node)

    async def watermark(self, node: str) -> Watermark:
        """The node's watermark. Raises `StoreUnavailable`, `OutcomeUnknown`."""
        return (await self.watermark_and_health(node))[0]

    async def check(self, nodes: Sequence[str]) -> None:
        """Recomputes those of the nodes' watermarks that are damaged. Raises as `watermark`."""
        for node in nodes:
            await self.watermark(node)

    async def watermark_and_health(self, node: str) -> tuple[Watermark, bool]:
        """The watermark, and False if it had to be recomputed: `low` may then be too low."""
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
            return  # somebody else was first: what is there now is read
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
