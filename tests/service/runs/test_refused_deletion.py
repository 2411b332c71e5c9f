"""A deletion that a full disk refuses: 507, and nothing of it has happened or ever does."""

from __future__ import annotations

import pytest

from tailrace.logstore import keys
from tests.openmetadata.server import FQN, KEY, ROOT, RUN, Server, play

RUN_URL = f"{ROOT}/logs/{FQN}/{RUN}"
PIPELINE_URL = f"{ROOT}/logs/{FQN}"


@pytest.mark.parametrize("url", [RUN_URL, PIPELINE_URL])
def test_what_the_journal_cannot_record_is_not_deleted(url: str) -> None:
    async def scenario(server: Server) -> None:
        await server.append("flushed\n")
        await server.passes(minutes=3)
        await server.append("hot\n")
        room = server.fs.free_bytes("/")
        server.fs.capacity_bytes -= room
        refused = await server.client.delete(url)
        assert refused.status_code == 507
        assert "retry-after" in refused.headers
        assert await server.text() == "flushed\nhot\n"
        server.fs.capacity_bytes += room
        await server.append("later\n")
        await server.passes(minutes=5)
        assert await server.text() == "flushed\nhot\nlater\n"
        assert await server.close() == "closed"
        assert [info.key async for info in server.disk_store.list(keys.DELETED)] == []
        stored = (await server.disk_store.get(keys.logs(keys.PREFIX, KEY)))[1]
        assert stored == b"flushed\nhot\nlater\n"
        await server.restart()
        assert await server.text() == "flushed\nhot\nlater\n"

        done = await server.client.delete(url)
        assert done.status_code == 200
        assert (await server.client.get(RUN_URL)).status_code == 404

    play(scenario)
