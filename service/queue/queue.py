"""The segment queue of a node: the operations of consumer groups over HTTP.

Several nodes may serve one group: the group's state is in its object in the store. A node caches
listings, footers, and the version of a group that it wrote last.

**Notifications.** One `Notifier` wakes all waiting consumers, so that a thousand of them ask the
store once: at an interval while a consumer waits, and at once when new segments are known.

**Writes.** `ConsumerGroupWriter` turns all waiting changes of a group by this node into one write.
The last written version is kept and changed without being read again. If another writer was faster,
or a change is refused, or nothing would change, the group is read first. An outdated version thus
never causes a refusal. After a lost answer the version in the store shows whether the write was
ours; changes recognise their own effect.

**Limits.** `NewGroups` limits the number of groups that one client may make. Without users a client
is its address; for IPv6 it is the network of 64 bits that one host has for itself. All clients of
one proxy count as one. Consumers make their group once; the count is lost with the process. At the
limit of groups an `unused` one is replaced: one that has committed nothing, and that was neither
written nor requested at this node for a long time. Nothing is lost by that: a consumer that returns
makes its group again, from the oldest segment or from now as before.

**Counters.** `QueueCounters` has this node's work and the lag of each group; `service.metrics.http`
reads them at a scrape.
"""

from __future__ import annotations

import asyncio
import ipaddress
import math
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeAlias, TypeVar

from service.queue import transitions
from service.queue.catalog import Leased, ListedSegments, Segment, SegmentName
from service.queue.transitions import TimeInterval, begun, fresh
from service.runtime.health import HealthProblem
from service.runtime.store_deadline import StoreAnswers
from service.settings import QueueSettings
from tailrace.coordination.groups import (
    ConsumerGroup,
    GroupStart,
    State,
    evict,
    group_document,
    read_group,
    read_groups,
)
from tailrace.coordination.lease import StoreTime
from tailrace.logstore import keys
from tailrace.logstore import ulid as ulids
from tailrace.logstore.cache import BoundedCache
from tailrace.logstore.cas import Change as Swap
from tailrace.logstore.cas import RetryBudget, Revision, swap
from tailrace.logstore.clock import Clock, Entropy
from tailrace.logstore.errors import (
    InvalidInput,
    LeaseLost,
    NodeNotReady,
    NotFound,
    OutcomeUnknown,
    OverQuota,
    StoreUnavailable,
    TailraceError,
    Unavailable,
)
from tailrace.logstore.keys import check_name
from tailrace.logstore.objects.store import ObjectStore


class Notifier:
    """The notifier of one node, which wakes consumers that wait for segments."""

    def __init__(self, clock: Clock, seconds: float) -> None:
        self._clock = clock
        self._seconds = seconds
        self._next: asyncio.Future[None] | None = None
        self._timer: asyncio.Task[None] | None = None
        self.waiting = 0

    async def wait(self, seconds: float) -> None:
        """Waits for the next notification, or for `seconds`."""
        if self._next is None:
            self._next = asyncio.get_running_loop().create_future()
            self._timer = asyncio.ensure_future(self._time(self._next))
        self.waiting += 1
        try:
            await asyncio.wait({self._next}, timeout=seconds)
        finally:
            self.waiting -= 1

    def notify(self) -> None:
        """Wakes all waiting consumers."""
        waiting, self._next = self._next, None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if waiting is not None:
            waiting.set_result(None)

    async def _time(self, current: asyncio.Future[None]) -> None:
        await self._clock.sleep(self._seconds)
        self._timer = None
        if self._next is current:
            self.notify()


_HOUR_SECONDS: Final = 3600.0
_PEERS: Final = 4096
_NETWORK_BITS: Final = 64


class NewGroups:
    """Counts the groups that each peer made within an hour."""

    def __init__(self, clock: Clock, per_hour: int) -> None:
        self._clock = clock
        self._per_hour = per_hour
        self._made: BoundedCache[str, deque[float]] = BoundedCache(_PEERS)

    def take(self, peer: str) -> None:
        """Counts a new group of this peer. Raises `OverQuota` if the peer made too many."""
        now = self._clock.monotonic()
        made = self._made.get(_network(peer))
        if made is None:
            made = deque()
            self._made.put(_network(peer), made)
        while made and made[0] <= now - _HOUR_SECONDS:
            made.popleft()
        if len(made) >= self._per_hour:
            raise OverQuota(
                f"{len(made)} consumer groups were made from this address within an hour",
                retry_after_seconds=math.ceil(made[0] + _HOUR_SECONDS - now),
                hint="Reuse a group: its name identifies its position. An operator can raise "
                "queue.new_groups_per_hour.",
            )
        made.append(now)


