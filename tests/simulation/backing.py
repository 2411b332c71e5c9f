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
from dataclasses import dataclass, replace
from random import Random
from weakref import WeakKeyDictionary

from tailrace.logstore.clock import Clock, Entropy, SystemClock
from tailrace.logstore.objects.local import LocalStore, inline
from tailrace.logstore.objects.s3.client import BlockingBucket, open_client
from tailrace.logstore.objects.s3.credentials import Credentials
from tailrace.logstore.objects.s3.keys import BucketPlace as S3Place
from tailrace.logstore.objects.s3.store import S3Store
from tailrace.logstore.objects.store import ObjectStore
from tailrace.logstore.retry import Tries
from tests.servers.minio import Bucket
from tests.simulation.outside import Outside, OutsideStore
from tests.simulation.powercut import PowerCutFileSystem

STORE = "/store"

# More tries than any request meets faults in a row, and short pauses.
PAUSE_MS = 5
TRIES = Tries(5, PAUSE_MS / 1000)


@dataclass(frozen=True)
class Place:
    """A prefix on a server, for tests of programs that open it by themselves too.

    `straight` is the way there past any proxy, for what a test writes in somebody's stead.
    """

    bucket: Bucket
    straight: Bucket
    store: ObjectStore


class Server:
    """A bucket of a real server, with one client for all that a run of tests stores there."""

    def __init__(self, bucket: Bucket, outside: Outside, *, straight: Bucket) -> None:
        self._bucket = bucket
        self._straight = straight
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
            S3Place(self._bucket.name, prefix),
            self._clock,
            Random(prefix),
            blocking=BlockingBucket(
                self._bucket.settings.s3, Credentials(self._bucket.settings.s3), self._bucket.name
            ),
            tries=TRIES,
            uploads_by_prefix=False,
        )

    def buckets(self, prefix: str) -> tuple[Bucket, Bucket]:
        """The prefix as settings tell it, and past the proxy."""
        return replace(self._bucket, prefix=prefix), replace(self._straight, prefix=prefix)


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
            self._places[disk] = self._server.store(self._prefix()), {}
        store, written = self._places[disk]
        return OutsideStore(store, self._outside, clock, written)

    def place(self, clock: Clock) -> Place:
        """A prefix that belongs to no disk."""
        prefix = self._prefix()
        store = OutsideStore(self._server.store(prefix), self._outside, clock)
        return Place(*self._server.buckets(prefix), store)

    def _prefix(self) -> str:
        self._made += 1
        return f"{self._name}/{self._made}"

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


def open_place(clock: Clock) -> Place | None:
    """A new place on the server; None if there is none: a folder does."""
    return None if on_disk() else _backing[-1].place(clock)


def copy_of(disk: PowerCutFileSystem) -> PowerCutFileSystem:
    """The disk as it is now; a store on a server stays one and the same."""
    copy = deepcopy(disk)
    if not on_disk():
        _backing[-1].share(disk, copy)
    return copy
