"""A node on a full disk says so to machines and people, and goes on for who reads."""

from __future__ import annotations

from tests.openmetadata.server import FQN, NODE, ROOT, RUN, Server, play
from tests.settings import settings_with

KEPT = 1 << 20
KEEPS_FREE = settings_with(NODE, journal={"min_free_bytes": KEPT})


def test_a_full_disk_is_no_ready_node_until_there_is_room() -> None:
    async def scenario(server: Server) -> None:
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

    play(scenario, settings=KEEPS_FREE)


def test_reports_do_not_take_the_room_that_batches_are_refused_for() -> None:
    """The local store is on the same disk: 298 reports of a MiB filled one of 300 MB."""
    report = {"runId": RUN, "text": "x" * (KEPT // 4)}
    metrics = f"{ROOT}/metrics/{FQN}/{RUN}"

    async def scenario(server: Server) -> None:
        await server.append("before\n")
        server.fs.capacity_bytes -= server.fs.free_bytes("/") - 3 * KEPT
        replies = [await server.client.post(metrics, json=report) for _ in range(20)]
        sent = [reply.status_code for reply in replies]
        assert sent == [200] * sent.count(200) + [507] * sent.count(507)
        assert 4 <= sent.count(200) <= 8
        assert server.fs.free_bytes("/") >= KEPT
        refused = [
            await server.client.put(f"{ROOT}/{FQN}/pipelineStatus", json=report),
            await server.client.put(f"{ROOT}/progress/{FQN}/{RUN}", json=report),
        ]
        for reply in refused:
            assert (reply.status_code, reply.json()["type"]) == (507, "journal-full")
            assert "retry-after" in reply.headers
        stored = (await server.client.get(metrics)).json()["data"]
        assert stored == [report] * sent.count(200)
        assert (await server.client.get(f"{ROOT}/{FQN}/pipelineStatus/{RUN}")).status_code == 204
        await server.append("after\n")
        assert await server.text() == "before\nafter\n"

        server.fs.capacity_bytes += 4 * KEPT
        assert (await server.client.post(metrics, json=report)).status_code == 200

    play(scenario, settings=KEEPS_FREE)
