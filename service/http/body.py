"""Reads request bodies within a memory budget, and counts the clients that are connected.

Each body is bounded, and so is the sum of all. A body counts by the bytes that have arrived, not by
its announced length. When all bodies together hold as much as they may, they wait. Only the body
that began first continues, so they cannot wait for one another in a circle. The bytes beyond the
limit are at most the rest of that body, and its text.

A full budget makes clients wait: a refused client would drop its lines. But a client that stands
still while others wait for its memory is disconnected. The connection limits how long a body may
take. Bytes that have arrived and are not read yet, or that wait for their turn, may take the free
part of the budget and `_BEYOND_BYTES`; beyond that a body is refused (`NoRoom`).

Reports are sent as one small JSON object. It is bounded in bytes, values and depth before it is
parsed: a MiB of brackets would become twenty MiB of objects, and a value that is nested too deep
could be stored but not returned.

`Bounds` limits the text that a body is decoded to; every step of the decoding checks it. `Clients`
limits the connections, in all and from one address.
"""

from __future__ import annotations

import asyncio
import ipaddress
import re
from collections import Counter, deque
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import orjson
from fastapi import Request

from service.runtime.counters import HttpCounters
from service.settings import HttpSettings
from tailrace.logstore.errors import InvalidInput, TooLarge, Unavailable

Message: TypeAlias = MutableMapping[str, Any]
Scope: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]

_DRAIN_SECONDS = 5.0
# While others wait for memory, a body must send this part of its held bytes in this many seconds.
_STILL_SECONDS = 1.0
_LEAST_BYTES = 4 << 10
_LEAST_PART = 64
_BEYOND_BYTES = 32 << 20
"""Memory for bytes that are not read yet or wait for their turn, when the budget is used up."""
MAX_BYTES = 1 << 20
MAX_VALUES = 20_000
MAX_DEPTH = 100
_HINT = "Send one JSON object of at most 1 MiB."
# Also without its end: from each later quote the search for an end would go through all the rest.
_STRING = re.compile(rb'"(?:[^"\\]++|\\.?)*+"?', re.DOTALL)
# `[` and `{` differ by one bit, and so do the brackets that close.
_ONE_BIT, _OPEN, _CLOSE = 0x20, ord("{"), ord("}")


def _on() -> None:
    """Does nothing: no caller wants the decoding to end early."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """Limits of the text that a body is decoded to; sizes are bytes."""

    text_bytes: int
    """The text of the batch."""
    meta_bytes: int = 16 << 20
    """The metadata of its records, as it is encoded for the journal."""
    go_on: Callable[[], None] = _on
    """Called between pieces, each of a few milliseconds; its error ends the decoding."""


class Share:
    """The part of a budget that one body and its text hold."""

    __slots__ = ("_budget", "held", "marked", "patience", "waits")

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self.held = 0
        self.marked = 0
        """What it held when it was looked at last."""
        self.waits = False
        self.patience: asyncio.Timeout | None = None
        """Around reading a body or sending a reply: a client that stands still is let go by it."""

    async def grow(self, size: int) -> None:
        """Counts bytes that have arrived; returns when reading may continue."""
        if not self._budget.takes(self, size):
            self._budget.waiting += size
            try:
                await self._budget.turn(self, size)
            finally:
                self._budget.waiting -= size

    async def reserve(self, size: int) -> None:
        """Counts bytes that will be needed; returns when they may be taken."""
        if not self._budget.takes(self, size):
            await self._budget.turn(self, size)

    def charge(self, size: int) -> None:
        """Counts bytes that are held in any case, such as a text that was just decoded."""
        self.held += size
        self._budget.used += size

    def end(self) -> None:
        """Returns the whole share to the budget."""
        self._budget.end(self)

    def stands_still(self) -> bool:
        """Returns true if the client has sent, or taken, next to nothing since the mark."""
        least = max(_LEAST_BYTES, self.held // _LEAST_PART)
        moved = abs(self.held - self.marked)
        return self.patience is not None and not self.waits and moved < least


class Budget:
    """The bytes that all bodies together may hold: first come, first served."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0
        self.waiting = 0
        """Bytes that have arrived and wait until they are counted in `used`."""
        self._unread = 0
        self._shares: dict[Share, None] = {}
        self._waiting: deque[tuple[Share, int, asyncio.Future[None]]] = deque()
        self._look: asyncio.TimerHandle | None = None

    def hold(self, size: int) -> None:
        """Counts bytes that a connection holds until they are read. Raises `NoRoom`."""
        room = max(self.limit - self.used, 0) + _BEYOND_BYTES
        if self._unread + self.waiting + size > room:
            raise NoRoom
        self._unread += size

    def release(self, size: int) -> None:
        """Counts bytes that a connection no longer holds."""
        self._unread -= size

    @property
    def unread(self) -> int:
        """Returns the bytes that connections hold."""
        return self._unread

    @property
    def is_full(self) -> bool:
        """Returns true if a connection had better not read more of a body."""
        return self.used + self.waiting + self._unread >= self.limit

    def share(self) -> Share:
        """Returns a new share, last in the queue."""
        share = Share(self)
        self._shares[share] = None
        return share

    def takes(self, share: Share, size: int) -> bool:
        """Counts the bytes if they fit, or if no body began before."""
        if share is next(iter(self._shares)) or (not self._waiting and self._fits(size)):
            share.charge(size)
            return True
        return False

    async def turn(self, share: Share, size: int) -> None:
        """Waits until the bytes are counted."""
        turn = asyncio.get_running_loop().create_future()
        entry = (share, size, turn)
        self._waiting.append(entry)
        share.waits = True
        if self._look is None:
            self._mark()
        try:
            await turn
        finally:
            share.waits = False
            if entry in self._waiting:  # it was cancelled
                self._waiting.remove(entry)

    def end(self, share: Share) -> None:
        """Lets waiting bodies continue, as far as memory is free now."""
        del self._shares[share]
        self.used -= share.held
        first = next(iter(self._shares), None)
        for entry in [entry for entry in self._waiting if entry[0] is first]:
            self._let_in(entry)
        while self._waiting and self._fits(self._waiting[0][1]):
            self._let_in(self._waiting[0])

    def _let_in(self, entry: tuple[Share, int, asyncio.Future[None]]) -> None:
        self._waiting.remove(entry)
        share, size, turn = entry
        if not turn.done():
            share.charge(size)
            turn.set_result(None)

    def _fits(self, size: int) -> bool:
        return self.used + size <= self.limit

    def _mark(self) -> None:
        for share in self._shares:
            share.marked = share.held
        loop = asyncio.get_running_loop()
        self._look = loop.call_later(_STILL_SECONDS, self._let_go)

    def _let_go(self) -> None:
        """Ends the largest shares that stand still while others wait, as many as needed."""
        self._look = None
        if not self._waiting:
            return
        missing = self.used + self._waiting[0][1] - self.limit
        still = [share for share in self._shares if share.stands_still()]
        for share in sorted(still, key=lambda share: share.held, reverse=True):
            if missing <= 0:
                break
            missing -= share.held
            assert share.patience is not None
            share.patience.reschedule(asyncio.get_running_loop().time())
        self._mark()


