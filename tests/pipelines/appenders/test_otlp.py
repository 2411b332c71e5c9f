"""OTLP/HTTP: requests are read by OpenTelemetry's own definitions, strictly."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from google.protobuf.json_format import ParseDict, ParseError
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from orjson import loads

from tailrace.logstore.clock import SystemClock
from tailrace.logstore.filesystem import Disk
from tailrace.pipelines.appenders.contract import AppenderContext, AppenderFailed
from tailrace.pipelines.appenders.otlp import Otlp, OtlpSettings
from tests.pipelines.appenders.receiver import Receiver
from tests.pipelines.events import BASE_MS, events


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver().running() as found:
        yield found


def appender(receiver: Receiver, **more: Any) -> Otlp:
    made = Otlp(OtlpSettings(url=f"{receiver.url}/v1/logs", allow_private=True, **more))
    made.start(AppenderContext("p", "x", 0, 1, Disk(), SystemClock(), lambda: True), None)
    return made


def decoded(body: bytes) -> Any:
    """The request; OTLP writes ids in hex where Protobuf's JSON has base64, so they are left out.

    Raises `ParseError` for a field that is not known, or of a wrong type.
    """
    value = loads(body)
    for resource in value["resourceLogs"]:
        for scope in resource["scopeLogs"]:
            for record in scope["logRecords"]:
                for name in ("traceId", "spanId"):
                    if name in record:
                        record[name] = ""
    return ParseDict(value, ExportLogsServiceRequest(), ignore_unknown_fields=False)


def values(attributes: Any) -> dict[str, str]:
    return {one.key: one.value.string_value for one in attributes}


def test_the_decoder_is_strict() -> None:
    with pytest.raises(ParseError):
        ParseDict({"resourceLog": []}, ExportLogsServiceRequest())


@pytest.mark.parametrize("compression", ["gzip", "none"])
def test_records_are_log_records_of_their_run(receiver: Receiver, compression: str) -> None:
    trace = {
        "trace_id": "0af7651916cd43dd8448eb211c80319c",
        "span_id": "b7ad6b7169203331",
        "k": "v",
    }
    table = pa.concat_tables(
        [
            events(["größer\nzwei"], fqn="a.b", run="r1", level="WARN", attributes=trace),
            events(["x"], fqn="a.b", run="r2", level=None, at_ms=BASE_MS + 1),
        ]
    )
    otlp = appender(receiver, compression=compression)
    otlp.append(table)
    assert otlp.sync() == {"rejected": 0}
    otlp.stop()
    (request,) = receiver.requests
    assert request.path == "/v1/logs"
    assert request.headers["content-type"] == "application/json"
    first, second = decoded(request.body).resource_logs
    assert values(first.resource.attributes) == {"service.name": "a.b", "tailrace.run.id": "r1"}
    (record,) = first.scope_logs[0].log_records
    assert record.body.string_value == "größer\nzwei"
    assert (record.severity_text, record.severity_number) == ("WARN", 13)
    assert record.time_unix_nano == record.observed_time_unix_nano == BASE_MS * 1_000_000
    assert values(record.attributes) == {**trace, "log.record.uid": table.column("ulid")[0].as_py()}
    written = loads(request.body)["resourceLogs"][0]["scopeLogs"][0]["logRecords"][0]
    assert (written["traceId"], written["spanId"]) == (trace["trace_id"], trace["span_id"])
    (plain,) = second.scope_logs[0].log_records
    assert (plain.severity_text, plain.severity_number) == ("", 0)


def test_what_is_out_of_order_says_so(receiver: Receiver) -> None:
    otlp = appender(receiver)
    otlp.append(events(["a", "b"]).append_column("order", pa.array([None, "forced"])))
    (resource,) = decoded(receiver.requests[0].body).resource_logs
    said = [
        values(one.attributes).get("tailrace.order") for one in resource.scope_logs[0].log_records
    ]
    assert said == [None, "forced"]


def test_ids_that_are_none_are_left_out(receiver: Receiver) -> None:
    otlp = appender(receiver)
    otlp.append(events(["x"], attributes={"trace_id": "0" * 32, "span_id": "xyz"}))
    (record,) = loads(receiver.requests[0].body)["resourceLogs"][0]["scopeLogs"][0]["logRecords"]
    assert "traceId" not in record
    assert "spanId" not in record


def test_rejected_records_are_refused_and_failures_are_failures(receiver: Receiver) -> None:
    """Which of three were rejected is not said: all are dead letters."""
    refused = []

    def refuse(some: pa.Table, reason: str, detail: str = "") -> None:
        refused.append((some.column("message").to_pylist(), reason.partition(" ")[2], detail))

    otlp = appender(receiver)
    otlp.start(
        AppenderContext("p", "x", 0, 1, Disk(), SystemClock(), lambda: True, refuse=refuse), None
    )
    partial = b'{"partialSuccess":{"rejectedLogRecords":"2","errorMessage":"too old"}}'
    receiver.answers = [(200, {}, partial), (429, {}, b""), (200, {}, b"\x00 no JSON")]
    otlp.append(events(["a", "b", "c"]))
    with pytest.raises(AppenderFailed, match="answered 429"):
        otlp.append(events(["d"]))
    otlp.append(events(["d"]))
    assert otlp.sync() == {"rejected": 2}
    assert refused == [(["a", "b", "c"], "rejected 2 of 3 records", "too old")]
    otlp.stop()
