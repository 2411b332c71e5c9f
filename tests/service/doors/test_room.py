"""The memory that replies of doors take: who waits for it, and who is cut off because of it."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator

from tests.service.doors.test_elasticsearch import bulk, post, statuses
from tests.service.http.conftest import RUNS, Serve

KIB = 1 << 10
REFUSED = b'{"update":{"_index":"shop"}}\n{}\n'


async def test_documents_that_wait_for_room_at_once_are_stored_once(serve: Serve) -> None:
    """Both know none of their ids before the wait. One of them has to look again after it."""
    served = await serve(in_flight_bytes=400 * KIB)
    sent = bulk(
        *[
            line
            for number in range(1000)
            for line in ({"index": {"_id": str(number)}}, {"message": "a"})
        ]
    )

    async def half() -> AsyncIterator[bytes]:
        yield b"x" * (380 * KIB - 2 * len(sent))
        await asyncio.Event().wait()

    text = {"content-type": "text/plain"}
    first = asyncio.create_task(
        served.client.post(f"{RUNS}/shop/half", content=half(), headers=text)
    )
    await asyncio.sleep(0.2)
    answers = await asyncio.gather(*[post(served, sent, "/shop/_bulk") for _ in range(2)])
    first.cancel()
    assert sorted(sum(status == 201 for _, status in statuses(each)) for each in answers) == [
        0,
        1000,
    ]
    assert sum(batch.records for batch in served.node.batches) == 1000


async def test_a_client_that_takes_nothing_of_a_large_reply_is_cut_off_for_others(
    serve: Serve,
) -> None:
    served = await serve(in_flight_bytes=1024 * KIB, write_timeout_seconds=600)
    body = REFUSED * 50_000
    host, port = served.url.removeprefix("http://").split(":")
    client = socket.socket()
    with client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 * KIB)
        client.connect((host, int(port)))
        client.setblocking(False)
        loop = asyncio.get_running_loop()
        head = b"POST /_bulk HTTP/1.1\r\nhost: localhost\r\ncontent-length: %d\r\n\r\n" % len(body)
        await loop.sock_sendall(client, head + body)
        async with asyncio.timeout(60):
            while served.counters.connections_timed_out == 0:  # it keeps others waiting
                text = b"x\n" * 100 * KIB
                answer = await served.post("/shop/other", text, content_type="text/plain")
                assert answer.status_code == 200
        taken = 0
        try:
            async with asyncio.timeout(30):
                while piece := await loop.sock_recv(client, 1 << 20):
                    taken += len(piece)
        except ConnectionResetError:
            pass
    assert taken < 50_000 * 100
