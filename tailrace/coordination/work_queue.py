"""The coordinator of a process that shares partitions with others, and its work queues.

`Coordinator` is the part that a program opens: one identity, one heartbeat, and a `WorkQueue` for
each type of partitions, which acquires them, supplies new ones and waits until all are complete.
`Supply` makes partitions; one of the workers at a time does so. `Workers` knows the other workers
of a type, and the fair share of each. A work queue gives out the leases of
`tailrace.coordination.leases`.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, TypeAlias

from tailrace.coordination.leases import CoordinationCounters, Lease, LeaseManager
from tailrace.coordination.partitions import (
    NewPartition,
    Partition,
    PartitionPage,
    PartitionStore,
    Status,
    expired,
    reopened,
    reset,
    ruled_out,
    update,
)
from tailrace.coordination.settings import CoordinatorLimits
from tailrace.logstore.clock import Clock, Entropy
from tailrace.logstore.errors import (
    Conflict,
    Damaged,
    InvalidInput,
    LeaseLost,
    NotFound,
    PreconditionFailed,
    TailraceError,
)
from tailrace.logstore.state import decode_checked, encode_checked

# The supplier of new partitions: one process at a time runs it, and its state is shared.
#
# The state is the progress of the partition `{type}` of the source `[prefix|]name|GLOBAL`, a JSON
# object:
#
#   map          the supplier's own data, for instance where a listing continues
#   finished     whether the supplier reported that no more partitions will come
#   supplied_ms  when the supplier last ran to its end, by the store's clock
#
# That partition is leased like any other: the heartbeat renews the lease, it is given back when the
# supplier ends or raises, and it is free after its timeout if the process died. A supplier that
# outlived its lease makes no more partitions and cannot write the state. The partition is never
# COMPLETED, so nothing purges it.
#
# Partitions are made in batches while the supplier continues. A batch is limited in number and in
# bytes of text, so that it fits into memory. The map is written after each batch. The content of
# the map at the moment when a partition is yielded is therefore written once that partition is
# made.


GLOBAL: Final = "GLOBAL"
BATCH_CHARACTERS: Final = 8 << 20
"""Of the keys and the progress of a batch, beside the one that goes beyond."""


@dataclass(slots=True)
class SharedState:
    """The state that suppliers of a type share; a supplier may change both fields."""

    map: dict[str, Any] = field(default_factory=dict)
    """Anything JSON."""
    finished: bool = False
    """Whether there will be no more new partitions: the supplier is not asked again."""


Supplier: TypeAlias = Callable[[SharedState], AsyncGenerator[NewPartition, None]]
"""An async generator. It is closed where it stands if the lease is lost."""


class Supply:
    """Runs the supplier of one type in one process; without one, partitions are made by hand."""

    def __init__(
        self,
        manager: LeaseManager,
        counters: CoordinationCounters,
        *,
        base: str,
        kind: str,
        supplier: Supplier | None,
    ) -> None:
        self._manager = manager
        self._counters = counters
        self._own = CoordinationCounters()  # the shared state is nobody's piece of work
        self._source = f"{base}|{GLOBAL}"
        self._target = f"{base}|{kind}"
        self._kind = kind
        self._supplier = supplier
        self._running = False
        self._finished = False
        self._not_before = {True: 0.0, False: 0.0}

    async def finished(self) -> bool:
        """Whether a supplier of any process said that no more partitions will come."""
        if not self._finished:
            found = await self._manager.store.get(self._source, self._kind)
            self._finished = _decoded(found)[0].finished
        return self._finished

    async def finish(self) -> None:
        """Declares that no more will be made by hand. Raises `Conflict` while a supplier runs."""
        if await self.finished():
            return
        held = await self._take()
        if held is None:
            raise Conflict("a supplier is at work", hint="It says itself when it is finished.")
        try:
            state, supplied_ms = _decoded(held.partition)
            state.finished = True
            await held.give_up(progress=_encoded(state, supplied_ms))
        except BaseException:
            await self._manager.hand_over(held)
            raise
        self._finished = True

    async def run(self, *, idle: bool) -> bool:
        """Runs the supplier if it is due, sooner for an `idle` worker; returns whether it ran.

        Raises what the supplier raises, and as `LeaseManager.acquire`.
        """
        now = self._manager.clock.monotonic()
        if self._supplier is None or self._running or self._finished:
            return False
        if now < self._not_before[idle]:
            return False
        self._running = True
        try:
            wait_ms = await self._wait_ms(idle=idle)
            if wait_ms <= 0:
                held = await self._take()
                wait_ms = round(self._manager.limits.supplier_pause_seconds * 1000)
            else:
                held = None
            if held is None:
                self._not_before[idle] = now + wait_ms / 1000
                return False
            return await self._supply_while(held, self._supplier)
        finally:
            self._running = False

    async def _wait_ms(self, *, idle: bool) -> int:
        """Milliseconds for which no process is to run the supplier yet."""
        limits = self._manager.limits
        found = await self._manager.store.get(self._source, self._kind)
        state, supplied_ms = _decoded(found)
        self._finished = state.finished
        passed_ms = self._manager.store.time.at_most_ms() - supplied_ms
        due_seconds = limits.supplier_pause_seconds if idle else limits.supplier_seconds
        due_ms = round(due_seconds * 1000)
        return due_ms if state.finished else due_ms - passed_ms

    async def _take(self) -> Lease | None:
        await self._manager.store.create(self._source, [NewPartition(self._kind)])
        held = await self._manager.acquire(self._source, 1, self._own, only=self._kind)
        return held[0] if held else None

    async def _supply_while(self, held: Lease, supplier: Supplier) -> bool:
        """Whether the supplier came to its end without losing the lease."""
        try:
            await self._supply(held, supplier)
        except LeaseLost:
            self._counters.supplies_lost += 1
            return False
        except BaseException:
            await self._manager.hand_over(held)
            raise
        return True

    async def _supply(self, held: Lease, supplier: Supplier) -> None:
        state, supplied_ms = _decoded(held.partition)
        self._counters.supplied += 1
        clock, limits = self._manager.clock, self._manager.limits
        batch: list[NewPartition] = []
        since, characters = clock.monotonic(), 0
        async with aclosing(supplier(state)) as new:
            async for one in new:
                batch.append(one)
                characters += len(one.key) + len(one.progress or "")
                late = clock.monotonic() - since >= limits.supplier_batch_seconds
                full = len(batch) >= limits.supplier_batch or characters >= BATCH_CHARACTERS
                if late or full:
                    await self._make(held, batch)
                    await held.save(_encoded(state, supplied_ms))
                    batch, since, characters = [], clock.monotonic(), 0
        await self._make(held, batch)
        await held.give_up(progress=_encoded(state, self._manager.store.time.at_most_ms()))
        self._finished = state.finished

    async def _make(self, held: Lease, batch: list[NewPartition]) -> None:
        if not held.valid():
            raise LeaseLost("another process may supply by now")
        made = await self._manager.store.create(self._target, batch)
        self._counters.created += len(made)


def _encoded(state: SharedState, supplied_ms: int) -> str:
    value = {"map": state.map, "finished": state.finished, "supplied_ms": supplied_ms}
    return encode_checked(value).decode()


def _decoded(found: Partition | None) -> tuple[SharedState, int]:
    if found is None or found.progress is None:
        return SharedState(), 0
    try:
        value = decode_checked(found.progress.encode())
        return SharedState(value["map"], value["finished"]), int(value["supplied_ms"])
    except (ValueError, TypeError, KeyError) as error:
        raise Damaged(f"the shared state of {found.source!r} is not one: {error}") from error


# The workers of a type, and the fair share of its partitions that each may hold.
#
# A process that acquires registers itself as the partition `{type}/{owner}` of the source
# `[prefix|]name|WORKERS`, a lease of `worker_seconds`. The progress of that partition is the number
# of partitions that the process holds and whether it wants more. Three times per lease the process
# writes this again and reads that of the others:
#
#   share       all partitions that are held or free, distributed evenly over the workers; a
#               worker that holds less and wants no more keeps its partitions. No worker acquires
#               beyond share + 1, nor beyond the share while a worker that wants more holds less
#               than its share: of two partitions two workers get one each
#   too much    partitions above that are asked back while others want more
#   too long    a partition held longer than `rotate_seconds` is asked back while others wait
#
# Shares follow from the last look at the others. They become even within some beats and are not
# exact at any moment. Wrong shares lose nothing, since only leases say who owns a partition.


WORKERS: Final = "WORKERS"
_LOOK_AGAIN_SECONDS: Final = 1.0


def fair_level(total: int, demands: Sequence[float]) -> float:
    """The level to which `total` fills workers evenly, none beyond its demand.

    This is max-min fairness: the smallest demands are met first (Bertsekas and Gallager, Data
    Networks, 6.5.2).
    """
    left = float(total)
    for filled, demand in enumerate(sorted(demands)):
        level = left / (len(demands) - filled)
        if demand >= level:
            return level
        left -= demand
    return float(total)


def fair_share(total: int, demands: Sequence[float]) -> int:
    """The level of `fair_level`, rounded up."""
    return math.ceil(fair_level(total, demands))


@dataclass(frozen=True, slots=True)
class FairShares:
    """The fair shares of one type, as this worker computed them at its last look at the others."""

    share: int
    """Partitions that each worker may hold, rounded up."""
    busy_share: int
    """The same without CLOSED partitions."""
    sure: int
    """Partitions that every worker that wants more can have: the share rounded down."""
    least: float
    """Partitions that the poorest other worker that wants more holds; infinite without one."""
    free: int
    """Partitions that nobody holds."""
    workers: int
    """Workers that are registered, with this one."""
    seen: float
    """The monotonic second of the look."""

    def may_hold(self, share: int) -> int:
        """How many partitions one worker may hold of a share without keeping others from theirs."""
        return share if self.least < share else share + 1


@dataclass(frozen=True, slots=True)
class _Published:
    """The state that another worker published about itself."""

    held: int
    wants: bool

    @property
    def demand(self) -> float:
        """How many partitions that worker may take."""
        return math.inf if self.wants else self.held


class Workers:
    """The workers of one type, seen from one of them."""

    def __init__(
        self,
        manager: LeaseManager,
        counters: CoordinationCounters,
        *,
        base: str,
        kind: str,
        rotate: bool,
    ) -> None:
        self._manager = manager
        self._counters = counters
        self._own = CoordinationCounters()
        self._source = f"{base}|{WORKERS}"
        self._target = f"{base}|{kind}"
        self._prefix = f"{kind}/"
        self._rotate = rotate
        self._me: Lease | None = None
        self._view: FairShares | None = None
        self._stale = False
        self._asked = -math.inf

    async def allowance(self, count: int) -> int:
        """How many of `count` may be acquired now. Raises as the store."""
        now = self._manager.clock.monotonic()
        self._asked = now
        left = self._left()
        stale = self._view is None or now - self._view.seen >= _LOOK_AGAIN_SECONDS
        if left < count and (stale or self._stale):
            await self._see()
            left = self._left()
        if left <= 0:
            self._counters.held_back += 1
        return max(min(count, left), 0)

    def look_again(self) -> None:
        """Discards what was seen, since it is out of date."""
        self._stale = True

    @property
    def owed(self) -> bool:
        """Whether active workers hold partitions that will be asked back for this process."""
        view = self._view
        return view is not None and view.workers > 1 and self._held() < view.sure

    async def beat(self) -> None:
        """Registers this worker, reads the others, and asks partitions back.

        Raises as the store.
        """
        if self._view is None:
            return  # nobody has asked for work yet
        await self._see()
        assert self._view is not None
        for held in self._too_much(self._view):
            if not held.asked_back.is_set():
                held.asked_back.set()
                self._counters.asked_back += 1
            if self._rotate:
                await self._manager.hand_over(held)

    async def leave(self) -> None:
        """Removes the registration of this worker. Raises as the store."""
        if self._asked == -math.inf:
            return  # it never was one
        found = await self._manager.store.get(self._source, self._prefix + self._manager.owner)
        if found is not None:
            await self._forget(found)

    # --- shares --------------------------------------------------------------------

    def _held(self) -> int:
        return len(self._manager.of(self._target))

    def _left(self) -> int:
        view = self._view
        return 0 if view is None else view.may_hold(view.share) - self._held()

    def _too_much(self, view: FairShares) -> list[Lease]:
        held = self._manager.of(self._target)
        too_much = len(held) - view.may_hold(view.busy_share)
        long_ago = self._manager.clock.monotonic() - self._manager.limits.rotate_seconds
        too_long = len([one for one in held if one.since <= long_ago])
        waiting = math.ceil(view.free / view.workers)
        return held[: max(too_much, min(too_long, waiting), 0)]

    async def _see(self) -> None:
        await self._say()
        counts = await self._manager.store.counts(self._target)
        free, closed = counts.get(Status.UNASSIGNED, 0), counts.get(Status.CLOSED, 0)
        busy = counts.get(Status.ASSIGNED, 0) + free
        others = await self._others()
        demands = [math.inf, *[other.demand for other in others]]
        self._stale = False
        self._view = FairShares(
            share=fair_share(busy + closed, demands),
            busy_share=fair_share(busy, demands),
            sure=math.floor(fair_level(busy + closed, demands)),
            least=min([other.held for other in others if other.wants], default=math.inf),
            free=free,
            workers=len(demands),
            seen=self._manager.clock.monotonic(),
        )

    def _wants(self) -> bool:
        beat = self._manager.limits.worker_seconds / 3
        return self._manager.clock.monotonic() - self._asked <= 2 * beat

    # --- the register --------------------------------------------------------------

    async def _say(self) -> None:
        said = encode_checked({"held": self._held(), "wants": self._wants()}).decode()
        try:
            if self._me is None or not self._me.valid():
                self._me = await self._registered()
            await self._me.save(said)
        except (LeaseLost, NotFound):
            self._me = None  # forgotten by an operator, or silent for too long: again with the next

    async def _registered(self) -> Lease:
        key = self._prefix + self._manager.owner
        await self._manager.store.create(self._source, [NewPartition(key)])
        lease_ms = round(self._manager.limits.worker_seconds * 1000)
        held = await self._manager.acquire(self._source, 1, self._own, only=key, lease_ms=lease_ms)
        if not held:
            raise LeaseLost(f"{key!r} is not free yet")
        return held[0]

    async def _others(self) -> list[_Published]:
        """The states of the other workers; registrations that ended are removed."""
        others: list[_Published] = []
        after: str | None = self._prefix
        while after is not None:
            page = await self._manager.store.page(self._source, after=after)
            for one in page.partitions:
                if not one.key.startswith(self._prefix):
                    return others
                if self._is_gone(one):
                    await self._forget(one)
                elif one.owner not in (None, self._manager.owner):
                    others.append(_said(one))
            after = page.after
        return others

    def _is_gone(self, one: Partition) -> bool:
        now_ms = self._manager.store.time.at_least_ms()
        silent_ms = round(self._manager.limits.worker_seconds * 1000)
        let_go = one.owner is None and now_ms - one.available_ms > silent_ms
        return let_go or expired(one, now_ms) or self._manager.succeeds(one)

    async def _forget(self, gone: Partition) -> None:
        try:
            await self._manager.store.delete(gone)
        except (NotFound, PreconditionFailed):
            return  # it is back, or another forgot it


def _said(worker: Partition) -> _Published:
    if worker.progress is None:
        return _Published(0, wants=True)
    try:
        value = decode_checked(worker.progress.encode())
        return _Published(int(value["held"]), wants=bool(value["wants"]))
    except (ValueError, TypeError, KeyError) as error:
        raise Damaged(f"{worker.key!r} is not a worker: {error}") from error


# All the work of one type of partitions, as one process sees it.
#
#   files = coordinator.work("file", supplier=listing)
#   for held in await files.acquire(10):
#       async for line in lines_of(held.key, start=held.progress):
#           if not held.valid(): break
#           …
#       await held.complete()
#
# Partitions come in the order of `tailrace.coordination.partitions.chosen`. If no partition can be
# acquired, the supplier makes more. The store, and the fair share of each coordinator
# (`FairShares`), decide which of several coordinators gets which partition.


_TRIES = 8


class WorkQueue:
    """Acquires partitions of a type, and changes partitions that this process does not hold.

    All methods raise `StoreUnavailable`, `OutcomeUnknown`, `Damaged`; none reports such an
    error as "no work". `Coordinator.work` makes a work queue.
    """

    def __init__(
        self,
        manager: LeaseManager,
        *,
        base: str,
        kind: str,
        supplier: Supplier | None,
        random: bool,
        balance: bool,
        rotate: bool,
    ) -> None:
        self.source = f"{base}|{kind}"
        self.counters = CoordinationCounters()
        self.supply = Supply(manager, self.counters, base=base, kind=kind, supplier=supplier)
        self.workers = (
            Workers(manager, self.counters, base=base, kind=kind, rotate=rotate)
            if balance
            else None
        )
        self._manager = manager
        self._store = manager.store
        self._random = random
        self._turn = asyncio.Lock()

    async def acquire(self, count: int = 1) -> list[Lease]:
        """Acquires up to `count` partitions, or fewer if no more are free or others need them.

        Runs the supplier if nothing is free, and otherwise at intervals; raises its errors.
        """
        await self.supply.run(idle=False)
        held = await self._acquire(count)
        if not held and await self.supply.run(idle=True):
            if self.workers is not None:
                self.workers.look_again()  # there is more to share now
            held = await self._acquire(count)
        self.counters.none_acquired += not held
        return held

    async def acquire_key(self, key: str) -> Lease | None:
        """Acquires the partition of that key, out of order; None if it is not free."""
        held = await self._take(1, only=key)
        return held[0] if held else None

    def held(self) -> list[Lease]:
        """The leases of this process, the one held longest first."""
        return self._manager.of(self.source)

    def oldest_seconds(self) -> float:
        """Seconds for which the oldest lease is held; 0 without leases."""
        held = self.held()
        return self._manager.clock.monotonic() - held[0].since if held else 0.0

    def lag_seconds(self) -> float:
        """Seconds since the held partition that was due first became due; 0 without leases."""
        due_ms = min([held.partition.available_ms for held in self.held()], default=None)
        return 0.0 if due_ms is None else max(self._store.time.at_least_ms() - due_ms, 0) / 1000

    async def finished(self) -> bool:
        """Whether all partitions are COMPLETED or FAILED, and no more will come."""
        if not await self.supply.finished():
            return False
        counts = await self._store.counts(self.source)
        left = {status for status, count in counts.items() if count}
        return left <= {Status.COMPLETED, Status.FAILED}

    async def wait_finished(self) -> None:
        """Returns once `finished`. Another task has to do the work meanwhile."""
        while not await self.finished():
            seconds = self._manager.limits.poll_seconds * self._manager.jitter()
            await self._manager.clock.sleep(seconds)

    # --- by key --------------------------------------------------------------------

    async def create(self, new: Sequence[NewPartition]) -> list[str]:
        """Makes those partitions that do not exist; returns their keys.

        Raises `InvalidInput`, `TooLarge`.
        """
        made = await self._store.create(self.source, new)
        self.counters.created += len(made)
        return made

    async def get(self, key: str) -> Partition | None:
        """Returns the partition of that key as it is stored."""
        return await self._store.get(self.source, key)

    async def page(
        self, *, status: Status | None = None, after: str | None = None, limit: int = 1000
    ) -> PartitionPage:
        """Returns partitions of a status, or all, in the order of their keys after `after`."""
        return await self._store.page(self.source, status=status, after=after, limit=limit)

    async def reopen(self, key: str) -> Partition:
        """Frees a partition that was closed, COMPLETED or FAILED; its progress stays.

        Raises `NotFound`, and `Conflict` if it is held or free.
        """
        return await self._changed(key, _reopened)

    async def reset(self, key: str, *, forget: bool = False) -> Partition:
        """Frees a partition at once, whatever its status; `forget` drops its progress.

        A worker that holds the partition loses it. Raises `NotFound`.
        """
        return await self._changed(key, lambda one, now: reset(one, now, forget=forget))

    async def fail(self, key: str, reason: str) -> Partition:
        """Makes a partition FAILED until it is reset or reopened. Raises `NotFound`."""
        return await self._changed(key, lambda one, now: ruled_out(one, reason, now))

    async def delete(self, key: str) -> None:
        """Removes a partition, even if somebody holds it. Raises `NotFound`."""
        for _ in range(_TRIES):
            try:
                await self._store.delete(await self._found(key))
            except PreconditionFailed:
                continue
            self.counters.deleted += 1
            return
        raise Conflict(f"{key!r} of {self.source!r} changes all the time")

    async def purge(self, older_seconds: float) -> int:
        """Removes partitions that were COMPLETED that long ago; returns how many."""
        before_ms = self._store.time.at_least_ms() - round(older_seconds * 1000)
        return await self._store.purge(self.source, before_ms)

    # -------------------------------------------------------------------------------

    async def _acquire(self, count: int) -> list[Lease]:
        async with self._turn:
            allowed = count if self.workers is None else await self.workers.allowance(count)
            return await self._take(allowed) if allowed > 0 else []

    async def _take(self, count: int, only: str | None = None) -> list[Lease]:
        return await self._manager.acquire(
            self.source,
            count,
            self.counters,
            only=only,
            random=self._random,
            max_attempts=self._manager.limits.max_attempts,
        )

    async def _found(self, key: str) -> Partition:
        found = await self._store.get(self.source, key)
        if found is None:
            raise self._nothing(key)
        return found

    async def _changed(self, key: str, wanted: Callable[[Partition, int], Partition]) -> Partition:
        now_ms = self._store.time.at_most_ms
        changed = await update(self._store, self.source, key, lambda one: wanted(one, now_ms()))
        if changed is None:
            raise self._nothing(key)
        return changed

    def _nothing(self, key: str) -> NotFound:
        return NotFound(f"there is no partition {key!r} of {self.source!r}")


def _reopened(one: Partition, now_ms: int) -> Partition:
    if one.status in (Status.UNASSIGNED, Status.ASSIGNED):
        raise Conflict(f"{one.key!r} is {one.status}", hint="Reset it to take it from its owner.")
    return reopened(one, now_ms)


class Measure(NamedTuple):
    """A gauge: its name, its help text, and how it is read from a work queue."""

    name: str
    help: str
    of: Callable[[WorkQueue], float]


def _attempts(work: WorkQueue) -> float:
    return max([held.partition.attempts for held in work.held()], default=0)


HELD: Final = Measure("leases_held", "Leases that this process holds.", lambda w: len(w.held()))
OLDEST: Final = Measure(
    "lease_oldest_seconds",
    "For how long the oldest of them is held.",
    lambda work: work.oldest_seconds(),
)
ATTEMPTS: Final = Measure(
    "lease_attempts",
    "Acquisitions without progress of the partition held that has most.",
    _attempts,
)
LAG: Final = Measure(
    "lease_lag_seconds",
    "For how long the work of the held partition that was due first is due.",
    lambda work: work.lag_seconds(),
)
MEASURES: Final = (HELD, OLDEST, ATTEMPTS, LAG)


# The coordinator of a process: programs share work through it.
#
#   coordinator = Coordinator(store, clock, entropy, name="pipeline", identity=hostname)
#   await store.start()
#   async with asyncio.TaskGroup() as group:
#       group.create_task(coordinator.run())
#       …acquire and work…
#       await coordinator.stop()
#
#   Coordinator ──► WorkQueue (one type) ──► Lease (one partition)
#       │             ├── Supply       new partitions, the state that suppliers share
#       │             └── Workers      the fair share of each process
#       └── LeaseManager               all leases that are held, renewed by one heartbeat
#
# A source is `[prefix|]name|type`. The types `GLOBAL` and `WORKERS` are the coordinator's own.


class Coordinator:
    """The partitions of one process; `identity` is its host's name or a configured, unique one.

    With `configured`, leases of earlier processes of that identity are taken at once, because
    those processes have ended. If two processes have one identity by mistake, they do not take
    leases from each other in turns: the later process wins.
    """

    def __init__(
        self,
        store: PartitionStore,
        clock: Clock,
        entropy: Entropy,
        *,
        name: str,
        identity: str,
        configured: bool = False,
        prefix: str | None = None,
        limits: CoordinatorLimits | None = None,
    ) -> None:
        self._base = name if prefix is None else f"{prefix}|{name}"
        self._clock = clock
        self._limits = limits or CoordinatorLimits()
        self._work: dict[str, WorkQueue] = {}
        self._manager = LeaseManager(
            store, clock, entropy, self._limits, identity=identity, restarted=configured
        )

    @property
    def owner(self) -> str:
        """`identity/ULID of this process`."""
        return self._manager.owner

    @property
    def last_error(self) -> str | None:
        """The last error of heartbeat, balancing or hand-over, such as an unavailable store."""
        return self._manager.last_error

    @property
    def counters(self) -> Mapping[str, CoordinationCounters]:
        """The counters of this process by source."""
        return {work.source: work.counters for work in self._work.values()}

    def work(
        self,
        kind: str,
        *,
        supplier: Supplier | None = None,
        random: bool = True,
        balance: bool = True,
        rotate: bool = False,
    ) -> WorkQueue:
        """Returns the work queue of type `kind`; call it once for each type.

        With `random`, workers begin in different places; without, all follow the source's order.
        `balance` keeps each worker to its fair share. With `rotate` the coordinator itself takes
        the partitions that others are entitled to from its workers; without it, the coordinator
        only asks for them (`Lease.asked_back`).
        """
        if kind in self._work:
            raise InvalidInput(f"there is work of type {kind!r} already", field="type")
        if not kind or kind in (GLOBAL, WORKERS) or "|" in kind or "/" in kind:
            raise InvalidInput(f"{kind!r} cannot be a type", field="type")
        self._work[kind] = WorkQueue(
            self._manager,
            base=self._base,
            kind=kind,
            supplier=supplier,
            random=random,
            balance=balance,
            rotate=rotate,
        )
        return self._work[kind]

    async def run(self) -> None:
        """Renews the leases of this process and balances them, until `stop` is called."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._manager.run())
            group.create_task(self._balance())

    async def stop(self) -> None:
        """Stops acquiring and hands over all leases, with progress and without counting an attempt.

        Raises nothing: a lease whose hand-over does not reach the store expires.
        """
        await self._manager.stop()
        for work in self._work.values():
            await self._leave(work)

    async def _balance(self) -> None:
        beat = self._limits.worker_seconds / 3
        while not self._manager.stopping:
            await self._manager.pause(beat * min(self._manager.jitter(), 1.0))
            for work in list(self._work.values()):
                await self._beat(work)

    async def _beat(self, work: WorkQueue) -> None:
        if work.workers is None or self._manager.stopping:
            return
        try:
            await work.workers.beat()
        except TailraceError as error:
            self._manager.last_error = f"{work.source}: {error}"

    async def _leave(self, work: WorkQueue) -> None:
        if work.workers is None:
            return
        try:
            await work.workers.leave()
        except TailraceError as error:
            self._manager.last_error = f"{work.source}: {error}"
