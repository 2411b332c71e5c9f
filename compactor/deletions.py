"""Which lines are deleted, as far as a merge needs to know."""

from __future__ import annotations

from logstore import keys
from logstore.objects.store import ObjectStore
from logstore.runs.deletion import Deletion, decode_deletion


async def deletions_above(store: ObjectStore, low: int) -> list[Deletion]:
    """Deletions of ULIDs at or above `low`. Raises `StoreUnavailable`, `Damaged`."""
    found = []
    async for info in store.list(keys.DELETED):
        deletion = decode_deletion((await store.get(info.key))[1])
        if deletion.t >= low:
            found.append(deletion)
    return found
