"""Doors: MB/s and lines/s of a core for each protocol, beside VictoriaLogs and Loki.

    VICTORIA_LOGS=victoria-logs LOKI_BIN=loki python -m benchmarks.doors [--megabytes 60]

Each request has 1,000 records, real lines with times and labels of their own, and is sent once to
each place, in turns: `--rounds` parts of the bodies, each to one place after the other. The text of
the lines counts, divided by the CPU seconds of the place from the first request to `--settle`
seconds after the last. Tailrace answers when the lines are synced; VictoriaLogs and Loki sync
nothing before they answer (Loki: with its log, as it is by default).

Then the same questions are asked of the lines that came by Loki's push: LogQL by `query_range` of
Tailrace, and LogsQL of VictoriaLogs. The figure is the median of `--asked` times in turns.
"""

from __future__ import annotations

import argparse
import gzip
import http.client
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import httpx
import orjson
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest

from benchmarks.corpus import lines_of, source
from benchmarks.process import Watched
from benchmarks.query_peer import BINARY, VictoriaLogs
from tests.doors.loki_oracle import started
from tests.e2e.service_process import ServiceProcess
from tests.service.doors.test_loki import as_protobuf

RECORDS: Final = 1_000
CONNECTIONS: Final = 4
PIPELINES: Final = 8
PROTOBUF: Final = "application/x-protobuf"
_LOKI: Final = "LOKI_BIN"
_ASKED: Final = "Loki, snappy"
_START_NS: Final = time.time_ns() - 3_600_000_000_000


@dataclass(frozen=True)
class Lines:
    """The records of one request."""

    service: str
    at_ns: int
    texts: Sequence[str]

    @property
    def times(self) -> Iterator[int]:
        """A microsecond apart."""
        return (self.at_ns + number * 1_000 for number in range(len(self.texts)))


# --- Bodies -------------------------------------------------------------------------------------


def otlp(lines: Lines) -> bytes:
    """Protobuf of one resource."""
    request = ExportLogsServiceRequest()
    resource = request.resource_logs.add()
    attribute = resource.resource.attributes.add(key="service.name")
    attribute.value.string_value = lines.service
    scope = resource.scope_logs.add()
    for at, text in zip(lines.times, lines.texts, strict=True):
        record = scope.log_records.add(time_unix_nano=at, severity_text="INFO")
        record.body.string_value = text
    return bytes(request.SerializeToString())


def loki_json(lines: Lines) -> bytes:
    """JSON of one stream."""
    values = [[str(at), text] for at, text in zip(lines.times, lines.texts, strict=True)]
    stream = {"service_name": lines.service}
    return orjson.dumps({"streams": [{"stream": stream, "values": values}]})


def loki_protobuf(lines: Lines) -> bytes:
    """Protobuf in snappy, as Promtail and Alloy send it."""
    entries: list[tuple[int, str, dict[str, str]]] = [
        (at, text, {}) for at, text in zip(lines.times, lines.texts, strict=True)
    ]
    return as_protobuf(({"service_name": lines.service}, entries))