def unused(
    groups: Iterable[ConsumerGroup], asked: Iterable[str], before_ms: int
) -> ConsumerGroup | None:
    """The first group to replace: not in `asked`, and not written since `before_ms`."""
    known = set(asked)
    found = [
        (written, group)
        for group in groups
        if not group.committed_segments and group.name not in known
        for written in [_written_ms(group)]
        if written < before_ms and not _leased(group, before_ms)
    ]
    return min(found, key=lambda one: (one[0], one[1].name))[1] if found else None


def _written_ms(group: ConsumerGroup) -> int:
    """The time of the last write in ms, from the ULID that is the version."""
    return ulids.time_ms(ulids.decode(group.version)) if group.version else group.created_ms


def _leased(group: ConsumerGroup, now_ms: int) -> bool:
    pending = (one for cursor in group.cursors.values() for one in cursor.pending.values())
    return any(one.until_ms > now_ms for one in pending)


def _network(peer: str) -> str:
    try:
        address = ipaddress.ip_address(peer)
    except ValueError:
        return peer
    if address.version == 4:
        return peer
    return str(ipaddress.ip_network((address, _NETWORK_BITS), strict=False))


@dataclass(frozen=True, slots=True)
class GroupLag:
    """Segments that a group has not committed; `seconds` is the time since the oldest was stored.

    An evicted group has no known lag.
    """

    segments: int = 0
    bytes: int = 0
    seconds: float = 0.0
    leased: int = 0
    failed: int = 0


def lag_of(group: ConsumerGroup, catalog: ListedSegments, now_ms: int) -> GroupLag:
    """The lag of a group, as far as the listing reaches. Counts FAILED segments separately."""
    if group.state is State.EVICTED:
        return GroupLag()
    behind = []
    for node in catalog.nodes:
        cursor = group.cursor(node)
        open_ = [catalog.listed(SegmentName(node, seq)) for seq in cursor.pending]
        behind += [listed for listed in open_ if listed is not None]
        behind += [listed for _, listed in catalog.after(node, cursor.seq)]
    oldest = min([listed.modified_ms for listed in behind], default=now_ms)
    cursors = group.cursors.values()
    return GroupLag(
        segments=len(behind),
        bytes=sum([listed.size for listed in behind]),
        seconds=max(now_ms - oldest, 0) / 1000,
        leased=sum(1 for c in cursors for one in c.pending.values() if one.until_ms),
        failed=sum(len(c.failed) for c in cursors),
    )


@dataclass(slots=True)
class QueueCounters:
    """The counters of this node; `lags` has the lags of all groups when they were last read."""

    committed_segments: int = 0
    committed_bytes: int = 0
    failed_segments: int = 0
    lost: int = 0
    conflicts: int = 0
    report_failures: int = 0
    waiting: int = 0
    lags: Mapping[str, GroupLag] = field(default_factory=dict)
    evicted: int = 0
    evictions: Mapping[str, int] = field(default_factory=dict)
    dropped: Mapping[str, int] = field(default_factory=dict)


T = TypeVar("T")
Change: TypeAlias = Callable[
    [ConsumerGroup, Sequence[Segment], TimeInterval], tuple[ConsumerGroup, T]
]
Outcome: TypeAlias = "Any | TailraceError"

_AT_ONCE: Final = 1024


@dataclass(frozen=True, slots=True)
class _WaitingChange:
    """A change that a caller waits for. With `start` it makes the group if it does not exist."""

    change: Change[Any]
    wants: bool
    start: GroupStart | None
    done: asyncio.Future[Any]


@dataclass(frozen=True, slots=True)
class SharedParts:
    """The parts that the writers of all groups of a node share."""

    store: ObjectStore
    clock: Clock
    entropy: Entropy
    time: StoreTime
    catalog: ListedSegments
    counters: QueueCounters
    fresh_id: Callable[[], str]


