"""OTLP/HTTP: what is stored of a request, in both encodings, and what is answered."""

from __future__ import annotations

import base64
import gzip
import json
import struct
from collections.abc import Callable
from typing import Any

import httpx
import pytest
import zstandard
from google.protobuf import json_format
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import (
    ExportLogsServiceRequest,
    ExportLogsServiceResponse,
)
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue

from service.doors.otlp import OtlpDoor
from service.doors.records import RunRule
from service.doors.settings import DoorSettings
from tailrace.logstore.batch import RunKey
from tailrace.logstore.errors import JournalFull, NodeNotReady, OverQuota, StoreUnavailable
from tests.service.doors.decoding import Found, decoded, only, stored
from tests.service.http.conftest import Serve, Served
from tests.service.http.memory_node import MemoryNode

TIME = 1_700_000_000_123_456_789
DAY = "2023-11-14"
PROTOBUF = "application/x-protobuf"
JSON = "application/json"


def text(value: str) -> AnyValue:
    return AnyValue(string_value=value)


def pairs(**values: AnyValue | str) -> list[KeyValue]:
    return [
        KeyValue(key=name.replace("__", "."), value=text(v) if isinstance(v, str) else v)
        for name, v in values.items()
    ]


def request(**resource: AnyValue | str) -> ExportLogsServiceRequest:
    made = ExportLogsServiceRequest()
    group = made.resource_logs.add()
    group.resource.attributes.extend(pairs(**resource))
    return made


def add(
    made: ExportLogsServiceRequest, body: AnyValue | str | None = "a line", **fields: Any
) -> Any:
    groups = made.resource_logs[0].scope_logs or [made.resource_logs[0].scope_logs.add()]
    record = groups[0].log_records.add(**{"time_unix_nano": TIME, **fields})
    if body is not None:
        record.body.CopyFrom(text(body) if isinstance(body, str) else body)
    return record


def as_json(made: ExportLogsServiceRequest, *, snake: bool = False) -> bytes:
    """The JSON of OTLP: ids are hexadecimal and not base64, enumerations are numbers."""
    value = json_format.MessageToDict(
        made, preserving_proto_field_name=snake, use_integers_for_enums=True
    )

    def walk(node: Any) -> None:
        for name, item in node.items() if isinstance(node, dict) else enumerate(node):
            if name in ("traceId", "spanId", "trace_id", "span_id"):
                node[name] = base64.b64decode(item).hex()
            elif isinstance(item, dict | list):
                walk(item)

    walk(value)
    return json.dumps(value).encode()


Encode = Callable[[ExportLogsServiceRequest], tuple[bytes, str]]
ENCODINGS: dict[str, Encode] = {
    "protobuf": lambda made: (made.SerializeToString(), PROTOBUF),
    "json": lambda made: (as_json(made), JSON),
    "snake": lambda made: (as_json(made, snake=True), JSON),
}


@pytest.fixture(params=ENCODINGS)
def encode(request: pytest.FixtureRequest) -> Encode:
    return ENCODINGS[request.param]


async def post(served: Served, body: bytes, kind: str = PROTOBUF, **more: str) -> httpx.Response:
    headers = {"content-type": kind, **{k.replace("_", "-"): v for k, v in more.items()}}
    return await served.client.post("/v1/logs", content=body, headers=headers)


def read(made: ExportLogsServiceRequest, encode: Encode) -> Found:
    """The records as the door decodes them."""
    body, kind = encode(made)
    return decoded(OtlpDoor(RunRule(DoorSettings())), "/v1/logs", body, content_type=kind)


