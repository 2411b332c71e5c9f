"""Records that a target refuses for good: each is a dead letter, and holds up no other one."""

from __future__ import annotations

import json
import re
import subprocess
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tailrace.coordination.pipelines import PipelinesAdmin
from tailrace.logstore import keys
from tailrace.logstore.errors import InvalidInput
from tailrace.pipelines.appenders.registry import AppenderRegistry
from tailrace.pipelines.definition import PipelineConfig, parse
from tailrace.pipelines.world import World, admin_of
from tests.pipelines.appenders.receiver import Receiver
from tests.pipelines.lake import Lake
from tests.pipelines.remembering import FAST
from tests.pipelines.torture.torture import PipelinesProcess
from tests.waiting import until

LINES = [f"line-{number:02}" for number in range(21)]
POISON = "line-11"


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(tmp_path)


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver().running() as found:
        yield found


def pipeline(*appenders: dict[str, Any], **settings: Any) -> PipelineConfig:
    made = [{"name": "a", **one} for one in appenders]
    return parse({"name": "p", **FAST, **settings, "appenders": made}, AppenderRegistry())


def posting(receiver: Receiver, kind: str, **settings: Any) -> dict[str, Any]:
    return {"type": kind, "url": receiver.url, "allow_private": True, **settings}


def messages(receiver: Receiver, status: int = 200) -> Counter[str]:
    """The lines that were answered so."""
    bodies = [one.body.decode() for one in receiver.requests if one.status == status]
    return Counter(line for body in bodies for line in re.findall(r"line-\d\d", body))


def letters_below(folder: Path) -> list[dict[str, Any]]:
    """All dead letters in files or objects below a folder."""
    found = [
        path
        for path in folder.rglob("*.json")
        if not {".tailrace", ".meta"} & set(path.parts) and ".dead/" in f"{path}/"
    ] + list(folder.glob("p.*.json"))
    return [json.loads(line) for path in sorted(found) for line in path.read_text().splitlines()]


async def row(world: World) -> dict[str, Any]:
    (found,) = (await admin_of(world).show("p")).parts
    return found.spelled()


async def redelivered(admin: PipelinesAdmin) -> tuple[int, int]:
    """Sends dead letters again; how many were taken and refused, once that is over."""
    asked, _ = await admin.redeliver("p", "a")
    while True:
        (part,) = (await admin.show("p")).parts
        at = part.redelivery
        if at is not None and at.id == asked and at.done:
            return at.sent, at.refused


@pytest.mark.in_turn(3)
@pytest.mark.parametrize(
    ("kind", "wrapped", "folder", "status"),
    [("webhook", "", "", 400), ("webhook", "async", "dead", 404), ("otlp", "retry", "dead", 422)],
)
async def test_a_record_that_is_refused_holds_up_no_other_and_can_be_sent_again(
    lake: Lake,
    receiver: Receiver,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    *,
    kind: str,
    wrapped: str,
    folder: str,
    status: int,
) -> None:
    receiver.judge = lambda body: status if POISON.encode() in body else 200
    appender = posting(receiver, kind)
    appender = {"type": wrapped, "to": appender} if wrapped else appender
    dead = str(tmp_path / folder) if folder else ""
    made = pipeline(appender, error_threshold=3 if folder else 0, dead_letter_dir=dead)
    await lake.put(*LINES)
    async with lake.running(made) as process, lake.world() as world:
        await until(lambda: messages(receiver).total() == len(LINES) - 1)
        await until(lambda: any(one.counts.refused for one in process.workers))
        await lake.put("line-21")
        await until(lambda: messages(receiver)["line-21"] == 1)
        assert messages(receiver) == Counter([*LINES, "line-21"]) - Counter([POISON])
        (worker,) = process.workers
        assert (worker.counts.failures, worker.counts.refused, worker.disabled) == (0, 1, False)
        tried = messages(receiver, status)[POISON]
        assert tried <= 6  # the whole, and halves of it
        admin = admin_of(world)
        assert await redelivered(admin) == (0, 1)
        assert messages(receiver, status)[POISON] == tried + 1
        (letter,) = letters_below(tmp_path / (folder or "store"))
        assert letter["message"] == POISON
        assert f"answered {status}" in letter["reason"]
        receiver.judge = lambda _: 200
        assert await redelivered(admin) == (1, 0)
        assert await redelivered(admin) == (0, 0)
        assert letters_below(tmp_path / (folder or "store")) == []
        assert messages(receiver) == Counter([*LINES, "line-21"])
        await until(lambda: worker.counts.redelivered == 1)
    async with lake.world() as world:
        found = await row(world)
    assert (found["events"], found["refused"], found["redelivered"]) == (22, 1, 1)
    assert caplog.text.count("refused events became dead letters") == 1


