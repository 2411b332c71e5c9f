"""Nothing is called erased while a node may have the lines on its disk."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.e2e.processes import wait_for
from tests.e2e.service_process import BASE, ServiceProcess
from tests.service.peers.processes import running
from tests.service.peers.test_over_http import SECRET, post

SETTINGS = {
    "TAILRACE_NODES__SECRET": SECRET,
    "TAILRACE_NODES__REFRESH_SECONDS": "0.2",
    "TAILRACE_NODES__TIMEOUT_SECONDS": "0.5",
    "TAILRACE_JOURNAL__ERASE_SECONDS": "0.1",
    "TAILRACE_FLUSH__SEGMENT_SECONDS": "0.2",
    "TAILRACE_RUNS__PARTIAL_FLUSH_INTERVAL_MINUTES": "0.005",
}


@pytest.mark.in_turn(4)
def test_a_frozen_node_keeps_a_deletion_from_being_called_erased(tmp_path: Path) -> None:
    store = tmp_path / "store"
    a, b = [
        ServiceProcess(tmp_path / name, store=store, TAILRACE_NODE_ID=name, **SETTINGS)
        for name in "ab"
    ]
    path = f"{BASE}/shop.orders/1"

    def deletion() -> dict[str, Any]:
        reply = httpx.get(f"{a.url}/deletions", timeout=60)
        (found,) = reply.json()["deletions"]
        return dict(found)

    def places() -> set[str]:
        """Where lines may be, without names of segments and incarnations."""
        return {left.partition("/")[0].partition("-0")[0] for left in deletion()["left"]}

    with running(a, b):
        post(b, path, "text of b\n")
        os.kill(b.pid, signal.SIGSTOP)
        try:
            assert httpx.delete(f"{a.url}{path}", timeout=60).status_code == 202
            assert "the node b" in places()
            for segment in (store / "segments").rglob("*.parquet"):
                segment.unlink()  # the place that is not looked at here
            assert deletion()["state"] != "erased"
        finally:
            os.kill(b.pid, signal.SIGCONT)
        wait_for(lambda: places() <= {"segments"})
        for folder in (a.data, b.data):
            files = [file for file in (folder / "journal").iterdir() if file.is_file()]
            assert [file.name for file in files if b"text of b" in file.read_bytes()] == []
