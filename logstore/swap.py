"""Small objects that are changed by compare-and-swap, and the one loop that changes them.

    read ──► change ──► put, if what was read still stands there ──► written
     ▲                     │ refused: another writer was first
     └────── pause ◄───────┘ ambiguous: the answer was lost, so it may stand there

Invariants:

- A change is a function of the newest version. It is asked again for each version that is found,
  so it must be one that may be applied twice.
- Each version that is written differs from every other, because it carries a fresh ULID. So what
  is found after a lost answer says whether it is ours. A refusal is no proof that it is not: a
  proxy may have sent the write twice and passed on the answer to the second.
- A version of ours that others have changed since is not recognised. A change whose effect must
  not happen twice has to find its own effect in the value.
- `StoreUnavailable` says that nothing was changed. After an ambiguous try nobody knows that any
  more, so the same failure is raised as `OutcomeUnknown`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Final, Generic, TypeAlias, TypeVar

from logstore.clock import Clock
from logstore.entropy import Entropy
from logstore.errors import (
    NotFound,
    OutcomeUnknown,
    PreconditionFailed,
    StoreUnavailable,
    TailraceError,
)
from logstore.objects.store import ObjectStore

T = TypeVar("T")
R = TypeVar("R")
Change: TypeAlias = Callable[[T | None], Awaitable[T | None]]

_REFUSALS: Final = 100
_AMBIGUOUS: Final = 3
_FIRST_PAUSE_SECONDS: Final = 0.01
_LONGEST_PAUSE_SECONDS: Final = 0.5
_BITS: Final = 16


@dataclass(frozen=True, slots=True)
class Revision(Generic[T]):
    """A value that stands in the store, and the ETag to change it by."""

    value: T
    etag: str
    written: bool = False
    """Whether the call that gives it has written it."""


@dataclass(frozen=True)
class Document(Generic[T]):
    """One object whose bytes `decode` and `encode` know; `decode` raises `Damaged`."""

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
        return Revision(self.decode(body), info.etag)

    async def write(self, value: T, etag: str | None) -> Revision[T]:
        """Puts `value` in the place of the version of `etag`; None is for the first version.

        Raises `PreconditionFailed`, `StoreUnavailable`, `OutcomeUnknown`.
        """
        body = self.encode(value)
        info = await self.store.put(self.key, body, if_absent=etag is None, if_match=etag)
        return Revision(value, info.etag, written=True)


@dataclass(frozen=True, slots=True)
class Backoff:
    """Pauses that grow with the tries, each a random part of its longest (full jitter)."""

    clock: Clock
    entropy: Entropy

    async def pause(self, tries: int) -> None:
        """Waits before another try, after so many: at most half a second."""
        longest = min(_FIRST_PAUSE_SECONDS * 2**tries, _LONGEST_PAUSE_SECONDS)
        await self.clock.sleep(longest * self.entropy.getrandbits(_BITS) / (1 << _BITS))


class RetryBudget:
    """How often one operation may be refused, and how many ambiguous outcomes it bears in a row.

    A write whose outcome is not known is looked for and, if it is not there, made again. A store
    that never says anything else must not be asked for ever: after a few times the caller hears
    of it. Without `backoff` the next try comes at once.
    """

    def __init__(
        self,
        backoff: Backoff | None = None,
        *,
        refusals: int = _REFUSALS,
        ambiguous: int = _AMBIGUOUS,
    ) -> None:
        self._backoff = backoff
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
        if self._backoff is not None:
            await self._backoff.pause(self.refused + self.ambiguous - 1)


async def swap(
    document: Document[T],
    change: Change[T],
    *,
    known: Revision[T] | None = None,
    budget: RetryBudget | None = None,
) -> Revision[T] | None:
    """What stands in the store once `change` is in, or has nothing to change; None is no object.

    `change` gets the newest value, None if there is none, and gives the one to be written, None
    to leave it. A version that is `known` saves the first read: nothing but a write is decided
    by it, so if `change` leaves it or raises, the object is read and `change` asked again.

    Raises what `change` raises, `Damaged`, `StoreUnavailable` (nothing was changed) and
    `OutcomeUnknown`.
    """
    budget = RetryBudget() if budget is None else budget
    with _ambiguous_once_ambiguous(budget):
        return await _swap(document, change, known, budget)


async def _swap(
    document: Document[T],
    change: Change[T],
    known: Revision[T] | None,
    budget: RetryBudget,
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
    """What `write` gives, which is asked again while its outcome is ambiguous.

    It must be one that may be made twice: a key that is used once, or the same bytes. Raises
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
    """After an ambiguous try, no failure says that nothing was changed."""
    try:
        yield
    except StoreUnavailable as error:
        if budget.ambiguous:
            raise OutcomeUnknown(f"an earlier try may have been made: {error}") from error
        raise
