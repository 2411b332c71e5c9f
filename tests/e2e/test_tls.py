"""TLS of the service itself: what a connection takes, and clients that stop in their handshake."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path

import httpx
import pytest

from tests.e2e.service_process import BASE, ServiceProcess
from tests.fuzz.probe import own_bytes
from tests.servers.openssl import Authority, why_no_openssl

MIB = 1 << 20
CONNECTIONS = 150
pytestmark = pytest.mark.skipif(why_no_openssl() is not None, reason=why_no_openssl() or "")


@pytest.fixture
def service(tmp_path: Path) -> Iterator[ServiceProcess]:
    authority = Authority(tmp_path, "authority")
    authority.certificate("service", "DNS:localhost,IP:127.0.0.1")
    process = ServiceProcess(
        tmp_path / "data",
        TAILRACE_SERVER__TLS_CERTIFICATE=str(tmp_path / "authority-service.pem"),
        TAILRACE_SERVER__TLS_KEY=str(tmp_path / "authority-service.key"),
        TAILRACE_INGEST__IN_FLIGHT_BYTES=str(16 * MIB),
    )
    process.verify = ssl.create_default_context(cafile=str(authority.file))
    process.url = process.url.replace("http:", "https:")
    yield process
    if process.running:
        process.kill()


def test_bodies_that_stop_take_what_the_budget_allows(service: ServiceProcess) -> None:
    """uvloop's TLS would take 0.8 MB more for each of these connections."""
    service.start()
    assert isinstance(service.verify, ssl.SSLContext)
    head = (
        f"POST {BASE}/p/r HTTP/1.1\r\nhost: localhost\r\ncontent-type: text/plain\r\n"
        f"content-length: {4 * MIB}\r\n\r\n"
    )
    before, verify = own_bytes(service.pid), service.verify

    def half(_: int) -> socket.socket:
        plain = socket.create_connection(("127.0.0.1", service.port), timeout=60)
        connection = verify.wrap_socket(plain, server_hostname="localhost")
        connection.settimeout(1)  # the service reads no further once the budget is used up
        with suppress(OSError):
            connection.sendall(head.encode() + b"x" * MIB)
        return connection

    with ExitStack() as stack, ThreadPoolExecutor(50) as pool:
        for connection in pool.map(half, range(CONNECTIONS)):
            stack.enter_context(connection)
        grown = own_bytes(service.pid) - before
    assert grown < (16 + 32) * MIB + CONNECTIONS * 300_000, grown
    assert service.stop() == 0


def test_clients_in_their_handshake_are_counted_and_given_up(service: ServiceProcess) -> None:
    service.settings |= {
        "TAILRACE_SERVER__MAX_CONNECTIONS_PER_PEER": "4",
        "TAILRACE_SERVER__HEADER_TIMEOUT_SECONDS": "3",
    }
    service.start()
    with ExitStack() as stack:
        silent = [
            stack.enter_context(socket.create_connection(("127.0.0.1", service.port), timeout=60))
            for _ in range(6)
        ]
        with pytest.raises(httpx.TransportError):
            httpx.get(f"{service.url}/health/live", verify=service.verify, timeout=60)
        assert [connection.recv(1) for connection in silent] == [b""] * 6
    reply = httpx.get(f"{service.url}/health/live", verify=service.verify, timeout=60)
    assert reply.status_code == 200
    assert service.stop() == 0
