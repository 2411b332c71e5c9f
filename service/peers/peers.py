"""A question to all other nodes at once, with a deadline.

A node that was silent is not asked again by readers for a while, first for a second and at most for
half a minute, and counts as silent meanwhile: one dead node must not cost every page a deadline.
Whoever changes something (`everyone`) asks it all the same.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from logstore.clock import Clock
from service.peers import messages
from service.peers.messages import Message
from service.peers.register import Entry, Register
from service.peers.transport import PeerRefused, PeerSilent, Transport

_FIRST_PAUSE_SECONDS = 1.0
_MAX_PAUSE_SECONDS = 30.0


@dataclass(slots=True)
class Gathered:
    """The answers by instance, and the nodes without one with the reasons."""

    answers: dict[str, Message] = field(default_factory=dict)
    silent: dict[str, str] = field(default_factory=dict)


@dataclass(slots=True)
class _Pause:
    until: float
    seconds: float
    why: str


class Peers:
    """The other nodes. With nobody in the register nothing is asked."""

    def __init__(
        self, register: Register, transport: Transport, clock: Clock, *, timeout_seconds: float
    ) -> None:
        self.register = register
        self.timeout_seconds = timeout_seconds
        self._transport = transport
        self._clock = clock
        self._paused: dict[str, _Pause] = {}
        self.on_change: Callable[[], None] = lambda: None
        """Called when a node becomes silent, and when a silent one answers."""
        self.asked = 0
        self.unanswered = 0

    def __bool__(self) -> bool:
        """Whether there are other nodes with lines."""
        return bool(self.register.holders)

    def entries(self, *, readers: bool = False) -> list[Entry]:
        """The other processes that may hold lines, and `readers`, in the order of their nodes."""
        found = self.register.others if readers else self.register.holders
        return sorted(found.values(), key=lambda e: (e.node, e.instance))

    async def ask(self, body: bytes, verb: str, *, readers: bool = False) -> Gathered:
        """Asks all but those that were silent a moment ago."""
        now, found = self._clock.monotonic(), Gathered()
        asked = []
        for entry in self.entries(readers=readers):
            pause = self._paused.get(entry.instance)
            if pause is not None and now < pause.until:
                found.silent[entry.node] = pause.why
            else:
                asked.append(entry)
        await self._ask(asked, verb, body, self.timeout_seconds, found)
        return found

    async def everyone(
        self, body: bytes, verb: str, seconds: float | None = None, *, readers: bool = False
    ) -> Gathered:
        """Asks all that are in the register now. Raises `Unavailable`: it cannot be read."""
        await self.register.look()
        found = Gathered()
        asked = self.entries(readers=readers)
        await self._ask(asked, verb, body, seconds or self.timeout_seconds, found)
        return found

    async def one(self, entry: Entry, body: bytes, verb: str, seconds: float) -> Message:
        """Asks one. Raises `PeerSilent`, `PeerRefused`."""
        self.asked += 1
        try:
            answer = messages.decode(await self._transport.ask(entry.address, verb, body, seconds))
        except PeerRefused:
            self.unanswered += 1
            raise
        except PeerSilent as error:
            self.unanswered += 1
            self._silent(entry, str(error))
            raise
        if self._paused.pop(entry.instance, None) is not None:
            self.on_change()
        return answer

    async def _ask(
        self, entries: Iterable[Entry], verb: str, body: bytes, seconds: float, found: Gathered
    ) -> None:
        async def ask(entry: Entry) -> None:
            try:
                found.answers[entry.instance] = await self.one(entry, body, verb, seconds)
            except (PeerSilent, PeerRefused) as error:
                found.silent[entry.node] = str(error)

        await asyncio.gather(*[ask(entry) for entry in entries])

    def loads(self) -> list[float]:
        """The loads that the others told last, without those that were silent a moment ago."""
        now = self._clock.monotonic()
        silent = {instance for instance, pause in self._paused.items() if now < pause.until}
        return [entry.load for entry in self.entries() if entry.instance not in silent]

    def _silent(self, entry: Entry, why: str) -> None:
        pause = self._paused.get(entry.instance)
        now = self._clock.monotonic()
        if pause is not None and now < pause.until:
            return  # another question in flight met the same silence
        seconds = (
            _FIRST_PAUSE_SECONDS if pause is None else min(pause.seconds * 2, _MAX_PAUSE_SECONDS)
        )
        self._paused[entry.instance] = _Pause(now + seconds, seconds, why)
        if pause is None:
            self.on_change()

    def is_silent(self, entry: Entry) -> bool:
        """Whether the last question that it was asked has no answer."""
        return entry.instance in self._paused

    def problems(self) -> list[str]:
        """Nodes that are silent, as sentences."""
        found = [] if self.register.last_error is None else [self.register.last_error]
        known = self.register.holders
        return found + [
            f"the node {known[instance].node} is silent, and its newest lines are not shown: "
            f"{pause.why}"
            for instance, pause in self._paused.items()
            if instance in known
        ]
