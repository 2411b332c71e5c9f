"""Changes of one group by this node: all that wait are made by one write.

What was written last is remembered and changed without being read again; if somebody else
was faster, or a change is refused, or nothing would change, the group is read first. So a
refusal is never by an old version. After a lost answer the version in the store says
whether it was ours; changes know their own effect again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias, TypeVar

from coordination.groups.group_objects import Stored, read_group, write_group
from coordination.groups.groups import Group, Start, State, evict
from coordination.storetime import StoreTime
from logstore.clock import Clock
from logstore.entropy import Entropy
from logstore.errors import (
    NotFound,
    OutcomeUnknown,
    PreconditionFailed,
    StoreUnavailable,
    TailraceError,
)
from logstore.objects.ambiguous import Unclear
from logstore.objects.store import ObjectStore
from service.queue.catalog import Catalogue
from service.queue.counters import QueueCounters
from service.queue.segment import Segment
from service.queue.transitions import Moment, begun, fresh

T = TypeVar("T")
Change: TypeAlias = Callable[[Group, Sequence[Segment], Moment], tuple[Group, T]]
Outcome: TypeAlias = "Any | TailraceError"

_AT_ONCE: Final = 1024
_LONGEST_PAUSE_SECONDS: Final = 0.5


@dataclass(frozen=True, slots=True)
class _Waiting:
    """A change that somebody waits for. With `start` it makes the group if there is none."""

    change: Change[Any]
    wants: bool
    start: Start | None
    done: asyncio.Future[Any]


@dataclass(frozen=True, slots=True)
class Shared:
    """What the writers of all groups of a node stand on."""

    store: ObjectStore
    clock: Clock
    entropy: Entropy
    time: StoreTime
    catalogue: Catalogue
    counters: QueueCounters
    fresh_id: Callable[[], str]


class GroupWriter:
    """Of one group."""

    def __init__(self, name: str, shared: Shared) -> None:
        self._name = name
        self._shared = shared
        self._waiting: list[_Waiting] = []
        self._working: asyncio.Task[None] | None = None
        self._known: Stored | None = None

    async def change(
        self, change: Change[T], *, wants: bool = False, start: Start | None = None
    ) -> T:
        """What `change` gives, once it is in the store. `wants` asks for upcoming segments.

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
        """Makes the changes, together."""
        unclear, tries = Unclear(), 0
        tried: dict[str, Sequence[Outcome]] = {}
        stored, remembered = self._known, self._known is not None
        while True:
            if stored is None:
                stored, remembered = await self._read(some), False
                if stored is None:
                    return [_nobody(self._name)] * len(some)
                if stored.group.version in tried:
                    self._known = stored
                    return tried[stored.group.version]
            group, outcomes = await self._changed(stored.group, some)
            same = group == stored.group
            if remembered and (same or any(isinstance(one, TailraceError) for one in outcomes)):
                stored = None
                continue
            if same:
                self._known = stored
                return outcomes
            version = self._shared.fresh_id()
            tried[version] = outcomes
            try:
                self._known = await write_group(self._shared.store, group, stored.etag, version)
            except PreconditionFailed:
                tries += 1
                self._shared.counters.conflicts += 1
                await self._pause(tries)
            except OutcomeUnknown as error:
                unclear.bear(error)
            else:
                return outcomes
            stored = None

    async def _pause(self, tries: int) -> None:
        """Others are at it too: later, and not all at the same moment."""
        longest = min(0.01 * 2**tries, _LONGEST_PAUSE_SECONDS)
        await self._shared.clock.sleep(longest * self._shared.entropy.getrandbits(16) / (1 << 16))

    async def _read(self, some: Sequence[_Waiting]) -> Stored | None:
        """The group as it is; made, if somebody of them begins one."""
        unclear = Unclear()
        while True:
            stored = await read_group(self._shared.store, self._name)
            start = next((one.start for one in some if one.start is not None), None)
            if stored is not None or start is None:
                return stored
            made = fresh(self._name, start, self._moment())
            try:
                version = self._shared.fresh_id()
                return await write_group(self._shared.store, made, None, version)
            except PreconditionFailed:
                continue
            except OutcomeUnknown as error:
                unclear.bear(error)

    async def _changed(
        self, group: Group, some: Sequence[_Waiting]
    ) -> tuple[Group, Sequence[Outcome]]:
        """The group after all changes, and what each of them gave."""
        catalogue = self._shared.catalogue
        if group.state is State.STARTING:
            # It stands in the store, so that nothing behind what is found now is deleted.
            group = begun(group, await catalogue.first(group.start))
        wanted = sum(one.wants for one in some)
        segments: Sequence[Segment] = ()
        if wanted and group.state is State.ACTIVE:
            segments, lost = await catalogue.upcoming(group, wanted)
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
