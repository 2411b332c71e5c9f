"""Searches over HTTP beside VictoriaLogs, over lines that were just posted to both.

    VICTORIA_LOGS=victoria-logs python -m benchmarks.query_peer [--megabytes 400] [--rounds 9]

Each block of the corpus (`benchmarks.corpus`) has digits of its own, so ids differ from line to
line as in real logs. The lines are posted to both over HTTP, compacted by `tailrace compact`, and
left until both programs are quiet. Nothing is warmed or laid out for a search. Then each search is
asked of both in turns, and the whole reply is read.

    first   the first time that the search is asked
    then    the median of the rounds after it
    cold    the first time after both were started again, with the page cache dropped, as root

VictoriaLogs is a binary that its repository builds (`go build ./app/victoria-logs`). Without it,
the same is measured alone. With `--minio` the searches are also asked over a real S3 server, with
the requests that went there and the bytes that came back:

    cold    a new process; files of the table are in the service's cache on its disk
    first   without that cache, as if the service had never read the bucket
"""

from __future__ import annotations

import argparse
import os
import re
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple, Protocol

import httpx
import orjson
import pyarrow.parquet as pq

from benchmarks.corpus import corpus, files, source
from benchmarks.process import cpu_seconds
from benchmarks.wire import Traffic, Wire, counted
from tests.e2e.service_process import BASE, ServiceProcess
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
        """Ends it, if it runs."""
        ...

    @property
    def pid(self) -> int:
        """Its process."""
        ...

    def ask(self, search: Search) -> Reply:
        """Asks, and reads the whole reply."""
        ...


class Tailrace:
    """A service over the benchmark's store."""

    def __init__(self, data: Path, store: Path | None, **settings: str) -> None:
        self._service = ServiceProcess(data, store=store, **settings)
        self.start, self.url = self._service.start, self._service.url

    def stop(self) -> None:
        if self._service.running:
            self._service.stop()

    def ask(self, search: Search) -> Reply:
        limit = {} if search.limit is None else {"limit": str(search.limit)}
        url, asking = f"{self.url}/query", {"from": "0"} | dict(search.ours) | limit
        ms, lines, last = _asked(url, asking)
        return Reply(ms, lines - 1, int(orjson.loads(last)["stats"]["bytes"]))

    @property
    def pid(self) -> int:
        return self._service.pid

    def post(self, client: httpx.Client, fqn: str, run: str, lines: Sequence[bytes]) -> float:
        """Posts a batch, which is durable then; returns the seconds."""
        headers = {"Content-Type": "text/plain"}
        return _post(client, f"{self.url}{BASE}/{fqn}/{run}", b"".join(lines), headers)

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

    def post(self, client: httpx.Client, fqn: str, run: str, lines: Sequence[bytes]) -> float:
        """Posts a batch as JSON lines with the time of their arrival; returns the seconds."""
        name = {"fqn": fqn, "run_id": run, "_time": "0"}
        body = b"".join(
            orjson.dumps(
                name | {"_msg": line.rstrip(b"\n").decode("utf-8", "replace")},
                option=orjson.OPT_APPEND_NEWLINE,
            )
            for line in lines
        )
        return _post(client, f"{self.url}/insert/jsonline?_stream_fields=fqn,run_id", body, {})

    def start(self) -> None:
        self._process = subprocess.Popen(self._command)
        _wait_for(f"{self.url}/health")

    def stop(self) -> None:
        if self._process is not None:
            self._process.terminate()
            self._process.wait(timeout=_PATIENCE_SECONDS)
            self._process = None

    def ask(self, search: Search) -> Reply:
        limit = {} if search.limit is None else {"limit": str(search.limit)}
        url, asking = f"{self.url}/select/logsql/query", {"query": search.theirs} | limit
        ms, lines, _ = _asked(url, asking)
        return Reply(ms, lines, 0)


