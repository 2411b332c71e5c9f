"""When there is no room: who waits, what is dropped, and that the run says so."""

from __future__ import annotations

import json
import logging
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tailrace_client import Handler, Options, Service, system
from tailrace_client.buffer import POLICIES, Buffer
from tailrace_client.records import BatchIds
from tailrace_client.spool import SpoolEntry, SpoolQueue, Target
from tests.client.answering import Asked, Given, answering
from tests.client.programs import FQN, left_in, messages, records
from tests.e2e.service_process import ServiceProcess
from tests.faults.kinds import Kind
from tests.faults.schedule import Schedule
from tests.faults.thread import fault_proxy


@pytest.fixture
def log() -> Iterator[logging.Logger]:
    """A logger of its own, whose handlers are closed at the end."""
    made = logging.Logger("full")  # noqa: LOG001 -- nobody else has it
    yield made
    for handler in made.handlers:
        handler.close()


SMALL = Options(
    spool_bytes=20_000, batch_bytes=2_000, linger_seconds=0, exit_seconds=60, block_seconds=0.001
)


@pytest.mark.parametrize("policy", POLICIES)
def test_what_is_dropped_is_counted_and_said_in_the_run(
    service: ServiceProcess, tmp_path: Path, log: logging.Logger, policy: str
) -> None:
    schedule, said = Schedule(), list[str]()
    run = f"full-{policy}"
    with fault_proxy(service.url, schedule) as url:
        schedule.refuse(Kind.RESET)
        options = SMALL._replace(on_full=policy)
        made = Handler(
            url, FQN, run, spool=str(tmp_path), options=options, say=said.append, outcome="success"
        )
        log.addHandler(made)
        for number in range(300):
            log.info("%d", number)
        assert made.stats.dropped > 100
        files = [path.stat().st_size for path in tmp_path.rglob("*.batch")]
        assert sum(files) <= SMALL.spool_bytes + SMALL.batch_bytes
        schedule.relent()
        assert made.wait(60)
        log.info("300")
        made.close()
    found = records(service.url, run)
    kept = [int(record["message"]) for record in found if record["message"].isdigit()]
    notes = [record for record in found if not record["message"].isdigit()]
    assert kept == sorted(set(kept))
    assert kept[-1] == 300
    assert sum(int(note["attributes"]["tailrace_client.dropped"]) for note in notes) == 301 - len(
        kept
    )
    assert made.stats.dropped == 301 - len(kept)
    assert {note["level"] for note in notes} == {"WARN"}
    assert "dropped" in notes[0]["message"]
    if policy == "drop-oldest":
        assert kept[-50:] == list(range(251, 301))
    else:
        assert kept[:-1] == list(range(len(kept) - 1))
        assert not notes[0]["message"].isdigit()
        assert found.index(notes[0]) == len(kept) - 1  # where the missing records would stand
    assert left_in(tmp_path) == []


def test_a_service_that_never_answers_keeps_no_program_waiting(
    tmp_path: Path, log: logging.Logger
) -> None:
    """Were a call of `log` or the end to wait for the answer, this test would wait for ever."""
    released = threading.Event()
    asked = threading.Event()

    def hang(_: Asked) -> Given:
        asked.set()
        released.wait()
        return Given(503, {})

    with answering(hang) as url:
        options = Options(linger_seconds=0, exit_seconds=0.2)
        said: list[str] = []
        made = Handler(
            url, FQN, "r", spool=str(tmp_path), options=options, timeout_seconds=1e6,
            say=said.append,
        )  # fmt: skip
        log.addHandler(made)
        log.info("first")
        asked.wait()
        for number in range(1000):
            log.info("%d", number)
        made.flush()
        assert not made.wait(0)
        assert made.stats.pending == 1001
        made.close()
        assert len(said) == 1
        assert "1001 records could not be delivered in time" in said[0]
        released.set()


