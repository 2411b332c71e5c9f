"""Batches of many files by several threads: in order for each file, each once, whatever fails."""

from __future__ import annotations

import json
import queue
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import httpx
import pytest

from tailrace.forwarder.delivery.delivery import BatchDelivery, BodyEncoding, open_delivery
from tailrace.forwarder.delivery.targets import Shipment, Token, Verdict
from tailrace.logstore.errors import InvalidInput
from tailrace_client.records import BatchIds
from tests.client.answering import Asked, Given, answering
from tests.client.programs import FQN, messages, records, state_of, until
from tests.e2e.service_process import ServiceProcess
from tests.faults.kinds import KNOWABLE, Kind
from tests.faults.schedule import Schedule, evenly
from tests.faults.thread import fault_proxy
from tests.forwarder.delivery.test_requests import problem
from tests.forwarder.delivery.test_targets import Names

PATIENCE_SECONDS = 60.0


class Sent:
    """A delivery, its verdicts in order, and what it said."""

    def __init__(
        self, delivery: BatchDelivery, verdicts: queue.SimpleQueue[tuple[str, Verdict]]
    ) -> None:
        self.delivery = delivery
        self.said: list[str] = []
        self._verdicts = verdicts

    def next(self) -> tuple[str, Verdict]:
        return self._verdicts.get(timeout=PATIENCE_SECONDS)

    def kinds(self, count: int) -> list[str]:
        return [self.next()[1].kind for _ in range(count)]

    @property
    def quiet(self) -> bool:
        return self._verdicts.empty()


@contextmanager
def sending(
    *targets: str,
    senders: int = 4,
    token: Token | None = None,
    names: Names | None = None,
    body_encoding: BodyEncoding = "",
    ca_file: str = "",
) -> Iterator[Sent]:
    verdicts: queue.SimpleQueue[tuple[str, Verdict]] = queue.SimpleQueue()
    said: list[str] = []
    delivery = open_delivery(
        targets,
        token or Token(),
        on_verdict=lambda file, verdict: verdicts.put((file, verdict)),
        say=said.append,
        senders=senders,
        resolver=names,
        body_encoding=body_encoding,
        first_pause_seconds=0.01,
        longest_pause_seconds=0.05,
        ca_file=ca_file,
    )
    sent = Sent(delivery, verdicts)
    sent.said = said
    try:
        yield sent
    finally:
        delivery.stop(0)


def shipment(batch: str, file: str = "f", run: str = "run-1", text: str = "hello\n") -> Shipment:
    return Shipment(file, FQN, run, batch, text.encode(), "text/plain")


def receipt(asked: Asked, **more: object) -> Given:
    batch = asked.headers.get("tailrace-batch", "")
    value = {"batch": batch, "lines": 1, "duplicate": False, "durability": "durable", "last": batch}
    return Given(200, {}, json.dumps({**value, **more, "state": "closed"}).encode())


def test_batches_arrive_once_in_the_order_of_their_file_through_a_bad_network(
    service: ServiceProcess,
) -> None:
    kinds = [kind for kind in KNOWABLE if kind is not Kind.ERROR_IN_200]
    schedule, ids = Schedule(3, evenly(0.3, kinds)), BatchIds()
    files, count = [f"net-{number}" for number in range(6)], 25
    with fault_proxy(service.url, schedule) as url, sending(url) as sent:
        for number in range(count):
            for file in files:
                text = f"{file} {number} a\n{file} {number} b\n"
                sent.delivery.submit(shipment(ids.mint(), file, file, text))
        for file in files:
            sent.delivery.close_run(file, FQN, file, "success")
        found: dict[str, list[str]] = {file: [] for file in files}
        for _ in range(len(files) * (count + 1)):
            file, verdict = sent.next()
            found[file].append(verdict.kind)
        counts = sent.delivery.counts
        assert sent.delivery.stop(PATIENCE_SECONDS) == 0
    for file in files:
        assert found[file] == ["acknowledged"] * count + ["closed"]
        lines = [f"{file} {number} {end}" for number in range(count) for end in "ab"]
        assert messages(service.url, file) == lines
        assert state_of(service.url, file) == ("closed", "success")
    assert sum(schedule.injected.values()) > 0
    assert counts.retries > 0
    assert counts.duplicates > 0, "no answer was lost behind the service"
    assert counts.requests == len(files) * (count + 1) + counts.retries


