"""Searches over HTTP beside VictoriaLogs, over the same records, in turn in one run.

    VICTORIA_LOGS=victoria-logs python -m benchmarks.query

VictoriaLogs is a binary that its repository builds (`go build ./app/victoria-logs`). It gets the
records of the table as JSON lines, with pipeline and run as its stream. Each search is asked of
both, and the whole reply is read.

    cold    a program that answered nothing yet but an empty search, and the page cache dropped,
            which takes root
    warm    the median of the rounds, after all searches were asked and what they read was copied
    stored  the bytes that the search says it had to read, as they are stored

Without the peer, the same is measured over a real S3 server (MinIO), with the requests that went
there and the bytes that came back.

    cold    as above: files of the table are in the service's cache on its disk
    first   without that cache, as if the service had never read the bucket
"""

from __future__ import annotations

import os
import socket
import statistics
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple, Protocol

import httpx
import orjson
import pyarrow.parquet as pq

from benchmarks.wire import Traffic, Wire, counted
from tests.e2e.service_process import ServiceProcess
from tests.servers.minio import Bucket, Minio, running_minio, why_no_minio

BINARY: Final = "VICTORIA_LOGS"
_LOADED_ROWS: Final = 50_000  # in a request
_PATIENCE_SECONDS: Final = 60
_QUIET_SECONDS: Final = 30  # a copy of a file of 50 MB takes five
_GROWING: Final = ("tailrace_scan_copies_bytes ", "tailrace_file_cache_bytes ")
_NO_CACHE: Final = {"TAILRACE_QUERY__FILE_CACHE_BYTES": "0"}
_CACHES: Final = Path("/proc/sys/vm/drop_caches")


@dataclass(frozen=True)
class Search:
    """One search in both languages."""

    name: str
    ours: Mapping[str, str]
    theirs: str
    limit: int | None = None


class Reply(NamedTuple):
    """Milliseconds until all of it was there, its lines, and bytes as stored that were read."""

    ms: float
    lines: int
    stored: int


class Place(Protocol):
    """Something that answers searches, to be started and stopped."""

    url: str

    def start(self) -> None:
        """Waits until it answers."""
        ...

    def stop(self) -> object:
        """Ends it."""
        ...

    def ask(self, search: Search) -> Reply:
        """Asks, and reads the whole reply."""
        ...


class Tailrace:
    """A service over the benchmark's store."""

    def __init__(self, data: Path, store: Path | None, **settings: str) -> None:
        self._service = ServiceProcess(data, store=store, **settings)
        self.start, self.stop = self._service.start, self._service.stop
        self.url = self._service.url

    def ask(self, search: Search) -> Reply:
        limit = {} if search.limit is None else {"limit": str(search.limit)}
        url, asking = f"{self.url}/query", {"from": "0"} | dict(search.ours) | limit
        ms, lines, last = _asked(url, asking)
        return Reply(ms, lines - 1, int(orjson.loads(last)["stats"]["bytes"]))

    def wait_for_copies(self) -> None:
        """Returns once the service fetches and copies no more table files."""
        made, since = list[str](), time.monotonic()
        while time.monotonic() - since < _QUIET_SECONDS:
            text = httpx.get(f"{self.url}/metrics").text
            now = [line for line in text.splitlines() if line.startswith(_GROWING)]
            if now != made:
                made, since = now, time.monotonic()
            time.sleep(0.2)


class VictoriaLogs:
    """The peer, on `folder`."""

    def __init__(self, binary: str, folder: Path) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            address = f"127.0.0.1:{free.getsockname()[1]}"
        self.url = f"http://{address}"
        self._command = [
            *(binary, f"-storageDataPath={folder}", f"-httpListenAddr={address}"),
            *("-retentionPeriod=100y", "-loggerLevel=ERROR", "-futureRetention=100y"),
        ]
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        assert self._process is not None, "start() comes first"
        return self._process.pid

    def start(self) -> None:
        self._process = subprocess.Popen(self._command)
        _wait_for(f"{self.url}/health")

    def stop(self) -> None:
        if self._process is not None:
            self._process.terminate()
            self._process.wait()

    def ask(self, search: Search) -> Reply:
        limit = {} if search.limit is None else {"limit": str(search.limit)}
        url, asking = f"{self.url}/select/logsql/query", {"query": search.theirs} | limit
        ms, lines, _ = _asked(url, asking)
        return Reply(ms, lines, 0)


