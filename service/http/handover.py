"""A new connection goes to the worker that its first request is for.

The workers of a service accept from one socket, and the kernel chooses who gets a connection. A run
whose batches come by many connections would be spread over all of them: still complete, but
read from several journals and shown in their order. So a worker looks at the first request
before it takes a connection (`MSG_PEEK`: nothing is consumed), and passes it on, as a descriptor,
if the request names a run that is another's. Which run is whose follows from its name.

This is for order and speed alone: every worker can serve every request. A connection stays where it
is if the first request names no run, does not come at once, or the other has no room for it.
Requests behind the first stay on their connection. With TLS nobody can read a request before the
connection is taken: it stays with the worker that accepted it.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
import zlib
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from mmap import mmap
from typing import Any

from service.http.targets import run_of

_PEEKED = 16 << 10
_AT_ONCE = 64
_MOST_WAITING = 1024
_REST_SECONDS = 0.1
_LOOK_SECONDS = 0.02
_TOGETHER_SECONDS = 5.0
_BACKLOG = 2048


def owner(head: bytes, count: int) -> int | None:
    """The worker of `count` that the request with these first bytes is for, None for any."""
    words = head.partition(b"\r\n")[0].split(b" ")
    if len(words) != 3:
        return None
    name = run_of(words[0].decode("latin-1"), words[1].partition(b"?")[0])
    return None if name is None else zlib.crc32(name) % count


@dataclass(frozen=True, slots=True)
class Sharing:
    """What a worker shares with the others: the service's socket, and ways to pass on connections.

    `inbox` gives those that others pass on to worker `number`, `outboxes` are the others' by
    their numbers; all are `SOCK_SEQPACKET`. `serving` has a byte for each worker, which the parent
    sets as long as it serves: what is passed on to one that has died would wait for it.
    """

    number: int
    shared: socket.socket
    inbox: socket.socket
    outboxes: Mapping[int, socket.socket]
    serving: mmap


class Handover:
    """Accepts from the shared socket; `connected` makes the protocol of a connection."""

    def __init__(
        self,
        sharing: Sharing,
        *,
        connected: Callable[[], asyncio.Protocol],
        patience_seconds: float,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._number = sharing.number
        self._shared = sharing.shared
        self._inbox = sharing.inbox
        self._outboxes = sharing.outboxes
        self._serving = sharing.serving
        self._connected = connected
        self._patience = patience_seconds
        self._tls = tls
        self._loop = asyncio.get_running_loop()
        self._waiting: dict[socket.socket, asyncio.TimerHandle] = {}
        self._tasks: set[asyncio.Task[Any]] = set()
        self._rest: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Begins to accept, once all workers serve: connections wait so long, if not for ever."""
        self._shared.listen(_BACKLOG)
        for each in (self._shared, self._inbox, *self._outboxes.values()):
            each.setblocking(False)
        self._loop.add_reader(self._inbox, self._receive)
        self._begin(self._loop.time() + _TOGETHER_SECONDS)

    def _begin(self, latest: float) -> None:
        others = [self._serving[number] for number in self._outboxes]
        if all(others) or self._loop.time() >= latest:
            self._loop.add_reader(self._shared, self._accept)
        else:
            self._rest = self._loop.call_later(_LOOK_SECONDS, self._begin, latest)

    def stop(self) -> None:
        """Accepts no more; connections that wait for their first byte are closed."""
        if self._rest is not None:
            self._rest.cancel()
        self._loop.remove_reader(self._shared)
        self._loop.remove_reader(self._inbox)
        for connection in list(self._waiting):
            self._look_no_more(connection)
            connection.close()

    def _accept(self) -> None:
        for _ in range(_AT_ONCE):
            try:
                connection, _ = self._shared.accept()
            except (BlockingIOError, ConnectionAbortedError):
                return
            except OSError:  # no descriptors: others leave meanwhile
                self._loop.remove_reader(self._shared)
                self._rest = self._loop.call_later(
                    _REST_SECONDS, self._loop.add_reader, self._shared, self._accept
                )
                return
            connection.setblocking(False)
            if self._tls is None:
                self._look(connection, waits=True)
            else:
                self._serve(connection)

    def _receive(self) -> None:
        for _ in range(_AT_ONCE):
            try:
                _, found, _, _ = socket.recv_fds(self._inbox, 1, 1)
            except BlockingIOError:
                return
            for descriptor in found:
                self._serve(socket.socket(fileno=descriptor))

    def _look(self, connection: socket.socket, *, waits: bool) -> None:
        """Serves the connection or passes it on, once its first bytes are there."""
        try:
            head = connection.recv(_PEEKED, socket.MSG_PEEK)
        except BlockingIOError:
            if waits and len(self._waiting) < _MOST_WAITING:
                self._loop.add_reader(connection, self._readable, connection)
                self._waiting[connection] = self._loop.call_later(
                    self._patience, self._readable, connection
                )
                return
            head = b""
        except OSError:
            connection.close()
            return
        number = owner(head, len(self._outboxes) + 1)
        if number in (None, self._number) or not self._pass_on(connection, number):
            self._serve(connection)

    def _readable(self, connection: socket.socket) -> None:
        self._look_no_more(connection)
        self._look(connection, waits=False)

    def _look_no_more(self, connection: socket.socket) -> None:
        self._loop.remove_reader(connection)
        self._waiting.pop(connection).cancel()

    def _pass_on(self, connection: socket.socket, number: int) -> bool:
        """Whether the other worker has it; this process has it no longer then."""
        if not self._serving[number]:
            return False
        try:
            socket.send_fds(self._outboxes[number], [b"c"], [connection.fileno()])
        except OSError:  # its inbox is full, or it is gone
            return False
        connection.close()
        return True

    def _serve(self, connection: socket.socket) -> None:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        task = self._loop.create_task(self._connect(connection))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _connect(self, connection: socket.socket) -> None:
        try:
            await self._loop.connect_accepted_socket(self._connected, connection, ssl=self._tls)
        except OSError:  # the client is gone
            with suppress(OSError):
                connection.close()
