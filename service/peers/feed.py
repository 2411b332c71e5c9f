"""News of other nodes for the live streams of this one.

While somebody watches runs here, each other node is asked (`wait`) for those of them that have new
lines there; it answers when there are some. Readers of such a run then read storage, which
has the lines of all nodes, from their cursors on. So nothing depends on an answer that is lost: the
next one names all runs with lines at or above the position that the last one had looked at.

When a node becomes silent, answers again or is gone, all readers read storage: so they can say whom
they do not hear, and have what they missed of it. A silent node is asked once a second.

| `wait` asks | `{"runs": [[fqn, run, position], …], "seconds", "taken"}`; -1: all there is |
| --- | --- |
| it answers | `{"runs": [number, …], "end", "taken"}`: which have news, and the next position |

`taken` counts how often that node took over lines of a lost one; a number that is not that of the
question means news of all runs.
"""

from __future__ import annotations

import asyncio

from logstore.batch import RunKey
from logstore.clock import Clock
from service.peers import messages
from service.peers.peers import Peers
from service.peers.register import Entry
from service.peers.transport import PeerRefused, PeerSilent
from service.tail import ALL_RUNS, Tail

_WAIT_SECONDS = 20.0
_GRACE_SECONDS = 5.0
_PAUSE_SECONDS = 1.0
_MOST_RUNS = 5000


class LiveFeed:
    """Follows all other nodes for the runs that `tail` has readers of."""

    def __init__(self, peers: Peers, tail: Tail, clock: Clock) -> None:
        self._peers = peers
        self._tail = tail
        self._clock = clock
        self._changed = asyncio.Event()
        self._taken: dict[str, int] = {}

    async def run(self) -> None:
        """Follows them until cancelled."""
        self._tail.changed = self._change
        self._peers.register.on_change(self._change)
        self._peers.on_change = self._reread
        following: dict[str, asyncio.Task[None]] = {}
        try:
            while True:
                changed = self._changed
                there = self._peers.register.holders
                gone = [instance for instance in following if instance not in there]
                for instance in gone:
                    following.pop(instance).cancel()
                    self._taken.pop(instance, None)
                if gone:
                    self._tail.missed_all()
                for instance, entry in there.items():
                    if instance not in following:
                        following[instance] = asyncio.ensure_future(self._follow(entry))
                await changed.wait()
        finally:
            for task in following.values():
                task.cancel()

    def _change(self) -> None:
        """Other runs are watched, or other nodes are there."""
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    def _reread(self) -> None:
        """A node became silent, or answers again."""
        self._tail.missed_all()
        self._change()

    async def _follow(self, entry: Entry) -> None:
        seen: dict[RunKey, int] = {}
        failed = False
        while True:
            if failed or self._peers.is_silent(entry):
                await self._clock.sleep(_PAUSE_SECONDS)
            changed = self._changed
            watched = [key for key in self._tail.watched if key != ALL_RUNS][:_MOST_RUNS]
            seen = {key: seen.get(key, -1) for key in watched}
            if not seen and not self._peers.is_silent(entry):
                await changed.wait()
                continue
            asking = asyncio.ensure_future(self._ask(entry, seen))
            changing = asyncio.ensure_future(changed.wait())
            try:
                await asyncio.wait({asking, changing}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                changing.cancel()
                if not asking.done():
                    asking.cancel()
            failed = asking.done() and not asking.cancelled() and not asking.result()

    async def _ask(self, entry: Entry, seen: dict[RunKey, int]) -> bool:
        """Asks once; moves `seen` on and wakes readers. Gives whether it answered."""
        runs = [[*key, start] for key, start in seen.items()]
        # A silent one need not have news to be heard again.
        seconds = 0.0 if self._peers.is_silent(entry) else _WAIT_SECONDS
        taken = self._taken.get(entry.instance)
        body = messages.encode({"runs": runs, "seconds": seconds, "taken": taken})
        try:
            answer = await self._peers.one(entry, body, "wait", seconds + _GRACE_SECONDS)
            keys = list(seen)
            news = [keys[number] for number in answer.head["runs"]]
            seen |= dict.fromkeys(keys, int(answer.head["end"]))
            self._taken[entry.instance] = int(answer.head.get("taken", 0))
        except (PeerSilent, PeerRefused, KeyError, IndexError, TypeError):
            return False
        for key in news:
            self._tail.missed(key)
        return True
