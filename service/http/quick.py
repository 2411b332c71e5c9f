"""The answer to an append in the quick lane, once its batch is safe or refused."""

from __future__ import annotations

import asyncio
from typing import Protocol

from logstore.errors import NodeNotReady
from service.http.problems import Problem
from service.http.receipt import Headers, receipt_reply
from service.incoming import IncomingBatch, Receipt, Submitted


class Answerer(Protocol):
    """What counts a quick append and words its refusal."""

    def stored(self, records: int, start: float) -> None:
        """Counts a batch that is safe; `start` is when its request was complete."""
        ...

    def not_stored(self, error: BaseException, headers: Headers) -> Problem:
        """Counts a batch that the disk did not take, and says why."""
        ...

    def not_said(self, error: Exception, headers: Headers) -> Problem:
        """Counts an append whose answer could not be made, and says so."""
        ...


class QuickReply:
    """Of one batch; `tag` and `session` are its route's."""

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
        """Done when the batch is as safe as it asked for."""
        return self._submitted.done

    def failed(self, error: Exception) -> Problem:
        """What to say where there is no response, though the batch may be safe."""
        return self._answerer.not_said(error, list(self._headers.items()))

    def response(self) -> tuple[int, Headers, bytes]:
        """Status, headers and body."""
        done = self.done
        error = NodeNotReady("the node is stopping") if done.cancelled() else done.exception()
        if error is not None:
            refusal = self._answerer.not_stored(error, list(self._headers.items()))
            return refusal.status, refusal.headers, refusal.body
        batch, last = self._batch, self._submitted.last
        self._answerer.stored(batch.records, self._start)
        receipt = Receipt(last + 1 - batch.records, batch.records, False, batch.durability, last)
        headers, body = receipt_reply(receipt, self._tag, self._session, replaced=batch.replaced)
        return 200, headers, body