_EMPTY: Final = [
    Search("empty", {"q": "zz", "from": "now"}, "_time:1s zz"),
    Search("empty regex", {"q": "/zz/", "from": "now"}, "_time:1s ~zz"),
]


def searches(fqn: str, needle: str) -> Sequence[Search]:
    """Those of the table in `docs/develop/benchmarks.md`."""
    regex = r"blk_-?\d*77\d*99 "
    return [
        Search("rare token", {"q": needle}, needle),
        Search("word in a pipeline", {"q": "Exception", "fqn": fqn}, f'{{fqn="{fqn}"}} Exception'),
        Search("word, limit 1,000", {"q": "Exception"}, "Exception", 1_000),
        Search("word, all hits", {"q": "Exception"}, "Exception"),
        Search("regex", {"q": f"/{regex}/"}, f"~{orjson.dumps(regex).decode()}"),
        Search("within words", {"q": "xceptio"}, '~"xceptio"'),
        Search("newest 1,000", {}, "*", 1_000),
    ]


def report(
    data: Path, store: Path, files: Sequence[str], asked: Sequence[Search], rounds: int
) -> None:
    """Prints a line for each search beside VictoriaLogs: ms of both, warm and cold, and records."""
    binary = os.environ.get(BINARY)
    ours = Tailrace(data, store)
    with ExitStack() as stack:
        places: list[Place] = [ours]
        if binary:
            peer = VictoriaLogs(binary, data.parent / "victoria-logs")
            peer.start()
            stack.callback(peer.stop)
            load_peer(peer.url, files)
            peer.stop()
            places.append(peer)
        else:
            print(f"not beside VictoriaLogs: {BINARY} does not name its binary")
        cold = {place: _cold(place, asked) for place in places}
        warm = _warm(places, asked, rounds, ours.wait_for_copies)
    names = ["ours", "peer"][: len(places)]
    print(f"{'over HTTP, ms':<20}" + "".join(f"{n + ' warm':>11}{n + ' cold':>11}" for n in names))
    for search in asked:
        found = [(warm[place][search.name], cold[place][search.name]) for place in places]
        times = "".join(f"{w.ms:>11.1f}{c.ms:>11.1f}" for w, c in found)
        ratio = f"  ratio {found[0][0].ms / found[1][0].ms:.2f}" if binary else ""
        lines = " / ".join(f"{w.lines:,}" for w, _ in found)
        print(f"{search.name:<20}{times}{ratio}  records {lines}")


def report_s3(data: Path, store: Path, asked: Sequence[Search], rounds: int) -> None:
    """Prints a line for each search over MinIO: ms, requests and MB that came, and MB as stored.

    Requests are counted by a proxy, which takes its time of the same processors. So what is timed
    goes past it, and all is asked of other services for what is counted.
    """
    reason = why_no_minio()
    if reason is not None:
        print(f"not over MinIO: {reason}")
        return
    with running_minio() as minio, counted(minio.endpoint_url) as wire:
        bucket = _filled(minio, store)
        straight, through = bucket.environment, bucket.through(wire.url).environment
        ours = Tailrace(data, None, **straight)
        without = Tailrace(data.with_name(f"{data.name}-first"), None, **straight, **_NO_CACHE)
        times = {"first": _cold(without, asked)}
        _fill_cache(ours, asked)
        times["cold"] = _cold(ours, asked)
        times["warm"] = _warm([ours], asked, rounds, ours.wait_for_copies)[ours]
        watched = Tailrace(data, None, **through)
        without = Tailrace(data.with_name(f"{data.name}-counted"), None, **through, **_NO_CACHE)
        traffic = {
            "first": _traffic_cold(without, asked, wire),
            "cold": _traffic_cold(watched, asked, wire),
            "warm": _traffic_warm(watched, asked, wire),
        }
    print(f"{'over HTTP and MinIO':<20}", end="")
    print("".join(f"{f'{which} ms':>10}{'requests':>10}{'MB':>8}" for which in times), end="")
    print(f"{'as stored':>11}")
    for search in asked:
        parts = []
        for which, replies in times.items():
            seen = traffic[which][search.name]
            parts += [f"{replies[search.name].ms:>10.1f}", f"{seen.count():>10}"]
            parts.append(f"{seen.got.total() / 1e6:>8.2f}")
        stored = times["first"][search.name].stored / 1e6
        print(f"{search.name:<20}{''.join(parts)}{stored:>11.2f}")


def _fill_cache(place: Tailrace, asked: Sequence[Search]) -> None:
    place.start()
    place.ask(asked[0])
    place.wait_for_copies()
    place.stop()


