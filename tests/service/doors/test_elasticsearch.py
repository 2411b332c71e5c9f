"""`_bulk`: what is stored of documents, what each item is answered, and what clients ask first."""

from __future__ import annotations

import asyncio
import gzip
import json
import random
from typing import Any, Final

import httpx
import pytest

from service.doors.elasticsearch import ElasticsearchDoor
from service.doors.records import RunRule
from service.doors.repeats import Recent
from service.doors.settings import DoorSettings
from service.http.body import Bounds
from tailrace.logstore.batch import RunKey
from tailrace.logstore.errors import NodeNotReady
from tests.seeds import seeds
from tests.service.doors.decoding import NOW, door_request, only, records_of, stored
from tests.service.http.conftest import Serve, Served
from tests.service.http.memory_node import MemoryNode

NDJSON = "application/x-ndjson"
BOUNDS: Final = Bounds(64 << 20)
AT = "2026-11-30T12:00:00.123456Z"
DAY = "2026-11-30"
TS = 1_796_040_000_123_456


def bulk(*lines: object) -> bytes:
    return b"".join(json.dumps(line).encode() + b"\n" for line in lines)


def document(text: str = "a line", **more: Any) -> dict[str, Any]:
    return {"@timestamp": AT, "message": text, **more}


async def post(
    served: Served, body: bytes, path: str = "/_bulk", kind: str = NDJSON, **more: str
) -> httpx.Response:
    headers = {"content-type": kind, **{k.replace("_", "-"): v for k, v in more.items()}}
    return await served.client.post(path, content=body, headers=headers)


def statuses(answer: httpx.Response) -> list[tuple[str, int]]:
    assert answer.status_code == 200, answer.text
    assert answer.headers["x-elastic-product"] == "Elasticsearch"
    items = answer.json()["items"]
    found = [(action, said["status"]) for item in items for action, said in item.items()]
    wrong = any("error" in said for item in items for said in item.values())
    assert answer.json()["errors"] == wrong
    return found


async def test_a_document_is_a_record(direct: Serve) -> None:
    served = await direct()
    more: dict[str, Any] = {"log.level": "warning", "host": {"name": "h", "ip": ["1", "2"]}}
    sent = document(**more, n=5, none=None)
    body = bulk({"create": {"_index": "logs-2026.11.30", "_id": "x1"}}, sent)
    answer = await post(served, body)
    assert statuses(answer) == [("create", 201)]
    assert answer.json()["items"][0]["create"]["_id"] == "x1"
    assert [batch.connector for batch in served.node.batches] == ["elasticsearch/127.0.0.1"]
    assert stored(served) == {
        RunKey("logs", DAY): [
            {
                "text": "a line\n",
                "ts": TS,
                "level": "WARN",
                "attributes": {
                    "log.level": "warning",
                    "host.name": "h",
                    "host.ip": '["1","2"]',
                    "n": "5",
                    "_index": "logs-2026.11.30",
                    "_id": "x1",
                },
            }
        ]
    }


@pytest.mark.parametrize(
    ("sent", "key", "text", "ts"),
    [
        ({"log": "x", "@timestamp": 5}, RunKey("i", "1970-01-01"), "x\n", 5000),
        ({"msg": "x", "@timestamp": AT[:-8] + "Z"}, RunKey("i", DAY), "x\n", TS - 123_456),
        ({"a": 1, "@timestamp": 5}, RunKey("i", "1970-01-01"), '{"a": 1, "@timestamp": 5}\n', 5000),
        (
            document(service={"name": "s", "namespace": "n"}, tailrace={"run": {"id": "7"}}),
            RunKey("n/s", "7"),
            "a line\n",
            TS,
        ),
    ],
)
async def test_where_a_document_belongs(
    direct: Serve, sent: dict[str, Any], key: RunKey, text: str, ts: int
) -> None:
    served = await direct()
    assert statuses(await post(served, bulk({"index": {}}, sent), "/i/_bulk")) == [("index", 201)]
    assert list(stored(served)) == [key]
    found = only(stored(served))
    assert (found["text"], found["ts"]) == (text, ts)


