"""Quarantine: marks segments that cannot be read, so that every reader treats them as empty.

`segments/.aside/{node}/{seq}`: JSON with `reason` and the ULID `version`. The segment stays
at its key: `verify --repair` brings it back by removing the marker.
"""

from __future__ import annotations

from contextlib import suppress

import orjson

from logstore import keys
from logstore.errors import PreconditionFailed
from logstore.objects.store import ObjectStore
from logstore.swap import write_until_known


async def quarantined(store: ObjectStore, node: str, *, above: int = 0) -> set[int]:
    """Sequences above `above` of the node's segments that are quarantined.

    Raises `StoreUnavailable`.
    """
    prefix = keys.aside(node, 0).rsplit("/", 1)[0] + "/"
    listed = store.list(prefix, after=keys.aside(node, above))
    names = [info.key.rsplit("/", 1)[1] async for info in listed]
    return {int(name) for name in names if name.isdecimal()}


async def quarantine(store: ObjectStore, node: str, seq: int, *, reason: str, version: str) -> None:
    """Marks the segment; an older marker keeps its reason.

    Raises `StoreUnavailable`, `OutcomeUnknown`.
    """
    body = orjson.dumps({"reason": reason, "version": version})
    with suppress(PreconditionFailed):  # there is one: an older one, or ours after a lost answer
        await write_until_known(lambda: store.put(keys.aside(node, seq), body, if_absent=True))
