"""One request to a server: what each answer means."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace

import pytest

from tailrace.forwarder.delivery.targets import (
    Again,
    CloseRun,
    Question,
    Shipment,
    Task,
    Verdict,
    perform,
)
from tailrace_client.service import Service
from tests.client.answering import Asked, Given, answering

BATCH = "01M8431QHH9H0AQHNATVQ00000"
SHIPMENT = Shipment("f", "shop.orders", "run-1", BATCH, b"hello\n", "text/plain")
RECEIPT = {"batch": BATCH, "lines": 1, "duplicate": False, "durability": "durable", "last": BATCH}
THERE = b'{"ulid":"%s"}\n{"stats":{"complete":true}}\n' % BATCH.encode()
NOT_THERE = b'{"stats":{"complete":true}}\n'


def problem(status: int, kind: str, **headers: str) -> Given:
    body = {"type": kind, "title": kind, "status": status, "detail": f"it is {kind}"}
    return Given(status, headers, json.dumps(body).encode())


def done(task: Task, answer: Callable[[Asked], Given], durability: str = "") -> Verdict:
    with answering(answer) as url:
        return perform(task, Service(url, compress=False), durability=durability)


def test_a_receipt_acknowledges_and_the_request_is_as_documented() -> None:
    seen: list[Asked] = []

    def answer(asked: Asked) -> Given:
        seen.append(asked)
        return Given(200, {}, json.dumps({**RECEIPT, "duplicate": len(seen) > 1}).encode())

    assert done(SHIPMENT, answer) == Verdict("acknowledged", BATCH)
    assert done(SHIPMENT, answer, durability="bulk") == Verdict(
        "acknowledged", BATCH, duplicate=True
    )
    first, second = seen
    assert (first.method, first.body) == ("POST", b"hello\n")
    assert first.path.endswith("/logs/shop.orders/run-1")
    assert first.headers["tailrace-batch"] == BATCH
    assert first.headers["content-type"].startswith("text/plain")
    assert "tailrace-durability" not in first.headers
    assert second.headers["tailrace-durability"] == "bulk"


@pytest.mark.parametrize(
    ("status", "kind", "verdict"),
    [
        (409, "run-deleted", "deleted"),
        (409, "batch-conflict", "conflict"),
        (400, "invalid-input", "refused"),
        (413, "too-large", "refused"),
        (415, "unsupported", "refused"),
        (422, "invalid-input", "refused"),
    ],
)
def test_a_definite_answer_is_a_verdict(status: int, kind: str, verdict: str) -> None:
    found = done(SHIPMENT, lambda _: problem(status, kind))
    assert (found.kind, found.batch) == (verdict, BATCH)
    assert f"it is {kind}" in found.reason


@pytest.mark.parametrize(
    ("status", "of_place"),
    [
        *((status, True) for status in (401, 403, 404, 408, 421, 425, 429, 502, 503, 504, 507)),
        (500, False),
        (501, False),
        (302, True),
    ],
)
@pytest.mark.parametrize(
    "task", [SHIPMENT, Question("f", "a", "r", BATCH), CloseRun("f", "a", "r")]
)
def test_anything_else_is_asked_again(status: int, of_place: bool, task: Task) -> None:
    with pytest.raises(Again) as again:
        done(task, lambda _: problem(status, "some", **{"Retry-After": "7"}))
    assert again.value.of_place is of_place
    assert again.value.token is (status in (401, 403))
    if status == 429:
        assert again.value.retry_after == 7


@pytest.mark.parametrize("status", [400, 409, 413, 414, 422, 431])
def test_a_refusal_that_is_not_the_services_own_is_no_verdict(status: int) -> None:
    """A proxy that takes smaller bodies says nothing of the batch: it is said, and tried again."""
    with pytest.raises(Again, match=str(status)) as again:
        done(SHIPMENT, lambda _: Given(status, {}, b"<html>413 Request Entity Too Large</html>"))
    assert again.value.of_place


def test_no_answer_is_of_the_place() -> None:
    with answering(lambda _: Given(200, {})) as url:
        pass
    with pytest.raises(Again, match="no answer") as again:
        perform(SHIPMENT, Service(url))
    assert again.value.of_place


def test_an_answer_that_is_no_receipt_is_no_acknowledgement() -> None:
    with pytest.raises(Again, match="not a receipt"):
        done(SHIPMENT, lambda _: Given(200, {}, b"<html>welcome</html>"))


def test_lines_go_as_records_where_their_attributes_are_not_taken() -> None:
    """Services from before `Tailrace-Attributes` answer so, or those whose proxy drops it."""
    seen: list[Asked] = []

    def answer(asked: Asked) -> Given:
        seen.append(asked)
        if "attributes=header" in asked.headers["content-type"]:
            return problem(415, "unsupported-media-type")
        return Given(200, {}, json.dumps(RECEIPT).encode())

    shared = {"k": "ü \\ \n"}
    text = 'a "q" \\ \r\n\nü \u2028\n'
    task = replace(SHIPMENT, body=text.encode(), attributes=json.dumps(shared))
    found = done(task, answer)
    assert (found.kind, found.batch) == ("acknowledged", BATCH)
    assert "Tailrace-Attributes" in found.reason
    lines, records = seen
    assert lines.body == text.encode()
    assert json.loads(lines.headers["tailrace-attributes"]) == shared
    assert records.headers["content-type"] == "application/x-ndjson"
    assert "tailrace-attributes" not in records.headers
    assert lines.headers["tailrace-batch"] == records.headers["tailrace-batch"] == BATCH
    assert [json.loads(line) for line in records.body.splitlines()] == [
        {"message": message, "attributes": shared} for message in text.split("\n")[:-1]
    ]
    with pytest.raises(Again, match="too many") as again:  # as records they may be refused for ever
        done(replace(task, body=b"\n" * 400_000), answer)
    assert again.value.of_place


def test_what_takes_neither_lines_nor_records_refuses() -> None:
    task = replace(SHIPMENT, attributes='{"k":"v"}')
    assert done(task, lambda _: problem(415, "unsupported-media-type")).kind == "refused"


@pytest.mark.parametrize("kind", ["batch-too-old", "batch-from-the-future"])
def test_an_id_whose_time_is_refused_is_asked_for(kind: str) -> None:
    pages: list[Given] = []

    def answer(asked: Asked) -> Given:
        if asked.method == "GET":
            assert f"at={BATCH}" in asked.path
            return pages.pop(0)
        return problem(400, kind)

    pages = [Given(200, {}, THERE)]
    assert done(SHIPMENT, answer) == Verdict("acknowledged", BATCH, duplicate=True)
    for page in (Given(200, {}, NOT_THERE), problem(404, "not-found")):
        pages = [page]
        found = done(SHIPMENT, answer)
        assert (found.kind, found.batch) == ("renew", BATCH)
        assert found.service_ms is not None
    for page in (
        *(Given(200, {}, body) for body in (b"", b'{"error":{"type":"x"}}\n', THERE[40:], b"[]\n")),
        Given(200, {}, b'{"ulid":"other"}\n'),
        *(problem(404, "no-route"), problem(503, "busy"), problem(500, "failed")),
    ):
        pages = [page]
        with pytest.raises(Again):
            done(SHIPMENT, answer)


def test_whether_a_run_has_a_batch() -> None:
    question = Question("f", "shop.orders", "run-1", BATCH)
    assert done(question, lambda _: Given(200, {}, THERE)).kind == "present"
    assert done(question, lambda _: Given(200, {}, NOT_THERE)).kind == "missing"
    assert done(question, lambda _: problem(404, "not-found")).kind == "missing"
    with pytest.raises(Again):  # a refusal says nothing of the batch
        done(question, lambda _: problem(400, "invalid-input"))


def test_a_run_is_closed_with_its_outcome() -> None:
    seen: list[Asked] = []

    def answer(asked: Asked) -> Given:
        seen.append(asked)
        return Given(200, {}, b'{"state":"closed"}')

    assert done(CloseRun("f", "a", "r", "failed"), answer) == Verdict("closed")
    assert [asked.method for asked in seen] == ["PUT", "POST"]
    assert json.loads(seen[0].body)["pipelineState"] == "failed"
    gone = done(CloseRun("f", "a", "r"), lambda _: problem(404, "not-found"))
    assert gone.kind == "closed"


def test_a_name_that_cannot_be_is_refused_without_a_request() -> None:
    empty = Shipment("f", "", "run-1", BATCH, b"x\n", "text/plain")
    assert done(empty, lambda _: Given(500, {})).kind == "refused"
