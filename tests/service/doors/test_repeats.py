"""A batch that a client sends again is stored once: in memory, after a restart, after a refusal."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from service.doors.repeats import Recent, Repeats
from service.doors.settings import DoorSettings
from service.ingest.batch import AppendReceipt, IncomingBatch
from service.journal.format import encode_meta
from tailrace.logstore.batch import RecordMeta
from tailrace.logstore.errors import JournalFull, TailraceError
from tests.service.ingest.gated_appender import GatedAppender, batch
from tests.settings import changed

SETTINGS = DoorSettings()
SECONDS = SETTINGS.repeat_seconds


def sent(
    ts: int = 5, who: str = "otlp/a", text: bytes = b"one\n", **attributes: str
) -> IncomingBatch:
    meta = encode_meta(RecordMeta([len(text)], [ts], ["INFO"], [attributes]))
    return batch(text, connector=who, meta=meta)


def repeats(gated: GatedAppender, settings: DoorSettings = SETTINGS) -> Repeats:
    appender = gated.appender
    return Repeats(appender.append, appender.find_repeat, gated.rig.clock, settings)


async def test_equal_bytes_of_a_client_are_stored_once() -> None:
    gated = GatedAppender()
    door = repeats(gated)
    first = await door.append(sent(), timed=True)
    again = await door.append(sent(), timed=True)
    assert (first.duplicate, again.duplicate) == (False, True)
    assert (again.ulid, again.last, again.records) == (first.ulid, first.last, 1)
    assert gated.texts() == [b"one\n"]


async def test_whatever_differs_is_stored() -> None:
    gated = GatedAppender()
    door = repeats(gated)
    for different in (
        sent(),
        sent(ts=6),
        sent(who="otlp/b"),
        sent(who="loki/a"),
        sent(text=b"two\n"),
        sent(trace_id="x"),
        replace(sent(), key=sent().key._replace(run="other")),
    ):
        assert not (await door.append(different, timed=True)).duplicate
    assert len(gated.texts()) == 7


async def test_lines_without_a_time_may_be_logged_again() -> None:
    gated = GatedAppender()
    door = repeats(gated)
    for _ in range(2):
        assert not (await door.append(sent(), timed=False)).duplicate


async def test_after_the_window_it_is_a_new_batch() -> None:
    gated = GatedAppender()
    door = repeats(gated)
    await door.append(sent(), timed=True)
    gated.rig.clock.pass_seconds(SECONDS - 1)
    assert (await door.append(sent(), timed=True)).duplicate
    gated.rig.clock.pass_seconds(1)
    assert not (await door.append(sent(), timed=True)).duplicate


async def test_a_repeat_of_a_batch_in_progress_waits_for_it() -> None:
    gated = GatedAppender()
    door = repeats(gated)
    gated.syncer.gate.clear()
    first = door.append(sent(), timed=True)
    again = door.append(sent(), timed=True)
    for _ in range(20):
        await asyncio.sleep(0)
    assert not first.done()
    assert not again.done()
    gated.syncer.gate.set()
    assert [(await task).duplicate for task in (first, again)] == [False, True]
    assert gated.texts() == [b"one\n"]


async def test_the_batches_of_a_request_with_many_runs_begin_in_many_turns_of_the_loop() -> None:
    gated = GatedAppender()
    begun = 0

    async def append(given: IncomingBatch) -> AppendReceipt:
        nonlocal begun
        begun += 1
        return await gated.appender.append(given)

    door = Repeats(append, gated.appender.find_repeat, gated.rig.clock, SETTINGS)
    batches = [replace(sent(), key=sent().key._replace(run=str(n))) for n in range(1000)]
    tasks = [door.append(each, timed=True) for each in batches]
    most = 0
    while begun < len(batches):
        before = begun
        await asyncio.sleep(0)
        most = max(most, begun - before)
    assert most <= 64
    await asyncio.wait(tasks)
    assert len(gated.texts()) == len(batches)


async def test_a_refused_batch_is_stored_when_it_is_sent_again() -> None:
    gated = GatedAppender()
    refusals: list[TailraceError] = [JournalFull("full")]

    async def append(given: IncomingBatch) -> object:
        if refusals:
            raise refusals.pop()
        return await gated.appender.append(given)

    door = Repeats(append, gated.appender.find_repeat, gated.rig.clock, SETTINGS)  # type: ignore[arg-type]
    with pytest.raises(JournalFull):
        await door.append(sent(), timed=True)
    assert not (await door.append(sent(), timed=True)).duplicate
    assert gated.texts() == [b"one\n"]


async def test_after_a_restart_the_journal_knows_it() -> None:
    gated = GatedAppender()
    first = await repeats(gated).append(sent(), timed=True)
    await gated.restart()
    door = repeats(gated)
    for different in (sent(ts=6), sent(who="otlp/b"), sent(text=b"two\n"), sent(trace_id="x")):
        assert not (await door.append(different, timed=True)).duplicate
    again = await door.append(sent(), timed=True)
    assert (again.duplicate, again.ulid) == (True, first.ulid)
    gated.rig.clock.pass_seconds(SECONDS)
    assert not (await door.append(sent(), timed=True)).duplicate


async def test_a_deleted_batch_is_no_first_one() -> None:
    gated = GatedAppender()
    first = await repeats(gated).append(sent(), timed=True)
    await gated.restart()
    gated.deletions.note(*sent().key, first.last, own=True)
    assert not (await repeats(gated).append(sent(), timed=True)).duplicate


async def test_it_can_be_turned_off() -> None:
    gated = GatedAppender()
    door = repeats(gated, changed(SETTINGS, repeat_seconds=0))
    for _ in range(2):
        assert not (await door.append(sent(), timed=True)).duplicate


def test_the_oldest_names_are_forgotten_first() -> None:
    now = [0.0]
    recent: Recent[int] = Recent(10, 2, lambda: now[0])
    for name in (1, 2, 3):
        recent.put(name, name)
    assert [recent.get(name) for name in (1, 2, 3)] == [None, 2, 3]
    recent.drop(2, 5)
    assert recent.get(2) == 2
    recent.drop(2, 2)
    assert recent.peek(2) is None
    now[0] = 10.0
    assert (recent.peek(3), recent.get(3)) == (None, None)
