"""Clients that the node itself does not read on: their time stands still."""

from __future__ import annotations

from tests.service.http.test_connection import STREAM, played
from tests.service.http.wires import Client, Side, post


def test_who_is_not_read_does_not_stand_still() -> None:
    """Half of a body is there, and the request waits for its turn behind a live stream."""

    async def scenario(side: Side) -> None:
        client, request = Client(side), post(b"x" * 1000 + b"\n")
        await client.send(STREAM)
        await client.send(request[:-500])
        assert client.wire.paused
        await side.clock.sleep(1000)
        assert not client.ended()
        await side.say(post(b"", path="/p/r/close"))
        await side.clock.sleep(20)
        await client.send(request[-500:])
        await side.clock.sleep(1)
        assert client.wire.written.count(b"HTTP/1.1 200") == 2
        assert [text for _, text, _ in side.stored()][-1] == b"x" * 1000 + b"\n"
        client.leave()

    played(scenario)
