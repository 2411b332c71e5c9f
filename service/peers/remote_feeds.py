"""New records of every node, for the live searches of this one.

The question `journal` has a position and a waiting time:

    {"start": POSITION, "seconds": S}        a start of -1 asks for the present end only
    {"end": POSITION, "confirmed": POSITION}  and the records before `end`, encoded as in `records`

The answer to a start of -1, or to one that is far behind, has no stream.

While a live search runs on this node, each other node is asked for its records from the `end` of
the last answer on. It answers when it has some, or after `seconds`. So a lost answer does no harm,
and a node that is back after a while continues at its last position.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress

import numpy as np
import pyarrow as pa

from service.journal.reader import JournalPin
from service.peers import rpc
from service.peers.register import NodeEntry, Peers
from service.peers.remote_lines import decoded, encoded, question
from service.peers.rpc import Message, PeerRefused, PeerSilent
from service.query.live_sources import Began, Fed, UnconfirmedRecords
from service.query.request import QueryRequest
from service.runtime.concurrency import ChangeSignal
from tailrace.logstore import ulid as ulids
from tailrace.logstore.clock import Clock
from tailrace.logstore.errors import Conflict, Unavailable
from tailrace.logstore.segments.detect import Carry
from tailrace.logstore.segments.writer import record_batches
from tailrace.logstore.table.schema import RECORD_SCHEMA

_WAIT_SECONDS = 2.0
_PAUSE_SECONDS = 1.0
_LOOK_SECONDS = 0.05
_AT_ONCE_BYTES = 4 << 20
_BEHIND_BYTES = 64 << 20
_NOW = -1


class JournalAnswers:
    """Answers `journal`. The time and level carried into the next line are kept between answers.

    Once the node has `stopped`, an answer waits no longer, as it would delay the process's end.
    """

    def __init__(
        self,
        pin: Callable[[], JournalPin],
        carry: Callable[[], Carry],
        clock: Clock,
        stopped: Callable[[], bool] = lambda: False,
    ) -> None:
        self._pin = pin
        self._carry = carry
        self._clock = clock
        self._stopped = stopped
        self._carried: tuple[str, int, Carry] | None = None

    async def answer(self, message: Message) -> bytes:
        """Answers. Raises `TailraceError`; `Conflict` once the node has stopped."""
        start = int(message.head["start"])
        until = self._clock.monotonic() + min(float(message.head["seconds"]), _WAIT_SECONDS)
        while True:
            if self._stopped():
                raise Conflict("the node has stopped", hint="Its lines are in the store.")
            with self._pin() as pin:
                if pin.end_pos > start or self._clock.monotonic() >= until:
                    return await asyncio.to_thread(self._encoded, pin, start)
            await self._clock.sleep(_LOOK_SECONDS)

    def _encoded(self, pin: JournalPin, start: int) -> bytes:
        head = {"confirmed": pin.confirmed_pos, "end": pin.end_pos}
        if start == _NOW or start < pin.first_pos:
            return rpc.encode(head)
        rows = pin.batches(start=start).rows
        sizes = np.cumsum(rows["size"].astype(np.int64))
        if len(rows) and int(sizes[-1]) > _BEHIND_BYTES:
            return rpc.encode(head)
        count = int(np.searchsorted(sizes, _AT_ONCE_BYTES, "right")) + 1
        if count < len(rows):
            head["end"] = int(rows["pos"][count])
        records: list[pa.RecordBatch] = []
        if start < head["end"]:
            carry = self._carry_at(pin, start)
            batches = pin.batches(start=start, end=head["end"])
            records = [
                batch.select(RECORD_SCHEMA.names).cast(RECORD_SCHEMA)
                for batch in record_batches(batches, carry, save=True)
            ]
            self._carried = pin.node, head["end"], carry
        return rpc.encode(head, encoded(records))

    def _carry_at(self, pin: JournalPin, start: int) -> Carry:
        if self._carried is not None and self._carried[:2] == (pin.node, start):
            return self._carried[2].copy()
        carry = self._carry()
        for _ in record_batches(
            pin.batches(start=pin.confirmed_pos, end=max(start, pin.confirmed_pos)),
            carry,
            save=True,
        ):
            pass
        return carry


class RecordFeeds:
    """New records of all other nodes; implements `service.query.live_sources.LivePeers`.

    `stored` returns for each node the position up to which its segments reach; it raises
    `Unavailable` within a deadline. `without_store` says whether the store is known not to answer.
    """

    def __init__(
        self,
        peers: Peers,
        clock: Clock,
        stored: Callable[[], Awaitable[Mapping[str, int]]],
        without_store: Callable[[], bool] = lambda: False,
    ) -> None:
        self._peers = peers
        self._clock = clock
        self._stored = stored
        self._without_store = without_store
        self._next: dict[str, int] = {}
        self._known = False
        self._confirmed: dict[str, int] = {}
        self._silent: set[str] = set()
        self._fed: list[Fed] = []
        self._takes = ChangeSignal()
        self._changes = ChangeSignal()
        self._work: asyncio.Task[None] | None = None
        peers.register.on_change(self._changes.notify)

    @property
    def met(self) -> bool:
        """See `LivePeers`."""
        nodes = {entry.node for entry in self._peers.register.holders.values()}
        if self._without_store():
            return nodes - self._silent <= self._next.keys()
        return self._known and nodes <= self._next.keys()

    @property
    def listed(self) -> bool:
        """See `LivePeers`."""
        return self._known

    @property
    def silent(self) -> tuple[str, ...]:
        """See `LivePeers`."""
        there = {entry.node for entry in self._peers.register.holders.values()}
        return tuple(sorted(self._silent & there))

    def began(self, node: str) -> Began | None:
        """See `LivePeers`."""
        register = self._peers.register
        entries = [*register.holders.values(), *([register.own] if register.own else [])]
        for entry in entries:
            if entry.node == node:
                return Began(ulids.time_ms(ulids.decode(entry.instance)), entry.start)
        return None

    def confirmed(self, node: str) -> int | None:
        """See `LivePeers`."""
        return self._confirmed.get(node)

    def start(self) -> None:
        """See `LivePeers`."""
        self._next.clear()
        self._fed.clear()
        self._known = False
        self._work = asyncio.ensure_future(self._run())

    def stop(self) -> None:
        """See `LivePeers`."""
        if self._work is not None:
            self._work.cancel()
            self._work = None

    def take(self) -> list[Fed]:
        """See `LivePeers`."""
        fed, self._fed = self._fed, []
        self._takes.notify()
        return fed

    async def held(self, request: QueryRequest) -> dict[str, UnconfirmedRecords]:
        """See `LivePeers`."""
        gathered = await self._peers.ask(question(request), "records")
        self._silent |= gathered.silent.keys()
        found: dict[str, UnconfirmedRecords] = {}
        for entry in self._peers.entries():
            answer = gathered.answers.get(entry.instance)
            if answer is None:
                continue
            with suppress(PeerRefused, KeyError, ValueError, TypeError):
                records = await asyncio.to_thread(decoded, answer)
                seq, pos = answer.head["confirmed"]
                found[entry.node] = UnconfirmedRecords(
                    records, int(seq), int(pos), int(answer.head["end"])
                )
                self._confirmed[entry.node] = int(pos)
        return found

    async def _run(self) -> None:
        following: dict[tuple[str, str], asyncio.Task[None]] = {}
        leaving: set[asyncio.Task[None]] = set()
        beginning = asyncio.ensure_future(self._begin())
        try:
            while True:
                changed = self._changes.next
                others = self._peers.register.holders.values()
                there = {(entry.instance, entry.node): entry for entry in others}
                for gone in following.keys() - there.keys():
                    following.pop(gone).cancel()
                    task = asyncio.ensure_future(self._leave(gone[1]))
                    leaving.add(task)
                    task.add_done_callback(leaving.discard)
                for key, entry in there.items():
                    if key not in following:
                        following[key] = asyncio.ensure_future(self._follow(entry))
                await changed.wait()
        finally:
            for task in [beginning, *following.values(), *leaving]:
                task.cancel()

    async def _begin(self) -> None:
        """Reports the segments of nodes that have left: these hold all their records."""
        stored = await self._stored_now()
        there = {entry.node for entry in self._peers.register.holders.values()}
        own = self._peers.register.own
        for node in stored.keys() - there - ({own.node} if own else set()):
            if stored[node] > self._next.get(node, _NOW):  # otherwise it left later, and was read
                self._put(node, stored[node], None)
        self._known = True

    async def _leave(self, node: str) -> None:
        """Reports the last segments of a node that left, unless it is back."""
        stored = (await self._stored_now()).get(node, _NOW)
        back = node in {entry.node for entry in self._peers.register.holders.values()}
        if not back and stored > self._next.get(node, _NOW):
            self._put(node, stored, None)

    async def _stored_now(self) -> Mapping[str, int]:
        while True:
            try:
                return await self._stored()
            except Unavailable:
                await self._clock.sleep(_PAUSE_SECONDS)

    async def _follow(self, entry: NodeEntry) -> None:
        while True:
            start = self._next.get(entry.node, _NOW)
            try:
                answer = await self._ask(entry, start)
                end = int(answer.head["end"])
                self._confirmed[entry.node] = int(answer.head["confirmed"])
                self._silent.discard(entry.node)
                if not answer.parts:
                    self._put(entry.node, end, None)
                elif end > start:
                    records = await asyncio.to_thread(decoded, answer)
                    self._put(entry.node, end, records)
            except (PeerSilent, PeerRefused, Unavailable, KeyError, ValueError, TypeError):
                self._silent.add(entry.node)
                with suppress(Unavailable):
                    # It may still reach the store: records in its segments are read there.
                    stored = (await self._stored()).get(entry.node, entry.start)
                    if stored > self._next.get(entry.node, _NOW):
                        self._put(entry.node, stored, None)
                await self._clock.sleep(_PAUSE_SECONDS)
                continue
            while any(fed.node == entry.node for fed in self._fed):
                await self._takes.next.wait()

    async def _ask(self, entry: NodeEntry, start: int) -> Message:
        body = rpc.encode({"start": start, "seconds": _WAIT_SECONDS})
        seconds = _WAIT_SECONDS + self._peers.timeout_seconds
        return await self._peers.one(entry, body, "journal", seconds)

    def _put(self, node: str, end: int, records: pa.Table | None) -> None:
        self._next[node] = end
        self._fed.append(Fed(node, end, records))
