"""Acquires, renews and releases the named leases of one process.

    acquire ──► held ──heartbeat every third of the timeout──► held ──► release
                  └── another owner's version, or 2 s before the timeout: not valid

A holder stops 2 s before its timeout, and a claimant waits until 2 s after it. Every write is
conditional on the version that was read. An epoch is above the one before it and at least
the store's time in milliseconds, so it also rises if the object was removed in between.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TypeGuard

from coordination.counters import CoordinationCounters
from coordination.lease import identity_of, is_over, left_ms, next_epoch
from coordination.named.record import LeaseName, LeaseRecord, decode_lease, encode_lease
from coordination.storetime import StoreTime
from logstore import keys
from logstore import ulid as ulids
from logstore.clock import Clock, Entropy
from logstore.errors import (
    Damaged,
    NotFound,
    PreconditionFailed,
    TailraceError,
    UnsupportedVersion,
)
from logstore.objects.store import ObjectStore
from logstore.swap import Backoff, Change, Document, RetryBudget, Revision, swap


class NamedLease:
    """A lease of this process. `epoch` is its fencing token; `since` a monotonic second."""

    def __init__(self, lease: LeaseRecord, etag: str, time: StoreTime, since: float) -> None:
        self.lease = lease
        self.etag = etag
        self.since = since
        self.lost = False
        self._time = time

    @property
    def epoch(self) -> int:
        """The fencing token, above that of every earlier owner."""
        return self.lease.epoch

    def owns(self, lease: LeaseRecord | None) -> TypeGuard[LeaseRecord]:
        """Whether that version of the lease was written while this process owned it."""
        ours = (self.lease.owner, self.lease.epoch)
        return lease is not None and (lease.owner, lease.epoch) == ours

    def valid(self) -> bool:
        """Whether the lease is valid for 2 s more at least. The owner asks before each effect."""
        return not self.lost and left_ms(self.lease.until_ms, self._time.at_most_ms()) > 0


class NamedLeases:
    """The leases of one process, acquired as `node`.

    A process may take over the leases of earlier processes of its node.
    """

    def __init__(
        self,
        store: ObjectStore,
        clock: Clock,
        entropy: Entropy,
        time: StoreTime,
        *,
        node: str,
        timeout_seconds: float = 600.0,
    ) -> None:
        self._store = store
        self._clock = clock
        self._entropy = entropy
        self._time = time
        self._node = node
        self._timeout_ms = round(timeout_seconds * 1000)
        self.owner = f"{node}/{self._fresh_id()}"
        self._held: dict[LeaseName, NamedLease] = {}
        self._stopping = False
        self.counters: dict[str, CoordinationCounters] = defaultdict(CoordinationCounters)
        self.last_error: str | None = None

    @property
    def held(self) -> Iterable[NamedLease]:
        """The leases that this process holds."""
        return self._held.values()

    async def acquire(self, name: LeaseName) -> NamedLease | None:
        """Acquires the lease; None while another owner has it or the time is not known.

        Raises `StoreUnavailable`, `OutcomeUnknown`, `Damaged`.
        """

        async def take(found: LeaseRecord | None) -> LeaseRecord | None:
            lease = found or LeaseRecord(name)
            if not self._time.known or not self._free(lease):
                return None
            now_ms = self._time.at_most_ms()
            return replace(
                lease,
                owner=self.owner,
                epoch=next_epoch(lease.epoch, now_ms),
                until_ms=now_ms + self._timeout_ms,
                created_ms=lease.created_ms or now_ms,
                version=self._fresh_id(),
            )

        try:
            stored = await self._swap(name, take)
        except UnsupportedVersion:
            raise
        except Damaged as error:
            stored = await self._replaced(name, take, error)
        if stored is None or not stored.written:
            self.counters[name.source].none_acquired += 1
            return None
        return self._hold(stored.value, stored.etag)

    async def _replaced(
        self, name: LeaseName, take: Change[LeaseRecord], error: Damaged
    ) -> Revision[LeaseRecord] | None:
        """Takes a damaged lease once nobody can hold it any more; its owner cannot renew it.

        Raises `error` until then.
        """
        try:
            info = await self._store.head(name.key)
        except NotFound:
            return await self._swap(name, take)
        if not is_over(info.modified_ms + self._timeout_ms, self._time.at_least_ms()):
            raise error
        wanted = await take(None)
        if wanted is None:
            return None
        with suppress(PreconditionFailed):
            return await self._document(name).write(wanted, info.etag)
        return None

    async def held_by(self, name: LeaseName) -> str | None:
        """The node that holds it now, None if it is free. Raises as `acquire`."""
        found = await self._document(name).read()
        if found is None or found.value.owner is None or self._expired(found.value):
            return None
        return identity_of(found.value.owner)

    async def renew(self, held: NamedLease) -> bool:
        """Renews the lease; returns whether it is still this process'.

        Raises as `acquire`; the lease is then valid for as long as before.
        """

        async def prolong(found: LeaseRecord | None) -> LeaseRecord | None:
            if not held.owns(found):
                return None
            until_ms = self._time.at_most_ms() + self._timeout_ms
            return replace(found, until_ms=until_ms, version=self._fresh_id())

        stored = await self._swap(held.lease.name, prolong, held)
        if stored is None or not stored.written:
            self._lose(held, deleted=stored is None)
        else:
            held.lease, held.etag = stored.value, stored.etag
        return held.valid()

    async def release(self, held: NamedLease, *, forget: bool = False) -> None:
        """Releases the lease; with `forget` its object is removed. Raises as `acquire`.

        If the write fails, the lease ends by its timeout.
        """
        name = held.lease.name
        if self._held.get(name) is held:
            del self._held[name]
        if not held.valid():
            return
        held.lost = True
        counters = self.counters[name.source]
        if forget:
            await self._store.delete([name.key])
            counters.deleted += 1
            return

        async def free(found: LeaseRecord | None) -> LeaseRecord | None:
            if not held.owns(found):
                return None
            return replace(found, owner=None, version=self._fresh_id())

        stored = await self._swap(name, free, held)
        counters.given_up += stored is not None and stored.written

    async def clear(self, source: str) -> None:
        """Removes leases that nobody holds, for a source with a lease per piece of work.

        Raises `StoreUnavailable`, `Damaged`.
        """
        prefix = keys.leases_of(source)
        for where in [info.key async for info in self._store.list(prefix)]:
            with suppress(NotFound):
                body = (await self._store.get(where))[1]
                lease = decode_lease(LeaseName(source, (where.removeprefix(prefix),)), body)
                if lease.owner is None or self._expired(lease):
                    await self._store.delete([where])

    async def run(self) -> None:
        """Renews the leases until stopped."""
        while not self._stopping:
            await self._clock.sleep(self._timeout_ms / 3000)
            await self.renew_all()

    async def renew_all(self) -> None:
        """Renews all leases once. The next beat retries what an unavailable store refused."""
        self.last_error = None
        for held in list(self._held.values()):
            try:
                await self.renew(held)
            except TailraceError as error:
                self.counters[held.lease.name.source].renewal_errors += 1
                self.last_error = f"{held.lease.name.key}: {error}"

    async def stop(self) -> None:
        """Ends `run` and releases all leases. Raises nothing: a lease that remains expires."""
        self._stopping = True
        for held in list(self._held.values()):
            try:
                await self.release(held)
            except TailraceError as error:
                self.last_error = f"{held.lease.name.key}: {error}"

    # --- versions ------------------------------------------------------------------

    def _hold(self, lease: LeaseRecord, etag: str) -> NamedLease:
        held = self._held[lease.name] = NamedLease(lease, etag, self._time, self._clock.monotonic())
        self.counters[lease.name.source].acquired += 1
        return held

    def _lose(self, held: NamedLease, *, deleted: bool) -> None:
        """Drops a lease that another owner has or, if `deleted`, whose object was deleted."""
        held.lost = True
        counters = self.counters[held.lease.name.source]
        if deleted:
            counters.not_found += 1
        else:
            counters.not_owned += 1
        if self._held.get(held.lease.name) is held:
            del self._held[held.lease.name]

    def _free(self, lease: LeaseRecord) -> bool:
        if lease.owner is None or self._expired(lease):
            return True
        # An earlier life of this node, or a write of ours whose answer was lost.
        return identity_of(lease.owner) == self._node

    def _expired(self, lease: LeaseRecord) -> bool:
        return is_over(lease.until_ms, self._time.at_least_ms())

    async def _swap(
        self, name: LeaseName, change: Change[LeaseRecord], held: NamedLease | None = None
    ) -> Revision[LeaseRecord] | None:
        known = None if held is None else Revision(held.lease, held.etag)
        budget = RetryBudget(Backoff(self._clock, self._entropy))
        return await swap(self._document(name), change, known=known, budget=budget)

    def _document(self, name: LeaseName) -> Document[LeaseRecord]:
        return Document(self._store, name.key, partial(decode_lease, name), encode_lease)

    def _fresh_id(self) -> str:
        return ulids.fresh_text(self._clock, self._entropy)
