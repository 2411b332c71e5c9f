"""What goes over the wire to an S3 server: a proxy that passes everything on and counts it.

    with counted(minio.endpoint_url) as wire:
        bucket = minio.bucket().through(wire.url)
        …
        before = wire.traffic()
        …
        print(wire.traffic() - before)

Bytes are those of bodies. Copied bytes are the ranges that requests ask the server to copy.
"""

from __future__ import annotations

import asyncio
import re
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import NamedTuple, Self
from urllib.parse import parse_qs, unquote, urlsplit

from tests.faults.http1 import (
    BrokenMessage,
    Head,
    body_of,
    ends_with_connection,
    read_head,
    response_body,
)

_LEAVE = b"HTTP/1.1 100 Continue\r\n\r\n"
_RANGE = re.compile(r"bytes=(\d+)-(\d+)")
_WHAT = [
    ("segments", re.compile(r"/segments/[^.]")),
    ("table", re.compile(r"/table/")),
    ("manifests", re.compile(r"/runs/.*\.json$")),
    ("indexes", re.compile(r"/chunks/[^/]*\.idx$")),
    ("chunks", re.compile(r"/chunks/[^/]*\.txt$")),
    ("partial.txt", re.compile(r"/partial\.txt$")),
    ("logs.txt", re.compile(r"/logs\.txt$")),
    ("active", re.compile(r"/\.active/")),
    ("coordination", re.compile(r"/coordination/")),
]
_BY_QUERY = {
    ("PUT", "partNumber"): "UploadPart",
    ("POST", "uploads"): "CreateMultipartUpload",
    ("POST", "uploadId"): "CompleteMultipartUpload",
    ("DELETE", "uploadId"): "AbortMultipartUpload",
    ("POST", "delete"): "DeleteObjects",
    ("GET", "list-type"): "ListObjects",
    ("GET", "uploads"): "ListUploads",
}
_BY_METHOD = {
    "PUT": "PutObject",
    "GET": "GetObject",
    "HEAD": "HeadObject",
    "DELETE": "DeleteObject",
}
PUTS = frozenset({"PutObject", "UploadPart", "UploadPartCopy", "CompleteMultipartUpload"})


class Kind(NamedTuple):
    """Requests that are counted together: about what, and S3's name of the operation."""

    what: str
    operation: str

    @staticmethod
    def of(head: Head) -> Kind:
        """The kind of a request."""
        method, target = head.request_line()
        url = urlsplit(target)
        names = parse_qs(url.query, keep_blank_values=True)
        path = unquote(url.path)
        what = next((name for name, pattern in _WHAT if pattern.search(path)), "other")
        asked = [_BY_QUERY.get((method, name)) for name in names]
        operation = next((name for name in asked if name), _BY_METHOD.get(method, method))
        if head.value("x-amz-copy-source") is not None:
            operation += "Copy"
        return Kind(what, operation)


@dataclass(frozen=True)
class Traffic:
    """Requests, and bytes sent, got and copied by the server, by kind."""

    requests: Counter[Kind] = field(default_factory=Counter)
    sent: Counter[Kind] = field(default_factory=Counter)
    got: Counter[Kind] = field(default_factory=Counter)
    copied: Counter[Kind] = field(default_factory=Counter)

    def __sub__(self, before: Traffic) -> Traffic:
        pairs = zip(self._all(), before._all(), strict=True)
        return Traffic(*[mine - theirs for mine, theirs in pairs])

    def copy(self) -> Traffic:
        """As it is now."""
        return Traffic(*[Counter(part) for part in self._all()])

    def count(self, *operations: str, what: str | None = None) -> int:
        """Requests of some operations, or of all; about something, or about anything."""
        return sum(
            number
            for kind, number in self.requests.items()
            if (not operations or kind.operation in operations) and what in (None, kind.what)
        )

    def rows(self, per: float, unit: str) -> list[str]:
        """A table: what it was about, how many requests, and bytes per `per`."""
        found = [f"{'':14}{'requests':>10}{'sent':>10}{'got':>10}{'copied':>10}  bytes per {unit}"]
        for what in sorted({kind.what for kind in self.requests}):
            sums = [
                sum(number for kind, number in part.items() if kind.what == what)
                for part in self._all()
            ]
            numbers = "".join(f"{number / per:10.3f}" for number in sums[1:])
            found.append(f"{what:14}{sums[0]:10d}{numbers}")
        return found

    def _all(self) -> tuple[Counter[Kind], ...]:
        return self.requests, self.sent, self.got, self.copied


class Wire:
    """The proxy; `url` takes the place of the server's."""

    def __init__(self, upstream: str) -> None:
        url = urlsplit(upstream)
        self._upstream = url.hostname or "", url.port or 80
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._lock = threading.Lock()
        self._traffic = Traffic()

    @property
    def url(self) -> str:
        """Where it listens."""
        assert self._server is not None
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    def traffic(self) -> Traffic:
        """All since the beginning; from any thread."""
        with self._lock:
            return self._traffic.copy()

    async def start(self) -> Self:
        """Listens on a free port."""
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0, backlog=1000)
        return self

    async def stop(self) -> None:
        """Ends all connections."""
        assert self._server is not None
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        answers, requests = await asyncio.open_connection(*self._upstream)
        try:
            with suppress(ConnectionError, BrokenMessage, asyncio.CancelledError):
                while (head := await read_head(reader)) is not None:
                    if not await self._one(head, (reader, writer), (answers, requests)):
                        break
        finally:
            requests.close()
            writer.close()
            self._tasks.discard(task)

    async def _one(
        self,
        head: Head,
        client: tuple[asyncio.StreamReader, asyncio.StreamWriter],
        server: tuple[asyncio.StreamReader, asyncio.StreamWriter],
    ) -> bool:
        """Whether the connection goes on."""
        kind, method = Kind.of(head), head.request_line()[0]
        (reader, writer), (answers, requests) = client, server
        if (head.value("expect") or "").lower() == "100-continue":
            writer.write(_LEAVE)
        requests.write(head.raw)
        sent = got = 0
        async for piece in body_of(reader, head):
            sent += len(piece)
            requests.write(piece)
            await requests.drain()
        answer = await read_head(answers)
        while answer is not None and answer.status() < 200:
            answer = await read_head(answers)
        if answer is None:
            raise BrokenMessage("the server ended without an answer")
        writer.write(answer.raw)
        async for piece in response_body(answers, answer, method=method):
            got += len(piece)
            writer.write(piece)
            await writer.drain()
        await writer.drain()
        self._count(kind, sent, got, _copied(head) if answer.status() < 300 else 0)
        return not (head.closes or ends_with_connection(answer, method=method))

    def _count(self, kind: Kind, sent: int, got: int, copied: int) -> None:
        with self._lock:
            traffic = self._traffic
            traffic.requests[kind] += 1
            traffic.sent[kind] += sent
            traffic.got[kind] += got
            traffic.copied[kind] += copied


def _copied(head: Head) -> int:
    found = _RANGE.fullmatch(head.value("x-amz-copy-source-range") or "")
    return int(found[2]) - int(found[1]) + 1 if found else 0


@contextmanager
def counted(upstream: str) -> Iterator[Wire]:
    """A wire to a server, in a thread of its own."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="wire", daemon=True)
    thread.start()
    wire = asyncio.run_coroutine_threadsafe(Wire(upstream).start(), loop).result(10)
    try:
        yield wire
    finally:
        asyncio.run_coroutine_threadsafe(wire.stop(), loop).result(10)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)
        loop.close()
