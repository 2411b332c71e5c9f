"""The queue's routes over a store in memory, as a client meets them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from random import Random
from typing import Any, cast

import httpx

from service.http.app import HttpApi, build_app
from service.query.sources import Deletion
from service.queue.contents import Contents
from service.queue.queue import SegmentQueue
from service.settings import QueueSettings
from tailrace.coordination.lease import StoreTime
from tailrace.logstore import keys
from tailrace.logstore.batch import RunKey
from tailrace.logstore.clock import SystemClock
from tailrace.logstore.objects.local import LocalStore, inline
from tailrace.logstore.segments.detect import Carry
from tailrace.logstore.segments.writer import encode_segment
from tests.batches import Entry, make_batches
from tests.service.http.memory_node import MemoryNode
from tests.service.queue.world import body_of, never
from tests.settings import changed
from tests.simulation.powercut import PowerCutFileSystem

NOW_MS = 1_795_255_200_000


@dataclass
class QueueClient:
    """A client, and what is behind it."""

    client: httpx.AsyncClient
    store: LocalStore
    queue: SegmentQueue
    deletions: list[Deletion]
    seqs: dict[str, int] = field(default_factory=dict)

    async def put(self, node: str = "a", entries: Sequence[Entry] | None = None) -> bytes:
        """The node's next segment; its bytes."""
        seq = self.seqs[node] = self.seqs.get(node, 0) + 1
        body = body_of(node, seq, NOW_MS) if entries is None else _body(node, seq, entries)
        await self.store.put(keys.segment(node, seq), body)
        self.queue.catalog.expire()
        return body

    async def next(self, **params: Any) -> dict[str, Any]:
        answer = await self.client.post("/segments/next", params={"group": "g", **params})
        assert answer.status_code == 200, answer.text
        return cast("dict[str, Any]", answer.json())

    async def post(self, path: str, **params: Any) -> httpx.Response:
        return await self.client.post(f"/segments/{path}", params=params)

    async def done(self, given: dict[str, Any], verb: str = "commit", **params: Any) -> Any:
        return await self.post(f"{given['id']}/{verb}", group="g", epoch=given["epoch"], **params)


def _body(node: str, seq: int, entries: Sequence[Entry]) -> bytes:
    batches = make_batches(node, list(entries))
    return bytes(encode_segment(batches, node=node, seq=seq, carry=Carry()).body)


def batch(run: RunKey, number: int, text: bytes) -> Entry:
    return run, (NOW_MS << 80) | number << 25, text


@asynccontextmanager
async def queue_client(**limits: Any) -> AsyncIterator[QueueClient]:
    """An app with a queue, called without a server between."""
    clock, dice = SystemClock(), Random(1)
    store = LocalStore("/store", PowerCutFileSystem(), clock, dice, run=inline)
    time = StoreTime(clock, None)
    queue = SegmentQueue(store, clock, dice, time, changed(QueueSettings(), **limits), woken=never)
    deletions: list[Deletion] = []

    async def deleted() -> Sequence[Deletion]:
        return deletions

    contents = Contents(store, deleted, queue.settings.decoded_bytes)
    api = HttpApi(queue=lambda: queue, contents=lambda: contents)
    app = build_app(MemoryNode(), api)
    transport = httpx.ASGITransport(cast("Any", app))
    async with httpx.AsyncClient(base_url="http://localhost", transport=transport) as client:
        yield QueueClient(client, store, queue, deletions)
    app.append.shut()
