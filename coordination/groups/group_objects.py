"""Consumer groups in the store: reading them, and changing one by compare-and-swap."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from coordination.groups.groups import Group, decode_group, encode_group
from logstore import keys
from logstore.objects.store import ObjectStore
from logstore.swap import Document, swap


def group_document(store: ObjectStore, name: str) -> Document[Group]:
    """Where the group of that name stands."""
    return _document(store, keys.group(name))


async def read_group(store: ObjectStore, name: str) -> Group | None:
    """The group, None if there is none. Raises `StoreUnavailable`, `Damaged`."""
    found = await group_document(store, name).read()
    return None if found is None else found.value


async def read_groups(store: ObjectStore) -> list[Group]:
    """All groups, by key. Raises `StoreUnavailable`, `Damaged`."""
    found = [await _document(store, info.key).read() async for info in store.list(keys.GROUPS)]
    return [stored.value for stored in found if stored is not None]


async def change_group(
    store: ObjectStore,
    name: str,
    change: Callable[[Group], Group],
    *,
    fresh_id: Callable[[], str],
) -> Group | None:
    """The group after `change`, which is asked again whenever somebody was faster.

    None if there is no such group. Raises `StoreUnavailable`, `OutcomeUnknown`, `Damaged`.
    """

    async def changed(group: Group | None) -> Group | None:
        wanted = None if group is None else change(group)
        if wanted is None or wanted == group:
            return None
        return replace(wanted, version=fresh_id())

    stored = await swap(group_document(store, name), changed)
    return None if stored is None else stored.value


def _document(store: ObjectStore, key: str) -> Document[Group]:
    return Document(store, key, partial(decode_group, key), encode_group)
