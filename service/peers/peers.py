"""A question to all other nodes at once, with a deadline.

Readers do not ask a node that is not heard (`contact`) again for a while, first for a second and at
most for half a minute. It counts as silent meanwhile: one dead node must not cost every page a
deadline. Whoever changes something (`everyone`) asks it all the same.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from service.peers import messages
from service.peers.messages import Message
from service.peers.register import Entry, Register
from service.peers.transport import PeerRefused, PeerSilent

_NOTHING = messages.encode({"runs": [], "seconds": 0, "taken": None})
"""A question that costs nothing, and that every version knows."""


@dataclass(slots=True)
class Gathered:
    """The answers by instance, and the nodes without one with the reasons."""

    answers: dict[str, Message] = field(default_factory=dict)
    silent: dict[str, str] = field(default_factory=dict)


class Peers:
    """The other nodes. With nobody in the register nothing is asked."""

    def __init__(self, register: Register, *, timeout_seconds: float) -> None:
        self.register = register
        self.timeout_seconds = timeout_seconds
        self._contacts = register.contacts

    @property
    def on_change(self) -> Callable[[], None]:
        """Called when a node is not heard any more, and when it is heard again."""
        return self._contacts.on_change

    @on_change.setter
    def on_change(self, hear: Callable[[], None]) -> None:
        self._contacts.on_change = hear

    def __bool__(self) -> bool:
        """Whether there are other nodes with lines."""
        return bool(self.register.holders)

    def entries(self, *, readers: bool = False) -> list[Entry]:
        """The other processes that may hold lines, and `readers`, in the order of their nodes."""
        found = self.register.others if readers else self.register.holders
        return sorted(found.values(), key=lambda e: (e.node, e.instance))

    async def ask(self, body: bytes, verb: str, *, readers: bool = False) -> Gathered:
        """Asks all but those that were silent a moment ago."""
        found = Gathered()
        asked = []
        for entry in self.entries(readers=readers):
            why = self._contacts.pausing(entry.instance)
            if why is None:
                asked.append(entry)
            else:
                found.silent[entry.node] = why
        await self._ask(asked, verb, body, self.timeout_seconds, found)
        return found

    async def everyone(
        self, body: bytes, verb: str, seconds: float | None = None, *, readers: bool = False
    ) -> Gathered:
        """Asks all that are in the register now. Raises `Unavailable`: it cannot be read.

        One that was silent a moment ago gets no more time than a reader gives it.
        """
        await self.register.look()
        found = Gathered()
        asked = self.entries(readers=readers)
        await self._ask(asked, verb, body, seconds or self.timeout_seconds, found)
        return found

    async def one(self, entry: Entry, body: bytes, verb: str, seconds: float) -> Message:
        """Asks one. Raises `PeerSilent`, `PeerRefused`."""
        return await self._contacts.ask(entry.address, verb, body, seconds)

    async def _ask(
        self, entries: Iterable[Entry], verb: str, body: bytes, seconds: float, found: Gathered
    ) -> None:
        async def ask(entry: Entry) -> None:
            most = self.timeout_seconds if self.is_silent(entry) else seconds
            try:
                answer = await self.one(entry, body, verb, min(seconds, most))
                found.answers[entry.instance] = answer
            except (PeerSilent, PeerRefused) as error:
                found.silent[entry.node] = str(error)

        await asyncio.gather(*[ask(entry) for entry in entries])

    def loads(self) -> list[float]:
        """The loads that the others told last, without those that were silent a moment ago."""
        return [e.load for e in self.entries() if self._contacts.pausing(e.instance) is None]

    def is_silent(self, entry: Entry) -> bool:
        """Whether the last question that it was asked has no answer."""
        return self._contacts.is_unheard(entry.instance)

    def silent(self) -> tuple[str, ...]:
        """The nodes with lines that are not heard, or may not know this one yet, by name."""
        untold = self.register.untold
        if not (untold or self._contacts.any_unheard):
            return ()
        found = {e.node for e in self.entries() if e.instance in untold or self.is_silent(e)}
        return tuple(sorted(found))

    async def stay_in_touch(self, seconds: float) -> None:
        """Asks each node that was asked nothing for so long, to find out whether it is heard.

        A process that may not know this one is told of it instead.
        """
        asked, told = self._contacts.asked_within, self.register.untold
        quiet = [
            entry
            for entry in self.entries()
            if entry.instance not in told and not asked(entry.instance, seconds)
        ]
        await asyncio.gather(
            self.register.introduce(),
            self._ask(quiet, "wait", _NOTHING, self.timeout_seconds, Gathered()),
        )

    def problems(self) -> list[str]:
        """What is wrong with other nodes, as sentences."""
        found = [] if self.register.last_error is None else [self.register.last_error]
        holders = [entry.address for entry in self.register.holders.values()]
        others = [entry.address for entry in self.register.others.values()]
        found += [
            f"the node {entry.node} is of a newer version, and its register entry cannot be read"
            " here: upgrade this node"
            for entry in self.register.others.values()
            if entry.newer
        ]
        return found + self._contacts.problems(holders, others, self.register.age_seconds)