async def test_a_record_is_stored_with_all_that_it_says(direct: Serve, encode: Encode) -> None:
    made = request(service__namespace="shop", service__name="cart", tailrace__run__id="7", host="h")
    scope = made.resource_logs[0].scope_logs.add().scope
    scope.name, scope.version = "lib", "1.2"
    scope.attributes.extend(pairs(part="x"))
    record = add(
        made,
        observed_time_unix_nano=TIME + 5,
        severity_number=10,
        severity_text="Notice!",
        trace_id=bytes(range(16)),
        span_id=bytes(range(8)),
        flags=1,
        event_name="sold",
        dropped_attributes_count=2,
    )
    record.attributes.extend(
        pairs(
            user="ann",
            count=AnyValue(int_value=-(1 << 62)),
            share=AnyValue(double_value=0.5),
            ok=AnyValue(bool_value=True),
            raw=AnyValue(bytes_value=b"\x00\xff"),
        )
    )
    several = record.attributes.add(key="several").value.array_value
    several.values.extend([text("a"), AnyValue(int_value=1), AnyValue()])
    inner = record.attributes.add(key="inner").value.kvlist_value
    inner.values.extend(pairs(a=AnyValue(double_value=float("inf")), b="c"))
    served = await direct()
    answer = await post(served, *encode(made))
    assert answer.status_code == 200, answer.text
    assert [batch.connector for batch in served.node.batches] == ["otlp/127.0.0.1"]
    assert stored(served) == {
        RunKey("shop/cart", "7"): [
            {
                "text": "a line\n",
                "ts": TIME // 1000,
                "level": "INFO",
                "attributes": {
                    "service.namespace": "shop",
                    "service.name": "cart",
                    "tailrace.run.id": "7",
                    "host": "h",
                    "otel.scope.name": "lib",
                    "otel.scope.version": "1.2",
                    "part": "x",
                    "user": "ann",
                    "count": str(-(1 << 62)),
                    "share": "0.5",
                    "ok": "true",
                    "raw": "AP8=",
                    "several": '["a",1,null]',
                    "inner": '{"a":"Infinity","b":"c"}',
                    "trace_id": bytes(range(16)).hex(),
                    "span_id": bytes(range(8)).hex(),
                    "flags": "1",
                    "event_name": "sold",
                    "dropped_attributes_count": "2",
                    "severity_text": "Notice!",
                    "severity_number": "10",
                    "time_unix_nano": str(TIME),
                    "observed_time_unix_nano": str(TIME + 5),
                },
            }
        ]
    }


@pytest.mark.parametrize(
    ("body", "line"),
    [
        (AnyValue(int_value=5), "5"),
        (AnyValue(bool_value=False), "false"),
        (AnyValue(bytes_value=b"ab"), "YWI="),
        (None, ""),
        ("two\nlines\n", "two\nlines\n"),
        ("grün \u2028 \x00", "grün \u2028 \x00"),
    ],
)
def test_a_body_is_a_message(encode: Encode, body: AnyValue | str | None, line: str) -> None:
    made = request(service__name="s")
    add(made, body)
    record = only(read(made, encode))
    assert record["text"] == line + "\n"


def test_a_body_that_is_a_map_stays_json(encode: Encode) -> None:
    made = request(service__name="s")
    record = add(made, None)
    record.body.kvlist_value.values.extend(pairs(a=AnyValue(int_value=1), b="ü"))
    found = only(read(made, encode))
    assert json.loads(found["text"]) == {"a": 1, "b": "ü"}


