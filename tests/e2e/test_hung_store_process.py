"""A process whose store takes connections and never answers: it starts at once, and it ends."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import httpx
import pytest

from service.query.request import RecordKey
from service.runtime.store_deadline import DeadlineStore, for_request
from service.workers import LINES_LEFT
from tailrace.logstore import ulid
from tailrace.logstore.errors import OutcomeUnknown, StoreUnavailable
from tests.e2e.hung_store import Freezer, black_hole, service_over
from tests.e2e.processes import children_of, wait_for, works
from tests.e2e.service_process import BASE, ServiceProcess
from tests.servers.minio import Bucket, Minio, memory_folder, running_minio
from tests.service.query.scattered import ALL, scattered
from tests.service.query.world import World, engine_of

pytestmark = pytest.mark.minio
RUN = f"{BASE}/p/r"
PLAIN = {"content-type": "text/plain"}
# As long as a store's own time-outs take four times: what waits for the store, waits for longer.
PATIENCE_SECONDS = 60.0


@pytest.fixture(scope="module")
def server() -> Iterator[Minio]:
    """A server of these tests alone, for they freeze it."""
    with running_minio(memory_folder()) as running:
        yield running


@pytest.fixture
def bucket(server: Minio) -> Bucket:
    return server.bucket()


@pytest.fixture
def freezer(server: Minio) -> Iterator[Freezer]:
    found = Freezer(server)
    yield found
    found.thaw()


def append(service: ServiceProcess, text: bytes) -> None:
    reply = httpx.post(f"{service.url}{RUN}", content=text, headers=PLAIN, timeout=PATIENCE_SECONDS)
    assert reply.status_code == 200


def problems(service: ServiceProcess) -> str:
    reply = httpx.get(f"{service.url}/health/ready", timeout=PATIENCE_SECONDS)
    assert reply.status_code == 200
    return " ".join(reply.json()["problems"])


def metrics(service: ServiceProcess) -> str:
    return httpx.get(f"{service.url}/metrics", timeout=PATIENCE_SECONDS).text


def search(service: ServiceProcess) -> None:
    with suppress(httpx.TransportError):  # the stop ends it
        httpx.get(f"{service.url}/query", params={"fqn": "p"}, timeout=2 * PATIENCE_SECONDS)


def ends(service: ServiceProcess) -> int:
    """The exit status of a stop, which the store does not hold up."""
    status: list[int] = []
    waiting = threading.Thread(target=lambda: status.append(service.stop()), daemon=True)
    waiting.start()
    waiting.join(PATIENCE_SECONDS)
    assert not waiting.is_alive(), service.output()[-4000:]
    return status[0]


async def test_a_search_goes_on_without_a_store_that_freezes_within_it(
    bucket: Bucket, freezer: Freezer, tmp_path: Path
) -> None:
    """DuckDB has the names of segments and files, and reads none of them any more."""
    quick = bucket.through(bucket.endpoint_url, attempts=2, read_timeout_seconds=1)
    async with quick.open() as plain:
        world = World(tmp_path, quick, store := DeadlineStore(plain, 1.0))
        await scattered(world, 1)
        sources = replace(world.sources(), answers=store.answers)
        async with (
            engine_of(world, sources=sources, file_cache_bytes=0) as engine,
            await engine.open(ALL) as running,
        ):
            assert running.report.segments > 0
            assert running.report.files > 0
            freezer.freeze()
            found = {key async for batch in running.batches() for key in RecordKey.of(batch)}
            held = {
                RecordKey(ulid.encode(entry[1] + number), *entry[0])
                for entry in world._unflushed
                for number in range(entry[2].count(b"\n"))
            }
            assert held
            assert held <= found < set(world.records)
            stats = running.stats()
            assert (stats["complete"], stats["store"]) == (False, "silent")
        freezer.thaw()


async def test_a_write_that_a_read_leads_to_ends_over_a_frozen_store(
    bucket: Bucket, freezer: Freezer
) -> None:
    async with bucket.open() as plain:
        store = DeadlineStore(plain, 0.5)
        with for_request():
            await store.put("runs/there", b"{}")
            freezer.freeze()
            with pytest.raises(OutcomeUnknown, match="does not answer within"):
                await store.put("runs/new", b"{}")
            with pytest.raises(StoreUnavailable):  # it is known to be silent
                await store.delete(["runs/there"])
        freezer.thaw()
        await store.put("runs/new", b"{}")
        with for_request():
            await store.delete(["runs/there", "runs/new"])


@pytest.mark.in_turn(4)
@pytest.mark.parametrize("workers", [1, 2])
def test_a_start_over_a_black_hole_takes_lines(
    bucket: Bucket, tmp_path: Path, workers: int
) -> None:
    service = service_over(bucket, tmp_path, TAILRACE_SERVER__WORKERS=str(workers))
    service.start()
    append(service, b"before\n")
    assert service.stop() == 0
    with black_hole() as url:
        away = service_over(bucket.through(url), tmp_path, TAILRACE_SERVER__WORKERS=str(workers))
        away.start()
        append(away, b"a\nb\n")
        assert "the object store has not answered since the start" in problems(away)
        assert ends(away) == LINES_LEFT
    service.start()
    assert httpx.get(f"{service.url}{RUN}").json()["logs"] == "before\na\nb"
    assert service.stop() == 0


@pytest.mark.in_turn(4)
def test_a_stop_ends_a_search_and_a_compactor_that_wait_for_a_frozen_store(
    bucket: Bucket, freezer: Freezer, tmp_path: Path
) -> None:
    service = service_over(
        bucket,
        tmp_path,
        TAILRACE_SERVER__STORE_SECONDS="600",
        TAILRACE_COMPACTION__ENABLED="true",
    )
    service.start()
    append(service, b"a\nb\n")
    freezer.freeze()
    compactors = children_of(service.pid, "compactor/job.py")
    assert len(compactors) == 1
    searching = threading.Thread(target=search, args=[service])
    searching.start()
    wait_for(lambda: "tailrace_queries_running 1" in metrics(service))
    assert ends(service) in (0, LINES_LEFT)
    searching.join()
    wait_for(lambda: not works(compactors[0]))
