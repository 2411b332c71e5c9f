"""Consumer groups in the store: reading them, and changing one by compare-and-swap.

A write whose answer was lost is recognised by the version that it carries.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

from coordination.groups.groups import Group, decode_group, encode_group
from logstore import keys
from logstore.errors import NotFound, OutcomeUnknown, PreconditionFailed
from logstore.objects.ambiguous import Unclear
from logstore.objects.store import ObjectStore


class Stored(NamedTuple):
    """A group as it stands in the store, and the ETag to change it by."""

    group: Group
    etag: str


async def read_group(store: ObjectStore, name: str) -> Stored | None:
    """The group, None if there is none. Raises `StoreUnavailable`, `Damaged`."""
    return await _read(store, keys.group(name))


async def read_groups(store: ObjectStore) -> list[Group]:
    """All groups, by key. Raises `StoreUnavailable`, `Damaged`."""
    found = [await _read(store, info.key) async for info in store.list(keys.GROUPS)]
    return [stored.group for stored in found if stored is not None]


async def write_group(store: ObjectStore, group: Group, etag: str | None, version: str) -> Stored:
    """Writes it over the version of `etag`, or as a new one.

    Raises `PreconditionFailed`, `StoreUnavailable`, `OutcomeUnknown`.
    """
    fresh = replace(group, version=version)
    body = encode_group(fresh)
    info = await store.put(fresh.key, body, if_absent=etag is None, if_match=etag)
    return Stored(fresh, info.etag)


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
    unclear = Unclear()
    tried: set[str] = set()
    while True:
        stored = await read_group(store, name)
        if stored is None:
            return None
        if stored.group.version in tried:
            return stored.group
        wanted = change(stored.group)
        if wanted == stored.group:
            return wanted
        version = fresh_id()
        tried.add(version)
        try:
            return (await write_group(store, wanted, stored.etag, version)).group
        except PreconditionFailed:
            continue
        except OutcomeUnknown as error:
            unclear.bear(error)


async def _read(store: ObjectStore, key: str) -> Stored | None:
    try:
        info, body = await store.get(key)
    except NotFound:
        return None
    return Stored(decode_group(key, body), info.etag)
