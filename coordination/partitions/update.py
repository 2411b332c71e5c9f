"""Changes of one partition by a process that does not hold it, against its newest version."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Final

from coordination.partitions.partition import Partition
from coordination.partitions.store import PartitionStore
from logstore.errors import Conflict, PreconditionFailed

_TRIES: Final = 8


async def update(
    store: PartitionStore, source: str, key: str, change: Callable[[Partition], Partition]
) -> Partition | None:
    """The partition after `change`, which is called again whenever another writer was faster.

    Returns None if there is no such partition. Raises what `change` raises, `Conflict` after too
    many lost races, and as `PartitionStore.change`.
    """
    for _ in range(_TRIES):
        found = await store.get(source, key)
        if found is None:
            return None
        wanted = change(found)
        if wanted == found:
            return found
        with suppress(PreconditionFailed):
            return await store.change(found, wanted)
    raise Conflict(f"{key!r} of {source!r} changes all the time")
