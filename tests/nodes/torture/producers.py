"""Producers that send each batch to a node of their choice, whatever its state.

- `Named` gives each batch an id, and sends it until some node has acknowledged it, now and then
  once more, as if the answer had been lost. If the run was deleted, the node gives another id.
- `Nameless` gives none and sends nothing again; it returns the cookie of the last answer, also to
  another node. Of a batch whose answer it did not get it knows nothing.

Each waits for an answer before it sends the next batch, so its acknowledged lines have the order
of their ULIDs, whichever nodes took them and whatever their clocks say.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, Protocol

import httpx

from service.http.sse import parse_start
from tailrace.logstore import ulid as ulids
from tailrace.logstore.batch import RunKey
from tailrace.logstore.position import Cursor
from tailrace_client import BatchFromTheFuture, Run, RunDeleted, Unavailable, system
from tailrace_client.records import BatchIds, id_after, is_ahead
from tests.e2e.clients import run_path
from tests.nodes.torture.nodes import Nodes

_TIMEOUT_SECONDS: Final = 4.0
_RETRY_SECONDS: Final = 0.05
_SENT_TWICE: Final = 0.1
_MODES: Final = ("fast", "durable", "durable", "bulk")
_SHOWN: Final = 3
_REFUSED: Final = (429, 503, 507)


@dataclass(frozen=True)
class Given:
    """Lines that a reader was given at once, with the cursor `after` that it had before.

    `visit` is the number of the connection, `upto` the cursor that came with them.
    """

    lines: list[str]
    after: str | None
    visit: int = 0
    upto: str | None = None

    @property
    def cursor(self) -> Cursor | None:
        """The cursor, if it is one of several nodes."""
        cursor = 0 if self.after is None else parse_start(self.after).cursor
        return cursor if isinstance(cursor, Cursor) else None

    def told(self, batch: str | None) -> str:
        """What the reader had when it was given lines again, in words."""
        cursor = self.cursor or Cursor()
        known = {ulids.batch_of(last) for last in cursor.last_records}
        knew = batch is not None and int(ulids.parse(batch)) in known
        return f"batch {batch}, {'' if knew else 'not '}named by the cursor; {self}"

    def __str__(self) -> str:
        return f"visit {self.visit}, behind {_places(self.after)}, up to {_places(self.upto)}"


def _places(text: str | None) -> str:
    """The places in a cursor, and how many batches it names of each node."""
    cursor = 0 if text is None else parse_start(text).cursor
    if not isinstance(cursor, Cursor):
        return str(cursor)
    named = {node: len(found) for node, found in cursor.newest.items()}
    places = [
        f"{n} {p.file or '?'} {p.pos} ({named.get(n, 0)})" for n, p in cursor.positions.items()
    ]
    return ", ".join(places)


@dataclass
class Written:
    """Lines of a run: those that are acknowledged, each producer's in its order, and the others.

    `unknown` are lines of which nobody knows whether they were taken, `again` those that were sent
    more than once, so that several nodes may hold them, with the id of their batch.
    """

    key: RunKey
    by_producer: dict[str, list[str]] = field(default_factory=dict)
    unknown: set[str] = field(default_factory=set)
    again: dict[str, str] = field(default_factory=dict)

    @property
    def lines(self) -> Counter[str]:
        """All that are acknowledged."""
        return Counter(line for lines in self.by_producer.values() for line in lines)

    def faults(self, what: str, found: list[str]) -> list[str]:
        """What is wrong with these lines of the run, in sentences."""
        wanted, there = self.lines, Counter(found)
        more = there - wanted - Counter(self.unknown)
        return [
            f"{what} {kind} {lines.total()} of {wanted.total()}: {_some(lines)}"
            for kind, lines in (("lacks", wanted - there), ("has too often", more))
            if lines
        ]

    def reader_faults(self, what: str, given: list[Given]) -> list[str]:
        """What is wrong with the lines that a reader was given who went from node to node."""
        faults = self.faults(what, [line for piece in given for line in piece.lines])
        first: dict[str, Given] = {}
        told: list[str] = []
        for piece in given:
            for line in piece.lines:
                before = first.setdefault(line, piece)
                if before is not piece:
                    said = piece.told(self.again.get(line))
                    told.append(f"{what}: {line[:40]!r} again: {said}; it came first at {before}")
        return faults + told[:_SHOWN] if faults else faults

    def disorder(self, what: str, found: list[str]) -> list[str]:
        """The same, and which producers' lines are not in their order."""
        return self.faults(what, found) + [
            f"{what}: lines of {name} are out of order"
            for name, lines in self.by_producer.items()
            if sorted(_of(lines, found)) == lines != _of(lines, found)
        ]


class Producer(Protocol):
    """Writes lines of a run."""

    retries: int

    async def write(self, batches: int, pause: float) -> None:
        """Returns when so many batches were sent."""
        ...

    def close(self) -> None:
        """Lets go of its connections."""
        ...


class Lines:
    """The next lines of a producer."""

    def __init__(self, name: str, written: Written, dice: random.Random) -> None:
        self.acknowledged = written.by_producer.setdefault(name, [])
        self._start = f"{written.key.run} {name}"
        self._dice = dice
        self._number = 0

    def take(self) -> list[str]:
        """Some lines; no two of a producer are equal, and all are in their order."""
        first = self._number
        self._number += self._dice.randint(1, 20)
        return [
            f"{self._start} {number:06d} {'x' * self._dice.randrange(100)}"
            for number in range(first, self._number)
        ]


