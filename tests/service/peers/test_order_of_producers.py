"""A producer that goes from node to node, over real processes: its lines stay in its order."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import orjson
import pytest

from tailrace.logstore import keys
from tailrace.logstore import ulid as ulids
from tailrace.logstore.batch import RunKey
from tests.e2e.service_process import BASE, ServiceProcess
from tests.service.peers.processes import Nodes, running

FQN = "svc.order"


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("nodes") / "store"


@pytest.fixture(scope="module")
def two(store: Path) -> Iterator[Nodes]:
    """Chunks are made while the run is written, from segments that are cut for each batch."""
    made = [
        ServiceProcess(
            store.parent / name,
            store=store,
            TAILRACE_NODE_ID=name,
            TAILRACE_NODES__SECRET="a secret that all nodes share",
            TAILRACE_NODES__REFRESH_SECONDS="0.2",
            TAILRACE_FLUSH__SEGMENT_SECONDS="3600",
            TAILRACE_FLUSH__BULK_MILLISECONDS="1",
            TAILRACE_RUNS__PARTIAL_FLUSH_INTERVAL_MINUTES="0.005",
        )
        for name in ("a", "b")
    ]
    with running(*made):
        yield made[0], made[1]


class Producer:
    """Sends a line at a time, to each node in turn, and waits for every reply.

    `ahead` is how many milliseconds its clock is, if it names its batches.
    """

    def __init__(self, two: Nodes, run: str, name: str, ahead: int | None = None) -> None:
        self._two, self._path, self._name = two, f"{BASE}/{FQN}/{run}", name
        self._ahead = ahead
        self._cookies: dict[str, str] = {}
        self.lines: list[str] = []

    def send(self, durability: str = "durable", node: int | None = None) -> None:
        number = len(self.lines)
        line = f"{self._name} {number:02}"
        headers = {"content-type": "text/plain", "tailrace-durability": durability}
        if self._ahead is not None:
            ms = time.time_ns() // 1_000_000 + self._ahead
            headers["tailrace-batch"] = ulids.encode(ms << ulids.RANDOM_BITS)
            time.sleep(0.002)
        service = self._two[number % 2 if node is None else node]
        url = f"{service.url}{self._path}"
        headers["cookie"] = "; ".join(f"{key}={value}" for key, value in self._cookies.items())
        reply = httpx.post(url, content=line + "\n", headers=headers, timeout=60)
        self._cookies |= dict(reply.raise_for_status().cookies)
        self.lines.append(line)


WAYS = ("pages", "text", "ndjson", "json")


class Reader:
    """Reads pages, or a live stream in one of its forms, and goes on with what it was given."""

    def __init__(self, run: str, way: str) -> None:
        self._run, self._way = run, way
        self.lines: list[str] = []
        self.place: str | None = None

    def read(self, service: ServiceProcess, most: int) -> bool:
        """Reads up to so many lines; whether that was not the end."""
        return (self._page if self._way == "pages" else self._follow)(service, most)

    def _page(self, service: ServiceProcess, most: int) -> bool:
        asked = {"limit": str(most)} | ({} if self.place is None else {"after": self.place})
        page = httpx.get(f"{service.url}{BASE}/{FQN}/{self._run}", params=asked, timeout=60).json()
        if page["after"] is None and page["state"] != "closed":
            return False  # there is no place to go on from yet
        self.lines += page["logs"].split("\n") if page["logs"] else []
        self.place = page["after"]
        return self.place is not None

    def _follow(self, service: ServiceProcess, most: int) -> bool:
        headers = {} if self.place is None else {"last-event-id": self.place}
        url = f"{service.url}{BASE}/{FQN}/stream/{self._run}?format={self._way}"
        place = ""
        with httpx.stream("GET", url, headers=headers, timeout=60) as reply:
            for line in reply.iter_lines():
                name, _, value = line.partition(": ")
                if line.startswith("event: complete"):
                    return False
                if name == "id":
                    place = value
                elif name == "data":
                    lines = self._lines_of(value)
                    self.lines += lines
                    self.place = place
                    most -= len(lines)
                    if most <= 0:
                        return True
        raise AssertionError("the stream ended without complete")

    def _lines_of(self, data: str) -> list[str]:
        if self._way == "text":
            return [data]
        event = orjson.loads(data)
        return [event["message"]] if self._way == "ndjson" else event["logs"].splitlines()


def doors(two: Nodes, store: Path, run: str) -> dict[str, list[str]]:
    """The lines of a closed run, by every way to them."""
    found = {}
    for name, node in zip("ab", two, strict=True):
        url = f"{node.url}{BASE}/{FQN}/{run}"
        for query in ("", "?order=ulid"):
            found[f"{name} download{query}"] = httpx.get(f"{url}/download{query}", timeout=60).text
        page = httpx.get(f"{url}?limit=1000", timeout=60).json()
        assert (page["state"], page["after"]) == ("closed", None)
        found[f"{name} page"] = page["logs"] + "\n"
        records = httpx.get(f"{url}/download?format=ndjson", timeout=60).text.splitlines()[:-1]
        found[f"{name} records"] = "".join(f"{orjson.loads(r)['message']}\n" for r in records)
        hits = f"{node.url}/query?from=0&fqn={FQN}&run={run}&order=asc&limit=1000"
        hits = httpx.get(hits, timeout=60).text
        found[f"{name} query"] = "".join(
            f"{orjson.loads(hit)['message']}\n" for hit in hits.splitlines()[:-1]
        )
        reader = Reader(run, "text")
        assert not reader.read(node, 10_000)
        found[f"{name} stream"] = "".join(f"{line}\n" for line in reader.lines)
    found["logs.txt"] = (store / keys.logs(keys.PREFIX, RunKey(FQN, run))).read_text()
    return {door: text.splitlines() for door, text in found.items()}


@pytest.mark.in_turn(4)
@pytest.mark.parametrize("durability", ["durable", "bulk"])
def test_one_producer_over_two_nodes_is_in_its_order_once_the_run_is_closed(
    two: Nodes, store: Path, durability: str
) -> None:
    """From the journals alone, and with chunks that were written in another order."""
    run = f"run-{durability}"
    producer = Producer(two, run, "line")
    readers = [Reader(run, way) for way in WAYS]
    for part in range(2):
        for _ in range(10):
            producer.send(durability)
        for number, reader in enumerate(readers):
            reader.read(two[number % 2], 3 + 2 * part)
    assert (
        httpx.post(f"{two[1].url}{BASE}/{FQN}/{run}/close", timeout=60).json()["state"] == "closed"
    )
    for door, lines in doors(two, store, run).items():
        assert lines == producer.lines, door
    for number, reader in enumerate(readers):
        while reader.read(two[(number + 1) % 2], 4):
            pass
        assert sorted(reader.lines) == producer.lines, "each line once, with places from before"


@pytest.mark.in_turn(4)
def test_producers_with_clocks_apart_are_each_in_their_order(two: Nodes, store: Path) -> None:
    """One is ahead and stays at a node: its ids lie above those that come after it there."""
    run = "run-apart"
    ahead, behind = Producer(two, run, "ahead", 20_000), Producer(two, run, "behind", -20_000)
    plain = Producer(two, run, "plain", 0)
    readers = [Reader(run, way) for way in WAYS]
    for number in range(12):
        ahead.send(node=0)
        behind.send(node=1)
        plain.send("bulk" if number % 5 == 4 else "durable")
        if number in (5, 9):
            for reader in readers:
                reader.read(two[number % 2], 5)
    assert (
        httpx.post(f"{two[0].url}{BASE}/{FQN}/{run}/close", timeout=60).json()["state"] == "closed"
    )
    expected = behind.lines + plain.lines + ahead.lines
    for door, lines in doors(two, store, run).items():
        assert lines == expected, door
    for reader in readers:
        while reader.read(two[0], 4):
            pass
        assert sorted(reader.lines) == sorted(expected)
    fresh = [Reader(run, way) for way in WAYS]
    for reader in fresh:
        turn = 0
        while reader.read(two[turn % 2], 5):
            turn += 1
        assert reader.lines == expected
