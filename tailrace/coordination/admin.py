"""Lets operators list, inspect, free, reopen, fail and purge partitions and named leases.

`LeaseEntry` is a lease as operators see it, `LeaseAdmin` has the actions. Times are milliseconds of
the clock of the store that has the lease.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, NamedTuple

from tailrace.coordination.lease import StoreTime, identity_of, is_over
from tailrace.coordination.named_leases import LeaseRecord, StoredLease, StoredLeases
from tailrace.coordination.partitions import (
    Partition,
    PartitionStore,
    Status,
    expired,
    reopened,
    reset,
    ruled_out,
    update,
)
from tailrace.logstore import keys
from tailrace.logstore.errors import (
    Conflict,
    Damaged,
    InvalidCursor,
    InvalidInput,
    NotFound,
    StoreUnavailable,
)
from tailrace.logstore.position import decode_cursor, encode_cursor

# The view of operators: one shape for both kinds of leases, in lists, pages and programs.
#
#   kind      `partition` (work in a partition store) or `lock` (a named lease of nodes and runs)
#   lag       for how long the work has been due and is not done: for a free or held lease since
#             the work became available, for a FAILED one since it failed; a COMPLETED lease,
#             and one that is not due yet, has no lag
#   age       the time since the lease was made
#   held      whether an owner has the lease by any clock; acting on it takes it from that owner


class Kind(StrEnum):
    """The kind of a lease: of a partition, or a named one."""

    PARTITION = "partition"
    LOCK = "lock"


@dataclass(frozen=True, slots=True)
class LeaseEntry:
    """One lease; `age_ms` and `lag_ms` are as of the moment when it was read."""

    kind: Kind
    source: str
    key: str
    status: Status
    owner: str | None
    held: bool
    epoch: int
    version: str
    created_ms: int
    until_ms: int
    age_ms: int
    lag_ms: int | None = None
    available_ms: int | None = None
    ended_ms: int = 0
    attempts: int = 0
    closed_count: int = 0
    priority: float = 0.0
    last_error: str | None = None
    progress: str | None = None

    def spelled(self, *, whole: bool) -> dict[str, Any]:
        """The entry as JSON, with the same keys for every lease.

        `whole` adds the progress, which may be long.
        """
        row = {
            "kind": self.kind.value,
            "source": self.source,
            "key": self.key,
            "status": self.status.value,
            "owner": self.owner,
            "held": self.held,
            "epoch": self.epoch,
            "until": self.until_ms or None,
            "age_seconds": self.age_ms / 1000,
            "lag_seconds": None if self.lag_ms is None else self.lag_ms / 1000,
            "attempts": self.attempts,
            "closed_count": self.closed_count,
            "priority": self.priority,
            "last_error": self.last_error,
            "created_at": self.created_ms,
            "available_at": self.available_ms,
            "ended_at": self.ended_ms or None,
            "version": self.version,
        }
        return row | {"progress": self.progress} if whole else row


def of_partition(partition: Partition, time: StoreTime) -> LeaseEntry:
    """The entry of a partition, seen now. `time` is known after any answer of the store."""
    now_ms = time.at_least_ms()
    return LeaseEntry(
        Kind.PARTITION,
        partition.source,
        partition.key,
        partition.status,
        partition.owner,
        partition.status is Status.ASSIGNED and not expired(partition, now_ms),
        partition.epoch,
        partition.version,
        partition.created_ms,
        partition.until_ms,
        age_ms=max(now_ms - partition.created_ms, 0),
        lag_ms=_lag_ms(partition, now_ms),
        available_ms=partition.available_ms,
        ended_ms=partition.ended_ms,
        attempts=partition.attempts,
        closed_count=partition.closed_count,
        priority=partition.priority,
        last_error=partition.last_error,
        progress=partition.progress,
    )


def of_named(source: str, key: str, lease: LeaseRecord, time: StoreTime) -> LeaseEntry:
    """The entry of a named lease, seen now; `key` is its partition as text."""
    now_ms = time.at_least_ms()
    owned = lease.owner is not None
    return LeaseEntry(
        Kind.LOCK,
        source,
        key,
        Status.ASSIGNED if owned else Status.UNASSIGNED,
        lease.owner,
        owned and not is_over(lease.until_ms, now_ms),
        lease.epoch,
        lease.version,
        lease.created_ms,
        lease.until_ms if owned else 0,
        age_ms=max(now_ms - lease.created_ms, 0),
    )


def _lag_ms(partition: Partition, now_ms: int) -> int | None:
    if partition.status is Status.COMPLETED:
        return None
    since_ms = partition.available_ms
    if partition.status is Status.FAILED:
        since_ms = partition.ended_ms
    return now_ms - since_ms if now_ms >= since_ms else None


# The actions of operators.
#
# Lists show named leases before partitions, each ordered by source, then by key. Every action is a
# compare-and-swap of the version that was looked at. An action on a held lease needs `force`;
# without it, the error names the holder, even if the lease was taken only a moment ago. Every
# action may be repeated.


_READ_AT_ONCE: Final = 1000
_LOOKED_AT: Final = 20_000
"""Leases that one page looks at: filters that fit few must not read all in one request."""


@dataclass(frozen=True, slots=True)
class LeaseFilter:
    """Which leases to list; a field that is None, or 0, excludes none."""

    source: str | None = None
    status: Status | None = None
    owner: str | None = None
    """All of an owner, or its identity: what stands before the `/`."""
    prefix: str = ""
    older_than_ms: int = 0
    """Of that age, at least."""

    def fits(self, entry: LeaseEntry) -> bool:
        """Whether the filter includes an entry."""
        return (
            (self.source is None or entry.source == self.source)
            and (self.status is None or entry.status is self.status)
            and (self.owner is None or _owned_by(entry, self.owner))
            and entry.key.startswith(self.prefix)
            and entry.age_ms >= self.older_than_ms
        )


class Entries(NamedTuple):
    """One page of leases, and the `after` of the next page; None at the end.

    `unreadable` has the keys of objects that are damaged, or of a newer version, with the reason.
    Of an unreadable source of partitions no lease is listed.
    """

    entries: list[LeaseEntry]
    after: str | None
    unreadable: dict[str, str]


class LeaseAdmin:
    """The actions of operators on one store's partitions and named leases."""

    def __init__(self, partitions: PartitionStore, named: StoredLeases) -> None:
        self._partitions = partitions
        self._named = named

    async def page(
        self, wanted: LeaseFilter, *, after: str | None = None, limit: int = 100
    ) -> Entries:
        """Returns at most `limit` leases after `after`; a short page need not be the last one.

        Raises `InvalidCursor`, `StoreUnavailable`.
        """
        found: list[LeaseEntry] = []
        unreadable: dict[str, str] = {}
        looked_at = 0
        last: LeaseEntry | None = None
        async for entry in self._all(wanted, _decoded(after), unreadable):
            if len(found) == limit or looked_at == _LOOKED_AT:
                return Entries(found, None if last is None else _encoded(last), unreadable)
            looked_at, last = looked_at + 1, entry
            if wanted.fits(entry):
                found.append(entry)
        return Entries(found, None, unreadable)

    async def show(self, source: str, key: str) -> LeaseEntry:
        """Returns one lease. Raises `NotFound`, `StoreUnavailable`, `Damaged`."""
        stored = await self._named.get(source, key)
        if stored is not None:
            return self._of_named(stored)
        return self._of_partition(await self._partition(source, key))

    async def reset(
        self, source: str, key: str, *, forget: bool = False, force: bool = False
    ) -> LeaseEntry:
        """Frees a lease at once, whatever its status; with `forget` its progress is dropped too.

        Raises `Conflict` if another process holds the lease and `force` is not set, and as `show`.
        """
        stored = await self._named.get(source, key)
        if stored is not None:
            return await self._free(stored, force=force)

        def change(old: Partition, now_ms: int) -> Partition:
            self._refuse_held(self._of_partition(old), force=force)
            return reset(old, now_ms, forget=forget)

        return await self._change(source, key, change)

    async def reopen(self, source: str, key: str) -> LeaseEntry:
        """Frees a partition that had ended; its progress stays.

        Raises `Conflict` if somebody holds it, `InvalidInput` for a named lease, and as `show`.
        """
        await self._refuse_named(source, key)

        def change(old: Partition, now_ms: int) -> Partition:
            if old.status is Status.UNASSIGNED:
                return old
            if old.status is Status.ASSIGNED:
                raise Conflict(
                    f"{key!r} of {source!r} has not ended: {old.owner} works on it",
                    hint="`reset` with force frees it.",
                )
            return reopened(old, now_ms)

        return await self._change(source, key, change)

    async def fail(self, source: str, key: str, *, reason: str, force: bool = False) -> LeaseEntry:
        """Makes a partition FAILED until it is reset or reopened.

        Raises as `reset` and `reopen`.
        """
        await self._refuse_named(source, key)
        if not reason.strip():
            raise InvalidInput("the reason is empty", field="reason", hint="Say why it failed.")

        def change(old: Partition, now_ms: int) -> Partition:
            if old.status is Status.COMPLETED:
                raise Conflict(f"{key!r} of {source!r} is COMPLETED", hint="Reopen it first.")
            if old.status is Status.FAILED and old.last_error == reason:
                return old
            self._refuse_held(self._of_partition(old), force=force)
            return ruled_out(old, reason, now_ms)

        return await self._change(source, key, change)

    async def purge(self, source: str, *, older_than_ms: int) -> int:
        """Removes partitions that were COMPLETED that long ago; returns how many.

        Raises as `show`.
        """
        await self._partitions.counts(source)  # so that the store's time is known
        return await self._partitions.purge(source, self._now_ms() - older_than_ms)

    # --- all of them ---------------------------------------------------------------

    async def _all(
        self, wanted: LeaseFilter, after: tuple[Kind, str, str] | None, unreadable: dict[str, str]
    ) -> AsyncIterator[LeaseEntry]:
        kind, source, key = after or (Kind.LOCK, "", "")
        if kind is Kind.LOCK:
            for name in self._chosen(await self._named.sources(), wanted, source):
                behind = key if name == source else ""
                async for stored in self._named.each(name, unreadable, after=behind):
                    yield self._of_named(stored)
            source, key = "", ""
        for name in self._chosen(await self._partitions.sources(), wanted, source):
            try:
                async for partition in self._each(name, wanted, key if name == source else None):
                    yield self._of_partition(partition)
            except Damaged as error:
                unreadable[keys.partitions_of(name)] = str(error)

    def _chosen(self, sources: list[str], wanted: LeaseFilter, first: str) -> list[str]:
        return [
            name
            for name in sources
            if name >= first and (wanted.source is None or name == wanted.source)
        ]

    async def _each(
        self, source: str, wanted: LeaseFilter, after: str | None
    ) -> AsyncIterator[Partition]:
        while True:
            page = await self._partitions.page(
                source, status=wanted.status, after=after, limit=_READ_AT_ONCE
            )
            for partition in page.partitions:
                yield partition
            if page.after is None:
                return
            after = page.after

    # --- one of them ---------------------------------------------------------------

    def _of_named(self, stored: StoredLease) -> LeaseEntry:
        return of_named(stored.source, stored.key, stored.lease, self._named.time)

    def _of_partition(self, partition: Partition) -> LeaseEntry:
        return of_partition(partition, self._partitions.time)

    async def _partition(self, source: str, key: str) -> Partition:
        found = await self._partitions.get(source, key)
        if found is None:
            raise _nothing(source, key)
        return found

    async def _change(
        self, source: str, key: str, change: Callable[[Partition, int], Partition]
    ) -> LeaseEntry:
        changed = await update(
            self._partitions, source, key, lambda old: change(old, self._now_ms())
        )
        if changed is None:
            raise _nothing(source, key)
        return self._of_partition(changed)

    def _now_ms(self) -> int:
        if not self._partitions.time.known:
            raise StoreUnavailable("the store's answers are too slow to measure its clock")
        return self._partitions.time.at_most_ms()

    async def _free(self, stored: StoredLease, *, force: bool) -> LeaseEntry:
        if stored.lease.owner is not None:
            self._refuse_held(self._of_named(stored), force=force)
            stored = await self._named.free(stored)
        return self._of_named(stored)

    def _refuse_held(self, entry: LeaseEntry, *, force: bool) -> None:
        if entry.held and not force:
            raise Conflict(
                f"{entry.key!r} of {entry.source!r} is held by {entry.owner}",
                hint="Free it with force; its owner notices at its next write.",
            )

    async def _refuse_named(self, source: str, key: str) -> None:
        if await self._named.get(source, key) is not None:
            raise InvalidInput(
                f"{key!r} of {source!r} is a named lease: it is held or free, and never ends",
                field="source",
                hint="`reset` frees it.",
            )


def _nothing(source: str, key: str) -> NotFound:
    return NotFound(
        f"there is no lease of {key!r} of {source!r}",
        hint="List leases with `tailrace leases` or GET /leases.",
    )


def _owned_by(entry: LeaseEntry, owner: str) -> bool:
    return entry.owner is not None and (entry.owner == owner or identity_of(entry.owner) == owner)


def _encoded(entry: LeaseEntry) -> str:
    return encode_cursor("", [entry.kind.value, entry.source, entry.key])


def _decoded(cursor: str | None) -> tuple[Kind, str, str] | None:
    if cursor is None:
        return None
    try:
        kind, source, key = decode_cursor("", cursor)
        return Kind(kind), str(source), str(key)
    except (ValueError, TypeError) as error:
        raise InvalidCursor(f"{cursor!r} is not a cursor of this list", field="after") from error
