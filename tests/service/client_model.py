"""What clients did and were told: the plain model that a node's texts are held against.

A client sends one batch of a run after another and waits for each answer. Lines name
their batch, so any text can be read back as a list of batches.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from random import Random
from typing import TypeVar

from service.ingest.batch import AppendReceipt, Durability, IncomingBatch
from service.node import Node
from tailrace.logstore import ulid as ulids
from tailrace.logstore.batch import RunKey
from tailrace.logstore.clock import Clock
from tailrace.logstore.errors import OutcomeUnknown, TailraceError, Unavailable

T = TypeVar("T")
_TRIES = 200


@dataclass
class Sent:
    """A batch: `ulid` None if the node chooses; `receipt` once it was acknowledged."""

    number: int
    key: RunKey
    text: bytes
    ulid: int | None
    durability: Durability
    receipt: AppendReceipt | None = None

    @property
    def promised(self) -> bool:
        """Whether it must never be lost."""
        return self.receipt is not None and self.durability != "fast"

    def incoming(self) -> IncomingBatch:
        """As the HTTP API would hand it over."""
        lines = self.text.count(b"\n")
        return IncomingBatch(
            self.key, self.text, lines, lines, self.ulid, durability=self.durability
        )


@dataclass(eq=False)
class Clients:
    """All clients of a scenario, over every life of the node."""

    seed: int = 0
    sent: list[Sent] = field(default_factory=list)
    deleting: set[RunKey] = field(default_factory=set)
    deleted: dict[RunKey, int] = field(default_factory=dict)  # run: batches up to this number

    def __post_init__(self) -> None:
        self._dice = Random(f"clients {self.seed}")

    async def send(
        self,
        node: Node,
        clock: Clock,
        key: RunKey,
        *,
        durability: Durability = "durable",
        named: bool = True,
    ) -> Sent:
        """Sends one batch. Raises what refuses it."""
        number = len(self.sent)
        lines = self._dice.randint(1, 5)
        filling = "." * self._dice.randint(10, 80)
        made = [f"{number:05d} {i}/{lines} {filling}" for i in range(lines)]
        ulid = ulids.lowest_at(clock.now_ms()) | (number + 1) << ulids.LINE_BITS
        text = "".join(line + "\n" for line in made).encode()
        sent = Sent(number, key, text, ulid if named else None, durability)
        self.sent.append(sent)
        await self.repeat(node, sent)
        return sent

    async def repeat(self, node: Node, sent: Sent) -> None:
        """Sends a batch again, as its client does that heard no answer."""
        receipt = await node.append(sent.incoming())
        assert sent.ulid in (None, receipt.ulid)
        assert receipt.records == sent.text.count(b"\n")
        sent.receipt = receipt

    async def delete(self, node: Node, key: RunKey) -> None:
        """Deletes a run, with all that was sent to it by now."""
        self.deleting.add(key)
        number = max((sent.number for sent in self.sent if sent.key == key), default=-1)
        await node.delete_run(key)
        self.deleting.discard(key)
        self.deleted[key] = number
        await asyncio.sleep(0.01)  # an id of the same millisecond counts as deleted

    async def close(self, node: Node, key: RunKey) -> str:
        """Closes a run."""
        return await node.close_run(key)

    async def go_on(self, node: Node) -> None:
        """What clients do that heard no answer: the same again, in the order of before."""
        for key in sorted(self.deleting):
            await self.delete(node, key)
        for sent in self.sent:
            if sent.receipt is None and sent.ulid is not None and not self.gone(sent):
                await self.repeat(node, sent)

    def runs(self) -> list[RunKey]:
        """All runs that something was sent to."""
        return sorted({sent.key for sent in self.sent})

    def gone(self, sent: Sent) -> bool:
        """Whether its run was deleted after it."""
        return sent.number <= self.deleted.get(sent.key, -1)

    def check(self, key: RunKey, text: bytes, *, where: str, ordered: bool = True) -> None:
        """Every promised batch once, in order; nothing invented, nothing deleted."""
        numbers = batches_in(text)
        name = f"{where} of {key.run}"
        assert len(numbers) == len(set(numbers)), f"{name}: twice: {numbers}"
        assert not ordered or numbers == sorted(numbers), f"{name}: out of order: {numbers}"
        mine = {sent.number: sent for sent in self.sent if sent.key == key}
        for number in numbers:
            assert number in mine, f"{name}: batch {number} was never sent there"
            assert not self.gone(mine[number]), f"{name}: batch {number} was deleted"
        joined = b"".join([mine[number].text for number in numbers])
        assert text == joined, f"{name}: other bytes than were sent"
        lost = set(self.owed(key)) - set(numbers)
        assert not lost, f"{name}: lost {sorted(lost)}, has {numbers}"

    def owed(self, key: RunKey) -> Iterable[int]:
        """The batches that must be in the run now."""
        if key in self.deleting:
            return []
        return [s.number for s in self.sent if s.key == key and s.promised and not self.gone(s)]


class PatientClients(Clients):
    """Try again, as their libraries do, while the node says that it cannot now."""

    async def repeat(self, node: Node, sent: Sent) -> None:
        await _patiently(lambda: super(PatientClients, self).repeat(node, sent))

    async def delete(self, node: Node, key: RunKey) -> None:
        await _patiently(lambda: super(PatientClients, self).delete(node, key))

    async def close(self, node: Node, key: RunKey) -> str:
        return await _patiently(lambda: super(PatientClients, self).close(node, key))


async def _patiently(work: Callable[[], Awaitable[T]]) -> T:
    for _ in range(_TRIES):
        try:
            return await work()
        except (Unavailable, OutcomeUnknown):
            await asyncio.sleep(0.5)
    return await work()


def batches_in(text: bytes) -> list[int]:
    """The numbers of the batches that a text holds, in its order."""
    numbers: list[int] = []
    for line in text.splitlines():
        number, place, _ = line.split(b" ", 2)
        if place.startswith(b"0/"):
            numbers.append(int(number))
    return numbers


async def paged(node: Node, key: RunKey, limit: int) -> bytes:
    """A run's text by pages of `limit` lines."""
    text, after = b"", None
    while True:
        page = await node.run_logs.reader.page(key, after=after, limit=limit)
        text += page.text
        after = page.after
        if after is None:
            return text


async def downloaded(node: Node, key: RunKey) -> bytes:
    """A run's text as one stream."""
    return b"".join([piece async for piece in node.run_logs.reader.download(key)])


async def exists(node: Node, key: RunKey) -> bool:
    """Whether the run is there for readers."""
    try:
        return (await node.run_logs.reader.size(key)).total_lines > 0
    except TailraceError:
        return False