def test_the_pause_that_the_service_asks_for_is_kept_also_at_the_end(
    tmp_path: Path, log: logging.Logger
) -> None:
    asked: list[Asked] = []

    def busy(request: Asked) -> Given:
        asked.append(request)
        return Given(429, {"Retry-After": "3600"}, b'{"type":"over-quota","detail":"too much"}')

    with answering(busy) as url:
        options = Options(linger_seconds=0, exit_seconds=0.5)
        said: list[str] = []
        made = Handler(url, FQN, "r", spool=str(tmp_path), options=options, say=said.append)
        log.addHandler(made)
        log.info("one")
        while not asked:
            pass
        made.close()
    assert len(asked) == 1
    assert "too much" in said[0]
    assert "1 record could not be delivered" in said[1]


def test_while_a_spool_cannot_be_written_memory_is_bounded_and_what_is_dropped_is_said(
    service: ServiceProcess, tmp_path: Path, log: logging.Logger
) -> None:
    """The folder is gone, and the service refuses: memory has what it may, and the rest goes."""
    schedule, said = Schedule(), list[str]()
    options = Options(linger_seconds=0, exit_seconds=60, memory_bytes=4000, block_seconds=60)
    spool = tmp_path / "spool"
    with fault_proxy(service.url, schedule) as url:
        made = Handler(url, FQN, "gone", spool=str(spool), options=options, say=said.append)
        log.addHandler(made)
        log.info("before")
        assert made.wait(60)
        (queue,) = spool.iterdir()
        away = tmp_path / "away"
        queue.rename(away)
        schedule.refuse(Kind.RESET)
        for number in range(100):
            log.info("%d", number)
        dropped = made.stats.dropped
        assert dropped > 0
        assert any("the spool cannot be written: No such file" in sentence for sentence in said)
        schedule.relent()
        away.rename(queue)
        log.info("after")
        made.close()
    found = messages(service.url, "gone")
    notes = [text for text in found if "dropped" in text]
    logged = [text for text in found if text not in notes]
    assert (logged[0], logged[-1]) == ("before", "after")
    assert len(logged) - 2 + made.stats.dropped == 100
    assert notes
    assert "No such file" in notes[0]


