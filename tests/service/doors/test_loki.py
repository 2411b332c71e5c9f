"""Loki's push: what is stored of a request, in both encodings, and what is answered."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Sequence
from typing import Any

import cramjam
import httpx
import pytest

from service.doors.loki import LokiDoor, parse_labels
from service.doors.records import RunRule
from service.doors.settings import DoorSettings
from tailrace.logstore.batch import RunKey
from tailrace.logstore.errors import InvalidInput, NodeNotReady
from tests.service.doors.decoding import Found, decoded, only, stored
from tests.service.http.conftest import Serve, Served
from tests.service.http.memory_node import MemoryNode

PATH = "/loki/api/v1/push"
TIME = 1_700_000_000_123_456_789
DAY = "2023-11-14"
JSON = "application/json"
PROTOBUF = "application/x-protobuf"
Entry = tuple[int, str, dict[str, str]]
Stream = tuple[dict[str, str], Sequence[Entry]]


def varint(value: int) -> bytes:
    found = b""
    while value > 0x7F:
        found, value = found + bytes((value & 0x7F | 0x80,)), value >> 7
    return found + bytes((value,))


def inside(number: int, value: bytes) -> bytes:
    return bytes((number << 3 | 2,)) + varint(len(value)) + value


def as_protobuf(*streams: Stream) -> bytes:
    """A PushRequest as Loki's clients encode it, which send more fields than we read."""
    made = b""
    for labels, entries in streams:
        spelled = "{" + ", ".join(f"{k}={json.dumps(v)}" for k, v in labels.items()) + "}"
        stream = inside(1, spelled.encode())
        for at, line, metadata in entries:
            seconds, nanos = divmod(at, 10**9)
            time = b"\x08" + varint(seconds) + b"\x10" + varint(nanos)
            pairs = [inside(1, k.encode()) + inside(2, v.encode()) for k, v in metadata.items()]
            entry = inside(1, time) + inside(2, line.encode("utf-8", "surrogateescape"))
            stream += inside(2, entry + b"".join(inside(3, pair) for pair in pairs))
        made += inside(1, stream + b"\x18" + varint(1 << 60))
    return bytes(cramjam.snappy.compress_raw(made))


def as_json(*streams: Stream) -> bytes:
    found = [
        {
            "stream": labels,
            "values": [[str(t), line, *([m] if m else [])] for t, line, m in entries],
        }
        for labels, entries in streams
    ]
    return json.dumps({"streams": found}).encode()


Encode = Callable[..., bytes]
KINDS: dict[str, Encode] = {PROTOBUF: as_protobuf, JSON: as_json}


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def read(kind: str, *streams: Stream) -> Found:
    door = LokiDoor(RunRule(DoorSettings()))
    return decoded(door, PATH, KINDS[kind](*streams), content_type=kind)


async def post(served: Served, body: bytes, kind: str = PROTOBUF, **more: str) -> httpx.Response:
    headers = {"content-type": kind, **{k.replace("_", "-"): v for k, v in more.items()}}
    return await served.client.post(PATH, content=body, headers=headers)


async def test_entries_are_stored_with_labels_and_metadata(direct: Serve, kind: str) -> None:
    labels = {"service_namespace": "shop", "service_name": "cart", "level": "warning", "pod": "p1"}
    entries: list[Entry] = [
        (TIME, "one", {"trace_id": "ab", "pod": "own"}),
        (TIME + 211, "two\nlines \u2028", {"level": "ERROR", "tailrace_run_id": "7"}),
    ]
    served = await direct()
    answer = await post(served, KINDS[kind]((labels, entries)), kind)
    assert (answer.status_code, answer.content) == (204, b"")
    assert [batch.connector for batch in served.node.batches] == ["loki/127.0.0.1"] * 2
    own = {"trace_id": "ab", "pod": "own", "label.pod": "p1", "time_unix_nano": str(TIME)}
    assert stored(served) == {
        RunKey("shop/cart", DAY): [
            {
                "text": "one\n",
                "ts": TIME // 1000,
                "level": "WARN",
                "attributes": {k: v for k, v in labels.items() if k != "pod"} | own,
            }
        ],
        RunKey("shop/cart", "7"): [
            {
                "text": "two\nlines \u2028\n",
                "ts": TIME // 1000 + 1,
                "level": "ERROR",
                "attributes": {k: v for k, v in labels.items() if k != "level"}
                | {"level": "ERROR", "label.level": "warning", "tailrace_run_id": "7"},
            }
        ],
    }


