"""What the stores of simulated worlds stand on: their own simulated disk, or a real S3 server.

Worlds make their store by `open_store`. A test that is to run over every kind of store takes
the fixture `every_store`, which says for its time what they get. On S3 each disk has a
prefix of its own, and processes that share the disk share it: a store beside a disk.

Tests that count the store's calls, or fail its disk, need the simulated one: they do not
take the fixture.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from weakref import WeakKeyDictionary

from logstore.clock import Clock
from logstore.entropy import Entropy
from logstore.objects.local import LocalStore, inline
from logstore.objects.store import ObjectStore
from tests.outside import Outside, OutsideStore
from tests.powercut import PowerCutFileSystem

STORE = "/store"

Connect = Callable[[str], ObjectStore]
"""The real store under a prefix; called in the thread of `Outside`."""


class Server:
    """Prefixes of a real server, one for each disk; `name` begins them all."""

    def __init__(self, outside: Outside, connect: Connect, name: str) -> None:
        self._outside = outside
        self._connect = connect
        self._name = name
        self._places: WeakKeyDictionary[PowerCutFileSystem, tuple[ObjectStore, dict[str, int]]] = (
            WeakKeyDictionary()
        )
        self.made = 0

    def open(self, disk: PowerCutFileSystem, clock: Clock) -> ObjectStore:
        """The store that belongs to the disk."""
        if disk not in self._places:
            self.made += 1
            self._places[disk] = self._connect(f"{self._name}/{self.made}"), {}
        store, written = self._places[disk]
        return OutsideStore(store, self._outside, clock, written)

    def share(self, disk: PowerCutFileSystem, other: PowerCutFileSystem) -> None:
        """`other` is a copy of `disk`, with the same store."""
        if disk in self._places:
            self._places[other] = self._places[disk]


_server: list[Server] = []


@contextmanager
def standing_on(server: Server) -> Iterator[None]:
    """Stores opened meanwhile are the server's."""
    _server.append(server)
    try:
        yield
    finally:
        _server.pop()


def on_disk() -> bool:
    """Whether stores are on the simulated disk."""
    return not _server


def open_store(disk: PowerCutFileSystem, clock: Clock, dice: Entropy) -> ObjectStore:
    """The store that all processes over `disk` share."""
    if on_disk():
        return LocalStore(STORE, disk, clock, dice, run=inline)
    return _server[-1].open(disk, clock)


def copy_of(disk: PowerCutFileSystem) -> PowerCutFileSystem:
    """The disk as it is now; a store on a server stays one and the same."""
    copy = deepcopy(disk)
    if not on_disk():
        _server[-1].share(disk, copy)
    return copy
