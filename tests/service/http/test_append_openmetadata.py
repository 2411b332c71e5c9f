"""What OpenMetadata's clients put into a body, and what its resource answers to it."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from service.http.targets import echoed, run_tag
from tailrace.logstore.batch import RunKey
from tests.gzipped import gzipped
from tests.service.http.conftest import Serve

JSON = {"content_type": "application/json"}
RUN = RunKey("p", "r")


def body(**content: Any) -> bytes:
    return json.dumps(content).encode()


@pytest.mark.parametrize(
    "sent",
    [
        b"7",
        b"null",
        b"true",
        b'["a"]',
        b'{"logs":7}',
        b'{"logs":["a"]}',
        b'{"logs":{"a":1}}',
        b'{"logs":"a","compressed":"yes"}',
        b'{"logs":"a","connectorId":7}',
    ],
)
async def test_json_of_another_shape_is_refused_in_upstreams_words(
    direct: Serve, sent: bytes
) -> None:
    served = await direct()
    response = await served.post("/p/r", sent, **JSON)
    assert response.status_code == 400
    assert response.json()["code"] == 400
    assert response.json()["message"].startswith("Invalid log data format")
    assert served.node.batches == []


@pytest.mark.parametrize(
    "logs",
    [
        "not base64!",
        base64.b64encode(b"not gzip").decode(),
        base64.b64encode(gzipped(b"cut short" * 99)[:-9]).decode(),
        base64.b64encode(gzipped(b"a\n")).decode()[:-2],
    ],
)
async def test_what_cannot_be_unpacked_is_refused_and_nothing_of_it_stored(
    direct: Serve, logs: str
) -> None:
    """Upstream stores the base64 as if it were the text."""
    served = await direct()
    response = await served.post("/p/r", body(logs=logs, compressed=True), **JSON)
    assert response.status_code == 400
    assert response.json()["code"] == 400
    assert response.json()["message"]
    assert served.node.batches == []


@pytest.mark.parametrize(
    "sent",
    [
        body(connectorId="h-1", timestamp=1),
        body(connectorId="h-1", timestamp=1, logs=""),
        body(logs=None),
        body(logs="", compressed=True),
        body(),
    ],
)
async def test_without_logs_it_is_taken_and_does_nothing(direct: Serve, sent: bytes) -> None:
    served = await direct()
    response = await served.post("/p/r", sent, **JSON)
    assert (response.status_code, response.json()["lines"]) == (200, 0)
    assert response.headers["set-cookie"].startswith("PIPELINE_SESSION=p_r;")
    assert served.node.batches == []


@pytest.mark.parametrize("line_count", [1, 3, -1, "many", None, [2]])
@pytest.mark.parametrize("timestamp", [1, "now", None])
async def test_line_count_and_timestamp_are_read_past(
    direct: Serve, line_count: object, timestamp: object
) -> None:
    served = await direct()
    sent = body(logs="a\nb\n", connectorId="h-1", lineCount=line_count, timestamp=timestamp)
    response = await served.post("/p/r", sent, **JSON)
    assert (response.status_code, response.json()["lines"]) == (200, 2)
    [batch] = served.node.batches
    assert (batch.text, batch.lines, batch.connector) == (b"a\nb\n", 2, "h-1")


async def test_the_opening_call_is_told_to_the_node_and_answered_with_an_echo(
    direct: Serve,
) -> None:
    served = await direct()
    opening = await served.post("/p/r", body(connectorId="h-1", timestamp=1), **JSON)
    assert served.node.opened == [(RUN, "h-1")]
    assert opening.json()["last"] is None
    [cookie] = [c for c in opening.headers.get_list("set-cookie") if c.startswith("tailrace=")]
    below = echoed(cookie.encode(), run_tag(RUN))
    first = await served.post("/p/r", body(connectorId="h-1", logs="a\n"), **JSON)
    [batch] = served.node.batches
    assert batch.above == below > 0
    assert first.json()["last"] > cookie.removeprefix("tailrace=")


@pytest.mark.parametrize(
    "sent",
    [
        body(connectorId="h-1", timestamp=1, logs=""),
        body(connectorId="h-1", timestamp=1, logs=None),
        body(connectorId="h-1"),
        body(timestamp=1),
        body(connectorId="", timestamp=1),
        b'""',
    ],
)
async def test_other_calls_without_logs_open_nothing(direct: Serve, sent: bytes) -> None:
    served = await direct()
    assert (await served.post("/p/r", sent, **JSON)).status_code == 200
    assert served.node.opened == []


async def test_a_node_that_is_stopping_says_so_to_an_opening_call(direct: Serve) -> None:
    served = await direct()
    served.node.ready = False
    response = await served.post("/p/r", body(connectorId="h-1", timestamp=1), **JSON)
    assert (response.status_code, response.json()["code"]) == (503, 503)


@pytest.mark.parametrize(
    ("sent", "prefix", "text"),
    [
        (body(logs="a\nb\n", connectorId="h-1"), b"[h-1] ", b"a\nb\n"),
        (body(logs="a", connectorId="h-1"), b"[h-1] ", b"a\n"),
        (body(logs="\n", connectorId="ü"), "[ü] ".encode(), b"\n"),
        (body(logs="a\n", connectorId="h\n1"), b"[h 1] ", b"a\n"),
        (body(logs="a\n"), b"", b"a\n"),
        (b'"a"', b"", b"a\n"),
        (
            body(
                logs=base64.b64encode(gzipped(b"a\nb")).decode(),
                compressed=True,
                connectorId="h-1",
            ),
            b"[h-1] ",
            b"a\nb\n",
        ),
    ],
)
@pytest.mark.parametrize("on", [True, False])
async def test_a_batch_may_begin_with_its_connector_as_upstream_stores_it(
    direct: Serve, sent: bytes, prefix: bytes, text: bytes, on: bool
) -> None:
    served = await direct(prefix_connector=on)
    response = await served.post("/p/r", sent, **JSON)
    [batch] = served.node.batches
    assert batch.text == (prefix + text if on else text)
    assert batch.lines == batch.records == text.count(b"\n") == response.json()["lines"]


async def test_a_batch_with_its_connector_in_front_is_the_same_when_sent_again(
    direct: Serve,
) -> None:
    served = await direct(prefix_connector=True)
    sent = body(logs="a\n", connectorId="h-1")
    for duplicate in (False, True):
        response = await served.post(
            "/p/r", sent, tailrace_batch="01HZZZZZZZZZZZZZZZZZZ00000", **JSON
        )
        assert response.json()["duplicate"] is duplicate
    assert [batch.text for batch in served.node.batches] == [b"[h-1] a\n"]
