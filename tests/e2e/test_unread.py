"""Clients that ask and do not read: what it costs the node, and that others are answered."""

from __future__ import annotations

import contextlib
import http.client
import random
import re
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest

from tests.e2e.service_process import BASE, ServiceProcess

RUN = f"{BASE}/p/r"
LINES = 100_000
_DICE = random.Random(1)
TEXT = b"".join(
    b"%06d %064x %b\n" % (i, _DICE.getrandbits(256), b"words " * 12) for i in range(LINES)
)
MIB = 1 << 20
_PATIENCE_SECONDS = 120.0


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceProcess]:
    """With a run of 14 MB in one segment, flushed. No client is let go for its slowness."""
    settings = {
        "TAILRACE_QUERY__STALL_SECONDS": "3600",
        "TAILRACE_QUERY__MAX_CONCURRENT": "2",
        "TAILRACE_QUEUE__DECODED_BYTES": "16MiB",
        "TAILRACE_RUNS__EARLY_FLUSH_WATERMARK_BYTES": "1MiB",
    }
    running = ServiceProcess(tmp_path_factory.mktemp("unread") / "node", store=None, **settings)
    running.start()
    with httpx.Client(base_url=running.url, timeout=120) as client:
        headers = {"content-type": "text/plain", "tailrace-durability": "bulk"}
        assert client.post(RUN, content=TEXT, headers=headers).status_code == 200
        flushed(client)
    yield running
    assert running.stop() == 0
    assert "Traceback" not in running.output()


def flushed(client: httpx.Client) -> None:
    """Waits until the run's text is in the store: the flush needs memory, too."""
    plain = {"accept-encoding": "identity"}  # compressed, no length is said
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while "content-length" not in client.head(f"{RUN}/download", headers=plain).headers:
        assert time.monotonic() < deadline
        time.sleep(0.1)  # between two looks at another process


class Unread:
    """A request whose reply is begun and left where it is."""

    def __init__(self, service: ServiceProcess, path: str) -> None:
        self._socket = socket.socket()
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        self._socket.settimeout(_PATIENCE_SECONDS)
        self._socket.connect(("127.0.0.1", service.port))
        self._socket.sendall(b"GET %b HTTP/1.1\r\nHost: localhost\r\n\r\n" % path.encode())

    def begun(self) -> None:
        """Waits for the first byte, and leaves it there."""
        assert self._socket.recv(1, socket.MSG_PEEK)

    def body(self) -> bytes:
        """Reads on, to the end."""
        reply = http.client.HTTPResponse(self._socket)
        reply.begin()
        assert reply.status == 200
        return reply.read()

    def close(self) -> None:
        self._socket.close()


@contextlib.contextmanager
def unread(service: ServiceProcess, path: str, count: int) -> Iterator[list[Unread]]:
    found = [Unread(service, path) for _ in range(count)]
    try:
        for one in found:
            one.begun()
        yield found
    finally:
        for one in found:
            one.close()


def memory(service: ServiceProcess, name: str) -> int:
    """`VmRSS`, or `VmHWM`: the most since `forget_peak`."""
    status = Path(f"/proc/{service.pid}/status").read_text()
    found = re.search(rf"{name}:\s+(\d+) kB", status)
    assert found is not None
    return int(found[1]) << 10


@contextlib.contextmanager
def costs_at_most(service: ServiceProcess, path: str, most: int) -> Iterator[None]:
    """The process's memory rises by no more than `most` bytes meanwhile, at its peak.

    The path is read once before: the first reader of a process costs what others find there.
    """
    httpx.get(f"{service.url}{path}", timeout=_PATIENCE_SECONDS).raise_for_status()
    Path(f"/proc/{service.pid}/clear_refs").write_text("5")
    before = memory(service, "VmRSS")
    yield
    cost = memory(service, "VmHWM") - before
    assert cost < most, f"{cost >> 20} MiB"


def others_are_answered(service: ServiceProcess) -> None:
    with httpx.Client(base_url=service.url, timeout=_PATIENCE_SECONDS) as client:
        for number in range(5):
            page = client.get(f"{RUN}?after={number}&limit=1").json()
            assert page["logs"].startswith(f"{number:06d} ")
            assert client.post(f"{BASE}/p/other", json="x\n").status_code == 200


@pytest.mark.in_turn(3)
@pytest.mark.parametrize("more", ["", "&tail=100000"])
def test_pages(service: ServiceProcess, more: str) -> None:
    path = f"{RUN}?limit={LINES}{more}"
    # 403 MiB when each page was made whole.
    with costs_at_most(service, path, 150 * MIB), unread(service, path, 25) as replies:
        others_are_answered(service)
        page = orjson.loads(replies[0].body())
        assert page["logs"].encode() + b"\n" == TEXT
        assert (page["after"], page["totalLines"]) == (None, LINES)


@pytest.mark.in_turn(4)
def test_records(service: ServiceProcess) -> None:
    path = f"{RUN}/download?format=ndjson"
    with costs_at_most(service, path, 150 * MIB), unread(service, path, 25) as replies:
        others_are_answered(service)
        *records, last = replies[0].body().splitlines()
        messages = [orjson.loads(line)["message"] for line in records]
        assert "\n".join(messages).encode() + b"\n" == TEXT
        assert orjson.loads(last)["stats"]["complete"] is True


def segment_of(service: ServiceProcess) -> dict[str, Any]:
    """The one that holds the run, once it is there."""
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while time.monotonic() < deadline:
        page = httpx.get(f"{service.url}/segments", timeout=60).json()
        for row in page["segments"]:
            if row["bytes"] > MIB // 4:
                return dict(row)
        time.sleep(0.1)
    raise AssertionError("no segment was cut")


@pytest.mark.in_turn(3)
@pytest.mark.parametrize("form", ["ndjson", "text"])
def test_segments(service: ServiceProcess, form: str) -> None:
    path = f"/segments/{segment_of(service)['id']}?format={form}"
    # 45 MiB each when they were decoded whole.
    with costs_at_most(service, path, 150 * MIB), unread(service, path, 12) as replies:
        others_are_answered(service)
        body = replies[-1].body()
        if form == "ndjson":
            messages = [orjson.loads(line)["message"] for line in body.splitlines()]
            body = "\n".join(messages).encode() + b"\n"
        assert body == TEXT


@pytest.mark.in_turn(3)
def test_searches(service: ServiceProcess) -> None:
    """More than there are slots, none of them read, and none of them is lost."""
    path = "/query?from=0&fqn=p&run=r"
    with unread(service, path, 3) as replies:
        others_are_answered(service)
        found = httpx.get(f"{service.url}{path}&limit=3", timeout=_PATIENCE_SECONDS)
        assert orjson.loads(found.text.splitlines()[-1])["stats"]["matches"] == 3
        bodies = [reply.body().splitlines() for reply in replies]
        for lines in bodies:
            assert orjson.loads(lines.pop())["stats"]["complete"] is True
        assert bodies[1:] == bodies[:1] * 2
        assert len({orjson.loads(line)["ulid"] for line in bodies[0]}) == len(bodies[0]) == LINES