class BodyTooLarge(TooLarge):
    """The body was refused before all of it was read: the connection cannot be used again."""

    def __init__(self, limit: int) -> None:
        super().__init__(f"the body has more than {limit} bytes", field="body")


class StoodStill(Unavailable):
    """A body did not arrive while others waited for the memory that it held."""

    def __init__(self) -> None:
        super().__init__(
            "the memory for bodies is used up, and this one stood still",
            hint="Send it again without pauses, or in smaller batches; under its id that is safe.",
        )


class NoRoom(Unavailable):
    """A body arrived when the memory for bodies that wait was used up as well."""

    def __init__(self) -> None:
        super().__init__(
            "the memory for bodies is used up",
            hint="Send it again in a moment, or in smaller batches; under its id that is safe.",
        )


def declared_length(value: bytes | None) -> int | None:
    """Returns Content-Length as a number. Raises `InvalidInput`."""
    if value is None:
        return None
    if not value.isdigit():
        raise InvalidInput("Content-Length is not a number", field="Content-Length")
    return int(value)


async def read_rest(first: Message, receive: Receive, limit: int, share: Share) -> bytes | None:
    """Returns the whole body that begins with `first`; None if the client disconnected.

    Raises `BodyTooLarge` beyond `limit` bytes, and `StoodStill`.
    """
    pieces: list[bytes] = []
    size = 0
    message = first
    try:
        async with asyncio.timeout(None) as share.patience:
            while True:
                if message["type"] == "http.disconnect":
                    return None
                piece = message.get("body", b"")
                size += len(piece)
                if size > limit:
                    raise BodyTooLarge(limit)
                await share.grow(len(piece))
                pieces.append(piece)
                if not message.get("more_body", False):
                    return b"".join(pieces) if len(pieces) > 1 else piece
                message = await receive()
    except TimeoutError as error:
        raise StoodStill from error
    finally:
        share.patience = None


class CountedBody:
    """The body of a request to any route but the append route, counted by the budget.

    Its bytes count until `end`, which is called when the request has been answered.
    """

    def __init__(
        self, receive: Receive, budget: Budget, limit: int, broke_off: Callable[[], None]
    ) -> None:
        self._receive = receive
        self._budget = budget
        self._limit = limit
        self._broke_off = broke_off
        self._share: Share | None = None
        self._size = 0
        self._ended = False

    async def receive(self) -> Message:
        """Returns the next message. Raises `BodyTooLarge`, and `StoodStill`."""
        share = self._share
        if share is None or self._ended:
            message = await self._receive()
        else:
            try:
                async with asyncio.timeout(None) as share.patience:
                    message = await self._receive()
            except TimeoutError as error:
                raise StoodStill from error
            finally:
                share.patience = None
        if message["type"] == "http.disconnect":
            if not self._ended:
                self._ended = True
                self._broke_off()
            return message
        self._ended = not message.get("more_body", False)
        if piece := message.get("body", b""):
            self._size += len(piece)
            if self._size > self._limit:
                raise BodyTooLarge(self._limit)
            if share is None:
                share = self._share = self._budget.share()
            await share.grow(len(piece))
        return message

    def end(self) -> None:
        """Returns the bytes of the body to the budget."""
        if self._share is not None:
            self._share.end()
            self._share = None


