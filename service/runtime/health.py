"""Signs of life of a loop: how long ago it last turned, and last did what it is for.

A loop that hangs in one call never fails, counts no error and looks idle; only the age of
its last turn gives it away. Ages are of the monotonic clock, so that neither a step of
this node's clock nor another clock at the reader's makes a loop look dead.
"""

from __future__ import annotations

import asyncio
import itertools
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final, Self

import orjson

from tailrace.logstore import keys
from tailrace.logstore.clock import Clock
from tailrace.logstore.errors import (
    InvalidInput,
    NotFound,
    StoreUnavailable,
    TailraceError,
    with_hint,
)
from tailrace.logstore.objects.store import DateSample, ObjectStore, RemoteStore
from tailrace.logstore.state import advice, is_checked, is_intact, kind_of

_LOOK_SECONDS = 1.0


class Heartbeat:
    """The signs of life of one loop. Until its first turn, ages count from when this was made."""

    def __init__(self, clock: Clock) -> None:
        self._now = clock.monotonic
        self._sleep = clock.sleep
        self._turned = self._succeeded = clock.monotonic()
        self._resting = False

    def turn(self) -> None:
        """Records that the loop has come round, or continues a long piece of work."""
        self._turned = self._now()
        self._resting = False

    def rest(self) -> None:
        """Records that the loop waits for work, which may take any time."""
        self._resting = True

    async def pause(self, seconds: float, stopping: Callable[[], bool]) -> None:
        """Sleeps until the next round with signs of life, and ends early when stopping."""
        due = self._now() + seconds
        while not stopping() and self._now() < due:
            self.turn()
            await self._sleep(_LOOK_SECONDS)

    def success(self) -> None:
        """Records that the work was done once, by the loop or by somebody in its place."""
        self._succeeded = self._now()

    @property
    def age_seconds(self) -> float:
        """Seconds since the last turn; 0 while the loop rests."""
        return 0.0 if self._resting else self._now() - self._turned

    @property
    def success_age_seconds(self) -> float:
        """Seconds since the last success, or since this was made if there was none."""
        return self._now() - self._succeeded


# Whether this process stood still: stopped by a signal, out of memory, or on a machine that hung.
#
# A process that stands still hears nothing, and others that wait for its answer give up
# meanwhile. What it knew is then old, though none of its own timers has noticed yet. Whoever
# needs to know asks `stalls` and compares with what it was before.


BEAT_SECONDS = 1.0
STALL_SECONDS = 3.0


