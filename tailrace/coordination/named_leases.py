"""Named leases: each protects a thing that exists once, and is an object of its own.

`LeaseRecord` is a lease in the store, `NamedLeases` acquires, renews and releases the leases of one
process, and `StoredLeases` lets operators list and free all leases of a store.
"""

from __future__ import annotations

import asyncio
import re
from collections import defaultdict
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final, NamedTuple, TypeGuard

from tailrace.coordination.lease import StoreTime, identity_of, is_over, left_ms, next_epoch
from tailrace.coordination.leases import CoordinationCounters
from tailrace.logstore import keys
from tailrace.logstore import ulid as ulids
from tailrace.logstore.batch import RunKey
from tailrace.logstore.cas import Change, Document, RetryBudget, Revision, swap
from tailrace.logstore.clock import Clock, Entropy
from tailrace.logstore.errors import (
    Damaged,
    NotFound,
    PreconditionFailed,
    TailraceError,
    UnsupportedVersion,
)
from tailrace.logstore.keys import encode
from tailrace.logstore.objects.store import ObjectStore
from tailrace.logstore.state import decode_checked, encode_checked

# A lease in the store: a piece of work, its owner, and the end of the ownership.
#
# `coordination/leases/{source}/{partition…}`, a JSON object changed by compare-and-swap:
#
#   source_identifier   the kind of work: `text` (the lines of a node into their runs),
#                       `sweep` (closing a run that nobody closed)
#   partition_key       the piece of work: a node; a pipeline and a run, encoded, with `/` between
#   status              ASSIGNED | UNASSIGNED
#   owner               `{node}/{ULID of the process}`, null when it is free
#   epoch               rises with every owner, also over a removal of the object
#   owner_timeout       until when it is the owner's, milliseconds of the store's clock
#   created_at          when the object was made, milliseconds of the store's clock
#   version             a fresh ULID in every write, so that no two versions have equal bytes
#
# Keys that this version does not know survive a rewrite.


TEXT = "text"
SWEEP = "sweep"

_NAMES = "source_identifier partition_key status owner epoch owner_timeout created_at version"
_KNOWN = frozenset(_NAMES.split(" "))


class LeaseName(NamedTuple):
    """The name of a lease: a kind of work, and the parts that identify one piece of it."""

    source: str
    parts: tuple[str, ...]

    @property
    def key(self) -> str:
        """The key of the lease's object."""
        return keys.lease(self.source, self.parts)

    @property
    def partition(self) -> str:
        """The parts as one text."""
        return "/".join([encode(part) for part in self.parts])


def text_lease(node: str) -> LeaseName:
    """The right to bring the segments of `node` into their runs."""
    return LeaseName(TEXT, (node,))


def sweep_lease(key: RunKey) -> LeaseName:
    """The right to close a run that nobody closed."""
    return LeaseName(SWEEP, key)


@dataclass(frozen=True, slots=True)
class LeaseRecord:
    """One version of a lease. Times are milliseconds of the store's clock."""

    name: LeaseName
    owner: str | None = None
    epoch: int = 0
    until_ms: int = 0
    created_ms: int = 0
    version: str = ""
    others: Mapping[str, Any] = field(default_factory=dict)


def encode_lease(lease: LeaseRecord, *, partition: str | None = None) -> bytes:
    """The bytes of a lease; `partition` is for a caller that knows only the key."""
    return encode_checked(
        {
            **lease.others,
            "source_identifier": lease.name.source,
            "partition_key": lease.name.partition if partition is None else partition,
            "status": "UNASSIGNED" if lease.owner is None else "ASSIGNED",
            "owner": lease.owner,
            "epoch": lease.epoch,
            "owner_timeout": lease.until_ms,
            "created_at": lease.created_ms,
            "version": lease.version,
        }
    )


def decode_lease(name: LeaseName, body: bytes) -> LeaseRecord:
    """The lease that `body` holds. Raises `Damaged`."""
    try:
        value = decode_checked(body)
        return LeaseRecord(
            name,
            owner=value["owner"],
            epoch=int(value["epoch"]),
            until_ms=int(value["owner_timeout"]),
            created_ms=int(value["created_at"]),
            version=value["version"],
            others={key: kept for key, kept in value.items() if key not in _KNOWN},
        )
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise Damaged(f"{name.key} is not a lease: {error}") from error


