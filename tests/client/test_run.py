"""Runs of the client at the real service: append, close, pages, tail, and clear errors."""

from __future__ import annotations

import gzip
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

import tailrace_client as client
from service.http.errors import problem
from tailrace.logstore import errors as theirs
from tailrace.logstore import ulid
from tailrace_client import BatchIds, Receipt, Run
from tailrace_client.errors import BatchConflict, InvalidRequest, TailraceError, from_answer
from tailrace_client.system import RetryPause, parse_retry_after
from tests.client.answering import Asked, Given, answering
from tests.client.programs import FQN, messages, records, state_of
from tests.e2e.service_process import BASE, ServiceProcess
from tests.faults.kinds import KNOWABLE, Kind
from tests.faults.schedule import Schedule, evenly
from tests.faults.thread import fault_proxy

TOKEN = "a-secret-that-nobody-may-see"


@contextmanager
def a_run(url: str, name: str, **more: object) -> Iterator[Run]:
    with Run(url, FQN, name, report=False, **more) as run:  # type: ignore[arg-type]
        yield run


def test_all_lines_of_a_text_have_its_attributes(service: ServiceProcess) -> None:
    shared = {"host": "web-ü", "region": "eu"}
    with a_run(service.url, "attributes") as run:
        receipt = run.append("a\nb\n", attributes=shared)
        assert receipt is not None
        run.append(lines=["c"], attributes={})
        assert [(r.message, r.attributes) for page in run.pages() for r in page.records] == [
            ("a", shared),
            ("b", shared),
            ("c", None),
        ]
        again = run.append("a\nb\n", attributes=shared, batch=receipt.batch)
        assert again is not None
        assert again.duplicate
        with pytest.raises(BatchConflict):
            run.append("a\nb\n", attributes={"host": "web-2"}, batch=receipt.batch)
        for refused in ({"k": "v" * 4096}, {str(number): "" for number in range(65)}):
            with pytest.raises(InvalidRequest, match="attributes"):
                run.append("a\n", attributes=refused)
        with pytest.raises(InvalidRequest, match="of their own"):
            run.append(records=[{"message": "a"}], attributes=shared)


def test_attributes_of_lines_are_never_dropped_by_an_old_service() -> None:
    seen: list[Asked] = []

    def answer(asked: Asked) -> Given:
        seen.append(asked)
        refused = "attributes=header" in asked.headers.get("content-type", "")
        value = {"type": "unsupported-media-type"} if refused else receipt
        return Given(415 if refused else 200, {}, json.dumps(value).encode())

    batch = BatchIds().mint()
    receipt = Receipt(batch, 2, False, "durable", batch)._asdict()
    with answering(answer) as url, a_run(url, "old", compress=False) as run:
        assert run.append("a\nb", attributes={"k": "ü"}, batch=batch) is not None
    assert [asked.headers["tailrace-batch"] for asked in seen[:2]] == [batch] * 2
    assert [json.loads(line) for line in seen[1].body.splitlines()] == [
        {"message": "a", "attributes": {"k": "ü"}},
        {"message": "b", "attributes": {"k": "ü"}},
    ]


def test_each_form_of_an_append(service: ServiceProcess) -> None:
    with Run(service.url, FQN, "forms") as run:
        first = run.append("one\ntwo")
        assert first is not None
        assert (first.lines, first.duplicate, first.durability) == (2, False, "durable")
        run.append(lines=["three", "", "vier ü\u2028\r"], durability="fast")
        record = {"message": "a\nb", "level": "WARN", "ts": 5, "attributes": {"k": "v"}}
        run.append(records=[record, {"message": "c"}])
        assert run.append("") is run.append(lines=[]) is run.append(records=[]) is None
    expected = ["one", "two", "three", "", "vier ü\u2028\r", "a\nb", "c"]
    assert messages(service.url, "forms") == expected
    stored = records(service.url, "forms")
    assert stored[0]["ulid"] == first.batch
    assert (stored[5]["level"], stored[5]["attributes"]) == ("WARN", {"k": "v"})
    assert stored[5]["ts"] == "1970-01-01T00:00:05.000000Z"
    assert state_of(service.url, "forms") == ("closed", "success")


def test_names_of_every_sort(service: ServiceProcess) -> None:
    for fqn, name in [("a/b c", "x"), ("p#?%", "close"), ("ü", "stream"), ("p", "a/b")]:
        with Run(service.url, fqn, name) as run:
            run.append("line\n")
            (page,) = run.pages()
            assert [record.message for record in page.records] == ["line"]
        assert [record.message for record in run.tail("0")] == ["line"]


