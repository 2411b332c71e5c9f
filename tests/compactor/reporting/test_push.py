"""The push gateway: what it gets, and what becomes of a pass when it does not answer."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread

import pytest

from compactor.listeners import MetricsListener, PushGateway
from compactor.metrics import parse
from compactor.passes import Passes
from compactor.report import PassReport
from compactor.settings import load_settings
from tailrace.logstore.clock import SystemClock
from tailrace.logstore.errors import InvalidInput

Request = tuple[str, str | None, bytes]


@contextmanager
def gateway(*, status: int = 200) -> Iterator[tuple[str, list[Request]]]:
    """Its address as `host:port`, and what it got."""
    got: list[Request] = []

    class Handler(BaseHTTPRequestHandler):
        def do_PUT(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            got.append((self.path, self.headers["Authorization"], body))
            self.send_response(status)
            self.end_headers()
            self.wfile.write(b"pushed metrics are invalid" if status >= 400 else b"")

        def log_message(self, *_: object) -> None:
            """Not on our standard error."""

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"127.0.0.1:{server.server_port}", got
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def told(address: str, *reports: int) -> list[PassReport]:
    """Passes of so many segments each, told to the gateway at their ends."""

    async def scenario() -> list[PassReport]:
        made = []
        listener = MetricsListener(SystemClock(), None, PushGateway(address, "host/1"))
        passes = Passes(SystemClock(), [listener])
        for segments in reports:
            async with passes.next() as report:
                report.segments = segments
            made.append(report)
        return made

    return asyncio.run(scenario())


def test_it_gets_all_that_was_counted_under_this_host() -> None:
    with gateway() as (place, got):
        assert [report.alarms for report in told(f"http://{place}/below/", 2, 3)] == [[], []]
    assert {path for path, _, _ in got} == {
        "/below/metrics/job/tailrace-compactor/instance/host%2F1"
    }
    assert parse(got[-1][2])["tailrace_compactor_segments", ()] == 5
    assert b"\ntailrace_compactor_told_timestamp_seconds " in got[-1][2]


def test_its_password_is_sent_and_never_said() -> None:
    with gateway(status=401) as (place, got):
        (report,) = told(f"http://me:s3cret@{place}", 1)
    assert got[0][1] == "Basic bWU6czNjcmV0"
    (alarm,) = report.alarms
    assert alarm == (
        f"the push gateway http://{place} did not take the metrics: 401 pushed metrics are invalid"
    )


def test_one_that_is_away_is_an_alarm_and_holds_nothing_up() -> None:
    with gateway() as (place, _):
        pass  # its port is closed now
    (report,) = told(f"http://{place}", 1)
    assert report.segments == 1
    assert report.error is None
    assert len(report.alarms) == 1
    assert report.alarms[0].startswith(f"the push gateway http://{place} did not take the metrics")


@pytest.mark.parametrize("address", ["gateway:9091", "ftp://gateway", "http://"])
def test_what_is_no_address_is_refused_as_a_setting(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TAILRACE_COMPACTION__PUSH_GATEWAY", address)
    with pytest.raises(InvalidInput, match=r"compaction\.push_gateway"):
        load_settings({}, None)


def test_a_port_that_is_none_is_refused() -> None:
    with pytest.raises(InvalidInput, match=r"compaction\.push_gateway is not an address"):
        PushGateway("http://gateway:port", "host")
