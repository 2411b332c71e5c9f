"""Finds lines of a run that other nodes hold and that are not in its chunks, from the store.

It looks in the order in which lines move: at the `active` objects of living nodes, then at
segments above watermarks. The manifest is read after that. The store may not show an append of
the last moments yet; such a batch is added after a close like any late batch.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping

from logstore import keys
from logstore.batch import RunKey
from logstore.errors import Damaged, NotFound, UnsupportedVersion
from logstore.names import decode
from logstore.objects.store import ObjectStore
from logstore.runs.manifest import Manifest
from logstore.runs.watermark import read_watermark
from logstore.segments.reader import read_footer

Ends = Mapping[RunKey, int]
"""Of the runs in a segment one past the last position."""


class RemoteState:
    """What other nodes hold, as one node sees it. `gone`: whether a node gave up its text lease."""

    def __init__(
        self,
        node: str,
        store: ObjectStore,
        *,
        prefix: str,
        gone: Callable[[str], Awaitable[bool]],
    ) -> None:
        self._node = node
        self._store = store
        self._prefix = prefix
        self._gone = gone
        self._segments: dict[tuple[str, int], Ends] = {}

    async def held(self, key: RunKey) -> Callable[[Manifest], bool]:
        """A function that says of a manifest that is read later whether there are such lines.

        Raises `StoreUnavailable`, `Damaged`.
        """
        active = await self._active(key)
        ends = await self._in_segments(key)

        def beyond(manifest: Manifest) -> bool:
            return active or any(manifest.dealt_with(node) < end for node, end in ends.items())

        return beyond

    async def _active(self, key: RunKey) -> bool:
        """Whether another living node says that it holds lines."""
        prefix = keys.active_nodes(self._prefix, key)
        async for info in self._store.list(prefix):
            node = decode(info.key.removeprefix(prefix))
            if node is not None and node != self._node and not await self._gone(node):
                return True
        return False

    async def _in_segments(self, key: RunKey) -> dict[str, int]:
        """For each node, one past the run's last position in segments above its watermark."""
        found: dict[str, int] = {}
        listed: dict[tuple[str, int], Ends] = {}
        async for folder in self._store.folders(keys.SEGMENTS):
            node = decode(folder)
            if node is None:
                continue
            mark = await read_watermark(self._store, node)
            after = keys.segment(node, mark.seq)
            async for info in self._store.list(keys.segments_of(node), after=after):
                parsed = keys.parse_segment(info.key)
                if parsed is not None:
                    ends = listed[parsed] = await self._ends(parsed, info.key)
                    found[node] = max(found.get(node, 0), ends.get(key, 0))
        self._segments = listed
        return found

    async def _ends(self, segment: tuple[str, int], where: str) -> Ends:
        known = self._segments.get(segment)
        if known is not None:
            return known
        try:
            footer = await read_footer(self._store, where)
        except UnsupportedVersion:
            raise
        except (NotFound, Damaged):  # consumed, or empty for every reader until it is repaired
            return {}
        return {run.key: run.last + 1 for run in footer.runs}
