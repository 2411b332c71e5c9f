"""A proxy before the service that loses replies and notes what was sent.

One request per connection. Of an append it notes the text that the client meant, and
whether the service answered and the client heard it. `losses` says for which appends (by
number, from 0, retries counted too) the reply is thrown away, or the request never
arrives; `meanwhile` is called at that moment, before the client notices anything.

While the service is away, connections wait for it, as behind a load balancer; appends
not so long that a client would give up while its batch may still arrive.
"""

from __future__ import annotations

import asyncio
import base64
import gzip
import json
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal, Self
from urllib.parse import urlsplit

_PIECE = 1 << 16
_APPEND_WAIT_SECONDS = 8.0
_WAIT_SECONDS = 60.0
_RETRY_SECONDS = 0.05

Loss = Literal["reply", "request"]


@dataclass
class Sent:
    """An append that carried lines; `taken` if the service answered 200."""

    text: str
    taken: bool = False
    heard: bool = False


class LossyProxy:
    """Runs in a thread of its own, in a `with`. `url` is where clients connect."""

    def __init__(
        self, target: str, losses: Mapping[int, Loss], meanwhile: Callable[[], None]
    ) -> None:
        self._target = urlsplit(target)
        self._losses = losses
        self._meanwhile = meanwhile
        self._loop = asyncio.new_event_loop()
        self._over = asyncio.Event()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._port = 0
        self.sent: list[Sent] = []
        self.told = threading.Event()
        """Set once all losses have happened and a later append was answered."""

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self._port}"

    def __enter__(self) -> Self:
        self._thread.start()
        self._ready.wait()
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._over.set)
        self._thread.join()

    def _run(self) -> None:
        # The runner cancels what is still under way.
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._listen())

    async def _listen(self) -> None:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self._port = server.sockets[0].getsockname()[1]
        self._ready.set()
        await self._over.wait()
        server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await self._pass_on(reader, writer)
        except (OSError, asyncio.IncompleteReadError):
            writer.transport.abort()
        else:
            writer.close()

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        lines = head.split(b"\r\n")
        body = await reader.readexactly(_length(lines))
        sent = self._note(lines[0], body)
        loss = None if sent is None else self._losses.get(len(self.sent) - 1)
        if loss == "request":
            await asyncio.to_thread(self._meanwhile)
            raise ConnectionResetError
        wait = _WAIT_SECONDS if sent is None else _APPEND_WAIT_SECONDS
        theirs, ours = await self._connect(wait)
        ours.write(_closing(lines) + body)
        try:
            if sent is None:
                await _stream(theirs, writer)
                return
            reply = await theirs.read()
        finally:
            ours.close()
        sent.taken = reply.startswith(b"HTTP/1.1 200")
        if loss == "reply":
            await asyncio.to_thread(self._meanwhile)
            raise ConnectionResetError
        sent.heard = sent.taken
        writer.write(reply)
        await writer.drain()
        if sent.heard and len(self.sent) > max(self._losses):
            self.told.set()

    def _note(self, line: bytes, body: bytes) -> Sent | None:
        if not line.startswith(b"POST") or b"/logs/" not in line or b"/close" in line:
            return None
        content = json.loads(body)
        if not isinstance(content, dict) or "logs" not in content:
            return None
        text = content["logs"]
        if content["compressed"]:
            text = gzip.decompress(base64.b64decode(text)).decode()
        self.sent.append(Sent(text))
        return self.sent[-1]

    async def _connect(self, wait: float) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        async with asyncio.timeout(wait):
            while True:
                try:
                    return await asyncio.open_connection(self._target.hostname, self._target.port)
                except ConnectionRefusedError:
                    await asyncio.sleep(_RETRY_SECONDS)


def _length(lines: list[bytes]) -> int:
    for line in lines:
        if line.lower().startswith(b"content-length:"):
            return int(line.partition(b":")[2])
    return 0


def _closing(lines: list[bytes]) -> bytes:
    kept = [line for line in lines[:-2] if not line.lower().startswith(b"connection:")]
    return b"\r\n".join([*kept, b"Connection: close", b"", b""])


async def _stream(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    while piece := await source.read(_PIECE):
        target.write(piece)
        await target.drain()