# The named leases of one process.
#
#   acquire ──► held ──heartbeat every third of the timeout──► held ──► release
#                 └── another owner's version, or 2 s before the timeout: not valid
#
# A holder stops 2 s before its timeout, and a claimant waits until 2 s after it. Every write is
# conditional on the version that was read. An epoch is above the one before it and at least the
# store's time in milliseconds, so it also rises if the object was removed in between.


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
        budget = RetryBudget(self._clock, self._entropy)
        return await swap(self._document(name), change, known=known, budget=budget)

    def _document(self, name: LeaseName) -> Document[LeaseRecord]:
        return Document(self._store, name.key, partial(decode_lease, name), encode_lease)

    def _fresh_id(self) -> str:
        return ulids.fresh_text(self._clock, self._entropy)


# All named leases of a store, for operators.
#
# The key of a lease is the part of its object's key after the source: encoded names with `/`
# between, as lists show it. No other object can be addressed by it.


_AT_ONCE: Final = 16
_COMPONENT: Final = r"[A-Za-z0-9_%-][A-Za-z0-9._%~-]*"
_SOURCE: Final = re.compile(_COMPONENT)
_KEY: Final = re.compile(rf"{_COMPONENT}(/{_COMPONENT})*")


class StoredLease(NamedTuple):
    """A named lease with its source and key, and the ETag that a change is conditional on."""

    source: str
    key: str
    lease: LeaseRecord
    etag: str


class StoredLeases:
    """All named leases of a store."""

    def __init__(self, store: ObjectStore, clock: Clock, entropy: Entropy, time: StoreTime) -> None:
        self._store = store
        self._clock = clock
        self._entropy = entropy
        self.time = time

    async def sources(self) -> list[str]:
        """The sources that have leases, sorted. Raises `StoreUnavailable`."""
        return [name async for name in self._store.folders(keys.LEASES)]

    async def each(
        self, source: str, unreadable: dict[str, str], *, after: str = ""
    ) -> AsyncIterator[StoredLease]:
        """Yields the leases of a source by key, after `after`. Raises `StoreUnavailable`.

        For leases that cannot be read, `unreadable` gets the key of the object, and the reason.
        """
        prefix = keys.leases_of(source)
        waiting: list[str] = []
        async for info in self._store.list(prefix, after=prefix + after):
            waiting.append(info.key.removeprefix(prefix))
            if len(waiting) == _AT_ONCE:
                for stored in await self._read(source, waiting, unreadable):
                    yield stored
                waiting.clear()
        for stored in await self._read(source, waiting, unreadable):
            yield stored

    async def get(self, source: str, key: str) -> StoredLease | None:
        """Returns one lease, None if there is none. Raises `StoreUnavailable`, `Damaged`."""
        if _SOURCE.fullmatch(source) is None or _KEY.fullmatch(key) is None:
            return None
        found = await self._document(source, key).read()
        return None if found is None else StoredLease(source, key, found.value, found.etag)

    async def free(self, stored: StoredLease) -> StoredLease:
        """Frees a lease; its holder notices at its next heartbeat.

        Raises `PreconditionFailed` if the lease changed meanwhile, `StoreUnavailable`,
        `OutcomeUnknown`.
        """

        async def free(found: LeaseRecord | None) -> LeaseRecord | None:
            if found is None or found.version != stored.lease.version:
                raise PreconditionFailed(f"{stored.key!r} of {stored.source!r} has changed")
            version = ulids.fresh_text(self._clock, self._entropy)
            return replace(found, owner=None, version=version)

        known = Revision(stored.lease, stored.etag)
        free_now = await swap(self._document(stored.source, stored.key), free, known=known)
        assert free_now is not None
        return stored._replace(lease=free_now.value, etag=free_now.etag)

    def _document(self, source: str, key: str) -> Document[LeaseRecord]:
        # Spelled by its own name, which the object has: its key may hold only a hash of it.
        name = LeaseName(source, tuple(key.split("/")))
        return Document(
            self._store,
            keys.leases_of(source) + key,
            partial(decode_lease, name),
            partial(encode_lease, partition=key),
        )

    async def _read(
        self, source: str, names: list[str], unreadable: dict[str, str]
    ) -> list[StoredLease]:
        async def read(name: str) -> StoredLease | None:
            try:
                return await self.get(source, name)
            except Damaged as error:
                unreadable[keys.leases_of(source) + name] = str(error)
                return None

        found = await asyncio.gather(*(read(name) for name in names))
        return [stored for stored in found if stored is not None]
