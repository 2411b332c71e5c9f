"""`otlp` before a real OpenTelemetry collector, which its own builder makes: `make collector`.

A service takes records, `tailrace pipelines` sends them, and the collector passes on what it
received. Meanwhile the collector is away for a while, and the pipelines get kill -9. Every record
comes out of the collector with its time, level, body, attributes, ids of trace and span, pipeline
and run. What came twice is the same record under the same `log.record.uid`. Exits 1 and says what
does not hold.
"""

from __future__ import annotations

import json
import random
import sys
import tempfile
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeAlias
from urllib.parse import quote

import httpx
import yaml

from tests.e2e.service_process import BASE, ServiceProcess
from tests.pipelines.appenders.receiver import Receiver, Request
from tests.pipelines.torture.torture import PipelinesProcess
from tests.servers.otelcol import Collector, otelcol

Place: TypeAlias = tuple[str, str]
"""Pipeline and run."""
_RECORDS = 6000
_BATCH = 50
_PATIENCE_SECONDS = 180.0
_SEVERITY = {"TRACE": 1, "DEBUG": 5, "INFO": 9, "WARN": 13, "ERROR": 17, "FATAL": 21}
_PLACES = (("shop.load", "r1"), ("shop.load", "größer 2"), ("ops.clean", "r1"))


def records(seed: int) -> Iterator[tuple[Place, dict[str, Any]]]:
    """Where each record goes, and what it is."""
    dice, now = random.Random(seed), time.time()
    for number in range(_RECORDS):
        attributes = {"number": str(number), "naïve": "zwei\nZeilen \u2603"}
        if number % 3 == 0:
            attributes["trace_id"] = f"{dice.getrandbits(128) | 1:032x}"
            attributes["span_id"] = f"{dice.getrandbits(64) | 1:016x}"
        record: dict[str, Any] = {"message": f'record {number}\nwith "a" second line'}
        record |= {"attributes": attributes}
        if number % 5:
            record["level"] = dice.choice(list(_SEVERITY))
        stamp = now - 60 + number * 0.001
        record["ts"] = datetime.fromtimestamp(stamp, UTC).isoformat(timespec="microseconds")
        yield dice.choice(_PLACES), record


def wanted(place: Place, record: dict[str, Any]) -> dict[str, Any]:
    """What the collector is to have of a record, as `received` spells it."""
    moment = datetime.fromisoformat(record["ts"])
    whole = moment - datetime(1970, 1, 1, tzinfo=UTC)
    nanoseconds = ((whole.days * 86_400 + whole.seconds) * 1_000_000 + whole.microseconds) * 1000
    attributes = record["attributes"]
    return {
        "resource": {"service.name": place[0], "tailrace.run.id": place[1]},
        "time": nanoseconds,
        "severity": _SEVERITY.get(record.get("level", ""), 0),
        "level": record.get("level", ""),
        "body": record["message"],
        "attributes": attributes,
        "trace": attributes.get("trace_id", ""),
        "span": attributes.get("span_id", ""),
    }


def received(requests: list[Request]) -> Iterator[tuple[str, dict[str, Any]]]:
    """The `log.record.uid` of each record that the collector passed on, and what it has of it."""
    for request in requests:
        for resource in json.loads(request.body)["resourceLogs"]:
            of_run = _values(resource["resource"]["attributes"])
            for scope in resource["scopeLogs"]:
                for one in scope["logRecords"]:
                    attributes = _values(one["attributes"])
                    uid = attributes.pop("log.record.uid")
                    attributes.pop("tailrace.order", None)  # of this delivery, not of the record
                    yield (
                        uid,
                        {
                            "resource": of_run,
                            "time": int(one["timeUnixNano"]),
                            "severity": one.get("severityNumber", 0),
                            "level": one.get("severityText", ""),
                            "body": one["body"]["stringValue"],
                            "attributes": attributes,
                            "trace": one.get("traceId", ""),
                            "span": one.get("spanId", ""),
                        },
                    )


def _values(attributes: list[dict[str, Any]]) -> dict[str, str]:
    return {one["key"]: one["value"]["stringValue"] for one in attributes}