class ConsumerGroupWriter:
    """The writer of one group."""

    def __init__(self, name: str, shared: SharedParts) -> None:
        self._name = name
        self._shared = shared
        self._waiting: list[_WaitingChange] = []
        self._working: asyncio.Task[None] | None = None
        self._known: Revision[ConsumerGroup] | None = None

    async def change(
        self, change: Change[T], *, wants: bool = False, start: GroupStart | None = None
    ) -> T:
        """Stores `change` and returns its result. `wants` asks for upcoming segments.

        Raises the errors of `change`, `NotFound` without a group, `StoreUnavailable`,
        `OutcomeUnknown`, `Damaged`.
        """
        done: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._waiting.append(_WaitingChange(change, wants, start, done))
        if self._working is None:
            self._working = asyncio.ensure_future(self._work())
        return await done

    async def _work(self) -> None:
        try:
            while self._waiting:
                some, self._waiting = self._waiting[:_AT_ONCE], self._waiting[_AT_ONCE:]
                live = [one for one in some if not one.done.done()]
                try:
                    _resolve(live, await self._outcomes(live))
                except (asyncio.CancelledError, Exception):  # no caller may wait for ever
                    for one in live:
                        one.done.cancel()
                    raise
        finally:
            self._working = None

    async def _outcomes(self, some: Sequence[_WaitingChange]) -> Sequence[Outcome]:
        if not some:
            return []
        try:
            return await self._made(some)
        except TailraceError as error:
            self._known = None
            return [error] * len(some)

    async def _made(self, some: Sequence[_WaitingChange]) -> Sequence[Outcome]:
        """Applies the changes in one write."""
        known = self._known
        outcomes: Sequence[Outcome] = []
        written: dict[str, Sequence[Outcome]] = {}
        first = ""

        async def change(group: ConsumerGroup | None) -> ConsumerGroup | None:
            nonlocal outcomes, first
            if group is None:
                made = self._first(some)
                first = made.version
                return made
            wanted, outcomes = await self._changed(group, some)
            refusal = next((one for one in outcomes if isinstance(one, TailraceError)), None)
            if refusal is not None and known is not None and group is known.value:
                raise refusal  # by a remembered version: the group is read, and asked again
            if wanted == group:
                return None
            wanted = replace(wanted, version=self._shared.fresh_id())
            written[wanted.version] = outcomes
            return wanted

        stored = await self._swapped(change, known)
        if stored.value.version == first:  # no change is in it yet
            known = stored
            stored = await self._swapped(change, known)
        self._known = stored
        return written.get(stored.value.version, outcomes)

    async def _swapped(
        self, change: Swap[ConsumerGroup], known: Revision[ConsumerGroup] | None
    ) -> Revision[ConsumerGroup]:
        shared = self._shared
        budget = RetryBudget(shared.clock, shared.entropy)
        document = group_document(shared.store, self._name)
        try:
            stored = await swap(document, change, known=known, budget=budget)
        finally:
            shared.counters.conflicts += budget.refused
        assert stored is not None
        return stored

    def _first(self, some: Sequence[_WaitingChange]) -> ConsumerGroup:
        """The group as the first change with a start makes it. Raises `NotFound` without one."""
        start = next((one.start for one in some if one.start is not None), None)
        if start is None:
            raise _nobody(self._name)
        return replace(fresh(self._name, start, self._moment()), version=self._shared.fresh_id())

    async def _changed(
        self, group: ConsumerGroup, some: Sequence[_WaitingChange]
    ) -> tuple[ConsumerGroup, Sequence[Outcome]]:
        """Returns the group after all changes, and the result of each."""
        catalog = self._shared.catalog
        if group.state is State.STARTING:
            # It is in the store, so no segment above those found now is deleted.
            group = begun(group, await catalog.first(group.start))
        wanted = sum(one.wants for one in some)
        segments: Sequence[Segment] = ()
        if wanted and group.state is State.ACTIVE:
            segments, lost = await catalog.upcoming(group, wanted)
            if lost is not None:
                group = evict(group, self._moment().at_most_ms, lost)
        moment = self._moment()
        outcomes: list[Outcome] = []
        for one in some:
            try:
                group, outcome = one.change(group, segments, moment)
            except TailraceError as error:
                outcome = error
            outcomes.append(outcome)
        return group, outcomes

    def _moment(self) -> TimeInterval:
        time = self._shared.time
        if not time.known:
            raise StoreUnavailable("the store's clock is not known yet")
        return TimeInterval(time.at_least_ms(), time.at_most_ms())