@pytest.mark.parametrize(
    ("number", "said", "level", "kept"),
    [
        (1, "", "TRACE", {}),
        (9, "INFO", "INFO", {}),
        (9, "info", "INFO", {}),
        (12, "INFO4", "INFO", {"severity_text": "INFO4", "severity_number": "12"}),
        (17, "oops", "ERROR", {"severity_text": "oops"}),
        (24, "", "FATAL", {"severity_number": "24"}),
        (0, "Warning", "WARN", {"severity_text": "Warning"}),
        (0, "strange", None, {"severity_text": "strange"}),
        (0, "", None, {}),
    ],
)
def test_severity_is_a_level(
    encode: Encode, number: int, said: str, level: str | None, kept: dict[str, str]
) -> None:
    made = request()
    add(made, severity_number=number, severity_text=said, time_unix_nano=TIME // 1000 * 1000)
    record = only(read(made, encode))
    assert (record["level"], record["attributes"]) == (level, kept)


@pytest.mark.parametrize(
    ("time", "observed", "ts", "kept"),
    [
        (TIME, 0, TIME // 1000, {"time_unix_nano": str(TIME)}),
        (0, 5000, 5, {"observed_time_unix_nano": "5000"}),
        (5000, 5000, 5, {}),
        (5000, 6000, 5, {"observed_time_unix_nano": "6000"}),
        (0, 0, None, {}),
    ],
)
def test_time_and_observed_time(
    encode: Encode, time: int, observed: int, ts: int | None, kept: dict[str, str]
) -> None:
    made = request()
    add(made, time_unix_nano=time, observed_time_unix_nano=observed)
    record = only(read(made, encode))
    assert (record["ts"], record["attributes"]) == (ts, kept)


def test_an_outer_attribute_whose_name_is_taken_gets_its_level(encode: Encode) -> None:
    made = request(a="resource", b="resource", trace_id="resource")
    made.resource_logs[0].scope_logs.add().scope.attributes.extend(pairs(a="scope", c="scope"))
    record = add(made, trace_id=bytes(16), time_unix_nano=5000)
    record.attributes.extend(pairs(a="own", c="own", span_id="own"))
    record.span_id = b"12345678"
    found = only(read(made, encode))
    assert found["attributes"] == {
        "a": "own",
        "scope.a": "scope",
        "resource.a": "resource",
        "b": "resource",
        "c": "own",
        "scope.c": "scope",
        "span_id": "own",
        "log.span_id": b"12345678".hex(),
        "trace_id": bytes(16).hex(),
        "resource.trace_id": "resource",
    }


async def test_records_of_many_runs_are_a_batch_each(direct: Serve, encode: Encode) -> None:
    made = request(service__name="s")
    for number in range(1000):
        add(made, f"line {number}").attributes.extend(pairs(tailrace__run__id=f"r{number % 3}"))
    served = await direct()
    assert (await post(served, *encode(made))).status_code == 200
    assert len(served.node.batches) == 3
    for run in range(3):
        lines = "".join(f"line {n}\n" for n in range(1000) if n % 3 == run)
        assert served.node.run_logs.whole(RunKey("s", f"r{run}")).decode() == lines


@pytest.mark.parametrize("coding", ["gzip", "zstd", "identity"])
async def test_a_body_may_be_compressed(direct: Serve, encode: Encode, coding: str) -> None:
    made = request(service__name="s")
    for number in range(3000):
        add(made, f"line {number} " + "x" * 50)
    body, kind = encode(made)
    if coding == "gzip":
        body = gzip.compress(body)
    elif coding == "zstd":
        body = zstandard.compress(body)
    served = await direct()
    answer = await post(served, body, kind, content_encoding=coding)
    assert answer.status_code == 200
    assert served.node.run_logs.whole(RunKey("s", DAY)).count(b"\n") == 3000


@pytest.mark.parametrize(("body", "kind"), [(b"", PROTOBUF), (b"{}", JSON)])
async def test_an_empty_request_is_answered_with_an_empty_response(
    direct: Serve, body: bytes, kind: str
) -> None:
    served = await direct()
    answer = await post(served, body, kind)
    assert (answer.status_code, answer.content) == (200, body)
    assert answer.headers["content-type"] == kind
    assert served.node.batches == []


async def test_a_record_that_cannot_be_stored_is_a_partial_success(
    direct: Serve, encode: Encode
) -> None:
    made = request(service__name="s")
    add(made, "good")
    add(made, "bad").attributes.extend(pairs(tailrace__run__id=".."))
    body, kind = encode(made)
    served = await direct()
    answer = await post(served, body, kind)
    assert answer.status_code == 200
    if kind == JSON:
        partial = answer.json()["partialSuccess"]
        assert partial["rejectedLogRecords"] == "1"
        assert "is a folder" in partial["errorMessage"]
    else:
        response = ExportLogsServiceResponse.FromString(answer.content)
        assert response.partial_success.rejected_log_records == 1
        assert "is a folder" in response.partial_success.error_message
    assert served.node.run_logs.whole(RunKey("s", DAY)) == b"good\n"
    assert served.counters.door_refused == {"otlp": 1}


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (NodeNotReady("no"), 503),
        (JournalFull("no"), 503),
        (StoreUnavailable("no"), 503),
        (OverQuota("no"), 429),
    ],
)
async def test_what_cannot_be_stored_now_is_sent_again_by_the_client(
    direct: Serve, encode: Encode, error: Exception, status: int
) -> None:
    made = request()
    add(made)
    body, kind = encode(made)
    served = await direct(MemoryNode(refusal=error))
    answer = await post(served, body, kind)
    assert answer.status_code == status
    assert int(answer.headers["retry-after"]) > 0
    assert answer.headers["content-type"] == kind
    assert code_of(answer) in (8, 14)


def code_of(answer: httpx.Response) -> int:
    """The code in a google.rpc.Status."""
    if answer.headers["content-type"] == JSON:
        assert answer.json()["message"]
        return int(answer.json()["code"])
    assert answer.content[0] == 8, "field 1, a number"
    assert answer.content[2] == 18, "field 2, a text"
    return answer.content[1]


def _length(size: int) -> bytes:
    found = b""
    while size > 0x7F:
        found, size = found + bytes((size & 0x7F | 0x80,)), size >> 7
    return found + bytes((size,))


def _inside(body: bytes, *numbers: int) -> bytes:
    for number in numbers:
        body = bytes((number << 3 | 2,)) + _length(len(body)) + body
    return body


def _nested(depth: int) -> bytes:
    value = _inside(b"x", 1)
    for _ in range(depth):
        value = _inside(value, 1, 5)
    return _inside(value, 5, 2, 2, 1)


def _whole() -> bytes:
    made = request(service__name="s")
    add(made)
    return bytes(made.SerializeToString())


def _json(record: object) -> bytes:
    return json.dumps({"resourceLogs": [{"scopeLogs": [{"logRecords": [record]}]}]}).encode()


