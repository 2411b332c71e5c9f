"""The proxy as a process and as a thread: an address as long as they live, a clean end."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import httpx
import pytest

from tests.faults.kinds import Kind
from tests.faults.schedule import Schedule
from tests.faults.thread import fault_proxy


class Hello(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", "5")
        self.end_headers()
        self.wfile.write(b"hello")

    def log_message(self, *_: object) -> None:
        return


@pytest.fixture
def upstream() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Hello) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_a_proxy_in_a_thread(upstream: str) -> None:
    schedule = Schedule()
    schedule.plan(Kind.SLOW_DOWN)
    with fault_proxy(upstream, schedule) as url:
        assert [httpx.get(url, trust_env=False).status_code for _ in range(3)] == [503, 200, 200]
    with pytest.raises(httpx.ConnectError):
        httpx.get(url, trust_env=False)
    assert schedule.requests == 3


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_proxy_as_a_process_tells_what_it_did(upstream: str, number: signal.Signals) -> None:
    words = ["--upstream", upstream, "--seed", "5", "--kind", "internal-error=1"]
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.faults", *words], stdout=subprocess.PIPE, text=True
    )
    with process:
        assert process.stdout is not None
        url = process.stdout.readline().removeprefix("listening on ").strip()
        statuses = [httpx.get(url, trust_env=False).status_code for _ in range(4)]
        process.send_signal(number)
        told = json.loads(process.stdout.read())
    assert process.returncode == 0
    assert statuses == [500, 500, 200, 500]
    assert told == {"requests": 4, "injected": {"internal-error": 3}}