def _traffic_cold(place: Tailrace, asked: Sequence[Search], wire: Wire) -> dict[str, Traffic]:
    found = {}
    for search in asked:
        _begin(place)
        before = wire.traffic()
        place.ask(search)
        found[search.name] = wire.traffic() - before
        place.stop()
    return found


def _traffic_warm(place: Tailrace, asked: Sequence[Search], wire: Wire) -> dict[str, Traffic]:
    place.start()
    for _ in range(2):
        for search in asked:
            place.ask(search)
    place.wait_for_copies()
    found = {}
    for search in asked:
        before = wire.traffic()
        place.ask(search)
        found[search.name] = wire.traffic() - before
    place.stop()
    return found


def _filled(minio: Minio, store: Path) -> Bucket:
    """A bucket with the table of the folder."""
    bucket = minio.bucket()
    client = bucket.client()
    for path in sorted(path for path in store.rglob("*") if path.is_file()):
        client.upload_file(str(path), bucket.name, f"{bucket.prefix}/{path.relative_to(store)}")
    return bucket


def _cold(place: Place, asked: Sequence[Search]) -> dict[str, Reply]:
    found = {}
    for search in asked:
        _begin(place)
        found[search.name] = place.ask(search)
        place.stop()
    return found


def _warm(
    places: Sequence[Place], asked: Sequence[Search], rounds: int, settle: Callable[[], None]
) -> dict[Place, dict[str, Reply]]:
    found: dict[Place, dict[str, Reply]] = {place: {} for place in places}
    for place in places:
        place.start()
    try:
        for _ in range(2):
            for search in asked:
                for place in places:
                    place.ask(search)
        settle()
        for search in asked:
            taken: dict[Place, list[Reply]] = {place: [] for place in places}
            for _ in range(rounds):
                for place in places:
                    taken[place].append(place.ask(search))
            for place, replies in taken.items():
                middle = statistics.median(reply.ms for reply in replies)
                found[place][search.name] = replies[0]._replace(ms=middle)
    finally:
        for place in places:
            place.stop()
    return found


def _begin(place: Place) -> None:
    """Starts it, and drops what the machine has read of files."""
    place.start()
    for search in _EMPTY:
        place.ask(search)
    try:
        os.sync()
        _CACHES.write_text("3")
    except OSError as error:
        print(f"the page cache is not dropped, so cold is only a new process: {error}")


def _asked(url: str, asking: Mapping[str, str]) -> tuple[float, int, bytes]:
    """Milliseconds, lines, and the last line."""
    lines, last = 0, b""
    with httpx.Client(timeout=300, headers={"Accept-Encoding": "identity"}) as client:
        client.get(url.rsplit("/", 1)[0])  # the connection is there
        began = time.perf_counter()
        with client.stream("GET", url, params=dict(asking)) as reply:
            reply.raise_for_status()
            for piece in reply.iter_raw():
                lines += piece.count(b"\n")
                last = (last + piece)[-4096:]
        ms = (time.perf_counter() - began) * 1000
    return ms, lines, last.rstrip(b"\n").rsplit(b"\n", 1)[-1]


def _wait_for(url: str) -> None:
    end = time.monotonic() + _PATIENCE_SECONDS
    while True:
        try:
            httpx.get(url).raise_for_status()
        except httpx.HTTPError:
            if time.monotonic() > end:
                raise
            time.sleep(0.1)
        else:
            return


def load_peer(peer: str, files: Sequence[str]) -> None:
    """Gives VictoriaLogs, which listens there, the records of these files."""
    asked = {"_stream_fields": "fqn,run_id", "_msg_field": "message", "_time_field": "time"}
    with httpx.Client(timeout=300) as client:
        for file in files:
            for batch in pq.ParquetFile(file).iter_batches(
                _LOADED_ROWS, columns=["ts", "fqn", "run_id", "level", "message", "ulid"]
            ):
                times = batch.column("ts").cast("int64").to_pylist()
                rows = batch.drop_columns(["ts"]).to_pylist()
                body = b"".join(
                    orjson.dumps(row | {"time": str(at * 1000)}, option=orjson.OPT_APPEND_NEWLINE)
                    for row, at in zip(rows, times, strict=True)
                )
                client.post(
                    f"{peer}/insert/jsonline", params=asked, content=body
                ).raise_for_status()
        client.get(f"{peer}/internal/force_flush").raise_for_status()
        client.get(f"{peer}/internal/force_merge")