def _resolve(some: Sequence[_WaitingChange], outcomes: Sequence[Outcome]) -> None:
    for one, outcome in zip(some, outcomes, strict=True):
        if one.done.done():
            continue
        if isinstance(outcome, TailraceError):
            one.done.set_exception(outcome)
        else:
            one.done.set_result(outcome)


def _nobody(name: str) -> NotFound:
    return NotFound(
        f"no consumer group {name!r}",
        hint="POST /segments/next?group=… makes it; see GET /segments.",
    )


_NAME_BYTES = 100


@dataclass(frozen=True, slots=True)
class GivenLease:
    """A lease, and the known facts of its segment."""

    lease: Leased
    segment: Segment


class SegmentQueue:
    """The segment queue of a node.

    `woken` waits for the next segment that this node confirms; `answers` tells whether the store
    answers.
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
        answers: StoreAnswers | None = None,
    ) -> None:
        self.settings = settings
        self.counters = counters or QueueCounters()
        self.catalog = ListedSegments(store, clock, answers)
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
        self._shared = SharedParts(
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
        self,
        name: str,
        *,
        wait_seconds: float,
        lease_seconds: float,
        start: GroupStart,
        peer: str = "",
    ) -> GivenLease | None:
        """Leases the oldest free segment; returns None if none was free in time.

        Makes the group if it does not exist; `peer` is the address of the client. Raises
        `GroupEvicted`, `OverQuota`, `InvalidName`, `StoreUnavailable`, `OutcomeUnknown`, `Damaged`.
        """
        _check_group(name)
        if self._stopping:
            raise NodeNotReady("the node is stopping", hint="Ask another node, or try again later.")
        await self._bounded(name, peer)
        claim = self._shared.fresh_id()
        try:
            return await self._next(name, claim, wait_seconds, lease_seconds, start)
        except (asyncio.CancelledError, OutcomeUnknown):
            self._leave(name, claim)  # it may have been leased for a client that has gone
            raise

    async def _next(
        self, name: str, claim: str, wait: float, lease_seconds: float, start: GroupStart
    ) -> GivenLease | None:
        end = self._clock.monotonic() + wait
        lease_ms = round(lease_seconds * 1000)

        def take(
            group: ConsumerGroup, upcoming: Sequence[Segment], moment: TimeInterval
        ) -> tuple[ConsumerGroup, tuple[Leased | None, int]]:
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

    async def _given(self, name: str, claim: str, leased: Leased) -> GivenLease:
        try:
            found = await self.catalog.segment(leased.name)
            if found is None:  # handed out before, and unreadable by this node since
                info = await self._store.head(leased.name.key)
                found = Segment(leased.name, info.size, info.etag, info.modified_ms)
        except Unavailable:
            self._leave(name, claim)
            raise
        return GivenLease(leased, found)

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
        def give_back(
            group: ConsumerGroup, _: Sequence[Segment], __: TimeInterval
        ) -> tuple[ConsumerGroup, None]:
            return transitions.given_back(group, claim)

        async def work() -> None:
            try:
                await self._writer(name).change(give_back)
            except TailraceError as error:
                what = "a lease that nobody has runs out by itself"
                self.last_error = HealthProblem.from_error(what, error)
            self._notifier.notify()

        task = asyncio.ensure_future(work())
        self._leaving.add(task)
        task.add_done_callback(self._leaving.discard)

    async def commit(self, name: str, segment: SegmentName, epoch: int) -> None:
        """Commits a segment for good; a repeated commit has the same result.

        Raises `LeaseLost`, `GroupEvicted`, `NotFound`, and as `next`.
        """

        def work(
            group: ConsumerGroup, _: Sequence[Segment], moment: TimeInterval
        ) -> tuple[ConsumerGroup, int | None]:
            after, _none = transitions.commit(group, segment, epoch, moment)
            known = after is group
            return after, None if known else after.committed_bytes - group.committed_bytes

        size = await self._held(name, segment, work)
        if size is not None:
            self.counters.committed_segments += 1
            self.counters.committed_bytes += size

    async def fail(self, name: str, segment: SegmentName, epoch: int, reason: str) -> None:
        """Releases a segment for another consumer after a back-off. Raises as `commit`."""

        def work(
            group: ConsumerGroup, _: Sequence[Segment], moment: TimeInterval
        ) -> tuple[ConsumerGroup, bool]:
            after, _none = transitions.fail(group, segment, epoch, reason, moment, self.settings)
            return after, after is not group

        self.counters.failed_segments += await self._held(name, segment, work)

    async def renew(
        self, name: str, segment: SegmentName, epoch: int, lease_seconds: float
    ) -> Leased:
        """Renews the lease for `lease_seconds` from now. Raises as `commit`."""
        lease_ms = round(lease_seconds * 1000)

        def work(
            group: ConsumerGroup, _: Sequence[Segment], moment: TimeInterval
        ) -> tuple[ConsumerGroup, Leased]:
            return transitions.renew(group, segment, epoch, lease_ms, moment)

        return await self._held(name, segment, work)

    async def _held(self, name: str, segment: SegmentName, change: Change[T]) -> T:
        _check_group(name)
        try:
            return await self._writer(name).change(change)
        except LeaseLost:
            self.counters.lost += 1
            raise
        except NotFound as error:
            # Never leased since a reset, or never stored: only the second is an unknown segment.
            if await read_group(self._store, name) is None:
                self._writers.pop(name, None)  # otherwise unknown names would fill the memory
                raise
            if not await self._exists(segment):
                raise
            self.counters.lost += 1
            raise LeaseLost(str(error)) from error

    async def _exists(self, segment: SegmentName) -> bool:
        try:
            await self._store.head(segment.key)
        except NotFound:
            return False
        return True

    # --- groups --------------------------------------------------------------------

    async def group(self, name: str) -> ConsumerGroup:
        """Returns the group. Raises `NotFound`, `StoreUnavailable`, `Damaged`."""
        _check_group(name)
        group = await read_group(self._store, name)
        if group is None:
            raise NotFound(f"no consumer group {name!r}", hint="See GET /segments.")
        return group

    async def groups(self) -> list[ConsumerGroup]:
        """Returns all groups that can be read. Raises `StoreUnavailable`."""
        found, self.unreadable = await read_groups(self._store)
        return found

    async def reset(self, name: str, start: GroupStart) -> ConsumerGroup:
        """Restarts the group at the oldest segment that is kept, or now; its leases are lost.

        Raises as `group`.
        """
        _check_group(name)

        def again(
            group: ConsumerGroup, _: Sequence[Segment], moment: TimeInterval
        ) -> tuple[ConsumerGroup, None]:
            return transitions.reset(group, start, moment), None

        def seen(
            group: ConsumerGroup, _: Sequence[Segment], __: TimeInterval
        ) -> tuple[ConsumerGroup, ConsumerGroup]:
            return group, group

        await self._writer(name).change(again)
        found = await self._writer(name).change(seen)
        self._notifier.notify()
        return found

    async def retry(self, name: str, segments: Sequence[SegmentName] | None) -> list[SegmentName]:
        """Frees failed segments (all, or these) again. Raises as `group`, `GroupEvicted`."""
        _check_group(name)

        def work(
            group: ConsumerGroup, _: Sequence[Segment], __: TimeInterval
        ) -> tuple[ConsumerGroup, list[SegmentName]]:
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
        """Removes an unused group. It reads all groups, so not every request calls it."""
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
            HealthProblem(key, f"its consumers wait: {why}") for key, why in self.unreadable.items()
        ]
        waiting = self.catalog.waiting.items()
        return found + [
            HealthProblem(f"{node} waits", f"consumers wait: {why}") for node, why in waiting
        ]

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
                self.last_error = HealthProblem.from_error(what, error)
            await self._clock.sleep(self.settings.report_seconds)

    async def report(self) -> list[ConsumerGroup]:
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
