"""The metrics of what clients report: each moves."""

from __future__ import annotations

from tests.openmetadata.server import FQN, NODE, ROOT, RUN, Server, play
from tests.settings import settings_with
from tests.simulation.powercut import PowerCutFileSystem

SWEEPING = settings_with(NODE, runs={"cleanup_interval_minutes": 1.0, "expiration_days": 1})
MOVE_BY_REPORTS = {
    *("tailrace_reports", "tailrace_reports_expired", "tailrace_report_sweep_failures"),
    "tailrace_status_look_failures",
}


def test_the_metrics_of_reports() -> None:
    disk = PowerCutFileSystem()

    async def report(server: Server) -> None:
        await server.says("queued")
        await server.client.put(f"{ROOT}/progress/{FQN}/{RUN}", json={})
        await server.client.post(f"{ROOT}/metrics/{FQN}/{RUN}", json={})
        assert server.node.status.stored == {"status": 1, "progress": 1, "metrics": 1}
        assert server.metric("tailrace_reports") == 3

    async def days_later(server: Server) -> None:
        server.outage.words.add("coordination/status")
        viewer = await server.watch()
        await server.passes(minutes=2)
        assert server.metric("tailrace_report_sweep_failures") > 0
        assert server.metric("tailrace_status_look_failures") > 0
        assert server.metric("tailrace_reports_expired") == 0
        server.outage.words.clear()
        viewer.leave()
        await server.passes(minutes=2)
        assert server.metric("tailrace_reports_expired") == 3

    play(report, settings=SWEEPING, fs=disk)
    play(days_later, settings=SWEEPING, fs=disk, hours=48)
