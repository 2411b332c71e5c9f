"""Answers the questions of other nodes, with one method for each question.

| question | answer |
| --- | --- |
| `hello` | `{"files"}`: the journal files of this process. New askers send their entry |
| `hot`, `text` | unflushed lines of a run, see `remote_lines` |
| `metrics` | the metrics of this process in the format of Prometheus, as one part |
| `wait` | the runs among those asked that have new lines, see `membership` |
| `records` | records for a search, see `remote_lines` |
| `journal` | new records for live searches, see `remote_feeds` |
| `unfinished` | nothing: it shows the state of an unfinished line that the asker received |
| `places` | `{"left"}`: for each of some deletions, where on the disk of this node lines may be |
| `runs`, `highest`, `deleted`, `close`, `ended` | see `membership` |
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Protocol

import numpy as np

from service.erasure import UnerasedRanges
from service.journal.reader import JournalPin
from service.peers import rpc
from service.peers.membership import Membership
from service.peers.register import Register, unreadable_register
from service.peers.remote_feeds import JournalAnswers
from service.peers.remote_lines import answer_records, encode_sources, encode_texts, fitting
from service.peers.rpc import Message
from service.run_log.backlog import HeldLines
from service.run_log.run_logs import RunLogs
from service.runtime.store_deadline import for_request
from service.status.status import RunStatus, UnfinishedLine
from service.tail import Tail
from tailrace.logstore import ulid as ulids
from tailrace.logstore.batch import RunKey
from tailrace.logstore.clock import Clock
from tailrace.logstore.errors import NotFound, TailraceError
from tailrace.logstore.runs.deletions import Deletion
from tailrace.logstore.segments.detect import Carry
from tailrace.logstore.segments.writer import record_batches

_READS = ("hot", "text", "runs", "records", "journal", "ended")
_STEP_BYTES = 4 << 20
_MOST_SECONDS = 60.0


class Answering(Protocol):
    """The parts of the node that answers; after a fork, those of the new node."""

    @property
    def run_logs(self) -> RunLogs: ...
    @property
    def tail(self) -> Tail: ...
    @property
    def carry(self) -> Carry: ...
    @property
    def status(self) -> RunStatus: ...
    def pin(self) -> JournalPin: ...
    @property
    def places(self) -> UnerasedRanges: ...

    async def all_synced(self) -> None:
        """Waits until the node accepts requests and all lines accepted so far are synced."""
        ...

    @property
    def members(self) -> Membership: ...


class Answers:
    """The questions that a node answers."""

    def __init__(
        self, node: Answering, clock: Clock, scrape: Callable[[], Awaitable[bytes]] | None = None
    ) -> None:
        self._node = node
        self._scrape = scrape
        self._journals = JournalAnswers(
            node.pin, lambda: node.carry.copy(), clock, lambda: self._held.stopped
        )
        self._verbs: dict[str, Callable[[Message], Awaitable[bytes]]] = {
            "hello": self._hello,
            "hot": self._unflushed,
            "metrics": self._metrics,
            "text": self._text,
            "wait": self._wait,
            "runs": self._runs,
            "records": self._records,
            "journal": self._journals.answer,
            "highest": self._highest,
            "deleted": self._deleted,
            "close": self._close,
            "ended": self._ended,
            "unfinished": self._unfinished,
            "places": self._places,
        }
        self._looking: asyncio.Task[None] | None = None

    async def answer(self, verb: str, body: bytes) -> bytes:
        """Answers a question. Raises `NotFound` for an unknown one, `TailraceError`."""
        work = self._verbs.get(verb)
        if work is None:
            raise NotFound(f"no question {verb!r}", hint="This node may have an older version.")
        if verb in _READS:
            with for_request():
                return await work(rpc.decode(body))
        return await work(rpc.decode(body))

    async def _hello(self, message: Message) -> bytes:
        register, head = self._node.members.register, message.head
        if register is not None and message.parts:
            register.meet(str(head["node"]), str(head["instance"]), message.parts[0])
        if register is not None and (self._looking is None or self._looking.done()):
            self._looking = asyncio.ensure_future(_look(register))
        with self._node.pin() as pin:
            return rpc.encode({"files": pin.files})

    async def _metrics(self, _: Message) -> bytes:
        return rpc.encode({}, [b"" if self._scrape is None else await self._scrape()])

    async def _unflushed(self, message: Message) -> bytes:
        key = _key(message)
        async with self._held.of(key, journal_only=bool(message.head.get("held"))) as found:
            horizon = self._node.run_logs.deletions.horizon(key)
            return encode_sources(found, horizon=ulids.encode(horizon))

    async def _text(self, message: Message) -> bytes:
        head = message.head
        async with self._held.of(_key(message)) as found:
            for source, indexes, *_ in found:
                if source.node != head["node"]:
                    continue
                pos = source.batches.rows["pos"][indexes]
                wanted = indexes[(pos >= head["first"]) & (pos < head["end"])]
                if len(wanted):
                    count = fitting(source.batches.rows[wanted], _STEP_BYTES)
                    return encode_texts(source, wanted[:count])
        return encode_texts(None, np.empty(0, np.int64))

    async def _wait(self, message: Message) -> bytes:
        since = [(RunKey(str(fqn), str(run)), int(pos)) for fqn, run, pos in message.head["runs"]]
        seconds = min(float(message.head["seconds"]), _MOST_SECONDS)
        changed_since = await self._held.changed_since(since, seconds, message.head.get("taken"))
        return rpc.encode(changed_since._asdict())

    async def _runs(self, message: Message) -> bytes:
        fqn = message.head["fqn"]
        found = self._held.runs(None if fqn is None else str(fqn))
        return rpc.encode({"runs": [[*key, ulids.encode(ulid)] for key, ulid in found]})

    async def _records(self, message: Message) -> bytes:
        node = self._node
        return await answer_records(
            node.pin, lambda batches: record_batches(batches, node.carry), message
        )

    async def _highest(self, message: Message) -> bytes:
        await self._node.all_synced()
        fqn, run = _names(message)
        return rpc.encode({"highest": ulids.encode(self._node.run_logs.deleter.highest(fqn, run))})

    async def _deleted(self, message: Message) -> bytes:
        fqn, run = _names(message)
        await self._node.all_synced()
        t = int(ulids.parse(message.head["t"]))
        await self._node.run_logs.deleter.on_notified(fqn, run, t, message.head.get("age_ms"))
        tail = self._node.tail
        for key in [k for k in tail.watched if k.fqn == fqn and run in (None, k.run)]:
            tail.ended(key)
        return rpc.encode({})

    async def _places(self, message: Message) -> bytes:
        await self._node.all_synced()
        asked = [
            Deletion(str(fqn), None if run is None else str(run), int(ulids.parse(t)))
            for fqn, run, t in message.head["deletions"]
        ]
        # If this node does not know the deletion, its journal still has the lines.
        return rpc.encode({"left": await self._node.places.of(asked)})

    async def _close(self, message: Message) -> bytes:
        asker = str(message.head.get("asker", ""))
        key, closer = _key(message), self._node.run_logs.closer
        state = await closer.close_here(key, asker)
        return rpc.encode({"state": state, "asking": closer.is_asking(key)})

    async def _ended(self, message: Message) -> bytes:
        key, run_logs = _key(message), self._node.run_logs
        manifest = (await run_logs.manifests.get(key)).manifest
        if manifest.state == "closed" and not run_logs.flusher.holds(key):
            run_logs.events.ended(key)
        return rpc.encode({})

    async def _unfinished(self, message: Message) -> bytes:
        line = UnfinishedLine.from_json(message.head["line"])
        self._node.status.unfinished.put(_key(message), line)
        return rpc.encode({})

    @property
    def _held(self) -> HeldLines:
        return self._node.run_logs.held


async def _look(register: Register) -> None:
    try:
        await register.look()
    except TailraceError as error:
        register.last_error = unreadable_register(error)


def _names(message: Message) -> tuple[str, str | None]:
    run = message.head["run"]
    return str(message.head["fqn"]), None if run is None else str(run)


def _key(message: Message) -> RunKey:
    return RunKey(str(message.head["fqn"]), str(message.head["run"]))
