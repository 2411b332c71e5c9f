"""Deadlines for reads of the object store by requests, and detection of a silent store.

Within `for_request` a read of the store ends with `StoreUnavailable` after `seconds` without an
answer. A write that such a request causes may take longer, as long as the store answers others
meanwhile; otherwise it ends with `OutcomeUnknown`. The same holds for its wait for other work that
uses the store (`in_turn`). Background work keeps the store's own time-outs, which may be minutes.

    a read is not answered in time ──► the store is silent ──► reads of requests fail at once:
                                            │                  they hold no thread, no connection
             a probe asks it again and again ──► it answers ──► reads ask it again

Each answer ends the silence, also one to background work. Background work that waits for longer
than a deadline starts a probe, so a silent store is found without a reader.

A thread that the kernel holds in a hung folder cannot be ended. Its caller gets an answer all the
same, and a folder has its own, bounded number of threads.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import contextmanager
from contextvars import ContextVar
from itertools import chain, repeat
from typing import Final, TypeVar

from tailrace.logstore.errors import OutcomeUnknown, StoreUnavailable, TailraceError
from tailrace.logstore.objects.store import Body, Listing, ObjectInfo, ObjectPart, ObjectStore

T = TypeVar("T")

_PROBED: Final = "coordination/probe"
"""A key that nobody writes: that it is absent is an answer, too."""
_PAUSE_SECONDS: Final = 0.5
_ITEMS: Final = (8, 64, 256)  # items of a list, within one deadline

_limited: ContextVar[bool] = ContextVar("limited", default=False)


@contextmanager
def for_request() -> Iterator[None]:
    """Gives reads of the store in this block, and in tasks that it starts, a deadline."""
    token = _limited.set(True)
    try:
        yield
    finally:
        _limited.reset(token)


class StoreAnswers:
    """Whether a store answers, and the deadline of reads; `ask` is one request of a probe."""

    def __init__(self, ask: Callable[[], Awaitable[object]], seconds: float) -> None:
        self.seconds = seconds
        self.silent = False
        """Whether the store left a question without an answer, and has answered none since."""
        self._ask = ask
        self._probe: asyncio.Task[None] | None = None

    def problems(self) -> list[str]:
        """A sentence if the store is silent."""
        return [f"{self._what}: reads get what the nodes hold"] if self.silent else []

    def error(self, what: str = "") -> StoreUnavailable:
        """The error for a read that the store does not answer."""
        return StoreUnavailable(
            f"{what}: {self._what}" if what else self._what,
            hint="Try again later; lines that the nodes hold are in pages and live streams.",
        )

    @property
    def _what(self) -> str:
        return f"the object store does not answer within {self.seconds:g} s"

    async def within(self, what: str, call: Callable[[], Awaitable[T]]) -> T:
        """Returns the result of `call`; with the deadline if a request waits for it.

        Raises the errors of `call`, and `StoreUnavailable`.
        """
        if not _limited.get():
            return await self.watched(call)
        if self.silent:
            raise self.error(what)
        try:
            async with asyncio.timeout(self.seconds) as deadline:
                found = await call()
        except TimeoutError as error:
            if not deadline.expired():
                raise
            self.fall_silent()
            raise self.error(what) from error
        except StoreUnavailable:
            raise
        except TailraceError:
            self.answered()
            raise
        self.answered()
        return found

    async def written(self, what: str, call: Callable[[], Awaitable[T]]) -> T:
        """Returns the result of a write. For a request, waits only while the store answers others.

        Raises the errors of `call`, `StoreUnavailable` and `OutcomeUnknown`.
        """
        if not _limited.get():
            return await self.watched(call)
        if self.silent:
            raise self.error(what)
        unknown = OutcomeUnknown(f"{what}: {self._what}", hint="Try again later.")
        return await self._while_answering(asyncio.ensure_future(call()), unknown)

    async def in_turn(self, what: str, call: Callable[[], Awaitable[T]]) -> T:
        """Returns the result of `call`, which may wait for background work that holds a lock.

        For a request, waits only while the store answers others. Raises the errors of `call`, and
        `StoreUnavailable`.
        """
        if not _limited.get():
            return await call()
        if self.silent:
            raise self.error(what)
        return await self._while_answering(asyncio.ensure_future(call()), self.error(what))

    async def blocking(self, executor: Executor, call: Callable[[], T]) -> T:
        """Returns the result of a call that blocks a thread and makes many requests to the store.

        It may take long, as long as the store answers others meanwhile. Raises the errors of `call`
        and `StoreUnavailable`; its thread may then be held for longer.
        """
        if self.silent:
            raise self.error()
        work = asyncio.get_running_loop().run_in_executor(executor, call)
        return await self._while_answering(work, self.error())

    async def _while_answering(self, work: asyncio.Future[T], error: TailraceError) -> T:
        """Returns the result of `work`. Raises `error` once the store answers nobody meanwhile."""
        try:
            while not work.done():
                done, _ = await asyncio.wait({work}, timeout=self.seconds)
                if not done and not await self.asked() and not work.done():
                    raise error
            return work.result()
        finally:
            work.cancel()
            work.add_done_callback(note_end)

    async def check(self) -> None:
        """Raises `StoreUnavailable` if the store does not answer a request now."""
        if self.silent or not await self.asked():
            raise self.error()

    async def asked(self) -> bool:
        """Whether the store answers a request now, within the deadline."""
        try:
            async with asyncio.timeout(self.seconds):
                await self._ask()
        except TimeoutError:
            self.fall_silent()
            return False
        except StoreUnavailable:
            return False
        except TailraceError:
            pass
        self.answered()
        return True

    def answered(self) -> None:
        """Records an answer of the store."""
        self.silent = False

    def fall_silent(self) -> None:
        """Records a missed deadline: reads of requests fail until the store answers."""
        self.silent = True
        self._begin_probe()

    def close(self) -> None:
        """Ends the probe."""
        if self._probe is not None:
            self._probe.cancel()

    async def watched(self, call: Callable[[], Awaitable[T]]) -> T:
        """Returns the result of `call` without a deadline, but starts a probe after one.

        Raises the errors of `call`.
        """
        timer = asyncio.get_running_loop().call_later(self.seconds, self._begin_probe)
        try:
            found = await call()
        finally:
            timer.cancel()
        self.answered()
        return found

    def _begin_probe(self) -> None:
        if self._probe is None or self._probe.done():
            self._probe = asyncio.get_running_loop().create_task(self._run(), name="store probe")

    async def _run(self) -> None:
        """Asks until the store answers, or refuses before any request was left open."""
        while not await self.asked() and self.silent:  # noqa: ASYNC110 -- another process changes
            await asyncio.sleep(_PAUSE_SECONDS)


async def _nothing() -> None:
    """Answers for a store that is not asked."""


def always_answering() -> StoreAnswers:
    """Answers for a store without deadlines."""
    return StoreAnswers(_nothing, 3600.0)


def note_end(work: asyncio.Future[T]) -> None:
    """Retrieves an error without a waiting caller, so that asyncio does not report it."""
    if not work.cancelled():
        work.exception()


class DeadlineStore:
    """An `ObjectStore` whose reads have a deadline if a request waits for them."""

    def __init__(self, inner: ObjectStore, seconds: float) -> None:
        self._inner = inner
        self.answers = StoreAnswers(lambda: inner.head(_PROBED), seconds)

    async def put(
        self,
        key: str,
        body: Body,
        *,
        if_absent: bool = False,
        if_match: str | None = None,
        metadata: Mapping[str, str] | None = None,
    ) -> ObjectInfo:
        return await self.answers.written(
            f"put {key}",
            lambda: self._inner.put(
                key, body, if_absent=if_absent, if_match=if_match, metadata=metadata
            ),
        )

    async def get(
        self, key: str, *, offset: int = 0, size: int | None = None, if_match: str | None = None
    ) -> tuple[ObjectInfo, bytes]:
        return await self.answers.within(
            f"get {key}", lambda: self._inner.get(key, offset=offset, size=size, if_match=if_match)
        )

    async def stream(
        self, key: str, *, offset: int = 0, size: int | None = None, if_match: str | None = None
    ) -> AsyncIterator[bytes]:
        pieces = self._inner.stream(key, offset=offset, size=size, if_match=if_match)

        async def piece() -> bytes:
            return await anext(pieces, b"")

        while found := await self.answers.within(f"get {key}", piece):
            yield found

    async def head(self, key: str) -> ObjectInfo:
        return await self.answers.within(f"head {key}", lambda: self._inner.head(key))

    async def compose(
        self,
        key: str,
        parts: Sequence[ObjectPart | bytes],
        *,
        if_absent: bool = False,
        if_match: str | None = None,
        metadata: Mapping[str, str] | None = None,
    ) -> ObjectInfo:
        return await self.answers.written(
            f"compose {key}",
            lambda: self._inner.compose(
                key, parts, if_absent=if_absent, if_match=if_match, metadata=metadata
            ),
        )

    def list(self, prefix: str, *, after: str = "") -> AsyncIterator[ObjectInfo]:
        return self._each(f"list {prefix}", self._inner.list(prefix, after=after))

    def listed(self, prefix: str, *, after: str = "") -> Listing:
        return self._inner.listed(prefix, after=after)

    def folders(self, prefix: str, *, after: str = "") -> AsyncIterator[str]:
        return self._each(f"list {prefix}", self._inner.folders(prefix, after=after))

    async def delete(self, keys: Sequence[str]) -> None:
        await self.answers.written("delete", lambda: self._inner.delete(keys))

    async def sweep(self, before_ms: int) -> int:
        return await self._inner.sweep(before_ms)

    def uri(self, key: str) -> str:
        return self._inner.uri(key)

    async def _each(self, what: str, items: AsyncIterator[T]) -> AsyncIterator[T]:
        for count in chain(_ITEMS, repeat(_ITEMS[-1])):

            async def some(most: int = count) -> list[T]:
                found: list[T] = []
                while len(found) < most and (item := await anext(items, None)) is not None:
                    found.append(item)
                return found

            found = await self.answers.within(what, some)
            for item in found:
                yield item
            if len(found) < count:
                return