@pytest.mark.parametrize("status", [401, 429, 503])
async def test_what_may_be_taken_later_is_no_dead_letter(
    lake: Lake, receiver: Receiver, status: int
) -> None:
    receiver.answers = [(status, {}, b"")] * 3
    await lake.put(*LINES)
    async with lake.running(pipeline(posting(receiver, "webhook"))) as process:
        await until(lambda: messages(receiver) == Counter(LINES))
        (worker,) = process.workers
        assert (worker.counts.failures, worker.counts.refused) == (3, 0)


@pytest.mark.parametrize(("kind", "place"), [("rolling_file", "dir"), ("rolling_object", "store")])
async def test_a_name_that_is_too_long_holds_up_no_file(
    lake: Lake, tmp_path: Path, kind: str, place: str
) -> None:
    """In a folder and in a store; a path that is shorter takes the line."""
    out = tmp_path / "out"
    target = {"type": kind, place: str(out), "path": "{fqn}_{run}.log"}
    await lake.put("fine", run="r")
    await lake.put("long", fqn="f" * 60, run="r" * 400)
    await lake.put("behind", run="s")
    async with lake.running(pipeline(target)) as process:
        await until(lambda: len([*out.glob("shop*.log")]) == 2)
        await until(lambda: any(one.counts.refused for one in process.workers))
        assert all(one.counts.failures == 0 for one in process.workers)
    (letter,) = letters_below(tmp_path / "store")
    assert (letter["message"], letter["run"]) == ("long", "r" * 400)
    assert "its path is invalid" in letter["reason"]
    async with lake.running(pipeline({**target, "path": "{fqn}.log"})), lake.world() as world:
        assert await redelivered(admin_of(world)) == (1, 0)
    (written,) = out.glob("f*.log")
    assert "long" in written.read_text()


async def test_a_line_that_is_no_dead_letter_stays_one(
    lake: Lake, receiver: Receiver, tmp_path: Path
) -> None:
    """Somebody edited the file: nothing of it is lost, and the rest is sent."""
    receiver.judge = lambda body: 422 if POISON.encode() in body else 200
    made = pipeline(posting(receiver, "webhook"), dead_letter_dir=str(tmp_path))
    await lake.put(*LINES)
    async with lake.running(made) as process:
        await until(lambda: any(one.counts.refused for one in process.workers))
    with (tmp_path / "p.a.0.json").open("a") as file:
        file.write("garbage\n")
    receiver.judge = lambda _: 200
    async with lake.running(made), lake.world() as world:
        for sent in (1, 0):
            assert await redelivered(admin_of(world)) == (sent, 1)
            (letter,) = letters_below(tmp_path)
            assert (letter["message"], letter["ulid"]) == ("garbage", "")
    assert messages(receiver) == Counter(LINES)