@pytest.mark.parametrize(
    ("labels", "key"),
    [
        ({"job": "j"}, RunKey("j", DAY)),
        ({"job": "j", "app": "a"}, RunKey("a", DAY)),
        ({"service_name": "s", "app": "a"}, RunKey("s", DAY)),
        ({"x": "y"}, RunKey("unknown_service", DAY)),
        ({"app": "a", "k8s_job_name": "n"}, RunKey("a", "n")),
        ({"app": "a", "service_instance_id": "i"}, RunKey("a", f"{DAY}-i")),
    ],
)
def test_labels_name_pipeline_and_run(kind: str, labels: dict[str, str], key: RunKey) -> None:
    assert list(read(kind, (labels, [(TIME, "x", {})]))) == [key]


def test_a_line_that_is_not_utf_8_is_stored_with_replacements() -> None:
    found = read(PROTOBUF, ({"job": "j"}, [(TIME, "a\udcff", {})]))
    assert only(found)["text"] == "a\N{REPLACEMENT CHARACTER}\n"


def test_many_entries_are_read_in_windows() -> None:
    entries: list[Entry] = [(TIME + n, f"line {n} " + "x" * 100, {}) for n in range(3000)]
    [(_, records)] = read(PROTOBUF, ({"job": "j"}, entries)).items()
    assert [record["text"] for record in records] == [f"{line}\n" for _, line, _ in entries]


async def test_json_may_be_gzip(direct: Serve) -> None:
    served = await direct()
    body = gzip.compress(as_json(({"job": "j"}, [(TIME, "x", {})])))
    assert (await post(served, body, JSON, content_encoding="gzip")).status_code == 204
    assert served.node.run_logs.whole(RunKey("j", DAY)) == b"x\n"


async def test_valid_entries_are_stored_beside_refused_ones(direct: Serve, kind: str) -> None:
    served = await direct()
    body = KINDS[kind](({"job": "j"}, [(TIME, "x", {})]), ({}, [(TIME, "y", {})]))
    answer = await post(served, body, kind)
    assert answer.status_code == 400
    assert answer.headers["content-type"].startswith("text/plain")
    assert "1 of 2 entries" in answer.text
    assert "at least one label pair is required" in answer.text
    assert served.node.run_logs.whole(RunKey("j", DAY)) == b"x\n"


async def test_a_request_without_entries_is_taken(direct: Serve, kind: str) -> None:
    served = await direct()
    assert (await post(served, KINDS[kind](), kind)).status_code == 204


async def test_what_cannot_be_stored_now_is_sent_again(direct: Serve, kind: str) -> None:
    served = await direct(MemoryNode(refusal=NodeNotReady("the node is away")))
    answer = await post(served, KINDS[kind](({"job": "j"}, [(TIME, "x", {})])), kind)
    assert answer.status_code == 503
    assert answer.headers["retry-after"]
    assert answer.text.startswith("the node is away")


async def test_a_tenant_is_refused(direct: Serve, kind: str) -> None:
    served = await direct()
    body = KINDS[kind](({"job": "j"}, [(TIME, "x", {})]))
    answer = await post(served, body, kind, x_scope_orgid="team")
    assert answer.status_code == 400
    assert "X-Scope-OrgID" in answer.text
    assert served.node.batches == []


def _values(*values: object) -> bytes:
    return json.dumps({"streams": [{"stream": {"a": "b"}, "values": values}]}).encode()


def _snapped(body: bytes) -> bytes:
    return bytes(cramjam.snappy.compress_raw(body))