def test_what_another_thread_is_writing_is_no_reason_to_drop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Memory counts as full until the thread that has its records in hand has written them."""
    options = Options(memory_bytes=100, block_seconds=60, write_through=False)
    target = Target("http://127.0.0.1:9", FQN, "r")
    buffer = Buffer(str(tmp_path / "spool"), target, BatchIds(), options, lambda _: None)
    writing, wanted = threading.Event(), threading.Event()
    append, drop_oldest = SpoolQueue.append, Buffer._drop_oldest

    def slow_append(queue: SpoolQueue, entries: list[SpoolEntry], ids: BatchIds) -> None:
        writing.set()
        assert wanted.wait(60)
        append(queue, entries, ids)

    def watched(*given: Any) -> bool:
        wanted.set()
        return drop_oldest(*given)

    monkeypatch.setattr(SpoolQueue, "append", slow_append)
    monkeypatch.setattr(Buffer, "_drop_oldest", watched)
    assert buffer.put(b"x" * 90)
    writer = threading.Thread(target=buffer.write)
    writer.start()
    assert writing.wait(60)
    assert buffer.put(b"y" * 90)
    writer.join()
    assert (buffer.dropped, buffer.pending) == (0, 2)


def test_no_file_of_the_spool_and_no_text_has_the_token(
    tmp_path: Path, log: logging.Logger
) -> None:
    token, said = "a-secret-that-nobody-may-see", list[str]()
    with answering(lambda _: Given(401, {}, b'{"type":"unauthorized","detail":"no"}')) as url:
        options = Options(linger_seconds=0, exit_seconds=0.2)
        made = Handler(
            url, FQN, "r", spool=str(tmp_path), token=token, options=options, say=said.append
        )
        log.addHandler(made)
        log.info("one")
        made.close()
    written = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
    assert len(written) >= 3
    assert any(b"one" in content for content in written)
    texts = [*said, repr(made), repr(made.delivery), repr(Service(url, token=token))]
    assert [text for text in texts if token in text] == []
    assert [content for content in written if token.encode() in content] == []
    modes = {os.stat(path).st_mode & 0o077 for path in tmp_path.rglob("*")}
    assert modes == {0}


def test_batches_that_are_too_old_or_from_the_future_come_once_under_another_id(
    service: ServiceProcess, tmp_path: Path, log: logging.Logger
) -> None:
    """Programs whose clock is wrong by days, and one that was stored days ago under its id."""
    from tailrace_client import BatchIds, Delivery, Target, encode_record, system

    for days in (-8, 1):
        run = f"clock{days}"
        ids = BatchIds(now_ms=lambda days=days: system.now_ms() + days * 86_400_000)  # type: ignore[misc]
        said: list[str] = []
        delivery = Delivery(
            Service(service.url), str(tmp_path / run), Target(service.url, FQN, run), SMALL,
            say=said.append, ids=ids,
        )  # fmt: skip
        for number in range(20):
            delivery.put(encode_record(str(number)))
        assert delivery.wait(60)
        for number in range(20, 40):
            delivery.put(encode_record(str(number)))
        assert delivery.close(None, 60) is None
        assert messages(service.url, run) == [str(number) for number in range(40)]
        assert left_in(tmp_path / run) == []


def test_what_the_service_refuses_for_ever_is_kept_aside_and_a_deleted_run_is_not(
    tmp_path: Path, log: logging.Logger
) -> None:
    answers = iter([400, 409, 410])

    def refuse(asked: Asked) -> Given:
        if asked.path.endswith("/close"):
            return Given(200, {}, b"{}")
        status = next(answers, 0)
        if status == 400:
            return Given(400, {}, b'{"type":"invalid-input","detail":"it is wrong"}')
        if status == 409:
            return Given(409, {}, b'{"type":"batch-conflict","detail":"other bytes"}')
        if status == 410:
            return Given(409, {}, b'{"type":"run-deleted","detail":"it was deleted"}')
        receipt = b'{"batch":"%b","lines":1,"duplicate":false,"durability":"durable","last":""}'
        return Given(200, {}, receipt % asked.headers["tailrace-batch"].encode())

    said: list[str] = []
    with answering(refuse) as url:
        options = Options(linger_seconds=0, exit_seconds=60)
        made = Handler(url, FQN, "r", spool=str(tmp_path), options=options, say=said.append)
        log.addHandler(made)
        for number in range(4):
            log.info("%d", number)
            assert made.wait(60)
        assert made.stats[:2] == (4, 0)
        assert made.stats[3:] == (1, 0, 1, 2)  # delivered, duplicates, deleted, refused
        made.close()
    assert [Path(name).suffix for name in left_in(tmp_path)] == [".refused", ".conflict"]
    assert ["it is wrong" in said[0], "other bytes" in said[1]] == [True, True]


def test_the_id_that_a_service_gave_is_kept_at_a_node_that_knows_of_no_deletion(
    tmp_path: Path, log: logging.Logger
) -> None:
    """A lower id would be taken there, and be deleted once the node hears of the deletion."""
    ahead = BatchIds(now_ms=lambda: system.now_ms() + 660_000).mint()
    sent: list[str] = []

    def answer(asked: Asked) -> Given:
        batch = asked.headers.get("tailrace-batch", "")
        if asked.path.endswith("/close"):
            return Given(200, {}, b"{}")
        sent.append(batch)
        if batch < ahead:
            deleted = {"type": "run-deleted", "deleted_ms_ago": 60_000, "next_batch": ahead}
            return Given(409, {}, json.dumps({**deleted, "deleted_through": ahead}).encode())
        if len(sent) < 4:
            return Given(400, {}, b'{"type":"batch-from-the-future","detail":"it is ahead"}')
        receipt = b'{"batch":"%b","lines":1,"duplicate":false,"durability":"durable","last":""}'
        return Given(200, {}, receipt % batch.encode())

    with answering(answer) as url:
        made = Handler(url, FQN, "r", spool=str(tmp_path), say=lambda _: None)
        log.addHandler(made)
        log.info("after the deletion")
        assert made.wait(60)
        assert made.stats[:6] == (1, 0, 0, 1, 0, 0)
        made.close()
    assert sent[1:] == [ahead] * 3
    assert left_in(tmp_path) == []