class Pulse:
    """Counts the times that the loop did not come round for `STALL_SECONDS`."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._last = clock.monotonic()
        self._stalls = 0

    def stalls(self) -> int:
        """How often the process stood still, also if it has gone on only just now."""
        now = self._clock.monotonic()
        if now - self._last > STALL_SECONDS:
            self._stalls += 1
        self._last = now
        return self._stalls

    async def beat(self) -> None:
        """Sleeps until the next beat."""
        await self._clock.sleep(BEAT_SECONDS)
        self.stalls()


# Problems of a node: sentences for people, each with a name that lasts as long as it does.
#
# A sentence may say how long something takes, how often it failed, or what the last try met. Its
# name says none of that. So whoever compares the problems of two moments sees one that lasts as
# one.


class HealthProblem(str):
    """A sentence whose words may change while the problem lasts; `name` stays."""

    __slots__ = ("name",)
    name: str

    def __new__(cls, name: str, sentence: str) -> Self:
        made = super().__new__(cls, sentence)
        made.name = name
        return made


def name_of(problem: str) -> str:
    """The name of a problem; one that is plain text says the same as long as it lasts."""
    return problem.name if isinstance(problem, HealthProblem) else problem


def by_name(problems: Iterable[str]) -> dict[str, str]:
    """Problems by their names."""
    return {name_of(problem): problem for problem in problems}


# Measures how far this node's clock is from the store's, which all nodes share.
#
# ULIDs, pages by time and expiry mean something only if nodes agree on the time. A node that is
# more than a minute off takes no batches until its clock is right. A store without a clock of its
# own, a folder, has the machine's: there is nothing to be off from.


MOST_MS = 60_000


class ClockSkew:
    """The skew of this node's clock.

    `newest` gives the store's last `Date`; it is None if the store has no clock.
    """

    def __init__(self, newest: Callable[[], DateSample | None] | None) -> None:
        self._newest = newest

    @property
    def ahead_ms(self) -> int:
        """How far the clock is ahead for sure; negative if behind, 0 while nothing is known."""
        sample = None if self._newest is None else self._newest()
        return 0 if sample is None else sample.ahead_ms

    @property
    def bounds_ms(self) -> tuple[int, int]:
        """The least and the most by which the clock may be ahead; both 0 without another clock.

        Before the store has answered they are those between which a node takes batches.
        """
        if self._newest is None:
            return 0, 0
        sample = self._newest()
        return (-MOST_MS, MOST_MS) if sample is None else sample.bounds_ms

    @property
    def problem(self) -> str | None:
        """The reason why no batches are taken; None if the clock is right."""
        if self._newest is None:  # asked for every batch
            return None
        ahead_ms = self.ahead_ms
        if abs(ahead_ms) <= MOST_MS:
            return None
        way = "ahead of" if ahead_ms > 0 else "behind"
        what = f"the clock is {abs(ahead_ms) // 1000} s {way} the object store's: set it right"
        return HealthProblem("the clock is not the object store's", what)


# Checks at the start whether the object store can keep what is entrusted to it.
#
# What a store refuses makes the start impossible. A store that cannot be reached, or does not
# answer within a second, does not: the node takes batches, they wait in its journal, and the
# check is made as soon as there is an answer; if it is refused then, the service stops as it
# would have at the start. A store in a folder needs no check.


_AGAIN_SECONDS = 10.0
_UNCHECKED = "the object store is not checked"


class StoreCheck:
    """The check of one store; `refused` is done when a late check found that it cannot be used."""

    def __init__(
        self,
        store: ObjectStore,
        clock: Clock,
        *,
        texts: str,
        expiration_days: int,
        first_seconds: float = 1.0,
    ) -> None:
        """`texts` is the prefix whose objects the bucket expires after so many days.

        `first` returns after `first_seconds` at the latest.
        """
        self._store = store if isinstance(store, RemoteStore) else None
        self._clock = clock
        self._texts = texts
        self._days = expiration_days
        self._first_seconds = first_seconds
        self._unchecked: str | None = None
        self._rule: str | None = None
        self._first: asyncio.Task[None] | None = None
        self.refused: asyncio.Future[BaseException] = asyncio.get_running_loop().create_future()

    async def first(self) -> None:
        """Checks at the start; `run` waits on for a store that takes its time.

        Raises `InvalidInput` for what the store refuses.
        """
        if self._store is None:
            return
        self._unchecked = HealthProblem(
            _UNCHECKED, "the object store has not answered since the start"
        )
        self._first = asyncio.create_task(self._try(self._store), name="first store check")
        done, _ = await asyncio.wait({self._first}, timeout=self._first_seconds)
        if done:
            self._first.result()

    async def run(self) -> None:
        """Checks again until the store has answered."""
        try:
            if self._first is not None:
                await self._first
            while self._store is not None and self._unchecked is not None:
                await self._clock.sleep(_AGAIN_SECONDS)
                await self._try(self._store)
        except InvalidInput as error:
            self.refused.set_result(error)

    def close(self) -> None:
        """Ends a check that still waits."""
        if self._first is not None:
            self._first.cancel()

    def problems(self) -> list[str]:
        """Problems of the store, as sentences."""
        return [problem for problem in (self._unchecked, self._rule) if problem is not None]

    async def _try(self, store: RemoteStore) -> None:
        try:
            await store.check()
        except StoreUnavailable as error:
            self._unchecked = HealthProblem(_UNCHECKED, with_hint(error))
            return
        self._unchecked = None
        try:
            await store.expire(self._texts, self._days)
        except StoreUnavailable as error:
            what = "expired runs are removed by the service alone"
            self._rule = HealthProblem(what, f"{what}: {with_hint(error)}")


# Work that is under way, and for how long the oldest piece of it is.
#
# A piece that hangs fails no try and counts no error. Only its age gives it away.


LONG_SECONDS: Final = 300.0
"""Far more than a piece of work takes on a machine that has too much to do."""


class Ongoing:
    """The pieces of one kind of work; `what` says in a sentence what a hanging one is."""

    def __init__(self, clock: Clock, what: str, *, most_seconds: float = LONG_SECONDS) -> None:
        self._now = clock.monotonic
        self._what = what
        self._most = most_seconds
        self._begun: dict[int, float] = {}
        self._numbers = itertools.count()

    @contextmanager
    def piece(self) -> Iterator[None]:
        """Counts what is done in the block as a piece."""
        number = self._begin()
        try:
            yield
        finally:
            del self._begun[number]

    def follow(self, work: asyncio.Future[Any]) -> None:
        """Counts work that a thread does as a piece, until the thread has ended it."""
        number = self._begin()
        work.add_done_callback(lambda _: self._begun.pop(number, None))

    def _begin(self) -> int:
        number = next(self._numbers)
        self._begun[number] = self._now()
        return number

    @property
    def under_way(self) -> int:
        """How many pieces there are now."""
        return len(self._begun)

    @property
    def oldest_seconds(self) -> float:
        """For how long the oldest piece is under way; 0 without any."""
        return self._now() - min(self._begun.values()) if self._begun else 0.0

    @property
    def overdue_seconds(self) -> float:
        """For how long the oldest piece takes longer than any should; 0 without one."""
        return max(self.oldest_seconds - self._most, 0.0)

    def problems(self) -> list[str]:
        """That a piece does not end, as a sentence."""
        if not self.overdue_seconds:
            return []
        return [HealthProblem(self._what, f"{self._what}: for {self.oldest_seconds:.0f} s by now")]


# Which state objects were damaged when this process read them last, as problems of the node.
#
# Every object that the node reads passes here, so no part has to report damage for itself. A
# damaged object is read again every ten seconds: the problem is over when the object is intact or
# gone. The same holds for one of a newer format: this node is to be upgraded. Entries of the
# register are left to `service.peers`, which names the nodes that wrote them.


_PREFIXES: Final = (keys.RUNS, keys.COORDINATION, keys.QUARANTINE)
_FORMAT: Final = re.compile(rb'"format":([0-9]{1,9})[,}]')
_HEAD_BYTES: Final = 64
_COMPRESSED: Final = b"\x28\xb5\x2f\xfd"  # a large shard of partitions: zstd, with its own checksum


class StateWatch:
    """Looks at the bytes of state objects that a store gives."""

    def __init__(self) -> None:
        self._damaged: set[str] = set()
        self._newer: dict[str, int] = {}

    @property
    def damaged(self) -> int:
        """How many state objects are damaged, of those that were read."""
        return len(self._damaged)

    def saw(self, key: str, body: bytes) -> None:
        """Notes what an object is like; those of other kinds cost a comparison of their keys."""
        if not key.startswith(_PREFIXES):
            return
        if not _is_whole(body) and kind_of(key) is not None:
            self._damaged.add(key)
            return
        self._damaged.discard(key)
        self._newer.pop(key, None)
        found = _FORMAT.search(body[:_HEAD_BYTES]) or _FORMAT.search(body[-_HEAD_BYTES:])
        number = 1 if found is None else int(found[1])
        kind = kind_of(key) if number > 1 else None
        if kind is not None and number > kind.format and not key.startswith(keys.PEERS):
            self._newer[key] = number

    def problems(self) -> list[str]:
        """A sentence for each damaged object, with what to do."""
        newer = [_newer_problem(key, number) for key, number in sorted(self._newer.items())]
        return [*map(_problem, sorted(self._damaged)), *newer]

    async def run(self, store: ObjectStore, clock: Clock) -> None:
        """Reads damaged objects again and again, until cancelled; `store` shows them to `saw`."""
        while True:
            await clock.sleep(_AGAIN_SECONDS)
            for key in sorted({*self._damaged, *self._newer}):
                with suppress(TailraceError):  # what cannot be read is as it was
                    await self._look(store, key)

    async def _look(self, store: ObjectStore, key: str) -> None:
        try:
            await store.get(key)
        except NotFound:
            self._damaged.discard(key)
            self._newer.pop(key, None)


def _is_whole(body: bytes) -> bool:
    if is_checked(body):
        return is_intact(body)
    if body.startswith(_COMPRESSED):
        return True
    try:
        return type(orjson.loads(body)) is dict  # of an earlier version
    except orjson.JSONDecodeError:
        return False


def _newer_problem(key: str, number: int) -> str:
    kind = kind_of(key)
    assert kind is not None
    return (
        f"the object {key} ({kind.name}) has format {number}, and this version knows {kind.format}:"
        f" upgrade this node. {kind.damaged}"
    )


def _problem(key: str) -> str:
    kind = kind_of(key)
    assert kind is not None
    return f"the object {key} ({kind.name}) is damaged. {kind.damaged} {advice(key)}"