_WHOLE = as_protobuf(({"job": "j"}, [(TIME, "a line", {})]))
BAD: dict[str, tuple[bytes, str, int]] = {
    "cut snappy": (_WHOLE[:-3], PROTOBUF, 400),
    "no snappy": (b"hello", PROTOBUF, 400),
    "empty": (b"", PROTOBUF, 400),
    "a false length": (b"\xff\xff\xff\xff\x0f" + _WHOLE, PROTOBUF, 413),
    "cut": (_snapped(cramjam.snappy.decompress_raw(_WHOLE).read()[:-3]), PROTOBUF, 400),
    "no protobuf": (_snapped(b"hello"), PROTOBUF, 400),
    "json in snappy": (_snapped(as_json()), PROTOBUF, 400),
    "bad labels": (_snapped(inside(1, inside(1, b"{a=}") + inside(2, b""))), PROTOBUF, 400),
    "wrong types": (_snapped(inside(1, b"\x08\x01" + inside(2, b"\x0d\x00"))), PROTOBUF, 400),
    "a huge entry": (
        _snapped(inside(1, inside(1, b'{a="b"}') + inside(2, bytes(3 << 20)))),
        PROTOBUF,
        413,
    ),
    "cut JSON": (_values()[:-1], JSON, 400),
    "a list": (b"[]", JSON, 400),
    "streams": (b'{"streams": {}}', JSON, 400),
    "a stream": (b'{"streams": [1]}', JSON, 400),
    "a label": (b'{"streams": [{"stream": {"a": 1}}]}', JSON, 400),
    "values": (b'{"streams": [{"stream": {"a": "b"}, "values": 1}]}', JSON, 400),
    "a value": (_values("x"), JSON, 400),
    "a short value": (_values(["1"]), JSON, 400),
    "a number for a time": (_values([1, "x"]), JSON, 400),
    "a text for a time": (_values(["x", "x"]), JSON, 400),
    "a negative time": (_values(["-1", "x"]), JSON, 400),
    "a late time": (_values(["9" * 21, "x"]), JSON, 400),
    "a number for a line": (_values(["1", 1]), JSON, 400),
    "metadata": (_values(["1", "x", []]), JSON, 400),
    "deep": (b"[" * 100_000, JSON, 400),
}


async def test_bad_input_is_refused_and_nothing_is_stored(direct: Serve) -> None:
    served = await direct()
    for case, (body, kind, status) in BAD.items():
        answer = await post(served, body, kind)
        assert answer.status_code == status, (case, answer.text)
        assert answer.headers["content-type"].startswith("text/plain"), case
        assert answer.text.endswith("\n"), case
        assert served.node.batches == [], case
    answer = await post(served, b"", JSON, content_encoding="br")
    assert answer.text.startswith('Content-Encoding "br" not supported')


@pytest.mark.parametrize(
    ("spelled", "labels"),
    [
        ("{}", {}),
        (' { a = "b" } ', {"a": "b"}),
        ('{a="b",c="d",}', {"a": "b", "c": "d"}),
        ('{a="q\\"\\\\\\n\\x41\\u00fc\\U0001F600\\101"}', {"a": 'q"\\\nAü\U0001f600A'}),
        ('{a=`raw\\n"`}', {"a": 'raw\\n"'}),
        ('{a="}, b"}', {"a": "}, b"}),
    ],
)
def test_labels_are_read_as_go_writes_them(spelled: str, labels: dict[str, str]) -> None:
    assert parse_labels(spelled) == labels


@pytest.mark.parametrize(
    "spelled",
    [
        "",
        "a",
        "{",
        '{a="b"',
        "{a=b}",
        '{a="b" c="d"}',
        '{1="b"}',
        '{a="\\q"}',
        '{a="\\ud800"}',
        "{,}",
    ],
)
def test_wrong_labels_are_refused(spelled: str) -> None:
    with pytest.raises(InvalidInput, match="labels"):
        parse_labels(spelled)


async def test_a_closed_door_is_no_route(direct: Serve) -> None:
    served = await direct(loki=False)
    answer: Any = await post(served, b"")
    assert answer.status_code in (404, 405)
