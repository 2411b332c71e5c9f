"""A store that lets something else happen just before or after one of its calls."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from tailrace.logstore.objects.store import ObjectStore
from tests.simulation.faulty_store import FaultyStore, Schedule

T = TypeVar("T")
_MOST_CALLS = 10_000


class Interrupted(FaultyStore):
    """`meanwhile` is done once, at the first call whose text begins with `at`.

    Whoever calls it for ever is told to stop.
    """

    def __init__(self, inner: ObjectStore) -> None:
        super().__init__(inner, Schedule.none())
        self._at = ""
        self._skip = 0
        self._late = False
        self._meanwhile: Callable[[], Awaitable[None]] | None = None

    def before(self, at: str, meanwhile: Callable[[], Awaitable[None]], *, skip: int = 0) -> None:
        """Sets it; `skip` such calls go by first."""
        self._at, self._meanwhile, self._skip, self._late = at, meanwhile, skip, False

    def after(self, at: str, meanwhile: Callable[[], Awaitable[None]], *, skip: int = 0) -> None:
        """The same, once the call is done and before its caller hears of it."""
        self._at, self._meanwhile, self._skip, self._late = at, meanwhile, skip, True

    @property
    def done(self) -> bool:
        """Whether it has happened."""
        return self._meanwhile is None

    async def _step(self, name: str, key: str, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        assert len(self.calls) < _MOST_CALLS, "it never ends"
        meanwhile = self._due(f"{name} {key}")
        if meanwhile is None:
            return await super()._step(name, key, work)
        if not self._late:
            await meanwhile()
        try:
            return await super()._step(name, key, work)
        finally:
            if self._late:
                await meanwhile()

    def _due(self, call: str) -> Callable[[], Awaitable[None]] | None:
        meanwhile = self._meanwhile
        if meanwhile is None or not call.startswith(self._at):
            return None
        self._skip -= 1
        if self._skip >= 0:
            return None
        self._meanwhile = None
        return meanwhile
