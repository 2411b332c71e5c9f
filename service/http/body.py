"""Reading request bodies: bounded each, bounded in sum, bounded in time.

A body is admitted before it is read, by its announced length (a chunked one by the
most that it may have). So a request that has begun is never held up by others, and
requests cannot wait for one another in a circle. Waiting is all that a full budget
does: a client that is refused would drop its lines.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Generator, MutableMapping
from typing import Any, TypeAlias

from logstore.errors import InvalidInput, TooLarge
from service.http.limits import HttpLimits
from service.http.problems import HttpError

Message: TypeAlias = MutableMapping[str, Any]
Scope: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]

_DRAIN_SECONDS = 5.0


class Budget:
    """Bytes that all requests together may hold. First come, first admitted."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    async def admit(self, size: int) -> None:
        """Returns once `size` bytes fit, or nobody else holds any."""
        if not self._waiting and self._fits(size):
            self.used += size
            return
        turn = asyncio.get_running_loop().create_future()
        self._waiting.append((size, turn))
        try:
            await turn
        except asyncio.CancelledError:
            self._forget(size, turn)
            raise

    def charge(self, size: int) -> None:
        """Counts bytes that are already held: a text that was just decoded."""
        self.used += size

    def release(self, size: int) -> None:
        """Gives bytes back, and lets the next in."""
        self.used -= size
        while self._waiting and self._fits(self._waiting[0][0]):
            size, turn = self._waiting.popleft()
            if not turn.done():
                self.used += size
                turn.set_result(None)

    def _fits(self, size: int) -> bool:
        return self.used == 0 or self.used + size <= self.limit

    def _forget(self, size: int, turn: asyncio.Future[None]) -> None:
        if turn.done() and not turn.cancelled():
            self.release(size)
        else:
            self._waiting = deque(entry for entry in self._waiting if entry[1] is not turn)
            self.release(0)


class Resumed:
    """Awaits a coroutine that was already run up to its first suspension.

    The append route runs `receive()` by hand, because nearly always the body is there
    and a timer for each request would cost more than reading it. When it is not there,
    this goes on with it under a timer.
    """

    def __init__(self, started: Coroutine[Any, Any, Message], waits_for: Any) -> None:
        self._started = started
        self._waits_for = waits_for

    def __await__(self) -> Generator[Any, Any, Message]:
        waits_for = self._waits_for
        try:
            while True:
                try:
                    sent = yield waits_for
                except BaseException as error:  # noqa: BLE001 -- it belongs to the coroutine
                    waits_for = self._started.throw(error)
                else:
                    waits_for = self._started.send(sent)
        except StopIteration as done:
            return done.value  # type: ignore[no-any-return]


class BodyTooLarge(TooLarge):
    """Refused before all of it was read: the connection cannot be used again."""

    def __init__(self, limit: int) -> None:
        super().__init__(f"the body has more than {limit} bytes", field="body")


def declared_length(value: bytes | None) -> int | None:
    """Content-Length as a number. Raises `InvalidInput`."""
    if value is None:
        return None
    if not value.isdigit():
        raise InvalidInput("Content-Length is not a number", field="Content-Length")
    return int(value)


async def read_rest(first: Message, receive: Receive, limits: HttpLimits) -> bytes | None:
    """The whole body that begins with `first`; None if the client went away.

    Raises `BodyTooLarge`, or `HttpError` 408 when it takes longer than its time.
    """
    pieces: list[bytes] = []
    size = 0
    message = first
    try:
        async with asyncio.timeout(limits.body_timeout_seconds):
            while True:
                if message["type"] == "http.disconnect":
                    return None
                piece = message.get("body", b"")
                size += len(piece)
                if size > limits.max_body_bytes:
                    raise BodyTooLarge(limits.max_body_bytes)
                pieces.append(piece)
                if not message.get("more_body", False):
                    return b"".join(pieces) if len(pieces) > 1 else piece
                message = await receive()
    except TimeoutError as error:
        seconds = limits.body_timeout_seconds
        raise HttpError(
            408, f"the body took longer than {seconds:g} s", headers=[("connection", "close")]
        ) from error


async def drain(receive: Receive, limit: int) -> None:
    """Reads on for a while and forgets: a client that is still sending may miss a reply."""
    try:
        async with asyncio.timeout(_DRAIN_SECONDS):
            while limit > 0:
                message = await receive()
                limit -= len(message.get("body", b""))
                if not message.get("more_body", False):
                    return
    except TimeoutError:
        return