def test_pages_and_tail_give_each_record_once(service: ServiceProcess) -> None:
    with a_run(service.url, "read") as run:
        for number in range(40):
            run.append(records=[{"message": f"{number}\nmore"}, {"message": f"{number}b"}])
    expected = [text for n in range(40) for text in (f"{n}\nmore", f"{n}b")]
    pages = list(run.pages(limit=7))
    assert len(pages) > 5
    assert [record.message for page in pages for record in page.records] == expected
    assert [record.message for page in run.pages(pages[2].after) for record in page.records] == [
        record.message for page in pages[3:] for record in page.records
    ]
    followed = list(run.tail(after="0"))
    assert [record.message for record in followed] == expected
    for at in (0, 13, 14, 78):
        rest = [record.message for record in run.tail(followed[at].cursor)]
        assert rest == expected[at + 1 :]


@pytest.mark.in_turn(4)
def test_the_live_view_goes_on_over_lost_connections_and_a_killed_service(tmp_path: Path) -> None:
    service = ServiceProcess(tmp_path / "node")
    service.start()
    followed: list[str] = []

    def follow(url: str) -> None:
        followed.extend(record.message for record in Run(url, FQN, "live").tail("0"))

    schedule = Schedule(3, {Kind.CUT_RESPONSE: 0.5})
    with fault_proxy(service.url, schedule) as url, a_run(service.url, "live") as run:
        run.append("first\n")
        thread = threading.Thread(target=follow, args=(url,))
        thread.start()
        for number in range(30):
            run.append(f"line {number}\n")
            if number == 15:
                service.kill()
                service.start()
        run.close()
        thread.join(timeout=120)
    assert followed == ["first", *(f"line {number}" for number in range(30))]
    service.stop()


def test_each_batch_once_behind_a_bad_network(service: ServiceProcess) -> None:
    kinds = [kind for kind in KNOWABLE if kind is not Kind.ERROR_IN_200]
    schedule = Schedule(7, evenly(0.5, kinds))
    receipts: list[Receipt | None] = []
    with fault_proxy(service.url, schedule) as url, a_run(url, "faults") as run:
        receipts.extend(run.append(f"line {number}\n") for number in range(60))
    assert messages(service.url, "faults") == [f"line {number}" for number in range(60)]
    assert sum(schedule.injected.values()) > 10
    assert any(receipt and receipt.duplicate for receipt in receipts)


def test_an_error_names_the_batch_that_may_be_sent_again(service: ServiceProcess) -> None:
    schedule = Schedule()
    with fault_proxy(service.url, schedule) as url, a_run(url, "again") as run:
        run.retry_seconds = 0
        schedule.plan(Kind.DROPPED)
        with pytest.raises(client.Unavailable, match="no answer from") as lost:
            run.append("line\n")
        assert lost.value.batch is not None
        receipt = run.append("line\n", batch=lost.value.batch)
        assert receipt is not None
        assert receipt.duplicate
    assert messages(service.url, "again") == ["line"]


def test_what_the_service_refuses_says_what_to_do(service: ServiceProcess) -> None:
    with a_run(service.url, "refused") as run:
        used = run.append("one\n")
        assert used is not None
        with pytest.raises(client.BatchConflict, match="under a new id"):
            run.append("two\n", batch=used.batch)
        now = ulid.time_ms(ulid.decode(used.batch))
        old = BatchIds(now_ms=lambda: now - 8 * 86_400_000).mint()
        with pytest.raises(client.BatchTooOld, match="new batch id"):
            run.append("old\n", batch=old)
        early = BatchIds(now_ms=lambda: now + 3_600_000).mint()
        with pytest.raises(client.BatchFromTheFuture, match="clock") as future:
            run.append("early\n", batch=early)
        assert future.value.service_ms is not None
        assert abs(future.value.service_ms - now) < 3_600_000
        httpx.delete(f"{service.url}{BASE}/{FQN}/refused", timeout=60)
        with pytest.raises(client.RunDeleted, match="new batch id"):
            run.append("one\n", batch=used.batch)
        with pytest.raises(client.InvalidRequest, match="a record has no `message`"):
            run.append(records=[{"text": "x"}])
        with pytest.raises(client.InvalidRequest, match="one of text, lines and records"):
            run.append("x", lines=["y"])
        with pytest.raises(client.InvalidRequest, match="One of fast, durable, bulk"):
            run.append("x", durability="maybe")
        with pytest.raises(client.InvalidRequest, match="not a batch id"):
            run.append("x", batch="01M8431QHH9H0AQHNATVQ00001")
        with pytest.raises(client.InvalidRequest, match="not an outcome"):
            run.close("fine")
    with pytest.raises(client.NotFound), a_run(service.url + "/nowhere", "r") as run:
        run.append("x")