async def drain(receive: Receive, limit: int) -> None:
    """Reads on for a while and discards: a client that is still sending may miss a reply."""
    try:
        async with asyncio.timeout(_DRAIN_SECONDS):
            while limit > 0:
                message = await receive()
                limit -= len(message.get("body", b""))
                if not message.get("more_body", False):
                    return
    except TimeoutError:
        return


async def json_object(request: Request) -> dict[str, Any]:
    """Returns the object in the body, whatever its Content-Type.

    Raises `InvalidInput`, `BodyTooLarge`.
    """
    pieces: list[bytes] = []
    size = 0
    async for piece in request.stream():
        size += len(piece)
        if size > MAX_BYTES:
            raise BodyTooLarge(MAX_BYTES)
        pieces.append(piece)
    return parse_object(b"".join(pieces))


def parse_object(body: bytes) -> dict[str, Any]:
    """Returns the object in `body`. Raises `InvalidInput`."""
    _check_structure(body)
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise InvalidInput(f"not JSON: {error}", field="body", hint=_HINT) from error
    if not isinstance(value, dict):
        raise InvalidInput("the body is not a JSON object", field="body", hint=_HINT)
    return value


def _check_structure(body: bytes) -> None:
    opened = body.count(b"[") + body.count(b"{")
    if opened <= MAX_DEPTH and opened + body.count(b",") <= MAX_VALUES:
        return
    bare = np.frombuffer(_STRING.sub(b"", body), dtype=np.uint8)
    either = bare | _ONE_BIT
    opens = either == _OPEN
    if int(np.count_nonzero(opens) + np.count_nonzero(bare == ord(","))) > MAX_VALUES:
        raise InvalidInput(
            f"the JSON has more than {MAX_VALUES} values", field="body", hint="Send less of it."
        )
    depth = np.cumsum(opens.astype(np.int32) - (either == _CLOSE))
    if len(depth) and int(depth.max()) > MAX_DEPTH:
        raise InvalidInput(
            f"the JSON is nested more than {MAX_DEPTH} deep", field="body", hint="Flatten it."
        )


_MOST_TURNED_AWAY = 32
_AHEAD_BYTES = 32 << 20
"""Memory for large heads, and for requests that wait after others, over all connections."""


class Clients:
    """The counts, settings and counters that all connections share; `budget` is that of bodies.

    Invariants: the limits bound the accepted connections, in all and from one address. The number
    of clients that are being sent a refusal is bounded as well. An IPv6 address counts by its /64,
    which one client usually has.
    """

    def __init__(
        self,
        settings: HttpSettings,
        counters: HttpCounters,
        fresh_id: Callable[[], str],
        budget: Budget,
    ) -> None:
        self.settings = settings
        self.budget = budget
        self.counters = counters
        self.fresh_id = fresh_id
        self._of: Counter[str] = Counter()
        self._turned_away = 0
        self._ahead = 0

    def enter(self, peer: str) -> Unavailable | None:
        """Counts a connection, or returns the reason why it is one too many."""
        if self.counters.connections >= self.settings.max_connections:
            return Unavailable(
                f"there are {self.settings.max_connections} connections already",
                hint="Keep fewer connections open, or raise server.max_connections.",
            )
        if self._of[peer] >= self.settings.max_connections_per_peer:
            return Unavailable(
                f"{peer} has {self.settings.max_connections_per_peer} connections already",
                hint="Keep fewer connections open, or raise server.max_connections_per_peer.",
            )
        self._of[peer] += 1
        self.counters.connections += 1
        return None

    def leave(self, peer: str) -> None:
        """Counts an accepted connection as closed."""
        self.counters.connections -= 1
        self._of[peer] -= 1
        if not self._of[peer]:
            del self._of[peer]

    @property
    def ahead(self) -> int:
        """Returns the bytes of the large heads and of the waiting requests."""
        return self._ahead

    def may_wait(self, size: int) -> bool:
        """Returns true if `size` more bytes of a large head or a waiting request fit."""
        return self._ahead + size <= _AHEAD_BYTES

    def wait(self, size: int) -> None:
        """Counts bytes of a head or a request; a negative size frees them."""
        self._ahead += size

    def turn_away(self) -> bool:
        """Returns true if one more refused client may get the reason and time to read it."""
        if self._turned_away >= _MOST_TURNED_AWAY:
            self.counters.connections_refused += 1
            return False
        self._turned_away += 1
        return True

    def turned_away(self) -> None:
        """Counts a refused connection as closed."""
        self._turned_away -= 1


def peer_of(client: tuple[str, int] | None) -> str:
    """Returns the key that counts a client's connections; `client` is its address and port."""
    if client is None:
        return ""
    host = client[0].partition("%")[0]
    if ":" not in host:
        return host
    return str(ipaddress.IPv6Network((host, 64), strict=False))
