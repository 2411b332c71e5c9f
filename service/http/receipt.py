"""The answer to an append, as headers and body and, for the fast path, as one piece of bytes.

On the fast path the answer is made once the batch is safe or refused.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Protocol

import orjson

from logstore import ulid as ulids
from logstore.errors import NodeNotReady
from service.http.errors import Problem
from service.ingest.batch import IncomingBatch, Receipt, Submitted

JSON = (b"content-type", b"application/json")
_BOOLEANS = (b"false", b"true")
Headers = list[tuple[bytes, bytes]]


def receipt_reply(
    receipt: Receipt,
    tag: bytes,
    session: tuple[bytes, bytes],
    *,
    replaced: int = 0,
    unknown_levels: Sequence[str] = (),
    silent: Sequence[str] = (),
) -> tuple[Headers, bytes]:
    """Headers and body of a receipt; the run's `tag` and `session` cookie come from its route.

    `replaced` characters of the text were not UTF-8; the body says how many if there are any.
    `unknown_levels` are some levels that the records state and that are none of ours.
    `silent` are nodes that this one does not hear: a deletion there may take the batch back.
    """
    last = ulids.encode(receipt.last).encode()
    # A batch id is its last line's ULID with five zeros at the end.
    body = b'{"batch":"%b00000","lines":%d,"duplicate":%b,"durability":"%b","last":"%b"%b}' % (
        last[:21],
        receipt.records,
        _BOOLEANS[receipt.duplicate],
        receipt.durability.encode(),
        last,
        (b',"replaced":%d' % replaced if replaced else b"")
        + (b',"unknownLevels":%b' % orjson.dumps(unknown_levels) if unknown_levels else b"")
        + (b',"silent":%b' % orjson.dumps(silent) if silent else b""),
    )
    headers = [
        JSON,
        (b"content-length", b"%d" % len(body)),
        (b"tailrace-last", last),
        session,
        echo_cookie(last, tag),
    ]
    if silent:
        headers.append((b"tailrace-silent", ", ".join(silent).encode()))
    return headers, body


def echo_cookie(last: bytes, tag: bytes) -> tuple[bytes, bytes]:
    """The cookie by which a client echoes the run's last reply."""
    return (b"set-cookie", b"tailrace=%b.%b; Path=/; Max-Age=86400" % (last, tag))


def response_bytes(status_line: bytes, headers: Headers, body: bytes) -> bytes:
    """A whole HTTP/1.1 response; the status line has its line's end."""
    return b"%b%b\r\n%b" % (status_line, b"".join([b"%b: %b\r\n" % h for h in headers]), body)


class Answerer(Protocol):
    """Counts a quick append and makes the answer to its refusal."""

    def silent(self) -> Sequence[str]:
        """The nodes that this one does not hear now."""
        ...

    def stored(self, records: int, start: float) -> None:
        """Counts a batch that is durable; `start` is when its request was complete."""
        ...

    def not_stored(self, error: BaseException, headers: Headers, start: float) -> Problem:
        """Counts a batch that the disk refused, and returns the answer."""
        ...

    def not_said(self, error: Exception, headers: Headers) -> Problem:
        """Counts an append whose answer could not be made, and returns an error."""
        ...


class QuickReply:
    """The reply to one batch; `tag` and `session` are its route's."""

    __slots__ = ("_answerer", "_batch", "_headers", "_session", "_start", "_submitted", "_tag")

    def __init__(
        self,
        answerer: Answerer,
        batch: IncomingBatch,
        submitted: Submitted,
        *,
        tag: bytes,
        session: tuple[bytes, bytes],
        headers: dict[bytes, bytes],
        start: float,
    ) -> None:
        self._answerer = answerer
        self._batch = batch
        self._submitted = submitted
        self._tag = tag
        self._session = session
        self._headers = headers
        self._start = start

    @property
    def done(self) -> asyncio.Future[None]:
        """A future, done when the batch is as durable as it asked for."""
        return self._submitted.done

    def failed(self, error: Exception) -> Problem:
        """The answer where there is no response, though the batch may be durable."""
        return self._answerer.not_said(error, list(self._headers.items()))

    def response(self) -> tuple[int, Headers, bytes]:
        """Status, headers and body."""
        done = self.done
        error = NodeNotReady("the node is stopping") if done.cancelled() else done.exception()
        if error is not None:
            refusal = self._answerer.not_stored(error, list(self._headers.items()), self._start)
            return refusal.status, refusal.headers, refusal.body
        batch, last = self._batch, self._submitted.last
        self._answerer.stored(batch.records, self._start)
        receipt = Receipt(last + 1 - batch.records, batch.records, False, batch.durability, last)
        headers, body = receipt_reply(
            receipt,
            self._tag,
            self._session,
            replaced=batch.replaced,
            unknown_levels=batch.unknown_levels,
            silent=self._answerer.silent(),
        )
        return 200, headers, body
