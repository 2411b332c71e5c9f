"""Who ends a service hears of a run's log that it repaired."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest

from tailrace.logstore.batch import RunKey
from tests.e2e.clients import run_path
from tests.e2e.service_process import ServiceProcess

KEY = RunKey("p", "r")
TEXT = {"Content-Type": "text/plain"}


@pytest.mark.in_turn(3)
def test_a_service_that_repaired_a_log_is_not_ended_in_silence(tmp_path: Path) -> None:
    service = ServiceProcess(tmp_path / "data")
    service.start()
    with httpx.Client(base_url=service.url, timeout=60) as client:
        assert client.post(run_path(KEY), content="a line\n", headers=TEXT).status_code == 200
        assert client.post(run_path(KEY, verb="close")).status_code == 200
        service.stop()
        (logs,) = tmp_path.rglob("logs.txt")
        logs.unlink()
        service.start()
        assert client.get(run_path(KEY, verb="download")).text == "a line\n"
    with pytest.raises(AssertionError, match=r"nobody took .*: .*service\.run_log\.repair"):
        service.stop()
