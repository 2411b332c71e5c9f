"""A store that fails when it is told to: wraps any `ObjectStore`, and is one.

Every call counts as one step, and so does each piece of a listing or stream. `schedule`
says what happens at which step, from 1; `calls` names all steps. To kill a program between
every two steps, run it with `Schedule.crash(n)` for n = 1, 2, 3… until `fired` stays false.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from enum import Enum
from typing import Any, TypeVar

from tailrace.logstore.errors import OutcomeUnknown, StoreUnavailable
from tailrace.logstore.objects.store import Body, Listing, ObjectInfo, ObjectPart, ObjectStore

T = TypeVar("T")

WRITES = frozenset({"put", "compose", "delete"})


class Crash(BaseException):
    """The program died here. Nothing but a test catches it."""


class Fault(Enum):
    """What happens at a step. A read whose outcome would be unknown is unavailable."""

    UNAVAILABLE = "unavailable"  # nothing happened, and the caller hears so
    UNKNOWN_DONE = "unknown, done"
    UNKNOWN_NOT_DONE = "unknown, not done"
    CRASH_BEFORE = "crash before"
    CRASH_AFTER = "crash after"


# The faults of a scenario that dies at each of its steps: dying before a step leaves what dying
# after the step before it left, so those scenarios would be run twice.
AT_EACH_STEP = tuple(fault for fault in Fault if fault is not Fault.CRASH_BEFORE)


class Schedule:
    """Which fault comes at which step. Faults wait for a step that `applies` accepts."""

    def __init__(
        self, faults: Mapping[int, Fault], *, applies: Callable[[str], bool] = lambda _: True
    ) -> None:
        self._faults = faults
        self._applies = applies
        self.steps = 0
        self.fired = 0

    @staticmethod
    def crash(step: int, *, after: bool = False) -> Schedule:
        """The program dies at one step, before or after its effect."""
        return Schedule({step: Fault.CRASH_AFTER if after else Fault.CRASH_BEFORE})

    @staticmethod
    def none() -> Schedule:
        """Never fails."""
        return Schedule({})

    def next(self, call: str) -> Fault | None:
        """The fault of the next step; only steps that `applies` accepts are counted."""
        if not self._applies(call):
            return None
        self.steps += 1
        fault = self._faults.get(self.steps)
        self.fired += fault is not None
        return fault


class FaultyStore:
    """`ObjectStore` over `inner`, with the faults of `schedule`."""

    def __init__(self, inner: ObjectStore, schedule: Schedule) -> None:
        self.inner = inner
        self.schedule = schedule
        self.calls: list[str] = []

    async def put(
        self,
        key: str,
        body: Body,
        *,
        if_absent: bool = False,
        if_match: str | None = None,
        metadata: Mapping[str, str] | None = None,
    ) -> ObjectInfo:
        return await self._step(
            "put",
            key,
            lambda: self.inner.put(
                key, body, if_absent=if_absent, if_match=if_match, metadata=metadata
            ),
        )

    async def get(
        self, key: str, *, offset: int = 0, size: int | None = None, if_match: str | None = None
    ) -> tuple[ObjectInfo, bytes]:
        return await self._step(
            "get", key, lambda: self.inner.get(key, offset=offset, size=size, if_match=if_match)
        )

    async def stream(
        self, key: str, *, offset: int = 0, size: int | None = None, if_match: str | None = None
    ) -> AsyncIterator[bytes]:
        pieces = self.inner.stream(key, offset=offset, size=size, if_match=if_match)
        async for piece in self._each("stream", key, pieces):
            yield piece

    async def head(self, key: str) -> ObjectInfo:
        return await self._step("head", key, lambda: self.inner.head(key))

    async def compose(
        self,
        key: str,
        parts: Sequence[ObjectPart | bytes],
        *,
        if_absent: bool = False,
        if_match: str | None = None,
        metadata: Mapping[str, str] | None = None,
    ) -> ObjectInfo:
        return await self._step(
            "compose",
            key,
            lambda: self.inner.compose(
                key, parts, if_absent=if_absent, if_match=if_match, metadata=metadata
            ),
        )

    async def list(self, prefix: str, *, after: str = "") -> AsyncIterator[ObjectInfo]:
        async for info in self._each("list", prefix, self.inner.list(prefix, after=after)):
            yield info

    def listed(self, prefix: str, *, after: str = "") -> Listing:
        self._begin(f"list {prefix}", writes=False)
        return self.inner.listed(prefix, after=after)

    async def folders(self, prefix: str, *, after: str = "") -> AsyncIterator[str]:
        async for name in self._each("folders", prefix, self.inner.folders(prefix, after=after)):
            yield name

    async def delete(self, keys: Sequence[str]) -> None:
        await self._step("delete", " ".join(keys), lambda: self.inner.delete(keys))

    async def sweep(self, before_ms: int) -> int:
        return await self._step("sweep", "", lambda: self.inner.sweep(before_ms))

    def uri(self, key: str) -> str:
        return self.inner.uri(key)

    async def _step(self, name: str, key: str, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        call = f"{name} {key}"
        fault = self._begin(call, writes=name in WRITES)
        result = await work()
        if fault is Fault.CRASH_AFTER:
            raise Crash(call)
        if fault is Fault.UNKNOWN_DONE:
            raise OutcomeUnknown(call) if name in WRITES else StoreUnavailable(call)
        return result

    def _begin(self, call: str, *, writes: bool) -> Fault | None:
        """Notes the call; raises, or returns, what its fault is."""
        self.calls.append(call)
        fault = self.schedule.next(call)
        if fault is Fault.CRASH_BEFORE:
            raise Crash(call)
        if fault is Fault.UNKNOWN_NOT_DONE and writes:
            raise OutcomeUnknown(call)
        if fault in (Fault.UNAVAILABLE, Fault.UNKNOWN_NOT_DONE):
            raise StoreUnavailable(call)
        return fault

    async def _each(self, name: str, key: str, items: AsyncIterator[T]) -> AsyncIterator[T]:
        """One step to begin with, and one for each item."""

        async def begin() -> None:
            return None

        await self._step(name, key, begin)
        async for item in items:
            await self._step(f"{name} item of", key, begin)
            yield item
