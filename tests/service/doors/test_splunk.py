"""Splunk's HTTP Event Collector: what is stored of events, and what is answered."""

from __future__ import annotations

import json

from tailrace.logstore.batch import RunKey
from tailrace.logstore.errors import NodeNotReady
from tests.service.doors.decoding import stored
from tests.service.http.conftest import Serve
from tests.service.http.memory_node import MemoryNode

BASE = "/services/collector"
EVENT = {
    "time": 1_700_000_000.5,
    "host": "h",
    "source": "s",
    "sourcetype": "web",
    "event": "a line",
    "fields": {"level": "error", "n": 5},
}
DAY = "2023-11-14"


async def test_events_follow_one_another(direct: Serve) -> None:
    served = await direct()
    second = {"time": "1700000001", "event": {"a": 1}, "index": "main"}
    body = json.dumps(EVENT) + json.dumps(second) + "\n"
    answer = await served.client.post(f"{BASE}/event", content=body)
    assert (answer.status_code, answer.json()) == (200, {"text": "Success", "code": 0})
    assert [batch.connector for batch in served.node.batches] == ["splunk/127.0.0.1"] * 2
    attributes = {"host": "h", "source": "s", "sourcetype": "web", "level": "error", "n": "5"}
    assert stored(served) == {
        RunKey("web", DAY): [
            {
                "text": "a line\n",
                "ts": 1_700_000_000_500_000,
                "level": "ERROR",
                "attributes": attributes,
            }
        ],
        RunKey("main", DAY): [
            {
                "text": '{"a":1}\n',
                "ts": 1_700_000_001_000_000,
                "level": None,
                "attributes": {"index": "main"},
            }
        ],
    }


async def test_raw_lines_and_acknowledgements(direct: Serve) -> None:
    served = await direct()
    path = f"{BASE}/raw?channel=c&index=main&tailrace.run.id=x"
    answers = [await served.client.post(path, content=b"one\n\ntwo") for _ in range(2)]
    assert [answer.json()["ackId"] for answer in answers] == [0, 1]
    [(key, records)] = stored(served).items()
    assert key.fqn == "main"
    assert [record["text"] for record in records] == ["one\n", "two\n"] * 2
    asked = await served.client.post(f"{BASE}/ack?channel=c", json={"acks": [0, 1]})
    assert asked.json() == {"acks": {"0": True, "1": True}}


async def test_health(direct: Serve) -> None:
    served = await direct()
    assert (await served.client.get(f"{BASE}/health/1.0")).json()["code"] == 17


BAD = [
    ("/event", b"", 5),
    ("/raw", b"\n", 5),
    ("/event", b"[]", 6),
    ("/event", b'{"event": "x"', 6),
    ("/event", b'{"event": "x"} tail', 6),
    ("/event", b"{}", 6),
    ("/event", b'{"event": ""}', 6),
    ("/event", b'{"event": "x", "time": "y"}', 6),
    ("/event", b'{"event": "x", "time": []}', 6),
    ("/event", b'{"event": "x", "time": -5}', 6),
    ("/event", b'{"event": "x", "fields": []}', 6),
    ("/event", b'{"event": "x", "a": ' + b"[" * 100_000, 6),
    ("/event", b'{"event": [' + b"[]," * 30_000 + b"[]]}", 6),
    ("/ack", b"[]", 6),
    ("/ack", b'{"acks": ["0"]}', 6),
]


async def test_bad_input_is_refused_and_nothing_is_stored(direct: Serve) -> None:
    served = await direct()
    for path, body, code in BAD:
        answer = await served.client.post(BASE + path, content=body)
        assert (answer.status_code, answer.json()["code"]) == (400, code), (path, body[:50])
        assert served.node.batches == [], (path, body[:50])


async def test_what_cannot_be_stored_now_is_sent_again(direct: Serve) -> None:
    served = await direct(MemoryNode(refusal=NodeNotReady("away")))
    answer = await served.client.post(BASE, json=EVENT)
    assert (answer.status_code, answer.json()["code"]) == (503, 9)
