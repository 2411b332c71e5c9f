"""The workers of a type, and the fair share of its partitions that each may hold.

A process that acquires registers itself as the partition `{type}/{owner}` of the source
`[prefix|]name|WORKERS`, a lease of `worker_seconds`. The progress of that partition is what the
process holds and whether it wants more. Three times per lease the process writes this again and
reads that of the others:

    share       all partitions that are held or free, distributed evenly over the workers; a
                worker that holds less and wants no more keeps what it has. No worker acquires
                beyond share + 1, nor beyond the share while a worker that wants more holds less
                than its share: of two partitions two workers get one each
    too much    partitions above that are asked back while others want more
    too long    a partition held longer than `rotate_seconds` is asked back while others wait

Shares follow from what was last seen. They become even within some beats and are not exact at
any moment. Wrong shares lose nothing, since only leases say who owns a partition.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from coordination.coordinator.lease import Lease
from coordination.coordinator.lease_manager import LeaseManager
from coordination.counters import CoordinationCounters
from coordination.partitions.partition import NewPartition, Partition, Status
from coordination.partitions.transitions import expired
from logstore.checked import decode_checked, encode_checked
from logstore.errors import Damaged, LeaseLost, NotFound, PreconditionFailed

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
        raise Damaged(f"{worker.key!r} is no worker: {error}") from error
