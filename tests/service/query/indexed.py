"""Tables with skip indexes, and stores that are said not to be on this machine."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from logstore import keys
from logstore.errors import StoreUnavailable
from service.query import index_files
from tests.service.query.world import World


def noted_opens(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Paths of the indexes on this machine that are opened from now on, in order."""
    opened, open_ = list[str](), index_files._open

    @contextmanager
    def noting(path: str) -> Iterator[int]:
        opened.append(path)
        with open_(path) as number:
            yield number

    monkeypatch.setattr(index_files, "_open", noting)
    return opened


class Remote:
    """A store from which skip indexes are fetched. It counts those that were got."""

    def __init__(self, world: World) -> None:
        self._store = world.store
        self.got = 0

    def uri(self, key: str) -> str:
        return "s3://elsewhere/table" if key == keys.TABLE else self._store.uri(key)

    async def get(self, key: str, **options: Any) -> Any:
        if key.startswith(keys.SKIP_INDEXES):
            self.got += 1
            await self._before()
        return await self._store.get(key, **options)

    async def _before(self) -> None:
        """What happens before an index is given."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


class Refusing(Remote):
    """One that refuses skip indexes."""

    async def _before(self) -> None:
        raise StoreUnavailable("not now")


class Hanging(Remote):
    """One that does not answer for skip indexes."""

    async def _before(self) -> None:
        await asyncio.Event().wait()
