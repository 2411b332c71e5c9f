"""What a node that stood still finds in its buffers when it goes on: a request and a message.

Each is of a deletion that took effect elsewhere meanwhile. Lines from after it must stay.
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import httpx
import pytest

from tailrace_client import Run, RunDeleted, Unavailable
from tailrace_client.records import BatchIds
from tests.client.programs import until
from tests.e2e.service_process import BASE, ServiceProcess
from tests.service.peers.processes import running

FQN = "shop.orders"


@pytest.mark.in_turn(4)
@pytest.mark.parametrize("whole", [False, True], ids=["a run", "a pipeline"])
def test_lines_from_after_a_deletion_stay_when_a_node_that_stood_still_goes_on(
    tmp_path: Path, whole: bool
) -> None:
    settings = {
        "TAILRACE_NODES__SECRET": "a secret that all nodes share",
        "TAILRACE_NODES__REFRESH_SECONDS": "0.2",
        "TAILRACE_NODES__TIMEOUT_SECONDS": "0.5",
    }
    a, b = [
        ServiceProcess(tmp_path / name, store=tmp_path / "store", **settings, TAILRACE_NODE_ID=name)
        for name in "ab"
    ]
    path = f"{BASE}/{FQN}" + ("" if whole else "/1")
    with running(a, b), Run(a.url, FQN, "1", report=False) as client:
        old = BatchIds().mint()
        client.append("before\n")
        os.kill(b.pid, signal.SIGSTOP)
        with pytest.raises(httpx.ReadTimeout):
            httpx.delete(f"{b.url}{path}", timeout=0.2)
        assert httpx.delete(f"{a.url}{path}", timeout=60).status_code == 202
        deleted_ms = time.time_ns() // 1_000_000
        client.append("after\n")
        os.kill(b.pid, signal.SIGCONT)

        refused: list[RunDeleted] = []

        def refuses() -> bool:
            try:
                with Run(b.url, FQN, "1", report=False, retry_seconds=0) as late:
                    late.append("again\n", batch=old)
            except RunDeleted as error:
                refused.append(error)
            except Unavailable:
                pass
            return bool(refused)

        until(refuses)
        assert refused[0].moment_ms is not None
        assert refused[0].moment_ms <= deleted_ms
        # It came to b after the other one, whose client has left.
        assert httpx.delete(f"{b.url}{BASE}/{FQN}/another", timeout=60).status_code == 200
        for node in (a, b):
            log = httpx.get(f"{node.url}{BASE}/{FQN}/1/download", timeout=60)
            assert log.text == "after\n"
