"""The health of a node: heartbeats, stalls, clock skew, store checks, hanging work, damage.

**Heartbeats.** A `Heartbeat` has the time of a loop's last turn and of its last success. A loop
that hangs in one call never fails, counts no error and looks idle; only the age of its last turn
shows it. Ages are of the monotonic clock, so that neither a step of this node's clock nor another
clock at the reader makes a loop look dead.

**Stalls.** `StallDetector` counts how often the whole process stood still: stopped by a signal, out
of memory, or on a hanging machine. Meanwhile the process receives nothing, and others give up
waiting for it. Its knowledge is then old, though none of its own timers has noticed yet. Code that
depends on that compares `stalls` with its earlier value.

**Problems** are sentences for people, each with a name that stays as long as the problem
(`HealthProblem`). A sentence may contain a duration, a number of failures, or the error of the last
try. Its name contains none of these, so a comparison of the problems of two moments sees a lasting
problem as one.

**Clock skew.** `ClockSkew` measures the difference between this node's clock and the store's, which
all nodes share. ULIDs, pages by time and expiry mean something only if nodes agree on the time. A
node that is more than a minute off accepts no batches until its clock is right. A store in a folder
has no clock of its own but the machine's, so its skew is 0.

**Store check.** `StoreCheck` checks at the start whether the object store can keep its data as
required. A refusal makes the start impossible. An unreachable store, or one without an answer
within a second, does not: the node accepts batches, they wait in its journal, and the check is made
as soon as the store answers. If it refuses then, the service stops as it would have at the start. A
store in a folder needs no check.

**Hanging work.** `Ongoing` counts running work and the age of its oldest piece. A piece that hangs
fails no try and counts no error; only its age shows it.

**Damaged state.** `StateWatch` reports state objects that were damaged when this process read them
last. It sees every object that the node reads, so no other part has to report damage. A damaged
object is read again every ten seconds: the problem is over when the object is intact or gone. The
same holds for an object of a newer format: this node has to be upgraded. Entries of the register
are left to `service.peers`, which names the nodes that wrote them.
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
    """The signs of life of one loop. Until its first turn, ages count from its creation."""

    def __init__(self, clock: Clock) -> None:
        self._now = clock.monotonic
        self._sleep = clock.sleep
        self._turned = self._succeeded = clock.monotonic()
        self._resting = False

    def turn(self) -> None:
        """Records a turn of the loop, or progress of a long piece of work."""
        self._turned = self._now()
        self._resting = False

    def rest(self) -> None:
        """Records that the loop waits for work, for any time."""
        self._resting = True

    async def pause(self, seconds: float, stopping: Callable[[], bool]) -> None:
        """Sleeps until the next round with signs of life, and ends early when stopping."""
        due = self._now() + seconds
        while not stopping() and self._now() < due:
            self.turn()
            await self._sleep(_LOOK_SECONDS)

    def success(self) -> None:
        """Records that the work was done once, by the loop or on its behalf."""
        self._succeeded = self._now()

    @property
    def age_seconds(self) -> float:
        """Seconds since the last turn; 0 while the loop rests."""
        return 0.0 if self._resting else self._now() - self._turned

    @property
    def success_age_seconds(self) -> float:
        """Seconds since the last success, or since the creation if it had none."""
        return self._now() - self._succeeded


BEAT_SECONDS = 1.0
STALL_SECONDS = 3.0


class StallDetector:
    """Counts the times that the loop did not turn for `STALL_SECONDS`."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._last = clock.monotonic()
        self._stalls = 0

    def stalls(self) -> int:
        """The number of stalls so far, including one that has just ended."""
        now = self._clock.monotonic()
        if now - self._last > STALL_SECONDS:
            self._stalls += 1
        self._last = now
        return self._stalls

    async def beat(self) -> None:
        """Sleeps until the next beat."""
        await self._clock.sleep(BEAT_SECONDS)
        self.stalls()


class HealthProblem(str):
    """A sentence whose words may change while the problem lasts; `name` stays."""

    __slots__ = ("name",)
    name: str

    def __new__(cls, name: str, sentence: str) -> Self:
        made = super().__new__(cls, sentence)
        made.name = name
        return made

    @classmethod
    def with_detail(cls, name: str, detail: object) -> Self:
        """The problem of this name; the detail after the colon may change."""
        return cls(name, f"{name}: {detail}")

    @classmethod
    def from_error(cls, name: str, error: Exception) -> Self:
        """The problem of this name, for the reason of an error."""
        return cls.with_detail(name, with_hint(error))


def name_of(problem: str) -> str:
    """The name of a problem. A plain string is its own name: its text stays the same."""
    return problem.name if isinstance(problem, HealthProblem) else problem


def by_name(problems: Iterable[str]) -> dict[str, str]:
    """The problems by their names."""
    return {name_of(problem): problem for problem in problems}


MOST_MS = 60_000


