"""A store that lets something else happen just before one of its calls."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from logstore.objects.store import ObjectStore
from tests.faulty_store import FaultyStore, Schedule

T = TypeVar("T")


class Interrupted(FaultyStore):
    """`meanwhile` is done once, before the first call whose text begins with `at`."""

    def __init__(self, inner: ObjectStore) -> None:
        super().__init__(inner, Schedule.none())
        self._at = ""
        self._skip = 0
        self._meanwhile: Callable[[], Awaitable[None]] | None = None

    def before(self, at: str, meanwhile: Callable[[], Awaitable[None]], *, skip: int = 0) -> None:
        """Sets it; `skip` such calls go by first."""
        self._at, self._meanwhile, self._skip = at, meanwhile, skip

    @property
    def done(self) -> bool:
        """Whether it has happened."""
        return self._meanwhile is None

    async def _step(self, name: str, key: str, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        meanwhile = self._meanwhile
        if meanwhile is not None and f"{name} {key}".startswith(self._at):
            self._skip -= 1
            if self._skip < 0:
                self._meanwhile = None
                await meanwhile()
        return await super()._step(name, key, work)