async def test_nanoseconds_are_kept(direct: Serve) -> None:
    served = await direct()
    sent = document(**{"@timestamp": "2026-11-30T12:00:00.123456789Z"})
    await post(served, bulk({"index": {"_index": "i"}}, sent))
    found = only(stored(served))
    assert found["ts"] == TS
    assert found["attributes"]["@timestamp"] == "2026-11-30T12:00:00.123456789Z"


async def test_each_item_has_its_own_result(direct: Serve) -> None:
    served = await direct()
    lines = [
        {"create": {"_index": "i"}},
        document("one"),
        {"update": {"_index": "i", "_id": "1"}},
        {"doc": {}},
        {"delete": {"_index": "i", "_id": "1"}},
        {"index": {"_index": "i"}},
        document("two", **{"@timestamp": "yesterday"}),
        {"index": {}},
        document("three"),
        {"index": {"_index": "i", "_id": []}},
        document("four"),
        {"index": {"_index": "i"}},
        "no object",
        {"index": {"_index": "i"}},
        document("five"),
    ]
    body = bulk(*lines) + b'{"index":{"_index":"i"}}\n{"cut": \n' + b'{"index":{"_index":"i"}}\n'
    answer = await post(served, body)
    assert statuses(answer) == [
        ("create", 201),
        ("update", 400),
        ("delete", 400),
        ("index", 400),
        ("index", 400),
        ("index", 400),
        ("index", 400),
        ("index", 201),
        ("index", 400),
        ("index", 400),
    ]
    assert served.node.run_logs.whole(RunKey("i", DAY)) == b"one\nfive\n"
    error = answer.json()["items"][1]["update"]["error"]
    assert error["type"] == "illegal_argument_exception"
    assert "a record never changes" in error["reason"]


async def test_a_document_with_an_id_is_stored_once(direct: Serve) -> None:
    served = await direct()
    first = bulk({"index": {"_index": "i", "_id": "1"}}, document("one"))
    assert statuses(await post(served, first)) == [("index", 201)]
    assert statuses(await post(served, first)) == [("index", 200)]
    again = bulk(
        {"index": {"_index": "i", "_id": "1"}},
        document("one"),
        {"index": {"_index": "i", "_id": "1"}},
        document("other"),
        {"create": {"_index": "i", "_id": "1"}},
        document("one"),
        {"create": {"_index": "i", "_id": "2"}},
        document("two"),
        {"create": {"_index": "i", "_id": "2"}},
        document("two"),
        {"index": {"_index": "j", "_id": "1"}},
        document("three"),
    )
    answer = await post(served, again)
    assert [status for _, status in statuses(answer)] == [200, 409, 409, 201, 409, 201]
    conflict = answer.json()["items"][1]["index"]["error"]
    assert conflict["type"] == "version_conflict_engine_exception"
    assert served.node.run_logs.whole(RunKey("i", DAY)) == b"one\ntwo\n"
    assert served.node.run_logs.whole(RunKey("j", DAY)) == b"three\n"


async def test_two_requests_at_once_store_a_document_once(direct: Serve) -> None:
    served = await direct()
    served.node.gate = asyncio.Event()
    bodies = [
        bulk({"index": {"_index": "i", "_id": "1"}}, document("one"), *more)
        for more in ([], [{"index": {"_index": "i", "_id": "2"}}, document("two")])
    ]
    waiting = [asyncio.create_task(post(served, body)) for body in bodies]
    while served.counters.body_bytes < sum(map(len, bodies)):
        await asyncio.sleep(0)
    served.node.gate.set()
    answers = [statuses(await task) for task in waiting]
    assert sorted(status for found in answers for _, status in found) == [200, 201, 201]
    assert sorted(served.node.run_logs.whole(RunKey("i", DAY)).split()) == [b"one", b"two"]


