"""What nobody foresaw, in the answer of the fast path: a connection never waits for ever."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import httpx
import pytest

from service.http.app import HttpApi, build_app
from service.http.server import address, listen, serving
from tailrace.logstore.clock import SystemClock
from tests.service.http.conftest import Served
from tests.service.http.journal_node import JournalNode
from tests.service.http.test_fast_path import known, wire


class Breaks(SystemClock):
    """A clock that gives no time when it is asked how long a batch took."""

    def __init__(self, node: JournalNode) -> None:
        self._node = node
        self.broken = True

    def monotonic(self) -> float:
        if self.broken and self._node.taken:
            raise RuntimeError("no time")
        return super().monotonic()


@pytest.fixture
async def node() -> AsyncIterator[JournalNode]:
    made = JournalNode()
    yield made
    await made.gated.journal.close()


async def test_an_answer_that_cannot_be_made_is_a_500(node: JournalNode) -> None:
    clock = Breaks(node)
    api = HttpApi(clock=clock)
    bound = listen("127.0.0.1", 0)
    async with (
        serving(build_app(node, api), bound, stop_seconds=2),
        httpx.AsyncClient(base_url=address(bound), timeout=120) as client,
    ):
        served = Served(node, api.counters, client, address(bound))
        await known(served)
        async with asyncio.timeout(60), wire(served) as connection:
            connection.post(b"a\n", "x-request-id: one")
            head, body = await connection.reply()
            assert b" 500 " in head
            assert b"application/problem+json" in head
            assert b'"type":"internal"' in body
            assert b'"request_id":"one"' in body
            clock.broken = False
            await connection.stored(b"b\n")  # in its order, on the same connection
    assert node.news() == [b"a\n", b"b\n"]
    assert api.counters.append_refused == 1
