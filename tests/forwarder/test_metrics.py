"""Every declared metric moves, and Prometheus reads them over HTTP."""

from __future__ import annotations

import os
import queue
import shutil
import threading
import urllib.request
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import httpx
import pytest

from tailrace.forwarder.delivery.delivery import BatchDelivery, open_delivery
from tailrace.forwarder.delivery.targets import Shipment, Token, VerdictKind
from tailrace.forwarder.entries.packer import EntryPacker
from tailrace.forwarder.metrics import (
    METRICS,
    ForwarderMetricSources,
    SyncCounts,
    UnreadSince,
    serve,
)
from tailrace.logstore.errors import InvalidInput
from tailrace_client.records import BatchIds
from tests.client.answering import Asked, Given, answering
from tests.client.programs import until
from tests.forwarder.delivery.test_delivery import receipt
from tests.forwarder.delivery.test_requests import problem
from tests.forwarder.delivery.test_targets import Names
from tests.forwarder.engine.world import HandClock, World
from tests.forwarder.forwarder_process import ForwarderProcess
from tests.servers.ports import free_port

_NOBODY = 65534


class Ticking(HandClock):
    """A little time goes by with each look."""

    def monotonic(self) -> float:
        self.seconds += 1e-6
        return self.seconds


class Watched:
    """What all metrics ever showed."""

    def __init__(self) -> None:
        self.shown: dict[str, set[tuple[object, ...]]] = defaultdict(set)

    def look(self, sources: ForwarderMetricSources) -> None:
        for declared in METRICS:
            samples = declared.family(sources).samples
            self.shown[declared.name].add(
                tuple((sample.name, *sample.labels.items(), sample.value) for sample in samples)
            )

    @property
    def moved(self) -> set[str]:
        return {name for name, readings in self.shown.items() if len(readings) > 1}


@pytest.fixture
def idle() -> Iterator[BatchDelivery]:
    """A delivery that nothing is given to."""
    delivery = open_delivery(["127.0.0.1:9"], Token(), on_verdict=print, say=print)
    yield delivery
    delivery.stop(0)


IN_DELIVERY = {
    f"tailrace_forwarder_{name}"
    for name in (
        *("verdicts", "requests_waiting", "requests", "retries", "failovers", "lookup_failures"),
        *("sent_bytes", "wire_bytes"),
    )
} | {"tailrace_forward_disconnects", "tailrace_forward_short_writes"}
IN_THE_LOG = {
    "tailrace_forwarder_checkpoint_syncs",
    "tailrace_forwarder_checkpoint_sync_seconds",
}


IN_TESTS_OF_THEIR_OWN = {
    "tailrace_forwarder_duplicate_batches",
    "tailrace_forwarder_open_errors",
}


def test_the_metrics_of_files(tmp_path: Path, idle: BatchDelivery) -> None:
    config = {
        "operators": [{"type": "json_parser", "if": 'body startsWith "json"'}],
        "max_log_size": 1000,
    }
    world = World(tmp_path, **config)
    world.clock = Ticking()
    world.restart()
    name = world.config.name
    sources = ForwarderMetricSources(world.shared, idle, SyncCounts())
    parts = world.shared.sources[name]
    world.shared.sources[name] = replace(parts, packer=EntryPacker(world.config))  # type: ignore[index]
    watched = Watched()
    watched.look(sources)
    world.lines("a.log", 0, 100)
    world.store.away = True
    world.poll()
    watched.look(sources)
    world.store.away = False
    world.write("b.log", "json is not\n" + "x" * 3000 + "\n")
    with world.path("b.log").open("ab") as file:
        file.write(b"\xff\xfe\n")
    world.poll()
    world.path("a.log").rename(world.path("a.log.1"))
    world.lines("a.log", 0, 3)
    shutil.copy(world.path("a.log.1"), world.path("a.log.2"))
    world.path("damaged.log").write_bytes(b"\x1f\x8b\x08\0" + bytes(20))
    world.poll()
    watched.look(sources)
    world.path("b.log").write_text("short\n")
    world.over()
    kinds: tuple[VerdictKind, ...] = ("deleted", "conflict")
    for kind in kinds:
        world.store.away = True
        world.lines(f"{kind}.log", 0, 10)
        world.poll()
        (run,) = [one.run for one in world.shared.registry.files.values() if kind in one.path]
        world.store.refusals[run] = kind
        world.store.away = False
        world.poll()
    world.store.away = True
    world.lines("lost.log", 0, 10)
    world.poll()
    watched.look(sources)
    world.kill()
    world.path("lost.log").unlink()
    world.start()
    world.store.away = False
    world.over()
    sources = ForwarderMetricSources(world.shared, idle, SyncCounts())
    watched.look(sources)
    assert sources.by_source(lambda tally: tally.lost_bytes)[name] > 0
    expected = {metric.name for metric in METRICS} - IN_DELIVERY - IN_THE_LOG
    assert expected - watched.moved == IN_TESTS_OF_THEIR_OWN


def test_a_file_that_cannot_be_opened(idle: BatchDelivery) -> None:
    root = os.geteuid() == 0
    with TemporaryDirectory() as folder:
        Path(folder).chmod(0o711)
        world, watched = World(Path(folder)), Watched()
        watched.look(ForwarderMetricSources(world.shared, idle, SyncCounts()))
        world.logs.chmod(0o755)  # whatever the umask is
        world.lines("a.log", 0, 10)
        world.path("a.log").chmod(0)
        if root:  # who may read everything
            os.seteuid(_NOBODY)
        try:
            world.poll()
        finally:
            if root:
                os.seteuid(0)
        watched.look(ForwarderMetricSources(world.shared, idle, SyncCounts()))
    assert "tailrace_forwarder_open_errors" in watched.moved