class Named:
    """A producer that names its batches; `ids` are its own."""

    def __init__(
        self,
        name: str,
        nodes: Nodes,
        written: Written,
        dice: random.Random,
        ids: BatchIds | None = None,
        url: Callable[[], str] | None = None,
    ) -> None:
        """`url` chooses a node; all lines are made after the run's deletion, if it has one."""
        self._url = url or nodes.any_url
        self._began_ms = system.steady_ms()
        self._given = ""
        self.faults: list[str] = []
        self._dice = dice
        self._key = written.key
        self._written = written
        self._lines = Lines(name, written, dice)
        self._ids = ids or BatchIds()
        self._at: dict[str, Run] = {}
        self.retries = 0

    async def write(self, batches: int, pause: float) -> None:
        """As the protocol says."""
        for _ in range(batches):
            lines, batch = self._lines.take(), self._ids.mint()
            batch = await self._deliver(lines, batch)
            if self._dice.random() < _SENT_TWICE:
                self._written.again.update(dict.fromkeys(lines, batch))
                await self._deliver(lines, batch)
            self._lines.acknowledged += lines
            await asyncio.sleep(self._dice.expovariate(1 / pause))

    async def _deliver(self, lines: list[str], batch: str) -> str:
        """The id under which the lines were acknowledged."""
        mode = self._dice.choice(_MODES)
        while True:
            node = self._run(self._url())
            try:
                await asyncio.to_thread(node.append, lines=lines, batch=batch, durability=mode)
            except Unavailable:
                self.retries += 1
                self._written.again.update(dict.fromkeys(lines, batch))
                await asyncio.sleep(_RETRY_SECONDS)
            except RunDeleted as error:
                batch = self._renamed(error)
            except BatchFromTheFuture:  # this node does not know of the deletion yet
                if batch != self._given:
                    raise
                await asyncio.sleep(_RETRY_SECONDS)
            else:
                return batch

    def _renamed(self, error: RunDeleted) -> str:
        """The id for lines from after the deletion, as `tailrace_client` takes it."""
        given, moment_ms = error.next_batch, error.moment_ms
        assert given is not None
        assert moment_ms is not None
        if moment_ms > self._began_ms:
            self.faults.append(
                f"lines of {self._key} are said to be {moment_ms - self._began_ms} ms older than"
                " a deletion that they came after"
            )
        self._given = given if given > self._given else id_after(self._given)
        if not is_ahead(self._given, system.now_ms()):
            self._ids.go_above(self._given)
        return self._given

    def _run(self, url: str) -> Run:
        if url not in self._at:
            self._at[url] = Run(
                *(url, *self._key),
                retry_seconds=0,
                timeout_seconds=_TIMEOUT_SECONDS,
                ids=self._ids,
            )
        return self._at[url]

    def close(self) -> None:
        """As the protocol says."""
        for run in self._at.values():
            run.service.close()


class Nameless:
    """A producer that does not, as OpenMetadata's do not."""

    def __init__(
        self,
        name: str,
        nodes: Nodes,
        written: Written,
        dice: random.Random,
        client: httpx.AsyncClient,
    ) -> None:
        self._nodes = nodes
        self._dice = dice
        self._client = client
        self._written = written
        self._lines = Lines(name, written, dice)
        self._cookie: dict[str, str] = {}
        self.retries = 0

    async def write(self, batches: int, pause: float) -> None:
        """As the protocol says."""
        for _ in range(batches):
            lines = self._lines.take()
            self._written.unknown.update(lines)
            if await self._sent(lines):
                self._written.unknown.difference_update(lines)
                self._lines.acknowledged += lines
            await asyncio.sleep(self._dice.expovariate(1 / pause))

    async def _sent(self, lines: list[str]) -> bool:
        """Whether it was acknowledged. It is sent again only where it was refused."""
        body = "".join(f"{line}\n" for line in lines).encode()
        while True:
            url = f"{self._nodes.any_url()}{run_path(self._written.key)}"
            headers = {"content-type": "text/plain", **self._cookie}
            try:
                reply = await self._client.post(
                    url, content=body, headers=headers, timeout=_TIMEOUT_SECONDS
                )
            except httpx.ConnectError:
                pass
            except httpx.TransportError:
                return False
            else:
                if reply.status_code == 200:
                    self._remember(reply)
                    return True
                if reply.status_code not in _REFUSED:
                    raise RuntimeError(f"{reply.status_code}: {reply.text}")
                return False
            self.retries += 1
            await asyncio.sleep(_RETRY_SECONDS)

    def _remember(self, reply: httpx.Response) -> None:
        for cookie in reply.headers.get_list("set-cookie"):
            if cookie.startswith("tailrace="):
                self._cookie = {"cookie": cookie.partition(";")[0]}

    def close(self) -> None:
        """Its connections are everybody's."""


def _of(lines: list[str], found: list[str]) -> list[str]:
    """Those of the found lines that are these."""
    known = set(lines)
    return [line for line in found if line in known]


def _some(lines: Counter[str]) -> list[str]:
    return [line[:40] for line in sorted(lines)[:3]]
