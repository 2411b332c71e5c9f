"""Group commit: every change that this process makes to a shard goes through its writer.

    submit ─► waiting ──┐   all operations that wait when a write begins
                        └─► decide each against one shard ─► put if_match ─► answer each
                                 ▲                               │ 412: another process wrote
                                 └───────── get ◄────────────────┘ unclear: is our ULID in it?

The shard that this process wrote is kept with its ETag, so the next write needs no read. A result
that was decided on a kept shard and needs no write is returned only if that shard was certainly
still the newest after the operation was submitted. Moments (`Moments`) tell this: they count events
in this process. `RowCache` bounds the memory of shards.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import count
from typing import Any, Final, NamedTuple, Protocol, TypeVar

from tailrace.coordination.object_store.shard import (
    RECENT,
    Operation,
    Shard,
    ShardEdit,
    Summary,
    compressed,
    decode_shard,
    decompressed,
    decompressed_bytes,
    encode_shard,
    summarized,
)
from tailrace.coordination.partitions import AGEING_MS
from tailrace.logstore import keys
from tailrace.logstore import ulid as ulids
from tailrace.logstore.cache import BoundedCache
from tailrace.logstore.cas import RetryBudget, pause_after
from tailrace.logstore.clock import Clock, Entropy
from tailrace.logstore.errors import (
    Damaged,
    NotFound,
    OutcomeUnknown,
    PreconditionFailed,
    StoreUnavailable,
    TailraceError,
)
from tailrace.logstore.objects.store import ObjectInfo, ObjectStore

# The memory of shards: those that are kept, and those that are being worked on.
#
# kept: the shards used last; others drop their rows as soon as memory is needed.
#
# in work: shards being read or written, with their memory reserved: as many as fit into half of the
# limit, or one that needs more.


EXPANSION: Final = 5
"""What a shard takes in memory per byte of its JSON, measured: objects of Python are large."""


class Forgetful(Protocol):
    """An object that holds rows and can drop them."""

    def forget_rows(self) -> None:
        """Drops the rows, and keeps what is small."""
        ...


class RowCache:
    """Makes the least recently used holders drop their rows; never the one that was used last."""

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self._sizes: BoundedCache[Forgetful, int] = BoundedCache(size_of=int, least=1)
        self._under_way = 0
        self._turn = asyncio.Lock()
        self._left = asyncio.Event()

    def used(self, holder: Forgetful, size: int) -> None:
        """Records that `holder` uses a shard with `size` bytes of JSON."""
        self._sizes.put(holder, size * EXPANSION)
        self._shrink()

    def dropped(self, holder: Forgetful) -> None:
        """Records that `holder` holds no shard any more."""
        self._sizes.pop(holder)

    @asynccontextmanager
    async def reserved(self, holder: Forgetful, size: int) -> AsyncIterator[None]:
        """Waits, first come first served, until `holder` may work on that many bytes of JSON.

        A holder that has its reservation waits for no other.
        """
        needed = size * EXPANSION
        async with self._turn:
            # Half of the memory stays for shards that are kept for the next operation.
            while self._under_way and self._under_way + needed > self.limit_bytes // 2:
                self._left.clear()
                await self._left.wait()
            self._under_way += needed
        try:
            self._sizes.get(holder)
            self._shrink()
            yield
        finally:
            self._under_way -= needed
            self._left.set()

    def _shrink(self) -> None:
        for oldest, _ in self._sizes.shrink(self.limit_bytes - self._under_way):
            oldest.forget_rows()


T = TypeVar("T")

_TRIES: Final = 40


@dataclass(frozen=True, slots=True)
class WriterContext:
    """The context that all writers of a process share."""

    store: ObjectStore
    clock: Clock
    entropy: Entropy
    cache: RowCache
    moments: count[int]

    def fresh_id(self) -> str:
        """A fresh ULID."""
        return ulids.fresh_text(self.clock, self.entropy)

    async def pause(self, tries: int) -> None:
        """Waits before the next try, after that many."""
        await pause_after(tries, self.clock, self.entropy)


class ShardVersion(NamedTuple):
    """A shard that was certainly the newest at some time after the moment `seen`."""

    shard: Shard
    etag: str | None
    seen: int


@dataclass(frozen=True, slots=True, eq=False)
class _WaitingWrite:
    operation: Operation[Any]
    moment: int
    answer: asyncio.Future[Any]


@dataclass(frozen=True, slots=True)
class _Decided:
    """The answers of a group once `shard` is written; `base` is the version before it."""

    outcomes: Sequence[tuple[_WaitingWrite, Any]]
    base: Shard
    shard: Shard | None

    def answer(self) -> None:
        for waiting, outcome in self.outcomes:
            _resolve(waiting, outcome)

    def can_be_told_from(self, shard: Shard) -> bool:
        """Whether that shard's `recent` reaches back far enough to prove that no write happened."""
        if self.base.version:
            return self.base.version in shard.recent
        return len(shard.recent) < RECENT


