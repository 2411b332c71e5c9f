"""Backups of a real service that takes lines meanwhile, in a folder and on a real S3 server."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import pytest
from deltalake import DeltaTable
from pyarrow.fs import S3FileSystem

from compactor.context import Compactor
from compactor.placement import FolderPlacement, ObjectPlacement, Placement
from compactor.runner import once
from compactor.settings import Compaction
from service.settings import Settings, load_settings
from tailrace.cli.main import main
from tailrace.logstore.clock import SystemClock, system_entropy
from tailrace.logstore.filesystem import Disk
from tailrace.logstore.objects.config import open_store
from tailrace.logstore.objects.store import ObjectStore
from tailrace.logstore.table.table import open_table
from tests.compactor.plain_engine import PlainEngine
from tests.e2e.service_process import BASE, ServiceProcess
from tests.servers.minio import Minio
from tests.tailrace.verification.world import look

RUNS = ("p/closed", "p/open", "q/open")
QUICK = {"TAILRACE_FLUSH__SEGMENT_SECONDS": "0.3", "TAILRACE_JOURNAL__FILE_BYTES": "1MiB"}
DEADLINE_SECONDS = 120.0


@dataclass
class Writer:
    """Posts batches to all runs until it is stopped; `lines` are those that were acknowledged."""

    url: str
    lines: Counter[tuple[str, str]] = field(default_factory=Counter)
    _stop: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread = field(init=False)

    def start(self) -> None:
        self._thread = threading.Thread(target=self._write)
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()

    def acknowledged(self, count: int) -> set[tuple[str, str]]:
        """Run and text of each line that was acknowledged by now, once they are so many."""
        deadline = time.monotonic() + DEADLINE_SECONDS
        while len(self.lines) < count:
            assert self._thread.is_alive()
            assert time.monotonic() < deadline
            time.sleep(0.01)
        return set(self.lines.copy())

    def _write(self) -> None:
        with httpx.Client(base_url=f"{self.url}{BASE}", timeout=60) as client:
            number = 0
            while not self._stop.is_set():
                run = RUNS[number % len(RUNS)]
                texts = [f"{run} {number}-{line}" for line in range(5)]
                self._post(client, run, texts)
                self.lines.update((run, text) for text in texts)
                number += 1

    def _post(self, client: httpx.Client, run: str, texts: list[str]) -> None:
        headers = {"content-type": "text/plain"}
        body = "".join(f"{text}\n" for text in texts)
        answer = client.post(f"/{run}", content=body, headers=headers)
        assert answer.status_code == 200, answer.text


def files_of(settings: Settings) -> S3FileSystem:
    """The buckets of the place's server, for pyarrow."""
    s3 = settings.s3
    scheme, _, address = str(s3.endpoint_url).partition("://")
    assert s3.secret_access_key is not None
    return S3FileSystem(
        access_key=s3.access_key_id,
        secret_key=s3.secret_access_key.get_secret_value(),
        scheme=scheme,
        endpoint_override=address.rstrip("/"),
        region="us-east-1",
    )


def compactor_of(settings: Settings, store: ObjectStore) -> Compactor:
    """A compactor without a JVM that removes segments as soon as table and run logs have them."""
    table, clock, entropy = open_table(settings), SystemClock(), system_entropy()
    placement: Placement = (
        FolderPlacement(Disk(), table.uri) if settings.bucket is None else ObjectPlacement(store)
    )
    limits = Compaction(grace_seconds=0)
    engine = PlainEngine(bucket=None if settings.bucket is None else files_of(settings))
    return Compactor(
        store, table, placement, clock, entropy, limits, engine, reached=lambda _step: None
    )


async def compact(settings: Settings, is_over: Callable[[], bool]) -> None:
    """Compacts until it is over, at least once."""
    async with open_store(settings, SystemClock(), system_entropy(), Disk()) as store:
        while True:
            report = await once(compactor_of(settings, store))
            assert not report.alarms
            if is_over():
                return


@contextmanager
def compacting(settings: Settings) -> Iterator[None]:
    """Compacts all the time while the block runs."""
    stop = threading.Event()
    with ThreadPoolExecutor(1) as thread:
        work = thread.submit(lambda: asyncio.run(compact(settings, stop.is_set)))
        try:
            yield
        finally:
            stop.set()
        work.result()


