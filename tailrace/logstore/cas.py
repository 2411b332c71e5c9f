"""Small objects that are changed by compare-and-swap, and the one loop that changes them.

    read ──► change ──► put, if the version that was read is still stored ──► written
     ▲                     │ refused: another writer was first
     └────── pause ◄───────┘ ambiguous: the answer was lost, so it may be stored

Invariants:

- A change is a function of the newest version. It is called again for each version that is read, so
  it must be safe to apply twice.
- Each version that is written differs from every other, because it carries a fresh ULID. After a
  lost answer, the stored version thus shows whether it is ours. A refusal does not prove the
  opposite: a proxy may have sent the write twice and returned the second answer.
- A version of ours that others have changed since is not recognised. A change whose effect must not
  happen twice has to look for its own effect in the value.
- `StoreUnavailable` means that nothing was changed. After an ambiguous try this is not certain any
  more, so the same failure is raised as `OutcomeUnknown`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Final, Generic, TypeAlias, TypeVar

from tailrace.logstore.clock import Clock, Entropy
from tailrace.logstore.errors import (
    Damaged,
    NotFound,
    OutcomeUnknown,
    PreconditionFailed,
    StoreUnavailable,
    TailraceError,
    UnsupportedVersion,
)
from tailrace.logstore.objects.store import ObjectStore
from tailrace.logstore.retry import doubled, spread
from tailrace.logstore.state import advice

T = TypeVar("T")
R = TypeVar("R")
Change: TypeAlias = Callable[[T | None], Awaitable[T | None]]

_REFUSALS: Final = 100
_AMBIGUOUS: Final = 3
_FIRST_PAUSE_SECONDS: Final = 0.01
_LONGEST_PAUSE_SECONDS: Final = 0.5


@dataclass(frozen=True, slots=True)
class Revision(Generic[T]):
    """A stored value, and the ETag that a change is conditional on."""

    value: T
    etag: str
    written: bool = False
    """Whether the call that gives it has written it."""


@dataclass(frozen=True)
class Document(Generic[T]):
    """One object, with the functions that decode and encode its bytes.

    `decode` raises `Damaged`.
    """

    store: ObjectStore
    key: str
    decode: Callable[[bytes], T]
    encode: Callable[[T], bytes]

    async def read(self) -> Revision[T] | None:
        """The newest version, None if there is none. Raises `StoreUnavailable`, `Damaged`."""
        try:
            info, body = await self.store.get(self.key)
        except NotFound:
            return None
        return Revision(self._decoded(body), info.etag)

    def _decoded(self, body: bytes) -> T:
        try:
            return self.decode(body)
        except UnsupportedVersion:
            raise
        except Damaged as error:
            what = str(error) if self.key in str(error) else f"{self.key}: {error}"
            raise Damaged(what, hint=advice(self.key)) from error

    async def write(self, value: T, etag: str | None) -> Revision[T]:
        """Replaces the version of `etag` by `value`; None is for the first version.

        Raises `PreconditionFailed`, `StoreUnavailable`, `OutcomeUnknown`.
        """
        body = self.encode(value)
        info = await self.store.put(self.key, body, if_absent=etag is None, if_match=etag)
        return Revision(value, info.etag, written=True)


async def pause_after(tries: int, clock: Clock, entropy: Entropy) -> None:
    """Waits before the next try of a change, after so many more than one: at most half a second."""
    longest = doubled(_FIRST_PAUSE_SECONDS, tries, _LONGEST_PAUSE_SECONDS)
    await clock.sleep(spread(longest, entropy))


class RetryBudget:
    """The number of refusals, and of consecutive ambiguous outcomes, that one operation may have.

    After a write with an unknown outcome the object is read; if the write is not found, it is made
    again. A store that never gives any other outcome must not be asked for ever: after a few times
    the caller gets the error. Without a clock the next try follows at once.
    """

    def __init__(
        self,
        clock: Clock | None = None,
        entropy: Entropy | None = None,
        *,
        refusals: int = _REFUSALS,
        ambiguous: int = _AMBIGUOUS,
    ) -> None:
        self._clock = clock
        self._entropy = entropy
        self._refusals = refusals
        self._ambiguous = ambiguous
        self.refused = 0
        self.ambiguous = 0
        self._in_a_row = 0

    def spend(self, error: PreconditionFailed | OutcomeUnknown) -> None:
        """Returns if there is another try.

        Raises `error` after the last ambiguous outcome, `StoreUnavailable` after the last refusal.
        """
        if isinstance(error, OutcomeUnknown):
            self.ambiguous += 1
            self._in_a_row += 1
            if self._in_a_row >= self._ambiguous:
                raise error
        else:
            self._in_a_row = 0
            self.refused += 1
            if self.refused >= self._refusals:
                raise StoreUnavailable(f"others were always faster: {error}") from error

    async def pause(self) -> None:
        """Waits before the next try."""
        if self._clock is not None and self._entropy is not None:
            await pause_after(self.refused + self.ambiguous - 1, self._clock, self._entropy)


async def swap(
    document: Document[T],
    change: Change[T],
    *,
    known: Revision[T] | None = None,
    budget: RetryBudget | None = None,
) -> Revision[T] | None:
    """Applies `change`; returns what is stored afterwards, None for no object.

    `change` gets the newest value, None if there is none, and returns the one to be written, or
    None to leave it. A version that is `known` saves the first read. Only a write is ever decided
    by it: if `change` leaves it or raises, the object is read and `change` called again.

    Raises what `change` raises, `Damaged`, `StoreUnavailable` (nothing was changed) and
    `OutcomeUnknown`.
    """
    budget = RetryBudget() if budget is None else budget
    with _ambiguous_once_ambiguous(budget):
        return await _swap(document, change, known, budget)


async def _swap(
    document: Document[T], change: Change[T], known: Revision[T] | None, budget: RetryBudget
) -> Revision[T] | None:
    tried: list[T] = []
    while True:
        found = known or await document.read()
        if found is not None and found.value in tried:
            return replace(found, written=True)
        wanted = await _wanted(change, found, from_memory=known is not None)
        if wanted is None and known is None:
            return found
        known = None
        if wanted is None:
            continue
        try:
            return await document.write(wanted, None if found is None else found.etag)
        except (PreconditionFailed, OutcomeUnknown) as error:
            tried.append(document.decode(document.encode(wanted)))
            budget.spend(error)
        await budget.pause()


async def _wanted(change: Change[T], found: Revision[T] | None, *, from_memory: bool) -> T | None:
    try:
        return await change(None if found is None else found.value)
    except TailraceError:
        if from_memory:
            return None
        raise


async def write_until_known(
    write: Callable[[], Awaitable[R]], *, budget: RetryBudget | None = None
) -> R:
    """The result of `write`, which is repeated while its outcome is ambiguous.

    `write` must be safe to repeat: it uses a key only once, or writes the same bytes. Raises
    what `write` raises otherwise, and `OutcomeUnknown` once the budget is spent.
    """
    budget = RetryBudget() if budget is None else budget
    with _ambiguous_once_ambiguous(budget):
        while True:
            try:
                return await write()
            except OutcomeUnknown as error:
                budget.spend(error)
            await budget.pause()


@contextmanager
def _ambiguous_once_ambiguous(budget: RetryBudget) -> Iterator[None]:
    """Raises `OutcomeUnknown` for every failure that follows an ambiguous try."""
    try:
        yield
    except StoreUnavailable as error:
        if budget.ambiguous:
            raise OutcomeUnknown(f"an earlier try may have been made: {error}") from error
        raise
