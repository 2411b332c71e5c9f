"""Which segments are quarantined: they count as empty until somebody repairs them."""

from __future__ import annotations

from logstore import keys
from logstore.names import decode
from logstore.objects.store import ObjectStore


async def quarantined_segments(store: ObjectStore) -> dict[str, set[int]]:
    """The numbers of quarantined segments by node. Raises `StoreUnavailable`."""
    found: dict[str, set[int]] = {}
    async for info in store.list(keys.QUARANTINE):
        component, _, seq = info.key.removeprefix(keys.QUARANTINE).partition("/")
        node = decode(component)
        if node is not None and seq.isdecimal():
            found.setdefault(node, set()).add(int(seq))
    return found
