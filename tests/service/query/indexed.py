"""Tables with skip indexes, and stores that are said not to be on this machine."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Event, Lock
from typing import cast

import pytest

from service.query import skip_indexes
from service.query.duckdb import Get, SearchedBucket
from tailrace.logstore import keys
from tailrace.logstore.errors import NotFound, StoreUnavailable
from tests.service.query.world import World


def noted_opens(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Paths of the indexes on this machine that are opened from now on, in order."""
    opened, open_ = list[str](), skip_indexes._open

    @contextmanager
    def noting(path: str) -> Iterator[int]:
        opened.append(path)
        with open_(path) as number:
            yield number

    monkeypatch.setattr(skip_indexes, "_open", noting)
    return opened


class Remote:
    """A store from which skip indexes are fetched. It counts those that were got."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.got = 0
        self._counting = Lock()

    def get(self, uri: str, range_: str) -> bytes:
        """What a reader of its bucket gives: `service.query.duckdb.Get`."""
        assert range_ == ""
        with self._counting:
            self.got += 1
        self._before(uri)
        try:
            return Path(uri).read_bytes()
        except FileNotFoundError as error:
            raise NotFound(uri) from error

    def place(self, path: str) -> str:
        """The address of the index of a file."""
        return self.world.store.uri(keys.skip_index(path))

    @property
    def bucket(self) -> SearchedBucket:
        """What an engine is given, so that it takes indexes from here."""
        return cast(SearchedBucket, _Elsewhere(self.get))

    def _before(self, uri: str) -> None:
        """What happens before an index is given."""


@dataclass(frozen=True)
class _Elsewhere:
    """A bucket that has nothing but skip indexes."""

    get: Get

    def reader(self) -> Get:
        return self.get

    def attach(self, _: object) -> None:
        """DuckDB reads files of this machine."""

    def key(self) -> None:
        """There are no keys."""


class Refusing(Remote):
    """One that refuses skip indexes."""

    def _before(self, uri: str) -> None:
        raise StoreUnavailable("not now")


class Hanging(Remote):
    """One that does not answer for skip indexes, until it is told to."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.given = Event()

    def _before(self, uri: str) -> None:
        self.given.wait()