def test_every_problem_of_the_service_has_its_exception() -> None:
    special = {
        theirs.BatchTooOld: client.BatchTooOld,
        theirs.BatchFromTheFuture: client.BatchFromTheFuture,
        theirs.BatchConflict: client.BatchConflict,
        theirs.RunDeleted: client.RunDeleted,
        theirs.TooLarge: client.TooLarge,
        theirs.NotFound: client.NotFound,
        theirs.NotAuthenticated: client.NotAuthorized,
        theirs.Forbidden: client.NotAuthorized,
    }
    pending: list[type[theirs.TailraceError]] = [theirs.TailraceError]
    while pending:
        cls = pending.pop()
        pending += [one for one in cls.__subclasses__() if one.__module__ == theirs.__name__]
        answer = problem(cls("it is so"), "request-7")
        error = from_answer(answer.status, answer.body)
        assert error.message == "it is so"
        assert (error.status, error.request_id) == (answer.status, "request-7")
        assert error.hint
        again = answer.status >= 500 or answer.status == 429
        expected = special.get(cls, client.Unavailable if again else client.InvalidRequest)
        assert type(error) is expected, cls


def test_pauses_are_what_was_asked_for_or_longer() -> None:
    backoff = RetryPause(first=1, longest=8, random_bits=lambda bits: (1 << bits) - 1)
    assert [round(backoff.pause(), 3) for _ in range(5)] == [1, 2, 4, 8, 8]
    assert 20 <= backoff.pause(20) <= 22
    backoff.reset()
    assert RetryPause(first=1, random_bits=lambda _: 0).pause() == 0.5
    assert parse_retry_after("7") == 7
    assert parse_retry_after("Sat, 21 Nov 2026 12:00:05 GMT", lambda: 1795262400_000) == 5
    assert parse_retry_after("soon") is parse_retry_after("-1") is parse_retry_after(None) is None


def test_a_redirect_is_not_followed_and_nobody_else_gets_the_token() -> None:
    seen: list[Asked] = []

    def elsewhere(asked: Asked) -> Given:
        seen.append(asked)
        return Given(200, {}, b"{}")

    with answering(elsewhere) as other:
        for status in (301, 302, 303, 307, 308):
            moved = Given(status, {"Location": f"{other}/x?token={TOKEN}"})
            with answering(lambda _, moved=moved: moved) as url:  # type: ignore[misc]
                run = Run(url, FQN, "r", token=TOKEN)
                with pytest.raises(client.Redirected, match="redirects to http://127") as error:
                    run.append("x")
                assert TOKEN not in str(error.value)
    assert seen == []


def test_the_token_is_a_bearer_token_and_in_no_text() -> None:
    seen: list[Asked] = []

    def answer(asked: Asked) -> Given:
        seen.append(asked)
        return Given(401, {}, json.dumps({"type": "unauthorized", "detail": "no"}).encode())

    with answering(answer) as url:
        run = Run(url, FQN, "r", token=TOKEN)
        with pytest.raises(client.NotAuthorized) as error:
            run.append("x" * 5000)
    assert seen[0].headers["authorization"] == f"Bearer {TOKEN}"
    assert seen[0].headers["content-encoding"] == "gzip"
    assert gzip.decompress(seen[0].body) == b"x" * 5000
    texts = [repr(run), repr(run.service), str(error.value), repr(error.value)]
    assert [text for text in texts if TOKEN in text] == []
    for bad in (f"{TOKEN}\n", "", f"{TOKEN} x", f"{TOKEN}ü"):
        with pytest.raises(client.InvalidRequest) as refused:
            Run(url, FQN, "r", token=bad)
        assert TOKEN not in str(refused.value)
    with pytest.raises(client.InvalidRequest) as in_url:
        Run(f"http://me:{TOKEN}@127.0.0.1", FQN, "r")
    assert TOKEN not in str(in_url.value)


def test_an_answer_that_is_no_receipt_is_no_success() -> None:
    for body in (b"<html>", b"{}", b"[]"):
        with answering(lambda _, body=body: Given(200, {}, body)) as url:  # type: ignore[misc]
            with pytest.raises(TailraceError, match="not a receipt"):
                Run(url, FQN, "r", retry_seconds=0).append("x")
