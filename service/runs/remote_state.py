"""Finds lines of a run that other nodes hold and that are not in its chunks, from the store.

It looks in the order in which lines move: at the `active` objects of living nodes, then at
segments above watermarks. The manifest is read after that. The store may not show an append of
the last moments yet; such a batch is added after a close like any late batch.

The marker of a lost node counts only while one of its segments is missing, since nobody knows of
which runs that one has lines.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping

from logstore import keys
from logstore.batch import RunKey
from logstore.errors import Damaged, NotFound, UnsupportedVersion
from logstore.names import decode, encode
from logstore.objects.store import ObjectStore
from logstore.runs.manifest import Manifest
from logstore.runs.manifests import Manifests
from logstore.runs.watermark import read_watermark
from logstore.segments.reader import read_footer

Ends = Mapping[RunKey, int]
"""Of the runs in a segment one past the last position."""


class RemoteState:
    """What other nodes hold, as one node sees it.

    `gone`: whether a node gave up its text lease; `lacks`: whether a segment of it is missing.
    """

    def __init__(
        self,
        node: str,
        store: ObjectStore,
        manifests: Manifests,
        *,
        prefix: str,
        gone: Callable[[str], Awaitable[bool]],
        lacks: Callable[[str], bool],
    ) -> None:
        self._node = node
        self._store = store
        self._manifests = manifests
        self._prefix = prefix
        self._gone = gone
        self._lacks = lacks
        self._segments: dict[tuple[str, int], Ends] = {}

    async def held(
        self, key: RunKey, nodes: Collection[str] | None = None
    ) -> Callable[[Manifest], bool]:
        """A function that says of a manifest that is read later whether there are such lines.

        Of these nodes, or of all. Raises `StoreUnavailable`, `Damaged`.
        """
        active = await self._active(key, nodes)
        ends = await self._in_segments(nodes)

        def beyond(manifest: Manifest) -> bool:
            return active or _lacks(manifest, ends)

        return beyond

    async def lags(self, key: RunKey, node: str) -> bool:
        """Whether the run may lack lines of the node. Raises `StoreUnavailable`, `Damaged`."""
        beyond = await self.held(key, [node])
        return beyond((await self._manifests.get(key)).manifest)

    async def held_in(self, fqn: str, nodes: Collection[str]) -> Callable[[Manifest], bool]:
        """The same for all runs of a pipeline."""
        prefix, marked = keys.active_pipeline(self._prefix, fqn), set[str]()
        waited = {node for node in nodes if await self._is_waited_for(node)}
        async for info in self._store.list(prefix):
            run, _, name = info.key.removeprefix(prefix).partition("/")
            if decode(name) in waited:
                marked.add(run)
        ends = await self._in_segments(nodes)

        def beyond(manifest: Manifest) -> bool:
            return encode(manifest.key.run) in marked or _lacks(manifest, ends)

        return beyond

    async def _active(self, key: RunKey, nodes: Collection[str] | None) -> bool:
        """Whether another living node says that it holds lines."""
        prefix = keys.active_nodes(self._prefix, key)
        async for info in self._store.list(prefix):
            node = decode(info.key.removeprefix(prefix))
            if node is None or node == self._node or (nodes is not None and node not in nodes):
                continue
            if await self._is_waited_for(node):
                return True
        return False

    async def _is_waited_for(self, node: str) -> bool:
        return self._lacks(node) or not await self._gone(node)

    async def _in_segments(self, nodes: Collection[str] | None) -> list[tuple[str, Ends]]:
        """Segments above watermarks: of each its node, and where its runs end."""
        listed: dict[tuple[str, int], Ends] = {}
        for node in await self._nodes() if nodes is None else nodes:
            mark = await read_watermark(self._store, node)
            after = keys.segment(node, mark.seq)
            async for info in self._store.list(keys.segments_of(node), after=after):
                parsed = keys.parse_segment(info.key)
                if parsed is not None:
                    listed[parsed] = await self._ends(parsed, info.key)
        self._segments = listed if nodes is None else self._segments | listed
        return [(node, ends) for (node, _), ends in listed.items()]

    async def _nodes(self) -> list[str]:
        found = [decode(folder) async for folder in self._store.folders(keys.SEGMENTS)]
        return [node for node in found if node is not None]

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


def _lacks(manifest: Manifest, segments: Iterable[tuple[str, Ends]]) -> bool:
    """Whether one of the segments has lines of the run that are not in its chunks."""
    return any(manifest.dealt_with(node) < ends.get(manifest.key, 0) for node, ends in segments)
