"""What the stores of simulated worlds stand on: their own simulated disk, or a real S3 server.

Worlds make their store by `open_store`. A test that is to run over every kind of store takes
the fixture `every_store`, which says for its time what they get. On S3 each disk has a
prefix of its own, and processes that share the disk share it: a store beside a disk.

Tests that count the store's calls, or fail its disk, need the simulated one: they do not
take the fixture.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager
from copy import deepcopy
from random import Random
from weakref import WeakKeyDictionary

from logstore.clock import Clock, SystemClock
from logstore.entropy import Entropy
from logstore.objects.local import LocalStore, inline
from logstore.objects.s3.client import open_client
from logstore.objects.s3.credentials import Credentials
from logstore.objects.s3.place import Place
from logstore.objects.s3.requests import Tries
from logstore.objects.s3.store import S3Store
from logstore.objects.store import ObjectStore
from tests.outside import Outside, OutsideStore
from tests.powercut import PowerCutFileSystem
from tests.servers import Bucket

STORE = "/store"

# More tries than any request meets faults in a row, and short pauses.
TRIES = Tries(5, 0.005)


class Server:
    """A bucket of a real server, with one client for all that a run of tests stores there."""

    def __init__(self, bucket: Bucket, outside: Outside) -> None:
        self._bucket = bucket.name
        self._outside = outside
        self._clock = SystemClock()
        self._open = AsyncExitStack()
        settings = bucket.settings.s3
        opening = open_client(settings, Credentials(settings), self._clock)
        self._client = outside.run(self._open.enter_async_context(opening))

    def close(self) -> None:
        """Ends the client's connections."""
        self._outside.run(self._open.aclose())

    def store(self, prefix: str) -> ObjectStore:
        """The store under a prefix, for the loop of `outside` only."""
        return S3Store(
            self._client,
            Place(self._bucket, prefix),
            self._clock,
            Random(prefix),
            tries=TRIES,
            uploads_by_prefix=False,
        )


class Backing:
    """Prefixes below `name` on a server, one for each disk."""

    def __init__(self, server: Server, outside: Outside, name: str) -> None:
        self._server = server
        self._outside = outside
        self._name = name
        self._places: WeakKeyDictionary[PowerCutFileSystem, tuple[ObjectStore, dict[str, int]]] = (
            WeakKeyDictionary()
        )
        self._made = 0

    def open(self, disk: PowerCutFileSystem, clock: Clock) -> ObjectStore:
        """The store that belongs to the disk."""
        if disk not in self._places:
            self._made += 1
            self._places[disk] = self._server.store(f"{self._name}/{self._made}"), {}
        store, written = self._places[disk]
        return OutsideStore(store, self._outside, clock, written)

    def share(self, disk: PowerCutFileSystem, other: PowerCutFileSystem) -> None:
        """`other` is a copy of `disk`, with the same store."""
        if disk in self._places:
            self._places[other] = self._places[disk]


_backing: list[Backing] = []


@contextmanager
def standing_on(backing: Backing) -> Iterator[None]:
    """Stores opened meanwhile are a server's."""
    _backing.append(backing)
    try:
        yield
    finally:
        _backing.pop()


def on_disk() -> bool:
    """Whether stores are on the simulated disk."""
    return not _backing


def open_store(disk: PowerCutFileSystem, clock: Clock, dice: Entropy) -> ObjectStore:
    """The store that all processes over `disk` share."""
    if on_disk():
        return LocalStore(STORE, disk, clock, dice, run=inline)
    return _backing[-1].open(disk, clock)


def copy_of(disk: PowerCutFileSystem) -> PowerCutFileSystem:
    """The disk as it is now; a store on a server stays one and the same."""
    copy = deepcopy(disk)
    if not on_disk():
        _backing[-1].share(disk, copy)
    return copy
