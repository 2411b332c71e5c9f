"""What is done to a node again and again, and undone again.

| harm | |
| --- | --- |
| kill | kill -9; a while later it starts again |
| stop | SIGSTOP for a moment, or for longer than others wait for an answer |
| cut | nothing passes between it and the bucket, another node, all others, or anybody |
| cut and kill | the same, and it is killed meanwhile |
| drain | kill -TERM; all that it holds must be in the bucket, and it must say so |
| fork | killed; its folder is copied, both go on, and the copy is drained until it has left |

Now and then a harm takes longer than a lease, so others count the node as lost and go on without
it. Each node has its own tormentor: what they do overlaps in every way. The store is frozen
meanwhile (`frost`), but not while a node is drained.

However short a run is, a node is killed in it and one is stopped, and everything in `WANTED` was
seen. The first node that is stopped stands still until a deletion has met it.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final

from tests.faults.link import Cut
from tests.nodes.torture.network import STORE
from tests.nodes.torture.nodes import LEASE_SECONDS, Nodes, TorturedNode

_PAUSE_SECONDS: Final = 2.0
_LONG_ODDS: Final = 0.08
_SAFE_SECONDS: Final = LEASE_SECONDS / 2
"""A node that was harmed for less has its lease all the time."""
_LONG_SECONDS: Final = LEASE_SECONDS + 3.0
_BEATS: Final = ((0.0, 0.3), (0.5, 2.0), (3.5, 7.0))
"""Moments, blinks, and what outlasts the patience of others."""


ANSWER: Final = "answers over a frozen store"
SILENT: Final = "deletions with a silent node"
SLOW: Final = "writers with a slow clock"
FLIP: Final = "flipped bits"
WANTED: Final = (ANSWER, SILENT, SLOW, FLIP)
_MEETING_SECONDS: Final = 30.0


class Harm:
    """What was done so far, what was seen, and how much is to be done."""

    def __init__(self, kills: int, dice: random.Random) -> None:
        self.kills = kills
        self.done: Counter[str] = Counter()
        self.seen: Counter[str] = Counter()
        """What is not counted among the kills: all of `WANTED`."""
        self.deleting = asyncio.Event()
        """Somebody is about to delete a run, and waits until a node is `stopped`."""
        self.standing: str | None = None
        """The first node that is stopped, by name."""
        self.stopped = asyncio.Event()
        self.met = asyncio.Event()
        """A deletion was answered that named a silent node."""
        self.faults: list[str] = []
        self.dice = dice
        self._since: dict[str, float] = {}
        self._lost_at = float("-inf")
        self.store = asyncio.Lock()
        """Held while the store is frozen, and by whoever has to bring lines into it."""

    @property
    def goes_on(self) -> bool:
        """Whether there is more to come."""
        return not self.enough or not all(self.seen[what] for what in WANTED)

    @property
    def enough(self) -> bool:
        """Whether no more is to be done to nodes and the store; something may yet be seen."""
        drawn = self.done["stop"] and self.done["kill"] and not self.unmet
        return self.done.total() >= self.kills and bool(drawn)

    @property
    def unmet(self) -> bool:
        """Whether no deletion has met a silent node, and no node stands still for that."""
        return self.standing is None and not self.met.is_set()

    def draw(self, kinds: list[str], weights: list[int]) -> str:
        """What is done next; what every run has comes first."""
        if not self.done["stop"] or self.unmet:
            what = "stop"
        elif not self.done["kill"]:
            what = "kill"
        else:
            (what,) = self.dice.choices(kinds, weights)
        self.done[what] += 1
        return what

    def begin(self, node: str) -> None:
        """A node is harmed from now on."""
        self._since[node] = time.monotonic()

    def end(self, node: str) -> None:
        """It is healed."""
        if time.monotonic() - self._since.pop(node) >= _SAFE_SECONDS:
            self._lost_at = time.monotonic()

    def may_have_lost(self, since: float) -> bool:
        """Whether some node may have counted as lost since a moment: nobody waits for it then."""
        now = time.monotonic()
        return self._lost_at >= since or any(
            now - begun >= _SAFE_SECONDS for begun in self._since.values()
        )

    def seconds(self) -> float:
        """How long something lasts."""
        if self.dice.random() < _LONG_ODDS:
            return _LONG_SECONDS
        return self.dice.uniform(*self.dice.choice(_BEATS))


class Tormentor:
    """Harms one node, and heals it each time."""

    def __init__(self, node: TorturedNode, nodes: Nodes, harm: Harm) -> None:
        self._node = node
        self._nodes = nodes
        self._harm = harm
        self._kinds: dict[str, tuple[int, Callable[[], Awaitable[None]]]] = {
            "kill": (4, self._kill),
            "stop": (4, self._stop),
            "cut": (5, self._cut),
            "cut and kill": (2, self._cut_and_kill),
            "drain": (1, self._drain),
            "fork": (2, self._fork),
        }

    async def run(self) -> None:
        """Until enough was done to all nodes together."""
        dice = self._harm.dice
        while self._harm.goes_on:
            await asyncio.sleep(dice.expovariate(1 / _PAUSE_SECONDS))
            if self._harm.enough:
                continue
            what = self._harm.draw(
                list(self._kinds), [weight for weight, _ in self._kinds.values()]
            )
            print(f"{self._node.name}: {what}", flush=True)
            self._harm.begin(self._node.name)
            try:
                await self._kinds[what][1]()
            finally:
                self._harm.end(self._node.name)

    async def _last(self) -> None:
        await asyncio.sleep(self._harm.seconds())

    async def _kill(self) -> None:
        await self._node.kill()
        await self._last()
        await self._node.start()

    async def _stop(self) -> None:
        if self._harm.unmet:
            return await self._stand_still()
        self._node.stop()
        await self._last()
        self._node.resume()
        return None

    async def _stand_still(self) -> None:
        """Until a deletion has met it; the store answers meanwhile."""
        harm = self._harm
        harm.standing = self._node.name
        with suppress(TimeoutError):
            async with harm.store, asyncio.timeout(_MEETING_SECONDS):
                await harm.deleting.wait()
                self._node.stop()
                harm.stopped.set()
                await harm.met.wait()
        if harm.stopped.is_set():
            self._node.resume()
        if not harm.met.is_set():  # the next one that is stopped stands still
            harm.standing = None
            harm.stopped.clear()

    async def _cut(self) -> None:
        others = self._others()
        for other in others:
            self._nodes.network.cut(self._node.name, other, self._how())
        await self._last()
        await self._mend(others)

    async def _cut_and_kill(self) -> None:
        """It starts again when it has a way to the bucket."""
        others = self._others()
        for other in others:
            self._nodes.network.cut(self._node.name, other, self._how())
        await self._last()
        await self._node.kill()
        await self._last()
        await self._mend(others)
        await self._node.start()

    async def _drain(self) -> None:
        async with self._harm.store:
            self._harm.faults += await self._node.end()
        await self._last()
        await self._node.start()

    async def _fork(self) -> None:
        """The original is there first: until they have met, both have one name."""
        await self._node.kill()
        copy = await self._nodes.copy(self._node)
        await self._node.start()
        await copy.start()
        self._nodes.by_name[copy.name] = copy
        await self._last()
        await asyncio.sleep(_PAUSE_SECONDS)
        del self._nodes.by_name[copy.name]
        async with self._harm.store:
            self._harm.faults += await copy.end_for_good()

    def _others(self) -> list[str]:
        """Who is cut off from it: some other node, all of them, the bucket, or everybody."""
        dice = self._harm.dice
        nodes = [node.name for node in self._nodes.all if node is not self._node]
        return dice.choice([[STORE], [dice.choice(nodes)], nodes, [STORE, *nodes]])

    def _how(self) -> Cut:
        return self._harm.dice.choice(list(Cut))

    async def _mend(self, others: list[str]) -> None:
        for other in others:
            await self._nodes.network.mend(self._node.name, other)
