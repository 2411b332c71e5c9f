"""Which state objects were damaged when this process read them last, as problems of the node.

Every object that the node reads passes here, so no part has to report damage for itself. A damaged
object is read again every ten seconds: the problem is over when the object is intact or gone. The
same holds for one of a newer format: this node is to be upgraded. Entries of the register are
left to `service.peers`, which names the nodes that wrote them.
"""

from __future__ import annotations

import re
from contextlib import suppress
from typing import Final

import orjson

from logstore import keys
from logstore.checked import is_checked, is_intact
from logstore.clock import Clock
from logstore.errors import NotFound, TailraceError
from logstore.objects.store import ObjectStore
from logstore.state_kinds import advice, kind_of

_AGAIN_SECONDS: Final = 10.0
_PREFIXES: Final = (keys.RUNS, keys.COORDINATION, keys.QUARANTINE)
_FORMAT: Final = re.compile(rb'"format":([0-9]{1,9})[,}]')
_HEAD_BYTES: Final = 64
_COMPRESSED: Final = b"\x28\xb5\x2f\xfd"  # a large shard of partitions: zstd, with its own checksum


class StateWatch:
    """Looks at the bytes of state objects that a store gives."""

    def __init__(self) -> None:
        self._damaged: set[str] = set()
        self._newer: dict[str, int] = {}

    @property
    def damaged(self) -> int:
        """How many state objects are damaged, of those that were read."""
        return len(self._damaged)

    def saw(self, key: str, body: bytes) -> None:
        """Notes what an object is like; those of other kinds cost a comparison of their keys."""
        if not key.startswith(_PREFIXES):
            return
        if not _is_whole(body) and kind_of(key) is not None:
            self._damaged.add(key)
            return
        self._damaged.discard(key)
        self._newer.pop(key, None)
        found = _FORMAT.search(body[:_HEAD_BYTES]) or _FORMAT.search(body[-_HEAD_BYTES:])
        number = 1 if found is None else int(found[1])
        kind = kind_of(key) if number > 1 else None
        if kind is not None and number > kind.format and not key.startswith(keys.PEERS):
            self._newer[key] = number

    def problems(self) -> list[str]:
        """A sentence for each damaged object, with what to do."""
        newer = [_newer_problem(key, number) for key, number in sorted(self._newer.items())]
        return [*map(_problem, sorted(self._damaged)), *newer]

    async def run(self, store: ObjectStore, clock: Clock) -> None:
        """Reads damaged objects again and again, until cancelled; `store` shows them to `saw`."""
        while True:
            await clock.sleep(_AGAIN_SECONDS)
            for key in sorted({*self._damaged, *self._newer}):
                with suppress(TailraceError):  # what cannot be read is as it was
                    await self._look(store, key)

    async def _look(self, store: ObjectStore, key: str) -> None:
        try:
            await store.get(key)
        except NotFound:
            self._damaged.discard(key)
            self._newer.pop(key, None)


def _is_whole(body: bytes) -> bool:
    if is_checked(body):
        return is_intact(body)
    if body.startswith(_COMPRESSED):
        return True
    try:
        return type(orjson.loads(body)) is dict  # of an earlier version
    except orjson.JSONDecodeError:
        return False


def _newer_problem(key: str, number: int) -> str:
    kind = kind_of(key)
    assert kind is not None
    return (
        f"the object {key} ({kind.name}) has format {number}, and this version knows {kind.format}:"
        f" upgrade this node. {kind.damaged}"
    )


def _problem(key: str) -> str:
    kind = kind_of(key)
    assert kind is not None
    return f"the object {key} ({kind.name}) is damaged. {kind.damaged} {advice(key)}"