async def test_what_cannot_be_stored_now_is_429_and_is_stored_when_it_is_sent_again(
    direct: Serve,
) -> None:
    served = await direct(MemoryNode(refusal=NodeNotReady("away")))
    body = bulk({"create": {"_index": "i", "_id": "1"}}, document("one"))
    assert statuses(await post(served, body)) == [("create", 429)]
    served.node.refusal = None
    assert statuses(await post(served, body)) == [("create", 201)]
    assert served.node.run_logs.whole(RunKey("i", DAY)) == b"one\n"


BAD: dict[str, tuple[bytes, str, int]] = {
    "cut": (bulk({"index": {"_index": "i"}}, document())[:-1], NDJSON, 400),
    "empty": (b"", NDJSON, 400),
    "no action": (bulk(document(), document()), NDJSON, 400),
    "a wrong action": (bulk({"drop": {}}, document()), NDJSON, 400),
    "two actions": (bulk({"index": {}, "create": {}}, document()), NDJSON, 400),
    "a list": (b"[]\n", NDJSON, 400),
    "a wrong action's value": (bulk({"index": 1}, document()), NDJSON, 400),
    "deep": (b"[" * 100_000 + b"\n", NDJSON, 400),
    "a late wrong action": (bulk({"index": {"_index": "i"}}, document(), 5), NDJSON, 400),
    "other media": (b"\n", "text/plain", 415),
    "too many": (b'{"create":{}}\n{}\n' * 100_001, NDJSON, 413),
}


async def test_bad_input_is_refused_and_nothing_is_stored(direct: Serve) -> None:
    served = await direct()
    for case, (body, kind, status) in BAD.items():
        answer = await post(served, body, kind=kind)
        assert answer.status_code == status, (case, answer.text)
        assert answer.json()["status"] == status, case
        assert answer.json()["error"]["reason"], case
        assert answer.headers["x-elastic-product"] == "Elasticsearch", case
        assert served.node.batches == [], case


@pytest.mark.parametrize(
    "line",
    [
        b'{"message":"x","a":' + b'{"a":' * 200 + b"1" + b"}" * 201,
        b'{"message":"x","a":[' + b"[]," * 30_000 + b"1]}",
        b'{"message":"x","@timestamp":true}',
        b'{"message":"x","@timestamp":1e300}',
        b"[1]",
        b"\xff\xfe",
    ],
)
async def test_a_bad_document_is_refused_alone(direct: Serve, line: bytes) -> None:
    served = await direct()
    action = bulk({"index": {"_index": "i"}})
    body = action + line + b"\n" + action + bulk(document("good"))
    assert [status for _, status in statuses(await post(served, body))] == [400, 201]
    assert served.node.run_logs.whole(RunKey("i", DAY)) == b"good\n"


async def test_a_body_may_be_gzip_and_below_the_prefix(direct: Serve) -> None:
    served = await direct()
    body = gzip.compress(bulk({"index": {}}, document()))
    answer = await post(served, body, "/elasticsearch/i/_bulk", content_encoding="gzip")
    assert statuses(answer) == [("index", 201)]


@pytest.mark.parametrize("prefix", ["", "/elasticsearch"])
async def test_what_clients_ask_at_their_start_is_answered(direct: Serve, prefix: str) -> None:
    served = await direct()
    kind = "application/vnd.elasticsearch+json; compatible-with=9"
    for method, path in [
        ("GET", "/"),
        ("HEAD", "/"),
        ("GET", "/_license"),
        ("GET", "/_xpack"),
        ("GET", "/_cluster/health"),
        ("GET", "/_nodes/http"),
        ("HEAD", "/_index_template/logs"),
        ("GET", "/_ilm/policy/logs"),
        ("PUT", "/_ilm/policy/logs"),
        ("PUT", "/_template/logs"),
        ("PUT", "/_ingest/pipeline/logs"),
    ]:
        answer = await served.client.request(method, prefix + path, headers={"accept": kind})
        assert answer.status_code == 200, path
        assert answer.headers["x-elastic-product"] == "Elasticsearch", path
        assert answer.headers["content-type"] == kind, path
    root = (await served.client.get(prefix + "/", headers={"accept": "application/json"})).json()
    assert root["tagline"] == "You Know, for Search"