_EMPTY: Final = [
    Search("empty", {"q": "zz", "from": "now"}, "_time:1s zz"),
    Search("empty regex", {"q": "/zz/", "from": "now"}, "_time:1s ~zz"),
]


def searches(fqn: str, rare: str) -> Sequence[Search]:
    """Returns the seven questions of `docs/develop/benchmarks.md`; `rare` is in one line."""
    regex = r"Failed password for .* from 1\d+\."
    inside = rare[6:16]
    return [
        Search("rare id", {"q": rare}, f'"{rare}"'),
        Search("within a word", {"q": inside}, f'~"{inside}"'),
        Search("word, limit 1,000", {"q": "terminating"}, '"terminating"', 1_000),
        Search("word, all hits", {"q": "error"}, '"error"'),
        Search("regex", {"q": f"/{regex}/"}, f"~{orjson.dumps(regex).decode()}"),
        Search("word in a pipeline", {"q": "error", "fqn": fqn}, f'{{fqn="{fqn}"}} "error"'),
        Search("newest 1,000", {}, "*", 1_000),
    ]


@dataclass(frozen=True, slots=True)
class Times:
    """Milliseconds of a search: asked first, then, and first after a restart; its records."""

    first: float
    then: float
    cold: float
    lines: int


def report(places: Sequence[Place], asked: Sequence[Search], rounds: int) -> None:
    """Prints a line for each search: the ms of each place, and ours divided by the peer's."""
    taken = {
        place: {search.name: list[Reply]() for search in asked} for place in places
    }  # the rounds of each search
    for search in asked:
        for _ in range(rounds):
            for place in places:
                taken[place][search.name].append(place.ask(search))
    for place in places:
        place.stop()
    cold = {place: _cold(place, asked) for place in places}
    names = ["ours", "peer"][: len(places)]
    heads = "".join(f"{f'{name} {which}':>12}" for name in names for which in Times.__slots__[:3])
    print(f"{'over HTTP, ms':<20}{heads}")
    for search in asked:
        found = [_times(taken[one][search.name], cold[one][search.name]) for one in places]
        columns = "".join(f"{t.first:>12.1f}{t.then:>12.1f}{t.cold:>12.1f}" for t in found)
        ratio = ""
        if len(found) > 1:
            ours, peer = found
            ratio = f"  ratio {ours.then / peer.then:.2f}, cold {ours.cold / peer.cold:.2f}"
        lines = " / ".join(f"{one.lines:,}" for one in found)
        print(f"{search.name:<20}{columns}{ratio}  records {lines}", flush=True)


def _times(replies: Sequence[Reply], cold: Reply) -> Times:
    then = statistics.median(reply.ms for reply in replies[1:])
    return Times(replies[0].ms, then, cold.ms, replies[0].lines)


# --- Posting ------------------------------------------------------------------------------------


_PIPELINES: Final = 50
_BATCH_LINES: Final = 5_000
_FLUSH_SECONDS: Final = 15  # until the last lines are in segments
_COMPACTED_SECONDS: Final = 1_800
_CALM_SECONDS: Final = 3
_CALM_CPU: Final = 0.1  # seconds of a second
_MOST_CALMING_SECONDS: Final = 300
_RARE: Final = re.compile(rb"blk_-?[0-9]{15,}" if files() else rb"[0-9.]{8,}:[0-9]+")


def fqn_of(number: int) -> str:
    """Returns the pipeline of a batch."""
    return f"shop.load_{number % _PIPELINES:02}"