def test_a_second_service_takes_over_and_the_first_is_not_needed_again(
    tmp_path: Path, service: ServiceProcess
) -> None:
    """Two places with the same store: here a proxy that goes away, and the service itself."""
    schedule, ids = Schedule(), BatchIds()
    with fault_proxy(service.url, schedule) as url, sending(url, service.url) as sent:
        for number in range(30):
            if number == 10:
                schedule.refuse(Kind.RESET)
            sent.delivery.submit(shipment(ids.mint(), run="takeover", text=f"{number}\n"))
            assert sent.next()[1].kind == "acknowledged"
    assert messages(service.url, "takeover") == [str(number) for number in range(30)]


def test_names_with_many_addresses_of_which_few_answer(service: ServiceProcess) -> None:
    """127.0.0.2 … have nobody who listens: each is tried, until the one that does is found."""
    addresses = [f"127.0.0.{number}" for number in range(1, 9)]
    names, ids = Names({"logs.test": addresses, "allowed.test": addresses}), BatchIds()
    with sending(f"logs.test:{service.port}", names=names, senders=1) as sent:
        sent.delivery.submit(shipment(ids.mint(), run="names"))
        until(lambda: any("this service is not 'logs.test" in sentence for sentence in sent.said))
        assert sent.quiet, "a wrong address is no verdict on a batch"
    with sending(f"allowed.test:{service.port}", names=names, senders=1) as sent:
        sent.delivery.submit(shipment(ids.mint(), run="names"))
        assert sent.kinds(1) == ["acknowledged"]
        names.hosts.clear()  # known places stay while names cannot be looked up
        sent.delivery.submit(shipment(ids.mint(), run="names"))
        assert sent.kinds(1) == ["acknowledged"]
    assert messages(service.url, "names") == ["hello", "hello"]


def test_a_file_that_the_service_fails_on_does_not_hold_up_others() -> None:
    """With one thread: what waits is the file, and neither the thread nor the place."""
    bad = threading.Event()
    bad.set()

    def answer(asked: Asked) -> Given:
        if bad.is_set() and "bad" in asked.path:
            return problem(500, "failed")
        return receipt(asked)

    ids = BatchIds()
    with answering(answer) as url, sending(url, senders=1) as sent:
        for run in ("bad", "bad", "good", "good", "good"):
            sent.delivery.submit(shipment(ids.mint(), run, run))
        assert [sent.next()[0] for _ in range(3)] == ["good"] * 3
        until(lambda: sent.delivery.counts.retries > 3)
        assert sent.quiet
        bad.clear()
        assert [sent.next()[0] for _ in range(2)] == ["bad"] * 2


def test_of_a_file_one_request_is_on_its_way_at_a_time() -> None:
    lock, inside, most, order = threading.Lock(), [0], [0], []

    def answer(asked: Asked) -> Given:
        with lock:
            inside[0] += 1
            most[0] = max(most[0], inside[0])
            order.append(asked.body)
        with lock:
            inside[0] -= 1
        return receipt(asked)

    ids = BatchIds()
    with answering(answer) as url, sending(url, senders=8) as sent:
        for number in range(40):
            sent.delivery.submit(shipment(ids.mint(), text=f"{number}\n"))
        assert sent.kinds(40) == ["acknowledged"] * 40
    assert most == [1]
    assert order == [b"%d\n" % number for number in range(40)]