async def test_a_browser_gets_the_page(direct: Serve) -> None:
    served = await direct()
    for accept in ("text/html,application/json;q=0.9", "*/*"):
        answer = await served.client.get("/", headers={"accept": accept})
        assert answer.headers["content-type"].startswith("text/html")


async def test_a_closed_door_is_no_route(direct: Serve) -> None:
    served = await direct(elasticsearch=False)
    assert (await post(served, b"\n")).status_code == 404
    answer = await served.client.get("/", headers={"accept": "application/json"})
    assert answer.headers["content-type"].startswith("text/html")


def _items(dice: random.Random) -> list[bytes]:
    """Actions with their documents; neighbours are alike, differ in place, or have no time."""
    found = list[bytes]()
    for _ in range(dice.randrange(1, 600)):
        said: dict[str, Any] = {"_index": dice.choice(["app", "app", "app-2026.11.30", "ünder"])}
        if dice.random() < 0.1:
            said["_id"] = dice.choice("abcdefgh")
        sent = document(dice.choice(["one", "Straße", "a\nb", "", "half \ud83d"]), n=len(found))
        if dice.random() < 0.1:
            sent |= {"level": "warn", "tailrace.run.id": dice.choice(["r", "s"])}
        if dice.random() < 0.1:
            del sent[dice.choice(["@timestamp", "message"])]
        found.append(bulk({dice.choice(["create", "index"]): said}, sent))
    return found


def _read(body: bytes) -> tuple[dict[int, tuple[RunKey, dict[str, Any]]], list[int]]:
    """The records by their number, and the number of the record of each item; -1 without one."""
    ids: Recent[Any] = Recent(60, 10_000, lambda: 0.0)
    door = ElasticsearchDoor(RunRule(DoorSettings()), ids)
    records = door.decode(door_request("/_bulk", body, {"content-type": NDJSON}), BOUNDS, NOW)
    found = records_of((run.key, run.text, run.meta) for run in records.runs)
    numbered = {
        place: (run.key, record)
        for run in records.runs
        for place, record in zip(run.places, found[run.key], strict=True)
    }
    return numbered, [item.record for item in records.items.items]


@pytest.mark.parametrize("seed", seeds(4))
def test_documents_are_read_together_as_each_is_read_alone(seed: int) -> None:
    items = _items(random.Random(seed))
    records, numbers = _read(b"".join(items))
    assert len(numbers) == len(items)
    for item, number in zip(items, numbers, strict=True):
        [(_, alone)] = _read(item)[0].items()
        if number >= 0:  # else an item before it has its id
            assert records.pop(number) == alone
    assert records == {}


async def test_a_stored_document_is_answered_with_what_clients_expect(direct: Serve) -> None:
    served = await direct()
    usual = bulk({"index": {"_index": 'ü"i'}}, document("one"))
    for body in (
        usual * 3,
        usual + bulk({"index": {"_index": 'ü"i', "_id": "x"}}, document("two")),
    ):
        items = (await post(served, body)).json()["items"]
        names = [item["index"].pop("_id") for item in items]
        assert len(set(names)) == len(items)
        assert items == [
            {
                "index": {
                    "_index": 'ü"i',
                    "_version": 1,
                    "_seq_no": 0,
                    "_primary_term": 1,
                    "_shards": {"total": 1, "successful": 1, "failed": 0},
                    "result": "created",
                    "status": 201,
                }
            }
        ] * len(items)
