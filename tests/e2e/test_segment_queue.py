"""The segment queue to a consumer that has curl and nothing else."""

from __future__ import annotations

import asyncio
import random
import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tailrace.logstore.batch import RunKey
from tests.e2e.clients import batches_of, post_all, whole_lines
from tests.e2e.logs import made_log
from tests.e2e.service_process import ServiceProcess

ROOT = Path(__file__).parents[2]
KEY = RunKey("service.pipeline", "run")
FAST = {
    "TAILRACE_FLUSH__SEGMENT_SECONDS": "0.3",
    "TAILRACE_QUEUE__LEASE_SECONDS": "2",
    "TAILRACE_QUEUE__RETRY_SECONDS": "0.05",
    "TAILRACE_QUEUE__POLL_SECONDS": "0.1",
    "TAILRACE_QUEUE__REPORT_SECONDS": "0.2",
}
_PATIENCE_SECONDS = 300.0


@pytest.fixture
def service(tmp_path: Path) -> Iterator[ServiceProcess]:
    made = ServiceProcess(tmp_path / "node", store=tmp_path / "store", **FAST)
    made.start()
    yield made
    if made.running:
        made.kill()
    assert "Traceback" not in made.output()


@pytest.fixture
def other(service: ServiceProcess, tmp_path: Path) -> Iterator[ServiceProcess]:
    """Another node on the same store; nobody writes to it."""
    made = ServiceProcess(tmp_path / "other", store=tmp_path / "store", **FAST)
    made.start()
    yield made
    made.kill()
    assert "Traceback" not in made.output()


@pytest.fixture
def script(tmp_path: Path) -> Path:
    """The consumer of the documentation, to the letter."""
    assert shutil.which("curl"), "this is a test of curl"
    found = re.search(
        r"```sh\n(#!.*?)```", (ROOT / "docs" / "use" / "segments.md").read_text(), re.DOTALL
    )
    assert found is not None
    path = tmp_path / "consume.sh"
    path.write_text(found[1])
    return path


class CurlConsumer:
    """A running consumer."""

    def __init__(self, script: Path, url: str, folder: Path, group: str = "files") -> None:
        folder.mkdir(exist_ok=True)
        command = ["sh", str(script), url, group, str(folder)]
        self._process = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
        )

    def kill(self) -> None:
        """kill -9, and what it started with it."""
        subprocess.run(["kill", "-9", "--", f"-{self._process.pid}"], check=False)
        self._process.wait()


def lines_in(folder: Path) -> list[bytes]:
    files = sorted(folder.glob("*.txt"))
    return [line for file in files for line in file.read_bytes().split(b"\n")[:-1]]


async def until(folder: Path, count: int) -> None:
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while len(lines_in(folder)) < count:
        assert time.monotonic() < deadline, f"{len(lines_in(folder))} of {count} lines came"
        await asyncio.sleep(0.05)


def curl(*arguments: str) -> tuple[str, str]:
    """Status and body."""
    command = ["curl", "-sS", "-w", "\n%{http_code}", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    body, _, status = done.stdout.rpartition("\n")
    return status, body


@pytest.mark.in_turn(4)
async def test_curl_follows_the_queue_while_consumers_and_service_are_killed(
    service: ServiceProcess, other: ServiceProcess, script: Path, tmp_path: Path
) -> None:
    text = whole_lines(made_log(3, 2000))
    folder = tmp_path / "texts"
    batches = batches_of(text, random.Random(3), largest=60)
    async with httpx.AsyncClient(base_url=service.url, timeout=120) as client:
        consumer = CurlConsumer(script, service.url, folder)
        elsewhere = CurlConsumer(script, other.url, folder)
        posting = asyncio.create_task(post_all(client, KEY, batches, pause=0.03))
        for number in range(4):
            await asyncio.sleep(0.6)
            consumer.kill()
            if number == 2:
                elsewhere.kill()
                service.kill()
                await asyncio.to_thread(service.start)
            consumer = CurlConsumer(script, service.url, folder)
        await posting
        await post_all(client, KEY, [b"last\n"])  # certainly committed by the second service
        text += b"last\n"
        await until(folder, text.count(b"\n"))
        consumer.kill()
        assert sorted(lines_in(folder)) == sorted(text.split(b"\n")[:-1])
        await _drained(client)
        metrics = (await client.get("/metrics")).text
    committed = re.search(r"^tailrace_ingest_committed_segments_total (\S+)", metrics, re.MULTILINE)
    assert committed is not None
    assert float(committed[1]) > 0
    assert 'tailrace_queue_lag_segments{group="files"} 0.0' in metrics


async def _drained(client: httpx.AsyncClient) -> None:
    """What a killed consumer held is taken by whoever comes after it."""
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while True:
        assert time.monotonic() < deadline
        (group,) = (await client.get("/segments/groups")).json()["groups"]
        assert (group["state"], group["failed"]) == ("active", 0)
        if group["lag"]["segments"] == 0:
            break
        answer = await client.post("/segments/next?group=files&wait=5")
        if answer.status_code == 200:
            found = answer.json()
            await client.post(
                f"{found['url']}/commit", params={"group": "files", "epoch": found["epoch"]}
            )
    shown = ""
    while 'tailrace_queue_lag_segments{group="files"} 0.0' not in shown:
        assert time.monotonic() < deadline
        await asyncio.sleep(0.1)
        shown = (await client.get("/metrics")).text


async def test_to_curl_a_lost_lease_is_409_and_poison_holds_nobody_up(
    service: ServiceProcess, script: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "texts"
    segments = f"{service.url}/segments"
    async with httpx.AsyncClient(base_url=service.url, timeout=120) as client:
        await post_all(client, KEY, [b"poison\n"])
        status, lease = curl(f"{segments}/next?group=files&wait=20&lease_seconds=0.5")
        assert status == "200"
        found = httpx.Response(200, text=lease).json()
        poison, epoch = found["id"], found["epoch"]
        await asyncio.sleep(0.6)
        held = f"?group=files&epoch={epoch}"
        for verb in ("commit", "failed", "renew"):
            status, problem = curl("-X", "POST", f"{segments}/{poison}/{verb}{held}")
            assert (status, '"type":"lease-lost"' in problem) == ("409", True)
        for _ in range(4):
            _, lease = curl(f"{segments}/next?group=files&wait=20&lease_seconds=60")
            again = httpx.Response(200, text=lease).json()
            assert (again["id"], again["epoch"] > epoch) == (poison, True)
            epoch = again["epoch"]
            given_back = f"{segments}/{poison}/failed?group=files&epoch={epoch}&reason=poison"
            assert curl("-X", "POST", given_back)[0] == "200"
        consumer = CurlConsumer(script, service.url, folder)
        await post_all(client, KEY, [b"good\n"])
        await until(folder, 1)
        assert lines_in(folder) == [b"good"]
        assert curl("-X", "POST", f"{segments}/groups/files/retry")[0] == "200"
        await until(folder, 2)
        consumer.kill()
        assert sorted(lines_in(folder)) == [b"good", b"poison"]
