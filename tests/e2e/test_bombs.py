"""One client's bodies and a whole service process: what it holds, who else is answered, its end."""

from __future__ import annotations

import base64
import gzip
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import orjson
import pytest
import zstandard

from tests.e2e.service_process import BASE, ServiceProcess
from tests.gzipped import gzipped

MIB = 1 << 20
JSON = {"content-type": "application/json"}
TEXT = {"content-type": "text/plain"}
NDJSON = {"content-type": "application/x-ndjson"}
GZIP = {"content-encoding": "gzip"}
# A body, its text and a copy of each; before, one of these bombs took 2,000 MiB.
_MOST_MIB = 400


@pytest.fixture
def service(tmp_path: Path) -> Iterator[ServiceProcess]:
    process = ServiceProcess(tmp_path / "data")
    process.start()
    yield process
    if process.running:
        process.kill()


def _peak_mib(process: ServiceProcess) -> int:
    """The most memory that the process ever had."""
    status = Path(f"/proc/{process.pid}/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) >> 10


def _nested(size: int) -> bytes:
    return b"[" + b"[]," * (size // 3) + b"[]]"


BOMBS: dict[str, tuple[Callable[[], bytes], dict[str, str]]] = {
    "nested": (lambda: gzipped(_nested(60 * MIB)), JSON | GZIP),
    "a record's": (
        lambda: gzipped(b'{"message":"","attributes":{"a":' + _nested(60 * MIB) + b"}}"),
        NDJSON | GZIP,
    ),
    "many records": (lambda: gzipped(b'{"message":""}\n' * 4 * MIB), NDJSON | GZIP),
    "gzip members": (lambda: gzip.compress(b"") * (MIB // 2), TEXT | GZIP),
    "members in JSON": (
        lambda: orjson.dumps(
            {"logs": base64.b64encode(gzip.compress(b"") * (MIB // 2)).decode(), "compressed": True}
        ),
        JSON,
    ),
    "zstd frames": (
        lambda: zstandard.ZstdCompressor().compress(b"") * MIB,
        TEXT | {"content-encoding": "zstd"},
    ),
}


def test_bombs_are_refused_in_bounded_memory(service: ServiceProcess) -> None:
    url = f"{service.url}{BASE}/p/bombs"
    before = _peak_mib(service)
    with httpx.Client(timeout=300) as client:
        for name, (make, headers) in BOMBS.items():
            reply = client.post(url, content=make(), headers=headers)
            assert (name, reply.status_code) in {(name, 400), (name, 413)}
            assert reply.json()["hint"]
            assert _peak_mib(service) - before < _MOST_MIB, name
        assert client.post(url, content=b"after\n", headers=TEXT).status_code == 200
        assert client.get(f"{url}/download").text == "after\n"
    assert service.stop() == 0


@pytest.mark.in_turn(4, "large texts")
def test_large_texts_are_stored_in_every_form_in_bounded_memory(service: ServiceProcess) -> None:
    line = 'a "quoted" line of text, with \\ and ü 😀\n'
    text = line * (24 * MIB // len(line.encode()))
    raw = text.encode()
    forms: dict[str, tuple[bytes, dict[str, str]]] = {
        "text": (raw, TEXT),
        "gzip": (gzipped(raw, 1), TEXT | GZIP),
        "JSON": (orjson.dumps({"logs": text}), JSON),
        "a string": (orjson.dumps(text), JSON),
        "base64": (
            orjson.dumps({"logs": base64.b64encode(gzipped(raw, 1)).decode(), "compressed": True}),
            JSON,
        ),
        "one record": (orjson.dumps({"message": text.removesuffix("\n")}), NDJSON),
        "records": (
            b"".join(
                b'{"message":%b}\n' % orjson.dumps((line * 1000).removesuffix("\n"))
                for _ in range(500)
            ),
            NDJSON,
        ),
    }
    before = _peak_mib(service)
    with httpx.Client(timeout=300) as client:
        for name, (body, headers) in forms.items():
            url = f"{service.url}{BASE}/p/{name}"
            reply = client.post(url, content=body, headers=headers)
            assert reply.status_code == 200, reply.text
            stored = client.get(f"{url}/download").content
            assert stored == (line.encode() * 500_000 if name == "records" else raw), name
    assert _peak_mib(service) - before < 2 * _MOST_MIB


class _Slow:
    """A client whose body takes a while to decode: 24 MiB of records."""

    def __init__(self, url: str) -> None:
        self._root = url
        self._url = f"{url}{BASE}/p/slow"
        self._body = gzipped(b'{"message":"%b","ts":1}\n' % (b"x" * 60) * (MIB // 2), 1)
        self.answered = threading.Event()
        self.reply: httpx.Response | None = None
        self.cut_off = False
        self._thread = threading.Thread(target=self._send)
        self._thread.start()

    def _send(self) -> None:
        try:
            self.reply = httpx.post(
                self._url, content=self._body, headers=NDJSON | GZIP, timeout=300
            )
        except httpx.TransportError:
            self.cut_off = True
        self.answered.set()

    def arrived(self) -> bool:
        """Whether the service has all of the body."""
        scraped = httpx.get(f"{self._root}/metrics", timeout=60).text
        [line] = [v for v in scraped.splitlines() if v.startswith("tailrace_body_bytes_total ")]
        return float(line.split()[1]) >= len(self._body)

    def join(self) -> None:
        self._thread.join(timeout=300)
        assert not self._thread.is_alive()


def _wait_decoding(service: ServiceProcess, client: _Slow) -> None:
    """Until the body is there: its decoding begins with that."""
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        if client.arrived():
            return
    raise AssertionError(f"the body did not arrive\n{service.output()}")


def test_others_are_answered_while_a_large_body_is_decoded(service: ServiceProcess) -> None:
    slow = _Slow(service.url)
    _wait_decoding(service, slow)
    answered = 0
    with httpx.Client(timeout=300) as client:
        while not slow.answered.is_set():
            reply = client.post(f"{service.url}{BASE}/p/quick", content=b"a\n", headers=TEXT)
            assert reply.status_code == 200
            answered += not slow.answered.is_set()
    slow.join()
    assert slow.reply is not None
    assert slow.reply.json()["lines"] == MIB // 2
    assert answered >= 3


def test_a_stop_ends_what_is_being_decoded(service: ServiceProcess) -> None:
    slow = _Slow(service.url)
    _wait_decoding(service, slow)
    assert service.stop() == 0
    slow.join()
    if slow.reply is not None:
        assert slow.reply.status_code == 503
    else:
        assert slow.cut_off
    service.start()
    page = httpx.get(f"{service.url}{BASE}/p/slow", timeout=60)
    assert page.status_code == 404


@pytest.mark.in_turn(4, "cache of reports")
def test_reports_cost_what_their_cache_may(service: ServiceProcess) -> None:
    """As many as it likes: bodies in memory are bounded in sum, replies and each report singly."""
    root = f"{service.url}{BASE.removesuffix('/logs')}"
    bomb = b'{"runId":"r","x":' + _nested(MIB - 100) + b"}"
    values = b",".join([b'{"a":"%b"}' % (b"x" * 180)] * 5000)
    before = _peak_mib(service)
    with httpx.Client(timeout=300) as client:
        for number in range(60):
            refused = client.put(f"{root}/p/pipelineStatus", content=bomb)
            assert (refused.status_code, refused.json()["type"]) == (400, "invalid-input")
            body = b'{"runId":"r%d","x":[%b]}' % (number, values)
            assert len(body) < MIB
            for method, url in (
                ("PUT", f"{root}/p/pipelineStatus"),
                ("PUT", f"{root}/progress/p/r{number}"),
                ("POST", f"{root}/metrics/p/r"),
            ):
                assert client.request(method, url, content=body).status_code == 200
        listed = client.get(f"{root}/p/pipelineStatus", params={"startTs": 0})
        assert listed.json()["paging"]["next"]
        metrics = client.get(f"{root}/metrics/p/r")
        assert metrics.json()["paging"]["next"]
        for reply in (listed, metrics):
            assert MIB < len(reply.content) <= 8 * MIB
    assert _peak_mib(service) - before < 250
