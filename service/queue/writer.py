"""Changes of one group by this node: all waiting changes become one write.

The last written version is kept and changed without being read again. If another writer
was faster, or a change is refused, or nothing would change, the group is read first. An
outdated version thus never causes a refusal. After a lost answer the version in the store shows
whether the write was ours; changes recognise their own effect.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, TypeAlias, TypeVar

from coordination.groups import Group, Start, State, evict, group_document
from coordination.storetime import StoreTime
from logstore.clock import Clock, Entropy
from logstore.errors import NotFound, StoreUnavailable, TailraceError
from logstore.objects.store import ObjectStore
from logstore.swap import Backoff, RetryBudget, Revision, swap
from logstore.swap import Change as Swap
from service.queue.catalog import Catalog, Segment
from service.queue.counters import QueueCounters
from service.queue.transitions import Moment, begun, fresh

T = TypeVar("T")
Change: TypeAlias = Callable[[Group, Sequence[Segment], Moment], tuple[Group, T]]
Outcome: TypeAlias = "Any | TailraceError"

_AT_ONCE: Final = 1024


@dataclass(frozen=True, slots=True)
class _Waiting:
    """A change that a caller waits for. With `start` it makes the group if it does not exist."""

    change: Change[Any]
    wants: bool
    start: Start | None
    done: asyncio.Future[Any]


@dataclass(frozen=True, slots=True)
class Shared:
    """The parts that the writers of all groups of a node share."""

    store: ObjectStore
    clock: Clock
    entropy: Entropy
    time: StoreTime
    catalog: Catalog
    counters: QueueCounters
    fresh_id: Callable[[], str]


class ConsumerGroupWriter:
    """The writer of one group."""

    def __init__(self, name: str, shared: Shared) -> None:
        self._name = name
        self._shared = shared
        self._waiting: list[_Waiting] = []
        self._working: asyncio.Task[None] | None = None
        self._known: Revision[Group] | None = None

    async def change(
        self, change: Change[T], *, wants: bool = False, start: Start | None = None
    ) -> T:
        """The result of `change`, once it is stored. `wants` asks for upcoming segments.

        Raises what `change` raises, `NotFound` without a group, `StoreUnavailable`,
        `OutcomeUnknown`, `Damaged`.
        """
        done: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._waiting.append(_Waiting(change, wants, start, done))
        if self._working is None:
            self._working = asyncio.ensure_future(self._work())
        return await done

    async def _work(self) -> None:
        try:
            while self._waiting:
                some, self._waiting = self._waiting[:_AT_ONCE], self._waiting[_AT_ONCE:]
                live = [one for one in some if not one.done.done()]
                try:
                    _tell(live, await self._outcomes(live))
                except (asyncio.CancelledError, Exception):  # nobody waits for ever
                    for one in live:
                        one.done.cancel()
                    raise
        finally:
            self._working = None

    async def _outcomes(self, some: Sequence[_Waiting]) -> Sequence[Outcome]:
        if not some:
            return []
        try:
            return await self._made(some)
        except TailraceError as error:
            self._known = None
            return [error] * len(some)

    async def _made(self, some: Sequence[_Waiting]) -> Sequence[Outcome]:
        """Applies the changes in one write."""
        known = self._known
        outcomes: Sequence[Outcome] = []
        written: dict[str, Sequence[Outcome]] = {}
        first = ""

        async def change(group: Group | None) -> Group | None:
            nonlocal outcomes, first
            if group is None:
                made = self._first(some)
                first = made.version
                return made
            wanted, outcomes = await self._changed(group, some)
            refusal = next((one for one in outcomes if isinstance(one, TailraceError)), None)
            if refusal is not None and known is not None and group is known.value:
                raise refusal  # of a remembered version: the group is read, and asked again
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

    async def _swapped(self, change: Swap[Group], known: Revision[Group] | None) -> Revision[Group]:
        shared = self._shared
        budget = RetryBudget(Backoff(shared.clock, shared.entropy))
        document = group_document(shared.store, self._name)
        try:
            stored = await swap(document, change, known=known, budget=budget)
        finally:
            shared.counters.conflicts += budget.refused
        assert stored is not None
        return stored

    def _first(self, some: Sequence[_Waiting]) -> Group:
        """The group as the first change with a start makes it. Raises `NotFound` without one."""
        start = next((one.start for one in some if one.start is not None), None)
        if start is None:
            raise _nobody(self._name)
        return replace(fresh(self._name, start, self._moment()), version=self._shared.fresh_id())

    async def _changed(
        self, group: Group, some: Sequence[_Waiting]
    ) -> tuple[Group, Sequence[Outcome]]:
        """The group after all changes, and the result of each."""
        catalog = self._shared.catalog
        if group.state is State.STARTING:
            # It stands in the store, so that nothing behind what is found now is deleted.
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

    def _moment(self) -> Moment:
        time = self._shared.time
        if not time.known:
            raise StoreUnavailable("the store has not told its time yet")
        return Moment(time.at_least_ms(), time.at_most_ms())


def _tell(some: Sequence[_Waiting], outcomes: Sequence[Outcome]) -> None:
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