class ClockSkew:
    """The skew of this node's clock.

    `newest` returns the store's last `Date`; it is None if the store has no clock.
    """

    def __init__(self, newest: Callable[[], DateSample | None] | None) -> None:
        self._newest = newest

    @property
    def ahead_ms(self) -> int:
        """How far the clock is certainly ahead; negative if behind, 0 while unknown."""
        sample = None if self._newest is None else self._newest()
        return 0 if sample is None else sample.ahead_ms

    @property
    def bounds_ms(self) -> tuple[int, int]:
        """The least and the most by which the clock may be ahead; both 0 without another clock.

        Before the store has answered they are the limits between which a node accepts batches.
        """
        if self._newest is None:
            return 0, 0
        sample = self._newest()
        return (-MOST_MS, MOST_MS) if sample is None else sample.bounds_ms

    @property
    def problem(self) -> str | None:
        """The reason why the node accepts no batches; None if the clock is right."""
        if self._newest is None:  # asked for every batch
            return None
        ahead_ms = self.ahead_ms
        if abs(ahead_ms) <= MOST_MS:
            return None
        way = "ahead of" if ahead_ms > 0 else "behind"
        what = f"the clock is {abs(ahead_ms) // 1000} s {way} the object store's: set it right"
        return HealthProblem("the clock is not the object store's", what)


_AGAIN_SECONDS = 10.0
_UNCHECKED = "the object store is not checked"


class StoreCheck:
    """The check of one store. `refused` is done if a late check finds the store unusable."""

    def __init__(
        self,
        store: ObjectStore,
        clock: Clock,
        *,
        texts: str,
        expiration_days: int,
        first_seconds: float = 1.0,
    ) -> None:
        """The bucket expires objects with the prefix `texts` after `expiration_days`.

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
        """Checks at the start; for a slow store, `run` continues to wait.

        Raises `InvalidInput` if the store refuses the check.
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
            self._rule = HealthProblem.from_error(what, error)


LONG_SECONDS: Final = 300.0
"""Far more than a piece of work takes on a machine that has too much to do."""


class Ongoing:
    """The pieces of one kind of work; `what` names a hanging one in a sentence."""

    def __init__(self, clock: Clock, what: str, *, most_seconds: float = LONG_SECONDS) -> None:
        self._now = clock.monotonic
        self._what = what
        self._most = most_seconds
        self._begun: dict[int, float] = {}
        self._numbers = itertools.count()

    @contextmanager
    def piece(self) -> Iterator[None]:
        """Counts the work in the block as a piece."""
        number = self._begin()
        try:
            yield
        finally:
            del self._begun[number]

    def follow(self, work: asyncio.Future[Any]) -> None:
        """Counts the work of a thread as a piece until it ends."""
        number = self._begin()
        work.add_done_callback(lambda _: self._begun.pop(number, None))

    def _begin(self) -> int:
        number = next(self._numbers)
        self._begun[number] = self._now()
        return number

    @property
    def under_way(self) -> int:
        """The present number of pieces."""
        return len(self._begun)

    @property
    def oldest_seconds(self) -> float:
        """The age of the oldest piece in seconds; 0 without one."""
        return self._now() - min(self._begun.values()) if self._begun else 0.0

    @property
    def overdue_seconds(self) -> float:
        """The seconds by which the oldest piece is overdue; 0 without one."""
        return max(self.oldest_seconds - self._most, 0.0)

    def problems(self) -> list[str]:
        """A sentence about a piece that does not end."""
        if not self.overdue_seconds:
            return []
        return [HealthProblem.with_detail(self._what, f"for {self.oldest_seconds:.0f} s by now")]


_PREFIXES: Final = (keys.RUNS, keys.COORDINATION, keys.QUARANTINE)
_FORMAT: Final = re.compile(rb'"format":([0-9]{1,9})[,}]')
_HEAD_BYTES: Final = 64
_COMPRESSED: Final = b"\x28\xb5\x2f\xfd"  # a large shard of partitions: zstd, with its own checksum


class StateWatch:
    """Checks the bytes of state objects that a store returns."""

    def __init__(self) -> None:
        self._damaged: set[str] = set()
        self._newer: dict[str, int] = {}

    @property
    def damaged(self) -> int:
        """The number of damaged state objects among those that were read."""
        return len(self._damaged)

    def saw(self, key: str, body: bytes) -> None:
        """Records the state of an object; other objects only cost a comparison of their keys."""
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
        """A sentence for each damaged object, with the remedy."""
        newer = [_newer_problem(key, number) for key, number in sorted(self._newer.items())]
        return [*map(_problem, sorted(self._damaged)), *newer]

    async def run(self, store: ObjectStore, clock: Clock) -> None:
        """Reads damaged objects again and again, until cancelled; `store` passes them to `saw`."""
        while True:
            await clock.sleep(_AGAIN_SECONDS)
            for key in sorted({*self._damaged, *self._newer}):
                with suppress(TailraceError):  # an unreadable object keeps its state
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