class Story:
    """One run; `faults` says what does not hold."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.faults: list[str] = []
        self.told = ""
        self._folder = folder
        self._seed = seed
        self._receiver = Receiver()
        self._service = ServiceProcess(
            folder / "node", store=folder / "store", TAILRACE_FLUSH__SEGMENT_SECONDS="0.3"
        )
        (folder / "pipelines").mkdir()
        self._process = PipelinesProcess(
            folder / "process", folder / "pipelines", {"TAILRACE_STORE": str(folder / "store")}
        )

    def run(self) -> None:
        """Raises what is broken in the story itself."""
        posted = list(records(self._seed))
        with self._receiver.running() as receiver:
            collector = Collector(self._folder / "collector", f"{receiver.url}/v1/logs")
            self._write_pipeline(collector.url)
            collector.start()
            self._service.start()
            self._process.start()
            try:
                self._send(posted, collector)
                if self._process.stop() != 0:
                    self.faults.append(f"it did not stop well: {self._process.output()}")
            finally:
                self._process.kill()
                self._service.stop()
                collector.stop()
        self._judge(posted)

    def _send(self, posted: list[tuple[Place, dict[str, Any]]], collector: Collector) -> None:
        third = len(posted) // 3
        self._post(posted[:third])
        self._wait_for(third // 2)
        collector.stop()
        self._post(posted[third : 2 * third])
        self._process.kill()
        collector.start()
        self._process.start()
        self._wait_for(third + 1)
        self._process.kill()
        self._process.start()
        self._post(posted[2 * third :])
        self._wait_for(len(posted))

    def _write_pipeline(self, url: str) -> None:
        appender = {"type": "otlp", "name": "collector", "url": url}
        content = {
            "name": "otlp",
            "event_delay_ms": 100,
            "idle_node_ms": 1000,
            "checkpoint_interval_ms": 500,
            "retry_ms": 100,
            "most_retry_ms": 500,
            "appenders": [{**appender, "allow_private": True, "max_events": 120}],
        }
        (self._folder / "pipelines" / "otlp.yaml").write_text(yaml.safe_dump(content))

    def _post(self, posted: list[tuple[Place, dict[str, Any]]]) -> None:
        with httpx.Client(timeout=60) as client:
            for start in range(0, len(posted), _BATCH):
                for place in _PLACES:
                    some = [one for at, one in posted[start : start + _BATCH] if at == place]
                    self._post_run(client, place, some)

    def _post_run(self, client: httpx.Client, place: Place, some: list[dict[str, Any]]) -> None:
        if some:
            fqn, run = (quote(name, safe="") for name in place)
            path = f"{self._service.url}{BASE}/{fqn}/{run}"
            body = "".join(json.dumps(one) + "\n" for one in some).encode()
            headers = {"Content-Type": "application/x-ndjson"}
            client.post(path, content=body, headers=headers).raise_for_status()

    def _received(self) -> dict[str, list[dict[str, Any]]]:
        found: dict[str, list[dict[str, Any]]] = {}
        for uid, one in received(list(self._receiver.requests)):
            found.setdefault(uid, []).append(one)
        return found

    def _wait_for(self, count: int) -> None:
        end = time.monotonic() + _PATIENCE_SECONDS
        while len(self._received()) < count and time.monotonic() < end:
            time.sleep(0.2)

    def _judge(self, posted: list[tuple[Place, dict[str, Any]]]) -> None:
        found = self._received()
        self.faults += [f"{uid} has two forms" for uid, ones in found.items() if _differ(ones)]
        have = {one["attributes"]["number"]: one for (one, *_) in found.values()}
        for place, record in posted:
            want, got = wanted(place, record), have.get(record["attributes"]["number"])
            if got != want:
                self.faults.append(f"wanted {want}, received {got}")
        if len(found) != len(posted):
            self.faults.append(f"{len(posted)} records were posted, {len(found)} ids received")
        again = sum(len(ones) - 1 for ones in found.values())
        self.told = f"{len(posted)} records, {again} of them again, {len(self.faults)} faults"


def _differ(ones: list[dict[str, Any]]) -> bool:
    return any(one != ones[0] for one in ones)


def main() -> int:
    """0 if everything holds."""
    otelcol()
    with tempfile.TemporaryDirectory(prefix="tailrace-collector-") as folder:
        seed = int(sys.argv[1]) if sys.argv[1:] else random.SystemRandom().randrange(1 << 32)
        story = Story(Path(folder), seed)
        story.run()
        print(f"seed {seed}: {story.told}")
    for fault in story.faults[:20]:
        print(fault)
    return 1 if story.faults else 0


if __name__ == "__main__":
    sys.exit(main())
