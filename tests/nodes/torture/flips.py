"""Bits of state objects in the bucket that flip while nodes run, are down, or are cut off.

The object still reads as JSON, so only its checksum shows the damage. A while later `verify` must
name it, unless a node has replaced it, and restore it. If a node believed it meanwhile, lines are
missing or doubled in the end.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Final

import orjson

from service.runtime.process import in_thread
from service.shipping.watermarks import Watermarks
from tailrace.logstore import keys
from tailrace.logstore.clock import SystemClock, system_entropy
from tailrace.logstore.errors import NotFound, OutcomeUnknown, PreconditionFailed, Unavailable
from tailrace.logstore.objects.store import ObjectStore
from tailrace.logstore.state import kind_of
from tailrace.verification.findings import Fault, Findings
from tailrace.verification.state import StateCheck, StateRepair
from tests.nodes.torture.harm import FLIP, Harm
from tests.servers.minio import Bucket

_PAUSE_SECONDS: Final = 3.0
_FIRST_SECONDS: Final = 0.5
_FOLDERS: Final = (keys.RUNS, keys.COORDINATION)


class Flips:
    """Flips one bit after another; `harm` has how many, and what went wrong."""

    def __init__(self, bucket: Bucket, harm: Harm) -> None:
        self._bucket = bucket
        self._harm = harm

    async def run(self) -> None:
        """Until enough was done to the nodes."""
        async with self._bucket.open() as store:
            while self._harm.goes_on:
                if self._harm.seen[FLIP]:  # the first one as soon as there is an object
                    await asyncio.sleep(self._harm.dice.expovariate(1 / _PAUSE_SECONDS))
                else:
                    await asyncio.sleep(_FIRST_SECONDS)
                with suppress(Unavailable):  # the bucket is frozen
                    await self._flip_one(store)

    async def _flip_one(self, store: ObjectStore) -> None:
        key = await self._any_key(store)
        if key is None:
            return None
        try:
            info, body = await store.get(key)
            changed = self._changed(body)
            with suppress(OutcomeUnknown):
                await store.put(key, changed, if_match=info.etag)
        except (NotFound, PreconditionFailed, Unavailable):
            return None  # a node was faster, or the bucket is frozen
        self._harm.seen[FLIP] += 1
        print(f"a bit of {key} flips", flush=True)
        await asyncio.sleep(self._harm.seconds())
        while True:
            try:
                return await self._restore(store, key, changed)
            except (Unavailable, OutcomeUnknown):
                await asyncio.sleep(_PAUSE_SECONDS)

    async def _any_key(self, store: ObjectStore) -> str | None:
        """Each kind as often as the others, however many objects it has."""
        found: dict[str, list[str]] = {}
        for folder in _FOLDERS:
            async for info in store.list(folder):
                kind = kind_of(info.key)
                if kind is not None:
                    found.setdefault(kind.name, []).append(info.key)
        if not found:
            return None
        return self._harm.dice.choice(found[self._harm.dice.choice(sorted(found))])

    def _changed(self, body: bytes) -> bytes:
        """The body with another bit, still JSON."""
        while True:
            at, bit = self._harm.dice.randrange(len(body)), self._harm.dice.randrange(8)
            changed = bytearray(body)
            changed[at] ^= 1 << bit
            try:
                orjson.loads(changed)
            except orjson.JSONDecodeError:
                continue
            return bytes(changed)

    async def _restore(self, store: ObjectStore, key: str, damaged: bytes) -> None:
        """Has `verify --repair` name and restore it, while nodes write it, too."""
        faults: list[Fault] = []
        clock, entropy = SystemClock(), system_entropy()
        marks = Watermarks(store, clock, entropy, in_thread, lambda _: 0)
        repair = StateRepair(store, marks, clock, entropy)
        check = StateCheck(store, Findings(faults.append), repair)
        try:
            info, before = await store.get(key)
            await check.read(key)
            later, after = await store.get(key)
        except NotFound:
            return
        if before == damaged and info.etag == later.etag and not faults:
            self._harm.faults.append(f"verify does not name {key}, of which a bit has flipped")
        if after == damaged:
            self._harm.faults.append(f"verify --repair leaves {key} as it is: {faults}")