def test_several_files_are_sent_at_once() -> None:
    together = threading.Barrier(4)

    def answer(asked: Asked) -> Given:
        together.wait(PATIENCE_SECONDS)
        return receipt(asked)

    ids = BatchIds()
    with answering(answer) as url, sending(url, senders=4) as sent:
        for number in range(4):
            sent.delivery.submit(shipment(ids.mint(), f"file-{number}"))
        assert sent.kinds(4) == ["acknowledged"] * 4


@pytest.mark.parametrize("status", [401, 403, 404, 429, 503, 302])
def test_it_never_gives_up_and_says_why_once(status: int) -> None:
    failing = threading.Event()
    failing.set()

    def answer(asked: Asked) -> Given:
        return problem(status, "no-such-thing") if failing.is_set() else receipt(asked)

    with answering(answer) as url, sending(url) as sent:
        sent.delivery.submit(shipment(BatchIds().mint()))
        until(lambda: sent.delivery.counts.retries > 5)
        assert len(sent.said) == 1
        assert sent.said[0].startswith(f"delivery to {url} fails: ")
        failing.clear()
        assert sent.kinds(1) == ["acknowledged"]
        assert sent.said[1:] == [f"delivery to {url} works again"]


def test_an_id_that_is_refused_again_and_again_is_renewed_with_pauses() -> None:
    times: list[int] = []

    def answer(asked: Asked) -> Given:
        if asked.method == "GET":
            return problem(404, "not-found")
        times.append(1)
        return problem(400, "batch-from-the-future") if len(times) < 5 else receipt(asked)

    ids = BatchIds()
    with answering(answer) as url, sending(url) as sent:
        kinds: list[str] = []
        while not kinds or kinds[-1] == "renew":
            sent.delivery.submit(shipment(ids.mint()))
            kinds += sent.kinds(1)
        assert kinds == ["renew"] * 4 + ["acknowledged"]
        assert sent.delivery.stop(PATIENCE_SECONDS) == 0


