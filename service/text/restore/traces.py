"""Whether a run without a manifest once had one, which somebody outside took away.

The indexes of chunks tell positions of writers. A chunk that was written by a flush that did
not live to name it holds lines that its node has yet to flush; one with lines below what
its node has flushed was named. A run of that kind is remade from its records, before a
flush gives it a manifest without its older lines, and before an older `partial.txt` of our
own is taken for all of its text. One that also holds lines of OpenMetadata, which are in no
record, is left as it is.
"""

from __future__ import annotations

from collections.abc import Callable

from logstore import keys
from logstore.batch import RunKey
from logstore.objects.store import ObjectStore
from logstore.runs.textmark import read_text_mark
from service.text.chunks import stored_directory


class Traces:
    """Of one node; `flushed` is the position below which its own lines are in chunks."""

    def __init__(
        self,
        store: ObjectStore,
        node: str,
        *,
        prefix: str,
        flushed: Callable[[], int],
        foreign: str,
    ) -> None:
        self._store = store
        self._node = node
        self._prefix = prefix
        self._flushed = flushed
        self._foreign = foreign

    async def tell(self, key: RunKey) -> bool:
        """Whether chunks are left that a manifest named. Raises `StoreUnavailable`."""
        low: dict[str, int] = {}
        async for info in self._store.list(keys.chunks_of(self._prefix, key)):
            if not info.key.endswith(".idx"):
                continue
            directory = await stored_directory(self._store, info)
            for _, writer, first, _ in () if directory is None else directory.spans:
                low[writer] = min(low.get(writer, first), first)
        if self._foreign in low:
            return False
        for writer, first in low.items():
            if first < await self._dealt_with(writer):
                return True
        return False

    async def _dealt_with(self, node: str) -> int:
        if node == self._node:
            return self._flushed()
        return (await read_text_mark(self._store, node)).pos
