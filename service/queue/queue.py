"""The segment queue of a node: the operations of its HTTP routes.

Several nodes may serve one group: the group's state is in its object in the store. A node
caches listings, footers, and the version of a group that it wrote last.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from coordination.groups import Group, Start, State, read_group, read_groups
from coordination.storetime import StoreTime
from logstore import keys
from logstore import ulid as ulids
from logstore.clock import Clock, Entropy
from logstore.errors import (
    InvalidInput,
    LeaseLost,
    NodeNotReady,
    NotFound,
    OutcomeUnknown,
    OverQuota,
    TailraceError,
    Unavailable,
    with_hint,
)
from logstore.names import check_name
from logstore.objects.store import ObjectStore
from service.queue import transitions
from service.queue.catalog import Catalog, Leased, Name, Segment
from service.queue.counters import QueueCounters, lag_of
from service.queue.notifier import Notifier
from service.queue.quota import NewGroups, unused
from service.queue.settings import QueueSettings
from service.queue.transitions import Moment
from service.queue.writer import Change, ConsumerGroupWriter, Shared
from service.runtime.problem import Problem

T = TypeVar("T")
_NAME_BYTES = 100


@dataclass(frozen=True, slots=True)
class Given:
    """A lease, and what is known of its segment."""

    lease: Leased
    segment: Segment


class SegmentQueue:
    """The segment queue of a node.

    `woken` waits for the next segment that this node confirms.
    """

    def __init__(
        self,
        store: ObjectStore,
        clock: Clock,
        entropy: Entropy,
        time: StoreTime,
        settings: QueueSettings,
        *,
        woken: Callable[[], Awaitable[None]],
        counters: QueueCounters | None = None,
    ) -> None:
        self.settings = settings
        self.counters = counters or QueueCounters()
        self.catalog = Catalog(store, clock)
        self.last_error: str | None = None
        self._store = store
        self._clock = clock
        self._woken = woken
        self._notifier = Notifier(clock, settings.poll_seconds)
        self._writers: dict[str, ConsumerGroupWriter] = {}
        self._asked: dict[str, float] = {}
        self.unreadable: dict[str, str] = {}
        """Why a group could not be read when all were read last, by its key."""
        self._new_groups = NewGroups(clock, settings.new_groups_per_hour)
        self._looked = -math.inf
        self._stopping = False
        self._leaving: set[asyncio.Task[None]] = set()
        self._shared = Shared(
            store,
            clock,
            entropy,
            time,
            self.catalog,
            self.counters,
            lambda: ulids.fresh_text(clock, entropy),
        )

    def now_ms(self) -> int:
        """The node's clock."""
        return self._clock.now_ms()

    # --- consumers -----------------------------------------------------------------

    async def next(
        self, name: str, *, wait_seconds: float, lease_seconds: float, start: Start, peer: str = ""
    ) -> Given | None:
        """Leases the oldest free segment; returns None if there was none in time.

        Makes the group if it does not exist; `peer` is the address of the client. Raises
        `GroupEvicted`, `OverQuota`, `InvalidName`, `StoreUnavailable`, `OutcomeUnknown`, `Damaged`.
        """
        _check_group(name)
        if self._stopping:
            raise NodeNotReady("the node is stopping", hint="Ask another node, or later.")
        await self._bounded(name, peer)
        claim = self._shared.fresh_id()
        try:
            return await self._next(name, claim, wait_seconds, lease_seconds, start)
        except (asyncio.CancelledError, OutcomeUnknown):
            self._leave(name, claim)  # it may have been leased for one who has gone
            raise

    async def _next(
        self, name: str, claim: str, wait: float, lease_seconds: float, start: Start
    ) -> Given | None:
        end = self._clock.monotonic() + wait
        lease_ms = round(lease_seconds * 1000)

        def take(
            group: Group, upcoming: Sequence[Segment], moment: Moment
        ) -> tuple[Group, tuple[Leased | None, int]]:
            after, found = transitions.lease(
                group, upcoming, claim, lease_ms, moment, self.settings
            )
            return after, (found, transitions.expired_between(group, after, moment))

        while True:
            self._asked[name] = self._clock.monotonic()
            await self.catalog.within(self.settings.poll_seconds / 2)
            leased, expired = await self._writer(name).change(take, wants=True, start=start)
            self.counters.failed_segments += expired
            if leased is not None:
                return await self._given(name, claim, leased)
            left = end - self._clock.monotonic()
            if left <= 0 or self._stopping:
                return None
            await self._wait(left)

    async def _given(self, name: str, claim: str, leased: Leased) -> Given:
        try:
            found = await self.catalog.segment(leased.name)
            if found is None:  # handed out before, and not readable here since
                info = await self._store.head(leased.name.key)
                found = Segment(leased.name, info.size, info.etag, info.modified_ms)
        except Unavailable:
            self._leave(name, claim)
            raise
        return Given(leased, found)

    async def _wait(self, seconds: float) -> None:
        if self._notifier.waiting >= self.settings.max_waiting:
            raise Unavailable(
                f"{self._notifier.waiting} consumers wait at this node already",
                hint="Ask another node, or without `wait`.",
            )
        self.counters.waiting += 1
        try:
            await self._notifier.wait(seconds)
        finally:
            self.counters.waiting -= 1

    def _leave(self, name: str, claim: str) -> None:
        def give_back(group: Group, _: Sequence[Segment], __: Moment) -> tuple[Group, None]:
            return transitions.given_back(group, claim)

        async def work() -> None:
            try:
                await self._writer(name).change(give_back)
            except TailraceError as error:
                what = "a lease that nobody has runs out by itself"
                self.last_error = Problem(what, f"{what}: {with_hint(error)}")
            self._notifier.notify()

        task = asyncio.ensure_future(work())
        self._leaving.add(task)
        task.add_done_callback(self._leaving.discard)

    async def commit(self, name: str, segment: Name, epoch: int) -> None:
        """Commits a segment for good; a repeated commit has the same result.

        Raises `LeaseLost`, `GroupEvicted`, `NotFound`, and as `next`.
        """

        def work(group: Group, _: Sequence[Segment], moment: Moment) -> tuple[Group, int | None]:
            after, _none = transitions.commit(group, segment, epoch, moment)
            known = after is group
            return after, None if known else after.committed_bytes - group.committed_bytes

        size = await self._held(name, segment, work)
        if size is not None:
            self.counters.committed_segments += 1
            self.counters.committed_bytes += size

    async def fail(self, name: str, segment: Name, epoch: int, reason: str) -> None:
        """Gives a segment back, for another consumer after a back-off. Raises as `commit`."""

        def work(group: Group, _: Sequence[Segment], moment: Moment) -> tuple[Group, bool]:
            after, _none = transitions.fail(group, segment, epoch, reason, moment, self.settings)
            return after, after is not group

        self.counters.failed_segments += await self._held(name, segment, work)

    async def renew(self, name: str, segment: Name, epoch: int, lease_seconds: float) -> Leased:
        """Renews the lease for `lease_seconds` from now. Raises as `commit`."""
        lease_ms = round(lease_seconds * 1000)

        def work(group: Group, _: Sequence[Segment], moment: Moment) -> tuple[Group, Leased]:
            return transitions.renew(group, segment, epoch, lease_ms, moment)

        return await self._held(name, segment, work)

    async def _held(self, name: str, segment: Name, change: Change[T]) -> T:
        _check_group(name)
        try:
            return await self._writer(name).change(change)
        except LeaseLost:
            self.counters.lost += 1
            raise
        except NotFound as error:
            # Never given since a reset, or never there: only the second names nothing.
            if await read_group(self._store, name) is None:
                self._writers.pop(name, None)  # or names that nobody has would fill the memory
                raise
            if not await self._exists(segment):
                raise
            self.counters.lost += 1
            raise LeaseLost(str(error)) from error

    async def _exists(self, segment: Name) -> bool:
        try:
            await self._store.head(segment.key)
        except NotFound:
            return False
        return True

    # --- groups --------------------------------------------------------------------

    async def group(self, name: str) -> Group:
        """Returns the group. Raises `NotFound`, `StoreUnavailable`, `Damaged`."""
        _check_group(name)
        group = await read_group(self._store, name)
        if group is None:
            raise NotFound(f"no consumer group {name!r}", hint="See GET /segments.")
        return group

    async def groups(self) -> list[Group]:
        """Returns all groups that can be read. Raises `StoreUnavailable`."""
        found, self.unreadable = await read_groups(self._store)
        return found

    async def reset(self, name: str, start: Start) -> Group:
        """Restarts the group at the oldest segment that is kept, or now; its leases are lost.

        Raises as `group`.
        """
        _check_group(name)

        def again(group: Group, _: Sequence[Segment], moment: Moment) -> tuple[Group, None]:
            return transitions.reset(group, start, moment), None

        def seen(group: Group, _: Sequence[Segment], __: Moment) -> tuple[Group, Group]:
            return group, group

        await self._writer(name).change(again)
        found = await self._writer(name).change(seen)
        self._notifier.notify()
        return found

    async def retry(self, name: str, segments: Sequence[Name] | None) -> list[Name]:
        """Frees failed segments (all, or these) again. Raises as `group`, `GroupEvicted`."""
        _check_group(name)

        def work(group: Group, _: Sequence[Segment], __: Moment) -> tuple[Group, list[Name]]:
            return transitions.retry(group, segments)

        chosen = await self._writer(name).change(work)
        self._notifier.notify()
        return chosen

    async def forget(self, name: str) -> None:
        """Removes the group, which then holds back no segment. Raises as `group`."""
        await self.group(name)
        await self._store.delete([keys.group(name)])
        self._writers.pop(name, None)
        await self.report()

    async def _bounded(self, name: str, peer: str) -> None:
        """Raises `OverQuota` if another group would exceed the limit."""
        if name in self._writers or await read_group(self._store, name) is not None:
            return
        count = 0
        async for _ in self._store.list(keys.GROUPS):
            count += 1
        if count >= self.settings.max_groups and not await self._free_one():
            raise OverQuota(
                f"there are {count} consumer groups, and all of them are used",
                retry_after_seconds=math.ceil(self.settings.unused_group_seconds),
                hint="DELETE /segments/groups/{group} forgets one that is not needed; an operator "
                "can raise queue.max_groups.",
            )
        self._new_groups.take(peer)

    async def _free_one(self) -> bool:
        """Removes an unused group. It reads all groups, which is not done at every request."""
        now, seconds = self._clock.monotonic(), self.settings.unused_group_seconds
        if now - self._looked < self.settings.poll_seconds:
            return False
        self._asked = {name: at for name, at in self._asked.items() if at > now - seconds}
        before = self._clock.now_ms() - round(seconds * 1000)
        found = unused(await self.groups(), self._asked, before)
        if found is None:
            self._looked = now
            return False
        await self._store.delete([keys.group(found.name)])
        self._writers.pop(found.name, None)
        return True

    def _writer(self, name: str) -> ConsumerGroupWriter:
        writer = self._writers.get(name)
        if writer is None:
            writer = self._writers[name] = ConsumerGroupWriter(name, self._shared)
        return writer

    # --- in the background ---------------------------------------------------------

    async def run(self) -> None:
        """Wakes waiting consumers, and reads all groups from time to time, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._wake())
            tasks.create_task(self._report_forever())

    def problems(self) -> list[str]:
        """Problems that keep consumers from their segments, as sentences."""
        found = [] if self.last_error is None else [self.last_error]
        found += [
            Problem(key, f"its consumers wait: {why}") for key, why in self.unreadable.items()
        ]
        waiting = self.catalog.waiting.items()
        return found + [Problem(f"{node} waits", f"consumers wait: {why}") for node, why in waiting]

    def stop(self) -> None:
        """Ends all waiting requests without a segment."""
        self._stopping = True
        self._notifier.notify()

    async def _wake(self) -> None:
        while True:
            await self._woken()
            self.catalog.expire()
            self._notifier.notify()

    async def _report_forever(self) -> None:
        while True:
            try:
                await self.report()
                self.last_error = None
            except TailraceError as error:
                self.counters.report_failures += 1
                what = "consumer groups cannot be looked at"
                self.last_error = Problem(what, f"{what}: {with_hint(error)}")
            await self._clock.sleep(self.settings.report_seconds)

    async def report(self) -> list[Group]:
        """Reads all groups for the metrics, and returns them. Raises as `groups`."""
        found = await self.groups()
        if found:
            await self.catalog.within(self.settings.poll_seconds / 2)
        now = self._clock.now_ms()
        counters = self.counters
        counters.lags = {group.name: lag_of(group, self.catalog, now) for group in found}
        counters.evicted = sum(group.state is State.EVICTED for group in found)
        counters.evictions = {group.name: group.evictions for group in found}
        counters.dropped = {group.name: group.dropped for group in found}
        return found


def _check_group(name: str) -> None:
    check_name(name, "group")
    if len(name.encode()) > _NAME_BYTES:
        raise InvalidInput(f"group has more than {_NAME_BYTES} bytes", field="group")