def bulk(lines: Lines) -> bytes:
    """Actions and documents without ids."""
    action = b'{"create":{}}\n'
    return b"".join(
        action
        + orjson.dumps({"@timestamp": at // 1_000_000, "message": text, "service": lines.service})
        + b"\n"
        for at, text in zip(lines.times, lines.texts, strict=True)
    )


@dataclass(frozen=True)
class DoorCase:
    """A door, the paths at the places that have it, and how its bodies are made."""

    name: str
    make: Callable[[Lines], bytes]
    kind: str
    ours: str
    victoria: str
    loki: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)


_FIELDS: Final = "_stream_fields=service&_msg_field=message&_time_field=@timestamp"
CASES: Final = (
    DoorCase(
        *("OTLP", otlp, PROTOBUF, "/v1/logs", "/insert/opentelemetry/v1/logs", "/otlp/v1/logs")
    ),
    DoorCase(
        "OTLP, gzip",
        lambda lines: gzip.compress(otlp(lines), 1),
        *(PROTOBUF, "/v1/logs", "/insert/opentelemetry/v1/logs", "/otlp/v1/logs"),
        headers={"Content-Encoding": "gzip"},
    ),
    DoorCase(
        *("Loki, snappy", loki_protobuf, PROTOBUF, "/loki/api/v1/push"),
        *("/insert/loki/api/v1/push", "/loki/api/v1/push"),
    ),
    DoorCase(
        *("Loki, JSON", loki_json, "application/json", "/loki/api/v1/push"),
        *("/insert/loki/api/v1/push", "/loki/api/v1/push"),
    ),
    DoorCase(
        *("_bulk", bulk, "application/x-ndjson", "/bench/_bulk"),
        f"/insert/elasticsearch/_bulk?{_FIELDS}",
    ),
)


def parts_of(texts: Sequence[bytes], number: int) -> list[Lines]:
    """The requests of one case: no two cases have records in common."""
    made = []
    for first in range(0, len(texts) - RECORDS + 1, RECORDS):
        at = _START_NS + (number * len(texts) + first) * 1_000
        some = [text.decode("utf-8", "replace").rstrip("\n") for text in texts[first:][:RECORDS]]
        service = f"door{number}.p{first // RECORDS % PIPELINES}"
        made.append(Lines(service, at, [text or "-" for text in some]))
    return made


# --- Ingest -------------------------------------------------------------------------------------


@dataclass
class Spent:
    """What a place took for the bodies of one case."""

    cpu: float = 0.0
    wall: float = 0.0


def send(url: str, path: str, bodies: Sequence[bytes], headers: Mapping[str, str]) -> float:
    """Sends each body once over a few connections; seconds until the last answer."""
    place = urlsplit(url)

    def some(number: int) -> None:
        connection = http.client.HTTPConnection(place.hostname or "", place.port, timeout=120)
        for body in bodies[number::CONNECTIONS]:
            connection.request("POST", path, body, dict(headers))
            reply = connection.getresponse()
            text = reply.read()
            if reply.status >= 300 or b'"errors":true' in text:
                raise RuntimeError(f"{url}{path} answers {reply.status}: {text[:200]!r}")
        connection.close()

    began = time.monotonic()
    with ThreadPoolExecutor(CONNECTIONS) as threads:
        list(threads.map(some, range(CONNECTIONS)))
    return time.monotonic() - began


def ingest(
    places: Mapping[str, tuple[str, int]],
    case: DoorCase,
    lines: Sequence[Lines],
    given: argparse.Namespace,
) -> dict[str, Spent]:
    """Sends all bodies to all places that have the door, in turns."""
    bodies = [case.make(one) for one in lines]
    headers = {"Content-Type": case.kind, **case.headers}
    paths = {"Tailrace": case.ours, "VictoriaLogs": case.victoria, "Loki": case.loki}
    spent = {name: Spent() for name in places if paths[name]}
    for number in range(given.rounds):
        for name, one in spent.items():
            url, pid = places[name]
            watched = Watched(pid)
            one.wall += send(url, paths[name], bodies[number :: given.rounds], headers)
            time.sleep(given.settle)
            one.cpu += watched.end()
    return spent


# --- Questions ----------------------------------------------------------------------------------


def questions(
    service: str, start_ns: int, end_ns: int
) -> Iterator[tuple[str, dict[str, str], dict[str, str]]]:
    """Each question by its name, in LogQL and in LogsQL."""
    within = {"start": str(start_ns), "end": str(end_ns)}
    # Here and there the name of the service is the name of a column, or of a stream.
    ours, theirs = f'{{pipeline=~"{service}.*"}}', f'{{service_name=~"{service}.*"}}'
    for name, words in (("newest 1,000 lines", ""), ("newest 1,000 of a word", "Exception")):
        logql = f'{ours} |= "{words}"' if words else ours
        yield (
            name,
            {**within, "query": logql, "limit": "1000"},
            {**within, "query": f"{theirs} {words or '*'} | sort by (_time) desc limit 1000"},
        )
    step = max((end_ns - start_ns) // 100 // 1_000_000_000, 1)
    for name, words in (("counts by time", ""), ("counts of a word by time", "Exception")):
        logql = f'{ours} |= "{words}"' if words else ours
        yield (
            name,
            {**within, "query": f"sum(count_over_time({logql}[{step}s]))", "step": f"{step}s"},
            {**within, "query": f"{theirs} {words or '*'} | stats by (_time:{step}s) count() n"},
        )


def ask(
    places: Mapping[str, tuple[str, int]], start_ns: int, end_ns: int, given: argparse.Namespace
) -> None:
    """Prints ms of both for each question, and how much came back."""
    print(f"\n{'question':<28}{'Tailrace ms':>12}{'VictoriaLogs ms':>17}{'ratio':>7}{'found':>15}")
    service = f"door{[case.name for case in CASES].index(_ASKED)}"
    with httpx.Client(timeout=300) as client:
        for name, logql, logsql in questions(service, start_ns, end_ns):
            times: dict[str, list[float]] = {"Tailrace": [], "VictoriaLogs": []}
            found = {}
            for _ in range(given.asked + 1):
                for place, path, parameters in (
                    ("Tailrace", "/loki/api/v1/query_range", logql),
                    ("VictoriaLogs", "/select/logsql/query", logsql),
                ):
                    began = time.monotonic()
                    reply = client.get(places[place][0] + path, params=parameters)
                    times[place].append((time.monotonic() - began) * 1_000)
                    reply.raise_for_status()
                    found[place] = _size(reply.content, place)
            ours, theirs = [statistics.median(times[place][1:]) for place in times]
            both = f"{found['Tailrace']}/{found['VictoriaLogs']}"
            print(f"{name:<28}{ours:>12.1f}{theirs:>17.1f}{ours / theirs:>7.2f}{both:>15}")


def _size(content: bytes, place: str) -> int:
    """Lines, or the sum of counts."""
    if place == "Tailrace":
        result = orjson.loads(content)["data"]["result"]
        if result and "metric" in result[0]:
            return sum(int(value) for one in result for _, value in one["values"])
        return sum(len(one["values"]) for one in result)
    rows = [orjson.loads(line) for line in content.splitlines()]
    return sum(int(row["n"]) for row in rows) if rows and "n" in rows[0] else len(rows)


def main() -> None:
    """Measures all doors, then the questions."""
    parser = argparse.ArgumentParser(description="Doors beside VictoriaLogs and Loki.")
    parser.add_argument("--megabytes", type=float, default=60, help="text for each door")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--settle", type=float, default=2, help="seconds that count after the last")
    parser.add_argument("--asked", type=int, default=5, help="times that each question is asked")
    parser.add_argument("--quiet", type=float, default=15, help="seconds before the questions")
    parser.add_argument("--only", default="", help="doors whose name has this")
    given = parser.parse_args()
    sample = lines_of(10_000)
    count = int(given.megabytes * 1e6 / (sum(map(len, sample)) / len(sample)))
    texts = lines_of(count - count % RECORDS)
    size = sum(map(len, texts)) / 1e6
    print(f"{source()}: {len(texts)} lines, {size:.0f} MB for each door")
    with tempfile.TemporaryDirectory() as root, ExitStack() as stack:
        ours = ServiceProcess(Path(root, "data"))
        ours.start()
        stack.callback(ours.kill)
        places = {"Tailrace": (ours.url, ours.pid)}
        if binary := os.environ.get(BINARY):
            victoria = VictoriaLogs(binary, Path(root, "victoria"))
            victoria.start()
            stack.callback(victoria.stop)
            places["VictoriaLogs"] = victoria.url, victoria.pid
        if binary := os.environ.get(_LOKI):
            url, pid = stack.enter_context(started(binary, Path(root, "loki")))
            places["Loki"] = url, pid
        print(
            f"{'door':<16}{'place':<14}{'MB/s of a core':>15}{'lines/s':>10}{'ratio':>7}{'MB/s':>7}"
        )
        for number, case in enumerate(CASES):
            if given.only not in case.name:
                continue
            spent = ingest(places, case, parts_of(texts, number), given)
            for name, one in spent.items():
                speed, lines = size / one.cpu, len(texts) / one.cpu
                ratio = one.cpu / spent["Tailrace"].cpu
                shown = f"{case.name:<16}{name:<14}{speed:>15.1f}{lines:>10,.0f}{ratio:>7.2f}"
                print(f"{shown}{size / one.wall:>7.1f}", flush=True)
        if "VictoriaLogs" in places and given.only in _ASKED:
            time.sleep(given.quiet)
            ask(places, _START_NS, time.time_ns(), given)


if __name__ == "__main__":
    main()