@dataclass
class Place:
    """Where a service has its data folder and its store."""

    data: Path
    environment: Mapping[str, str]

    @property
    def settings(self) -> Settings:
        with pytest.MonkeyPatch.context() as patch:
            for name, value in self.environment.items():
                patch.setenv(name, value)
            return load_settings({"data": str(self.data)}, config=None)[0]

    def service(self) -> ServiceProcess:
        made = ServiceProcess(self.data)
        made.settings |= QUICK | dict(self.environment)
        return made

    def call(self, *arguments: str) -> int:
        """A verb with the place's settings."""
        with pytest.MonkeyPatch.context() as patch:
            for name, value in self.environment.items():
                patch.setenv(name, value)
            return main([*arguments, "--data", str(self.data)])


@pytest.fixture(params=["folder", pytest.param("s3", marks=pytest.mark.minio)])
def places(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Place, Place]:
    """A place to be backed up, and an empty one."""
    if request.param == "folder":
        first, second = (
            {"TAILRACE_STORE": str(tmp_path / name / "store")} for name in ("first", "second")
        )
    else:
        server: Minio = request.getfixturevalue("minio")
        first, second = (server.bucket().environment for _ in range(2))
    return Place(tmp_path / "first" / "data", first), Place(tmp_path / "second" / "data", second)


@pytest.mark.in_turn(4)
def test_a_backup_of_a_busy_service_has_each_line_once(
    places: tuple[Place, Place], tmp_path: Path
) -> None:
    """Each line that was acknowledged before the backup began."""
    place, other = places
    folder = str(tmp_path / "backups")
    service = place.service()
    service.start()
    writer = Writer(service.url)
    writer.start()
    try:
        writer.acknowledged(40)
        close = f"{service.url}{BASE}/p/closed/close"
        assert httpx.post(close, timeout=60).json()["state"] == "closed"
        with compacting(place.settings):
            assert place.call("backup", folder) == 0
            writer.acknowledged(len(writer.lines) + 30)
            owed = writer.acknowledged(0)
            assert place.call("backup", folder) == 0
            writer.acknowledged(len(writer.lines) + 15)
    finally:
        writer.stop()
        service.kill()

    assert other.call("restore", folder) == 0
    assert not look(other.settings, tmp_path / "spill").faults
    restored = other.service()
    restored.start()
    try:
        check_texts(restored, owed, set(writer.lines))
        check_searches(restored, owed)
    finally:
        assert restored.stop() == 0
    asyncio.run(compact(other.settings, lambda: True))
    check_table(other.settings, owed)


def check_texts(
    service: ServiceProcess, owed: set[tuple[str, str]], sent: set[tuple[str, str]]
) -> None:
    """Pages and downloads have each owed line once, and no line that was not sent."""
    with httpx.Client(base_url=f"{service.url}{BASE}", timeout=60) as client:
        for run in RUNS:
            deadline = time.monotonic() + DEADLINE_SECONDS
            while client.post(f"/{run}/close").json()["state"] != "closed":
                assert time.monotonic() < deadline
            text = client.get(f"/{run}/download").text
            lines = Counter((run, line) for line in text.splitlines())
            assert {line for line in owed if line[0] == run} <= lines.keys() <= sent
            assert set(lines.values()) == {1}
            page = client.get(f"/{run}", params={"limit": 100_000}).json()
            assert page["logs"] == text.removesuffix("\n")


def check_searches(service: ServiceProcess, owed: set[tuple[str, str]]) -> None:
    params = {"from": "0", "format": "ndjson", "limit": "100000"}
    answer = httpx.get(f"{service.url}/query", params=params, timeout=60)
    assert answer.status_code == 200, answer.text
    for fqn, run in (name.split("/") for name in RUNS):
        count = answer.text.count(f'"message":"{fqn}/{run} ')
        assert count >= sum(line[0] == f"{fqn}/{run}" for line in owed)


def check_table(settings: Settings, owed: set[tuple[str, str]]) -> None:
    """A reader of Delta has each owed line once."""
    table = open_table(settings)
    rows = DeltaTable(table.uri, storage_options=dict(table.options())).to_pyarrow_table()
    assert rows.num_rows
    ids = list(zip(rows.column("run_id").to_pylist(), rows.column("ulid").to_pylist(), strict=True))
    assert len(ids) == len(set(ids))
    if settings.bucket is None:
        assert {text for _, text in owed} <= set(rows.column("message").to_pylist())