def post(path: Path, ours: Tailrace, peer: VictoriaLogs | None) -> str:
    """Posts the file's lines to both, a batch at a time, in turns; returns a rare id of them."""
    rare, lines = "", list[bytes]()
    size, taken, batches = path.stat().st_size, [0.0, 0.0], 0
    with path.open("rb") as file, httpx.Client(timeout=300) as client:

        def send() -> None:
            nonlocal batches
            fqn, run = fqn_of(batches), f"run-{batches // _PIPELINES % 3}"
            for which, place in enumerate([ours, peer]):
                if place is not None:
                    taken[which] += place.post(client, fqn, run, lines)
            batches += 1
            lines.clear()

        for line in file:
            lines.append(line)
            if not rare and file.tell() > size // 2 and (found := _RARE.search(line)):
                rare = found[0].decode("utf-8", "replace")
            if len(lines) == _BATCH_LINES:
                send()
        send()
    speeds = [f"{size / 1e6 / seconds:.0f} MB/s" for seconds in taken if seconds]
    print(f"{size / 1e6:.0f} MB ({source()}) over one connection: {', '.join(speeds)}", flush=True)
    return rare


def compact(data: Path) -> None:
    """Runs passes of the compactor until the table has every segment."""
    began = time.monotonic()
    while True:
        command = [sys.executable, "-m", "tailrace", "compact", "--data", str(data)]
        run = subprocess.run(
            command, check=False, capture_output=True, text=True, timeout=_COMPACTED_SECONDS
        )
        if run.returncode:
            raise SystemExit(f"the compactor ended with {run.returncode}: {run.stderr[-500:]}")
        summary = orjson.loads(run.stdout.strip().splitlines()[-1])
        if not summary["held_elsewhere"] and not summary["lag"]["segments"]:
            break
        if time.monotonic() - began > _COMPACTED_SECONDS:
            raise SystemExit(f"segments are left after {_COMPACTED_SECONDS} s: {summary['lag']}")
        time.sleep(1)
    print(f"compacted in {time.monotonic() - began:.0f} s", flush=True)


def wait_until_calm(pids: Sequence[int]) -> None:
    """Waits until the programs have been at rest for some seconds, or for five minutes."""
    began = calm = time.monotonic()
    while time.monotonic() - calm < _CALM_SECONDS:
        before = sum(map(cpu_seconds, pids))
        time.sleep(1)
        if sum(map(cpu_seconds, pids)) - before > _CALM_CPU:
            calm = time.monotonic()
        if calm - began > _MOST_CALMING_SECONDS:
            print("they are still busy", flush=True)
            return


# --- S3 -----------------------------------------------------------------------------------------


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


def _post(client: httpx.Client, url: str, body: bytes, headers: Mapping[str, str]) -> float:
    """Posts it, again while the server says that it has no room; returns the seconds."""
    began = time.monotonic()
    while True:
        reply = client.post(url, content=body, headers=dict(headers))
        taken = time.monotonic() - began
        if reply.status_code not in (429, 503, 507) or taken > _PATIENCE_SECONDS:
            reply.raise_for_status()
            return taken
        time.sleep(0.5)


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


def main() -> None:
    parser = argparse.ArgumentParser(description="Searches beside VictoriaLogs.")
    parser.add_argument("--megabytes", type=int, default=400, help="text that is posted")
    parser.add_argument("--rounds", type=int, default=9, help="how often each search is asked")
    parser.add_argument("--minio", action="store_true", help="ask over S3 as well")
    arguments = parser.parse_args()
    text = corpus(arguments.megabytes * 1_000_000)
    binary = os.environ.get(BINARY)
    with tempfile.TemporaryDirectory() as root, ExitStack() as stack:
        data, store = Path(root) / "data", Path(root) / "data" / "store"
        ours = Tailrace(data, None)
        peer = VictoriaLogs(binary, Path(root) / "victoria-logs") if binary else None
        places = [place for place in (ours, peer) if place is not None]
        for place in places:
            place.start()
            stack.callback(place.stop)
        if peer is None:
            print(f"not beside VictoriaLogs: {BINARY} does not name its binary")
        rare = post(text, ours, peer)
        time.sleep(_FLUSH_SECONDS)
        compact(data)
        wait_until_calm([place.pid for place in places])
        asked = searches(fqn_of(7), rare)
        report(places, asked, arguments.rounds)
        if arguments.minio:
            report_s3(data, store, asked, arguments.rounds)


if __name__ == "__main__":
    main()