def test_a_token_that_was_replaced_is_read_again(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("old\n")

    def answer(asked: Asked) -> Given:
        right = asked.headers.get("authorization") == "Bearer new"
        return receipt(asked) if right else problem(401, "not-authorized")

    with answering(answer) as url, sending(url, token=Token(file=str(file))) as sent:
        sent.delivery.submit(shipment(BatchIds().mint()))
        until(lambda: sent.delivery.counts.retries > 2)
        file.write_text("")  # as it is being replaced
        until(lambda: sent.delivery.counts.retries > 5)
        file.write_text("new\n")
        assert sent.kinds(1) == ["acknowledged"]
    assert "old" not in "".join(sent.said)


def test_a_token_that_cannot_be_is_said_at_the_start(tmp_path: Path) -> None:
    (tmp_path / "empty").write_text("\n")
    for file in ("missing", "empty"):
        with pytest.raises(InvalidInput, match=file) as refused:
            Token(file=str(tmp_path / file))
        assert refused.value.hint
    with pytest.raises(InvalidInput, match="token"), sending("logs", token=Token("a b")):
        pass


@pytest.mark.parametrize("encoding", ["", "gzip", "zstd"])
def test_a_body_is_stored_as_it_was_before_it_was_encoded(
    service: ServiceProcess, encoding: BodyEncoding
) -> None:
    ids, run = BatchIds(), f"encoded-{encoding}"
    lines = [f"a line of a text that repeats {number % 7}" for number in range(5000)]
    with sending(service.url, body_encoding=encoding) as sent:
        sent.delivery.submit(shipment(ids.mint(), run=run, text="small\n"))
        sent.delivery.submit(shipment(ids.mint(), run=run, text="\n".join(lines) + "\n"))
        assert sent.kinds(2) == ["acknowledged"] * 2
        counts = sent.delivery.counts
    assert messages(service.url, run) == ["small", *lines]
    assert counts.sent_bytes == len("\n".join(lines)) + 7
    assert (counts.wire_bytes < counts.sent_bytes / 3) is bool(encoding)


def test_an_old_service_gets_records_and_stores_what_a_new_one_does(
    service: ServiceProcess,
) -> None:
    """A relay refuses as a service without `Tailrace-Attributes` does; behind it is a real one."""
    old, ids = threading.Event(), BatchIds()
    old.set()

    def relay(asked: Asked) -> Given:
        if old.is_set() and "attributes" in asked.headers.get("content-type", ""):
            return problem(415, "unsupported-media-type")
        answer = httpx.post(
            f"{service.url}{asked.path}", content=asked.body, headers=asked.headers, timeout=60
        )
        return Given(answer.status_code, {}, answer.content)

    shared = {"log.file.name": 'ürün \\ "q".log', "e": ""}
    text = '2026-01-31 12:00:00 ERROR x\n\n\r\n{"k": 1} \u2028 🚀\n'
    sent_twice = replace(shipment(ids.mint(), run="old", text=text), attributes=json.dumps(shared))
    with answering(relay) as url, sending(url) as sent:
        sent.delivery.submit(sent_twice)
        sent.delivery.submit(replace(sent_twice, batch=ids.mint()))
        assert sent.kinds(2) == ["acknowledged"] * 2
        old.clear()  # it was updated: what it has as records, it knows as lines
        sent.delivery.submit(sent_twice)
        verdict = sent.next()[1]
        assert (verdict.kind, verdict.duplicate, verdict.reason) == ("acknowledged", True, "")
        sent.delivery.submit(replace(sent_twice, run="new", batch=ids.mint()))
        assert sent.kinds(1) == ["acknowledged"]
        assert [said for said in sent.said if "Tailrace-Attributes" in said] == sent.said
        assert len(sent.said) == 1, "said once"
    kept = [
        [(r["message"], r.get("level"), r["attributes"]) for r in records(service.url, run)]
        for run in ("old", "new")
    ]
    assert kept[0] == kept[1] * 2
    assert [message for message, *_ in kept[1]] == text.split("\n")[:-1]
    assert [attributes for *_, attributes in kept[1]] == [shared] * 4


def test_a_stop_waits_for_what_is_on_its_way_and_says_how_much_is_left() -> None:
    go = threading.Event()

    def answer(asked: Asked) -> Given:
        go.wait(PATIENCE_SECONDS)
        return receipt(asked)

    ids = BatchIds()
    with answering(answer) as url:
        with sending(url) as sent:
            for number in range(3):
                sent.delivery.submit(shipment(ids.mint(), f"file-{number}"))
            assert sent.delivery.stop(0.05) == 3
            go.set()
            assert sent.quiet, "no verdict comes behind the end of a stop"
        with sending(url) as sent:
            for number in range(3):
                sent.delivery.submit(shipment(ids.mint(), f"file-{number}"))
            assert sent.delivery.stop(PATIENCE_SECONDS) == 0
            assert sent.kinds(3) == ["acknowledged"] * 3


def test_a_stop_does_not_wait_for_a_pause_to_end() -> None:
    with answering(lambda _: problem(503, "busy", **{"Retry-After": "3600"})) as url:
        with sending(url, senders=2) as sent:
            for number in range(3):
                sent.delivery.submit(shipment(BatchIds().mint(), f"file-{number}"))
            until(lambda: sent.delivery.counts.retries > 0)
            assert sent.delivery.stop(0.05) == 3


def test_what_a_receiver_raises_is_raised_by_the_next_call() -> None:
    def broken(file: str, verdict: Verdict) -> None:
        raise KeyError(file)

    with answering(receipt) as url:
        delivery = open_delivery([url], Token(), on_verdict=broken, say=lambda _: None)
        delivery.submit(shipment(BatchIds().mint()))

        def ended() -> bool:
            try:
                delivery.submit(shipment(BatchIds().mint(), "other"))
            except KeyError:
                return True
            return False

        until(ended)
        with pytest.raises(KeyError):
            delivery.stop(1)
