"""A real service on a data folder that was restored from an older copy."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from random import Random

import httpx
import pytest

from tailrace.logstore import keys
from tailrace.logstore.clock import SystemClock
from tailrace.logstore.filesystem import Disk
from tailrace.logstore.keys import decode
from tailrace.logstore.objects.local import LocalStore
from tailrace.logstore.runs.report import raise_watermark, read_watermark
from tests.e2e.service_process import BASE, ServiceProcess
from tests.seeds import some

RUN = f"{BASE}/service.pipeline/run-1"
DURABILITIES = ["durable", "fast", "bulk"]


@pytest.fixture
def service(tmp_path: Path) -> Iterator[ServiceProcess]:
    quick = {"TAILRACE_FLUSH__SEGMENT_SECONDS": "0.3"}
    made = ServiceProcess(tmp_path / "node", store=tmp_path / "store", **quick)
    yield made
    if made.running:
        made.kill()
    assert "Traceback" not in made.output()


def post(service: ServiceProcess, text: str, durability: str) -> None:
    headers = {"Content-Type": "text/plain", "Tailrace-Durability": durability}
    answer = httpx.post(service.url + RUN, content=text, headers=headers, timeout=60)
    assert answer.status_code in (200, 202), answer.text


async def consume(folder: Path) -> None:
    """What the compactor does in the end: `low` is raised, then segments are removed."""
    store = LocalStore(str(folder), Disk(), SystemClock(), Random(1))
    (name,) = [name async for name in store.folders(keys.SEGMENTS)]
    node = decode(name) or ""
    mark = await read_watermark(store, node)
    segments = [info.key async for info in store.list(keys.segments_of(node))]
    assert mark.seq == len(segments)
    await raise_watermark(store, node, fresh_id=lambda: "0" * 26, low=mark.seq + 1)
    await store.delete(segments)


@pytest.mark.parametrize("behind", some([1, 3], 2, "restored folders"))
async def test_it_goes_on_as_another_node_and_loses_nothing(
    service: ServiceProcess, tmp_path: Path, behind: int
) -> None:
    service.start()
    post(service, "before\n", "bulk")
    service.stop()
    shutil.copytree(service.data, tmp_path / "backup")
    service.start()
    for number in range(behind):
        post(service, f"newer {number}\n", "bulk")
    service.stop()
    await consume(tmp_path / "store")
    shutil.rmtree(service.data)
    shutil.copytree(tmp_path / "backup", service.data)
    service.start()
    older = [f"older {number} {how}\n" for number in range(behind) for how in DURABILITIES]
    for line in older:
        post(service, line, line.split()[2])
    text = httpx.get(f"{service.url}{RUN}/download", timeout=60).text.splitlines(keepends=True)
    newer = [f"newer {number}\n" for number in range(behind)]
    assert sorted(text) == sorted(["before\n", *newer, *older])
    assert "tailrace_forks_total 1" in httpx.get(f"{service.url}/metrics", timeout=60).text
    service.stop()
