"""Clients that offer HTTP/2 are served over HTTP/1.1: what they post is stored, once and whole."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tailrace.logstore.java import find_java
from tests.e2e.service_process import BASE, ServiceProcess
from tests.servers.upgrading import JAVA

pytestmark = pytest.mark.upgrading
BODIES = [
    b"a line\n",
    f"DELETE {BASE}/p/r HTTP/1.1\nHost: localhost\n\n\n".encode(),
    b"x" * 300_000 + b"\n",
    b"the last\n",
]


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceProcess]:
    folder = tmp_path_factory.mktemp("upgrading")
    started = ServiceProcess(folder / "node", store=folder / "store")
    started.start()
    yield started
    if started.running:
        started.kill()


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    for number, body in enumerate(BODIES):
        (tmp_path / str(number)).write_bytes(body)
    return [str(tmp_path / str(number)) for number in range(len(BODIES))]


def stored(service: ServiceProcess, run: str) -> bytes:
    return httpx.get(f"{service.url}{BASE}/p/{run}/download", timeout=60).content


def test_curl(service: ServiceProcess, files: list[str]) -> None:
    url = f"{service.url}{BASE}/p/curl"
    for file in files:
        command = ["curl", "-sS", "--http2", "--max-time", "120", "-H", "Content-Type: text/plain"]
        command += ["--data-binary", f"@{file}", "-w", "%{http_version} %{http_code}", "-o"]
        done = subprocess.run([*command, "/dev/null", url], capture_output=True, check=True)
        assert done.stdout == b"1.1 200"
    assert stored(service, "curl") == b"".join(BODIES)


def test_curl_with_requests_in_a_row_on_one_connection(
    service: ServiceProcess, files: list[str]
) -> None:
    url = f"{service.url}{BASE}/p/row"
    command = ["curl", "-sS", "--http2", "--max-time", "120"]
    for file in files:
        command += ["-H", "Content-Type: text/plain", "--data-binary", f"@{file}", url, "--next"]
    done = subprocess.run(command[:-1], capture_output=True, check=True)
    assert done.stdout.count(b'"duplicate":false') == len(files)
    assert stored(service, "row") == b"".join(BODIES)


@pytest.mark.in_turn(3)
def test_javas_own_client(service: ServiceProcess, files: list[str], tmp_path: Path) -> None:
    java = find_java()
    assert java is not None
    source = tmp_path / "Post.java"
    source.write_text(JAVA)
    url = f"{service.url}{BASE}/p/java"
    done = subprocess.run(
        [java, str(source), url, *files], capture_output=True, check=True, timeout=300
    )
    assert done.stdout.split() == [b"HTTP_1_1", b"200"] * len(files)
    assert stored(service, "java") == b"".join(BODIES)