def _deep(depth: int) -> bytes:
    inner = '{"arrayValue":{"values":[' * depth + "{}" + "]}}" * depth
    return _json("@").replace(b'"@"', b'{"body":%b}' % inner.encode())


BAD = {
    "cut": (_whole()[:-3], PROTOBUF, 400),
    "cut in a length": (b"\x0a\xff\xff", PROTOBUF, 400),
    "endless varint": (b"\x0a" + b"\xff" * 20, PROTOBUF, 400),
    "a group": (b"\x0b\x0c", PROTOBUF, 400),
    "field 0": (b"\x02\x00", PROTOBUF, 400),
    "no protobuf": (b"hello world", PROTOBUF, 400),
    "json as protobuf": (b'{"resourceLogs":[]}', PROTOBUF, 400),
    "nested": (_nested(300), PROTOBUF, 400),
    "not UTF-8": (_whole().replace(b"a line", b"\xff" * 6), PROTOBUF, 400),
    "cut JSON": (_json({})[:-2], JSON, 400),
    "no object": (b"[]", JSON, 400),
    "a wrong list": (b'{"resourceLogs": {}}', JSON, 400),
    "a wrong record": (_json(5), JSON, 400),
    "a wrong time": (_json({"timeUnixNano": "x"}), JSON, 400),
    "a negative time": (_json({"timeUnixNano": -1}), JSON, 400),
    "a fraction": (_json({"timeUnixNano": 1.5}), JSON, 400),
    "a huge number": (_json({"timeUnixNano": "9" * 30}), JSON, 400),
    "a flag for a number": (_json({"severityNumber": True}), JSON, 400),
    "a trace id in base64": (_json({"traceId": "AAECAwQFBgcICQoLDA0ODw=="}), JSON, 400),
    "a short span id": (_json({"spanId": "ab"}), JSON, 400),
    "a wrong value": (_json({"body": {"intValue": "x"}}), JSON, 400),
    "a wrong key": (_json({"attributes": [{"key": 1}]}), JSON, 400),
    "deep JSON": (_deep(200), JSON, 400),
    "very deep JSON": (b"[" * 100_000, JSON, 400),
    "other media": (b"", "text/plain", 415),
    "no media": (b"", "", 415),
}


async def test_bad_input_is_refused_and_nothing_is_stored(direct: Serve) -> None:
    served = await direct()
    for case, (body, kind, status) in BAD.items():
        answer = await post(served, body, kind)
        assert answer.status_code == status, (case, answer.content)
        assert answer.headers["content-type"] == (JSON if kind == JSON else PROTOBUF), case
        assert code_of(answer) == 3, case
        assert served.node.batches == [], case


@pytest.mark.parametrize(
    ("body", "coding", "status"),
    [
        (b"no gzip", "gzip", 400),
        (gzip.compress(b"x" * 100)[:-5], "gzip", 400),
        (b"", "br", 415),
        (gzip.compress(bytes(5 << 20)), "gzip", 413),
    ],
    ids=["no gzip", "cut", "unknown", "large"],
)
async def test_a_wrong_compression_is_refused(
    direct: Serve, body: bytes, coding: str, status: int
) -> None:
    served = await direct(max_text_bytes=4 << 20)
    answer = await post(served, body, content_encoding=coding)
    assert answer.status_code == status
    assert served.node.batches == []


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(_inside(b"\x32\x00" * (2 << 20), 2, 2, 1), id="attributes"),
        pytest.param(_inside(b"\x0a\x00" * (2 << 20), 1, 1), id="resource"),
        pytest.param(
            _inside(struct.pack("<BQ", 9, 1) + _inside(bytes(3 << 20), 1, 5), 2, 2, 1), id="text"
        ),
    ],
)
async def test_one_record_has_a_limit(direct: Serve, body: bytes) -> None:
    served = await direct()
    answer = await post(served, body)
    assert answer.status_code == 413
    assert served.node.batches == []


async def test_a_request_has_a_limit_of_runs(direct: Serve) -> None:
    made = request()
    for number in range(1001):
        add(made).attributes.extend(pairs(tailrace__run__id=f"r{number}"))
    served = await direct()
    assert (await post(served, made.SerializeToString())).status_code == 413
    assert served.node.batches == []


async def test_values_of_json_have_a_limit(direct: Serve) -> None:
    served = await direct()
    answer = await post(served, b'{"x":[' + b"[]," * 500_001 + b"[]]}", JSON)
    assert answer.status_code == 413


async def test_a_closed_door_is_no_route(direct: Serve) -> None:
    served = await direct(otlp=False)
    assert (await post(served, b"")).status_code == 404
