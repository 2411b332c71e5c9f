"""The time that things are removed by."""

from __future__ import annotations

from compactor.compactor import Compactor
from logstore.objects.remote import RemoteStore


def now_ms(compactor: Compactor) -> int:
    """The earlier of this machine's time and what the store last said of its own.

    A clock that is ahead, here or there, removes nothing before its time.
    """
    here, store = compactor.clock.now_ms(), compactor.store
    said = store.newest_date if isinstance(store, RemoteStore) else None
    return here if said is None else min(here, said.date_ms)
