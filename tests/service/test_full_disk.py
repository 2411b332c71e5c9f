"""A node on a full disk says so to machines and people, and goes on for who reads."""

from __future__ import annotations

from dataclasses import replace

from tests.openmetadata.server import FQN, LIMITS, ROOT, RUN, Server, play

KEPT = 1 << 20
KEEPS_FREE = replace(LIMITS, journal=replace(LIMITS.journal, min_free_bytes=KEPT))


def test_a_full_disk_is_no_ready_node_until_there_is_room() -> None:
    async def story(server: Server) -> None:
        await server.append("before\n")
        assert (await server.client.get("/health/ready")).json() == {
            "status": "ready",
            "problems": [],
        }

        room = server.fs.free_bytes("/") - KEPT + 1
        server.fs.capacity_bytes -= room
        reply = await server.client.get("/health/ready")
        assert reply.status_code == 503
        assert "the disk of the journal is full" in reply.json()["detail"]
        live = await server.client.get("/health/live")
        assert (live.status_code, len(live.json()["problems"])) == (200, 1)
        batch = {"logs": "during\n", "connectorId": "h", "timestamp": server.clock.now_ms()}
        refused = await server.client.post(f"{ROOT}/logs/{FQN}/{RUN}", json=batch)
        assert refused.status_code == 507
        assert "retry-after" in refused.headers
        assert await server.text() == "before\n"

        server.fs.capacity_bytes += room
        assert (await server.client.get("/health/ready")).status_code == 200
        await server.append("after\n")
        assert await server.text() == "before\nafter\n"

    play(story, limits=KEEPS_FREE)