def test_a_batch_whose_answer_was_lost_is_a_duplicate(tmp_path: Path, idle: BatchDelivery) -> None:
    world, watched = World(tmp_path), Watched()
    world.lines("a.log", 0, 10)
    world.engine.round()
    (sent,) = world.post.waiting
    assert isinstance(sent, Shipment)
    world.store.take(sent.run, sent.batch, sent.body)
    watched.look(ForwarderMetricSources(world.shared, idle, SyncCounts()))
    world.poll()
    watched.look(ForwarderMetricSources(world.shared, idle, SyncCounts()))
    assert "tailrace_forwarder_duplicate_batches" in watched.moved


def test_the_metrics_of_the_delivery(tmp_path: Path) -> None:
    world, watched, failing = World(tmp_path), Watched(), threading.Event()
    failing.set()

    def answer(asked: Asked) -> Given:
        return problem(503, "busy") if failing.is_set() else receipt(asked)

    verdicts: queue.SimpleQueue[object] = queue.SimpleQueue()
    with answering(answer) as url:
        delivery = open_delivery(
            [url, "unknown:99", "known:99"],
            Token(),
            on_verdict=lambda *verdict: verdicts.put(verdict),
            say=lambda _: None,
            first_pause_seconds=0.01,
            longest_pause_seconds=0.05,
            resolver=Names({"127.0.0.1": ["127.0.0.1"], "known": ["127.0.0.1"]}),
        )
        sources = ForwarderMetricSources(world.shared, delivery, SyncCounts())
        watched.look(sources)
        delivery.submit(Shipment("f", "a", "r", BatchIds().mint(), b"x\n", "text/plain"))
        until(lambda: delivery.counts.retries > 5)
        watched.look(sources)
        failing.clear()
        verdicts.get(timeout=60)
        watched.look(sources)
        delivery.stop(10)
    assert IN_DELIVERY - watched.moved == set()


def test_the_metrics_of_the_checkpoint_log(tmp_path: Path, idle: BatchDelivery) -> None:
    world, watched, syncs = World(tmp_path), Watched(), SyncCounts()
    sources = ForwarderMetricSources(world.shared, idle, syncs)
    watched.look(sources)
    world.checkpoints._on_sync = syncs.add
    world.lines("a.log", 0, 10)
    world.poll()
    watched.look(sources)
    assert IN_THE_LOG - watched.moved == set()


def test_the_age_of_the_oldest_byte_is_that_of_the_oldest(tmp_path: Path) -> None:
    world, unread = World(tmp_path), UnreadSince()

    def age() -> float | None:
        files = list(world.shared.registry.files.values())
        return unread.seconds(files, world.clock.seconds).get(world.config.name)

    world.lines("a.log", 0, 10)
    world.poll()
    assert age() is None
    world.store.away = True
    world.lines("a.log", 10, 20)
    world.poll()
    first = age()
    assert first is not None
    for _ in range(5):
        world.settle(10)
        world.lines("a.log", 20, 21)
        world.poll()
        later = age()
        assert later is not None
        assert later > first + 9
        first = later
    assert first > 50
    world.store.away = False
    world.poll()
    assert age() is None


def test_prometheus_reads_them(tmp_path: Path, idle: BatchDelivery) -> None:
    world = World(tmp_path)
    world.lines("a.log", 0, 10)
    world.poll()
    port = free_port()
    stop = serve(f"127.0.0.1:{port}", ForwarderMetricSources(world.shared, idle, SyncCounts()))
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as answer:
            text = answer.read().decode()
        with pytest.raises(InvalidInput, match="cannot be used"):
            serve(f"127.0.0.1:{port}", ForwarderMetricSources(world.shared, idle, SyncCounts()))
    finally:
        stop()
    line = f'tailrace_forwarder_acknowledged_records_total{{source="{world.config.name}"}} 10.0'
    assert line in text.splitlines()
    for metric in METRICS:
        assert f"# TYPE {metric.name}" in text


def test_a_forwarder_says_how_far_behind_it_is(tmp_path: Path) -> None:
    listen, away = f"127.0.0.1:{free_port()}", f"127.0.0.1:{free_port()}"
    forwarder = ForwarderProcess(tmp_path, away, metrics={"listen": listen})

    def said() -> str:
        with urllib.request.urlopen(f"http://{listen}/metrics", timeout=60) as answer:
            return str(answer.read().decode())

    def status(path: str) -> tuple[int, str]:
        reply = httpx.get(f"http://{listen}{path}", timeout=60)
        return reply.status_code, reply.text

    (forwarder.logs / "a.log").write_text("hello\n" * 100)
    forwarder.start()
    forwarder.until(lambda: 'bytes_behind{source="file_log"} 600.0' in said())
    forwarder.until(lambda: "tailrace_forwarder_retries_total 0.0" not in said())
    assert "tailrace_forwarder_checkpoint_syncs_total 0.0" not in said()
    assert status("/health/live")[0] == 200
    assert status("/anything")[0] == 404
    found, text = status("/health/ready")
    assert found == 503
    assert f"delivery to http://{away} fails" in text
    assert forwarder.stop() == 0


@pytest.mark.parametrize(
    "listen", ["8791", "127.0.0.1:x", "127.0.0.1:70000", "no.such.host.invalid:1"]
)
def test_an_address_that_cannot_be_is_said(
    listen: str, tmp_path: Path, idle: BatchDelivery
) -> None:
    with pytest.raises(InvalidInput, match=r"metrics\.listen") as refused:
        serve(listen, ForwarderMetricSources(World(tmp_path).shared, idle, SyncCounts()))
    assert refused.value.hint