async def test_dead_letters_of_a_disabled_appender_are_sent_again_when_it_is_enabled(
    lake: Lake, receiver: Receiver, tmp_path: Path
) -> None:
    made = pipeline(
        posting(receiver, "webhook"), error_threshold=1, dead_letter_dir=str(tmp_path / "dead")
    )
    receiver.judge = lambda _: 503
    await lake.put(*LINES)
    async with lake.running(made) as process, lake.world() as world:
        await until(lambda: any(one.counts.dead_letters == 21 for one in process.workers))
        admin = admin_of(world)
        with pytest.raises(InvalidInput, match="is disabled"):
            await admin.redeliver("p", "a")
        receiver.judge = lambda _: 200
        await admin.enable("p", "a")
        assert await redelivered(admin) == (21, 0)
    assert messages(receiver) == Counter(LINES)


async def test_lines_of_which_nobody_knows_whether_they_are_deleted_are_dead_letters(
    lake: Lake, receiver: Receiver, tmp_path: Path
) -> None:
    """The record of one pipeline is damaged: the others notice nothing, and its lines wait."""
    record = keys.deleted_pipeline("torn.load")
    await lake.store.put(record, b"")
    await lake.put(*LINES[:10])
    await lake.put(*LINES[10:], fqn="torn.load")
    async with (
        lake.running(pipeline(posting(receiver, "webhook"))) as process,
        lake.world() as world,
    ):
        await until(lambda: messages(receiver) == Counter(LINES[:10]))
        await until(lambda: any(one.counts.refused == 11 for one in process.workers))
        admin = admin_of(world)
        assert await redelivered(admin) == (0, 11)
        await lake.store.delete([record])
        await until(lambda: not process.source.segments.unreadable)
        assert await redelivered(admin) == (11, 0)
    assert messages(receiver) == Counter(LINES)


def said(process: PipelinesProcess, *words: str) -> str:
    try:
        return process.ask(*words)
    except subprocess.CalledProcessError as error:
        return str(error.stdout)


@pytest.mark.slow
@pytest.mark.in_turn(4, "killed dead letters")
async def test_a_kill_while_records_are_refused_or_sent_again_loses_none(
    tmp_path: Path, receiver: Receiver
) -> None:
    """kill -9 while a request with the record is not answered, and again while it is sent again."""
    lake, definitions = Lake(tmp_path), tmp_path / "pipelines"
    definitions.mkdir()
    made = {"name": "p", **FAST, "dead_letter_dir": str(tmp_path / "dead")}
    made["appenders"] = [{"name": "a", **posting(receiver, "webhook", timeout="60s")}]
    (definitions / "p.yaml").write_text(yaml.safe_dump(made))
    place = {"TAILRACE_STORE": str(tmp_path / "store")}
    process = PipelinesProcess(tmp_path / "process", definitions, place)
    waits, goes = threading.Event(), threading.Event()

    def hold(body: bytes) -> int:
        if POISON.encode() not in body:
            return 200
        waits.set()
        assert goes.wait(60)
        return 422

    receiver.judge = hold
    await lake.put(*LINES)
    process.start()
    try:
        await until(waits.is_set)
        process.kill()
        goes.set()
        process.start()
        await until(
            lambda: [one["message"] for one in letters_below(tmp_path / "dead")] == [POISON]
        )
        await until(lambda: any(one["refused"] for one in process.status()))
        assert set(messages(receiver)) == {*LINES} - {POISON}
        waits.clear()
        goes.clear()
        assert "not begun" in said(process, "redeliver", "p", "--appender", "a", "--wait", "0")
        await until(waits.is_set)
        process.kill()
        receiver.judge = lambda _: 200
        goes.set()
        process.start()
        await until(lambda: messages(receiver)[POISON] > 0)
        assert "0 sent, 0 refused" in said(process, "redeliver", "p", "--appender", "a")
        assert letters_below(tmp_path / "dead") == []
        assert set(messages(receiver)) == {*LINES}
    finally:
        goes.set()
        assert process.stop() == 0
    assert "Traceback" not in process.output()