class _Tried(NamedTuple):
    """A write that was refused, or whose outcome is unknown."""

    decided: _Decided
    unclear: bool


class ShardWriter:
    """A shard as this process sees and changes it. `empty` names it."""

    def __init__(self, context: WriterContext, empty: Shard) -> None:
        self.number = empty.number
        self.key = keys.partition_shard(empty.source, empty.number)
        self._context = context
        self._empty = empty
        self._shard: Shard | None = None
        self._summary: Summary | None = None
        self._summarizes = False
        self._etag: str | None = None
        self._size = 0  # of its JSON, about; not less than we know
        self.modified_ms = 0
        """When anybody wrote it last, says the listing before; perhaps in whole seconds."""
        self._seen = -1
        self._changed = -1  # when we last came to know another version
        self._group: list[_WaitingWrite] = []
        self._task: asyncio.Task[None] | None = None

    # --- the known shard -------------------------------------------------------------

    def summary(self, ageing_ms: int | None = None) -> Summary | None:
        """The summary of the newest known version; None if it must be read. Raises `Damaged`.

        Its order is that of `ageing_ms`, if that is possible without a read.
        """
        known, self._summarizes = self._summary, True
        if self._shard is None or (known and ageing_ms in (None, known.ageing_ms)):
            return known
        self._summary = summarized(self._shard, AGEING_MS if ageing_ms is None else ageing_ms)
        return self._summary

    def listed(self, info: ObjectInfo | None, began: int) -> None:
        """Takes the newest version from a listing that began at that moment; None: no object."""
        etag = None if info is None else info.etag
        self.modified_ms = 0 if info is None else info.modified_ms
        if began < self._changed:
            return  # it may be from before what we know
        if self._seen >= 0 and etag == self._etag:
            self._seen = max(self._seen, began)
        elif etag is None:
            self._learn(ShardVersion(self._empty, None, began), 0)
        else:
            self.forget()
            self._size = max(self._size, 0 if info is None else decompressed_bytes(info.size))

    def forget_rows(self) -> None:
        """Drops the rows; keeps the summary, if anybody in this process asks for summaries."""
        if not self._summarizes:
            self.forget()
            return
        try:
            self.summary()
        except Damaged:
            self.forget()  # whoever asks reads it, and hears of it
        self._shard = None

    async def look(self, needed: int = -1) -> ShardVersion:
        """The known version, if it was the newest after the moment `needed`; else it is read.

        Raises `StoreUnavailable`, `Damaged`.
        """
        known = self._known(needed)
        if known is None:
            async with self._context.cache.reserved(self, self._size):
                known = self._known(needed) or await self._read()
        return known

    def _known(self, needed: int) -> ShardVersion | None:
        if self._shard is None or self._seen < needed:
            return None
        return ShardVersion(self._shard, self._etag, self._seen)

    async def _read(self) -> ShardVersion:
        began = next(self._context.moments)
        try:
            info, body = await self._context.store.get(self.key)
        except NotFound:
            found, size = ShardVersion(self._empty, None, began), 0
        else:
            json = decompressed(self.key, body)
            found, size = ShardVersion(decode_shard(self._empty, json), info.etag, began), len(json)
        if began > self._changed:  # else we wrote meanwhile, and know of a newer one
            self._learn(found, size)
        return found

    def _learn(self, version: ShardVersion, size: int) -> None:
        self._shard, self._etag, self._seen = version
        self._summary = None
        self._size = size
        self._changed = next(self._context.moments)
        self._context.cache.used(self, size)

    def forget(self) -> None:
        """Drops all that is known; the next request reads the shard."""
        self._shard = self._summary = self._etag = None
        self._seen = -1
        self._context.cache.dropped(self)

    # --- changing it -----------------------------------------------------------------

    async def submit(self, operation: Operation[T], moment: int | None = None) -> T:
        """The operation's result, from a shard that was the newest after `moment`, or after now.

        Raises as the operation; `StoreUnavailable`, `OutcomeUnknown`, `Damaged`;
        `PreconditionFailed` if the operation is not patient and another process was first.
        """
        answer: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        came = next(self._context.moments) if moment is None else moment
        self._group.append(_WaitingWrite(operation, came, answer))
        if self._task is None:
            self._task = asyncio.create_task(self._run())
        return await answer

    async def settle(self) -> None:
        """Returns when no write is in progress."""
        while self._task is not None:
            await asyncio.wait([self._task])

    async def _run(self) -> None:
        try:
            while self._group:
                group, self._group = self._group, []
                try:
                    await self._commit(group)
                except Exception as error:  # noqa: BLE001 -- whoever waits must hear of it
                    for one in group:
                        _resolve(one, error)
                finally:
                    for one in group:  # answered already, unless the loop itself ends
                        one.answer.cancel()
        finally:
            self._task = None

    async def _commit(self, group: Sequence[_WaitingWrite]) -> None:
        tried: list[_Tried] = []
        try:
            async with self._context.cache.reserved(self, self._size):
                await self._write_group(group, tried)
        except StoreUnavailable as error:
            if any(one.unclear for one in tried):
                raise OutcomeUnknown(f"put {self.key}: {error}") from error
            raise

    async def _write_group(self, group: Sequence[_WaitingWrite], tried: list[_Tried]) -> None:
        """Writes a group; appends writes without a known success to `tried`."""
        budget, lost = RetryBudget(), None
        for tries in range(_TRIES):
            version = self._known(needed=-1) or await self._read()
            if _was_written(tried, version.shard):
                return
            group = group if lost is None else _patient(group, lost)
            decided = self._decide(version.shard, group)
            if decided.shard is None:
                # Without a write, only a shard that was the newest after all of them came will do.
                if version.seen >= max([one.moment for one in group], default=-1):
                    decided.answer()
                    return
                self.forget()
                continue
            try:
                await self._put(decided.shard, version.etag)
            except PreconditionFailed as error:
                tried.append(_Tried(decided, unclear=False))
                lost = error
            except OutcomeUnknown as error:
                tried.append(_Tried(decided, unclear=True))
                budget.spend(error)
            else:
                decided.answer()
                return
            await self._context.pause(tries)
        raise StoreUnavailable(f"other writers changed {self.key} again and again")

    def _decide(self, shard: Shard, group: Sequence[_WaitingWrite]) -> _Decided:
        edit = ShardEdit(shard, self._context.fresh_id)
        outcomes: list[tuple[_WaitingWrite, Any]] = []
        for one in group:
            if one.answer.cancelled():
                continue
            try:
                outcomes.append((one, one.operation.decide(edit)))
            except (NotFound, PreconditionFailed) as error:
                outcomes.append((one, error))
        return _Decided(outcomes, shard, edit.finished() if edit.changed else None)

    async def _put(self, shard: Shard, etag: str | None) -> None:
        began, json = next(self._context.moments), encode_shard(shard)
        size, body = len(json), compressed(json)
        del json  # which may be large, while the compressed bytes are on their way
        try:
            info = await self._context.store.put(
                self.key, body, if_absent=etag is None, if_match=etag
            )
        except TailraceError:
            self.forget()  # whose version the object is now, only a read tells
            raise
        self._learn(ShardVersion(shard, info.etag, began), size)


def _was_written(tried: Sequence[_Tried], shard: Shard) -> bool:
    """Whether one of these writes is in the shard's past; its group has then been answered.

    This covers a refused write too: a proxy before the store may have sent the request twice and
    returned the refusal of the second. Raises `OutcomeUnknown` if the shard does not tell.
    """
    for one in tried:
        assert one.decided.shard is not None
        if one.decided.shard.version in shard.recent:
            one.decided.answer()
            return True
        if one.unclear and not one.decided.can_be_told_from(shard):
            raise OutcomeUnknown(f"shard {shard.number} of {shard.source} has forgotten our write")
    return False


def _patient(group: Sequence[_WaitingWrite], error: PreconditionFailed) -> list[_WaitingWrite]:
    """The operations that wait for another try; the others receive the error."""
    for one in group:
        if not one.operation.patient:
            _resolve(one, error)
    return [one for one in group if one.operation.patient]


def _resolve(waiting: _WaitingWrite, outcome: Any) -> None:
    if waiting.answer.done():
        return
    if isinstance(outcome, Exception):
        waiting.answer.set_exception(outcome)
    else:
        waiting.answer.set_result(outcome)
