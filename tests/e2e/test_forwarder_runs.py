"""Runs of forwarded files: they exist when they start, and are lost if their forwarder dies."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tailrace.forwarder.followed_runs import FollowedRuns
from tailrace_client.service import Service
from tests.client.programs import until
from tests.e2e.service_process import BASE, ServiceProcess
from tests.forwarder.forwarder_process import FQN, ForwarderProcess
from tests.simulation.clocks import ManualClock

STATUS = f"{BASE.removesuffix('/logs')}/{FQN}/pipelineStatus"


@pytest.fixture(scope="module")
def brief(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceProcess]:
    """A service for which a client is lost after three seconds."""
    data = tmp_path_factory.mktemp("brief") / "node"
    service = ServiceProcess(data, TAILRACE_RUNS__LOST_MINUTES="0.05")
    service.start()
    yield service
    service.stop()


def _listed(url: str, run: str) -> dict[str, Any]:
    answer = httpx.get(f"{url}{BASE}/{FQN}", params={"name": run}, timeout=60)
    rows = answer.json()["details"] if answer.status_code == 200 else []
    return next((dict(row) for row in rows if row["runId"] == run), {})


def _status(url: str, run: str) -> dict[str, Any]:
    answer = httpx.get(f"{url}{STATUS}/{run}", timeout=60)
    return dict(answer.json()) if answer.status_code == 200 else {}


def test_a_run_is_there_with_its_file_and_lost_without_its_forwarder(
    brief: ServiceProcess, tmp_path: Path
) -> None:
    url = brief.url
    forwarder = ForwarderProcess(tmp_path, url, run="{stem}", rotate_wait="100ms")
    (forwarder.logs / "before.log").write_text("nobody saw it begin\n")
    forwarder.start()
    forwarder.until(lambda: _listed(url, "before").get("lines") == 1)
    log = forwarder.logs / "night.log"
    log.touch()
    forwarder.until(lambda: _listed(url, "night").get("reported") == "running")
    row, status = _listed(url, "night"), _status(url, "night")
    assert (row["state"], row["lines"], row["outcome"]) == ("open", 0, None)
    assert (status["heartbeat"], status["reporter"]) == (True, "forwarder")
    assert _status(url, "before") == {}
    forwarder.kill()
    forwarder.until(lambda: _listed(url, "night")["outcome"] == "lost")
    assert _listed(url, "before")["outcome"] is None
    forwarder.start()
    forwarder.until(lambda: _listed(url, "night")["outcome"] is None)
    assert _status(url, "night")["startDate"] == status["startDate"], "it is the same run"
    assert forwarder.stop() == 0
    assert _status(url, "night") == {**status, "heartbeat": False}, "a stop is no death"
    forwarder.start()
    forwarder.until(lambda: _status(url, "night")["heartbeat"])
    log.write_text("done\n")
    forwarder.until(lambda: _listed(url, "night").get("lines") == 1)
    log.unlink()
    forwarder.until(lambda: _listed(url, "night")["state"] == "closed")
    row = _listed(url, "night")
    assert (row["outcome"], row["started"], row["tookFrom"]) == (
        "unknown",
        status["startDate"],
        "reported",
    )
    assert row["took"] > 0
    assert forwarder.stop() == 0


@pytest.mark.in_turn(3)
def test_generations_end_with_their_rotation_and_what_others_report_is_theirs(
    brief: ServiceProcess, tmp_path: Path
) -> None:
    url = brief.url
    own = {"runId": "job", "pipelineState": "running", "startDate": 1, "timestamp": 1}
    httpx.put(f"{url}{STATUS}", json=own, timeout=60).raise_for_status()
    forwarder = ForwarderProcess(
        tmp_path, url, path_pattern=r".*/(?P<run>job|gen)\.log(?P<n>.*)", run="{run}{n}",
        rotate_wait="100ms",
    )  # fmt: skip
    (forwarder.logs / "job.log").write_text("of a job that reports itself\n")
    forwarder.start()
    # Behind the first scan: the forwarder did not see what was there before that begin.
    forwarder.until(lambda: _listed(url, "job").get("lines") == 1)
    log = forwarder.logs / "gen.log"
    log.write_text("first\n")
    forwarder.until(lambda: _listed(url, "gen").get("lines") == 1)
    forwarder.until(lambda: _status(url, "gen").get("pipelineState") == "running")
    log.unlink()
    forwarder.until(lambda: _listed(url, "gen")["state"] == "closed")
    assert _listed(url, "gen")["outcome"] == "unknown"
    assert forwarder.stop() == 0
    assert _status(url, "job") == own


def test_a_file_at_rest_keeps_its_run_open_and_promises_nothing(brief: ServiceProcess) -> None:
    """A day of a silent file passes on the forwarder's clock; its status comes every few hours."""
    url, clock = brief.url, ManualClock()
    runs = FollowedRuns(Service(url), clock)
    others = iter(range(100))

    def stored() -> list[bytes]:
        """The status as it lies in the store, with its version."""
        return [path.read_bytes() for path in brief.data.glob("**/coordination/status/*/rest")]

    def heartbeat_after(seconds: float) -> bool:
        """What the status says once it was written again, so much later."""
        reported = stored()
        clock.pass_seconds(seconds)
        runs.begin(FQN, f"other-{next(others)}", resumes=True)  # it wakes the reports
        until(lambda: stored() != reported)
        return bool(_status(url, "rest")["heartbeat"])

    runs.begin(FQN, "rest", resumes=False)
    assert heartbeat_after(1)
    start = _status(url, "rest")["startDate"]
    assert heartbeat_after(60)
    assert not heartbeat_after(3_601)
    for _ in range(3):
        assert not heartbeat_after(6 * 3_600)
    reported = stored()
    runs.heard(FQN, "rest")
    until(lambda: stored() != reported)
    assert _status(url, "rest")["heartbeat"]
    assert heartbeat_after(60), "it reports as often as before"
    assert runs.end(FQN, "rest") == start
    runs.stop(60)
