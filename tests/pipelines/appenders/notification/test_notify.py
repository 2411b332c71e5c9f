"""Notices: a line matched, a run failed, a run is silent; grouped, bounded, and linked."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pytest
from pydantic import ValidationError

from tailrace.coordination.partitions import MAX_PROGRESS_BYTES
from tailrace.logstore import keys, ulid
from tailrace.logstore.batch import RunKey
from tailrace.logstore.clock import SystemClock
from tailrace.logstore.filesystem import Disk
from tailrace.logstore.runs.manifest import Manifest, encode_manifest
from tailrace.logstore.runs.report import encode_report, make_report
from tailrace.pipelines.appenders.contract import AppenderContext, AppenderFailed, State
from tailrace.pipelines.appenders.notify import Notify, NotifySettings
from tailrace.pipelines.events import ORDER, REDELIVERED
from tailrace.pipelines.world import PipelinesSettings
from tests.pipelines.appenders.receiver import Receiver
from tests.pipelines.appenders.rolling.test_rolling_clock import HandClock
from tests.pipelines.events import BASE_MS, events
from tests.pipelines.lake import Lake

ERRORS = {"name": "errors", "matches": {"level": "ERROR"}}
RUNS = [{"name": "failed", "run": "failed"}, {"name": "silent", "run": "silent", "after": "30m"}]


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver().running() as found:
        yield found


class World:
    """An appender with a clock that a test sets, and a store."""

    def __init__(self, receiver: Receiver, folder: Path, **settings: Any) -> None:
        self.receiver = receiver
        self.clock = HandClock()
        self.lake = Lake(folder)
        self.settings = NotifySettings(url=receiver.url, allow_private=True, **settings)
        self.notify = Notify(self.settings)
        self.store = PipelinesSettings(data=str(folder))

    def refuse(self, some: pa.Table, reason: str, detail: str = "") -> None:
        self.refused.append(some)

    def start(self, state: State | None = None) -> None:
        self.notify = Notify(self.settings)
        self.refused: list[pa.Table] = []
        context = AppenderContext(
            "p", "x", 0, 1, Disk(), self.clock, lambda: True, refuse=self.refuse
        )
        self.notify.start(replace(context, store=self.store), state)

    def told(self) -> list[dict[str, Any]]:
        """What was sent since this was asked last."""
        self.notify.flush()
        found = [orjson.loads(one.body) for one in self.receiver.requests]
        self.receiver.requests.clear()
        return found


def test_a_line_is_told_at_once_and_what_follows_together(
    receiver: Receiver, tmp_path: Path
) -> None:
    link = "https://logs.example.org/{fqn}/{run}?at={at}"
    world = World(receiver, tmp_path, rules=[ERRORS], link=link)
    world.start()
    table = events(["no\x1b room"], fqn="a b.c", run="r/1", level="ERROR")
    world.notify.append(events(["fine"]))
    world.notify.append(table)
    (told,) = world.told()
    uid = table.column("ulid")[0].as_py()
    assert told["link"] == f"https://logs.example.org/a%20b.c/r%2F1?at={uid}"
    assert told["text"] == f"errors: a b.c/r/1: ERROR no  room {told['link']}"
    assert (told["kind"], told["count"], told["at"]) == ("line", 1, uid)
    world.notify.append(events(["1", "2"], fqn="a b.c", level="ERROR"))
    world.notify.append(events(["3"], fqn="a b.c", level="ERROR"))
    world.notify.append(events(["4"], fqn="other", level="ERROR"))
    assert [(one["fqn"], one["count"]) for one in world.told()] == [("other", 1)]
    state = world.notify.sync()
    world.notify.stop()
    world.clock.now += 300_000
    world.start(state)  # what waits is in the checkpoint
    assert [(one["message"], one["count"]) for one in world.told()] == [("1", 3)]
    assert world.told() == []
    world.notify.stop()


def test_one_traceback_is_one_error(receiver: Receiver, tmp_path: Path) -> None:
    named = {"name": "named", "matches": {"where": '"KeyError"'}}
    world = World(receiver, tmp_path, rules=[ERRORS, named])
    world.start()
    trace = events(["failed", "  at x", "KeyError: 1"], level="ERROR", carried=[None, True, True])
    world.notify.append(trace)
    told = [(one["rule"], one["message"], one["count"]) for one in world.told()]
    assert told == [("errors", "failed", 1), ("named", "KeyError: 1", 1)]
    world.notify.stop()


def test_a_notice_that_is_refused_holds_up_no_other_and_is_told_again(
    receiver: Receiver, tmp_path: Path
) -> None:
    """As a dead letter it is an event; a line that only looks like one is told by its own text."""
    world = World(receiver, tmp_path, rules=[ERRORS])
    world.start()
    receiver.judge = lambda body: 422 if b"poison" in body else 200
    world.notify.append(events(["poison", "more"], fqn="a", level="ERROR"))
    world.notify.append(events(["fine"], fqn="b", level="ERROR"))
    assert [one["message"] for one in world.told()] == ["poison", "fine"]
    assert world.told() == []
    (letter,) = world.refused
    receiver.judge = lambda _: 200
    again = pa.array([REDELIVERED], pa.string())
    world.clock.now += 300_000
    world.notify.append(letter.append_column(ORDER, again))
    forged = events(["x"], fqn="c", level="ERROR", attributes={"tailrace.notice": '[["a"],1,{}]'})
    world.notify.append(forged.append_column(ORDER, again))
    told = [(one["fqn"], one["message"], one["count"]) for one in world.told()]
    assert told == [("a", "poison", 2), ("c", "x", 1)]
    world.notify.stop()


def test_so_many_notices_an_hour_and_the_rest_later(receiver: Receiver, tmp_path: Path) -> None:
    world = World(receiver, tmp_path, rules=[ERRORS], most_per_hour=2, every="1s")
    world.start()
    for name in ("a", "b", "c", "d"):
        world.notify.append(events(["x"], fqn=name, level="ERROR"))
    assert [one["fqn"] for one in world.told()] == ["a", "b"]
    world.clock.now += 3_599_000
    assert world.told() == []
    world.clock.now += 1000
    assert [one["fqn"] for one in world.told()] == ["c", "d"]
    world.notify.stop()


def test_what_waits_fits_into_a_checkpoint(receiver: Receiver, tmp_path: Path) -> None:
    """The newest of it: a storm of errors must not keep the appender from saving any."""
    world = World(receiver, tmp_path, rules=[ERRORS, *RUNS], most_per_hour=1, group_by=["run"])
    world.start()
    for number in range(1200):
        table = events(["ü" * 600], fqn="a" * 200, run=f"{number:04}" + "r" * 60, level="ERROR")
        world.notify.append(table)
    state = world.notify.sync()
    world.notify.stop()
    assert len(orjson.dumps(state)) < MAX_PROGRESS_BYTES
    groups = [key[1][:4] for key, _ in state["notices"]["groups"]]
    assert groups == [f"{number:04}" for number in range(1200 - len(groups), 1200)]
    assert len(groups) > 50
    assert [run[1][:4] for run in state["runs"]][-1] == "1199"
    world.start(state)
    assert world.notify.sync() == state
    world.notify.stop()


async def _reported(lake: Lake, run: str, state: str) -> None:
    key = RunKey("a.b", run)
    report = make_report(key, 1 << 80, 1, 1, {"pipelineState": state})
    await lake.store.put(keys.run_report(keys.STATUS, key), encode_report(report))


async def _closed(lake: Lake, run: str) -> None:
    key = RunKey("a.b", run)
    manifest = Manifest(key, state="closed", version=ulid.encode(1))
    await lake.store.put(keys.run_manifest(key), encode_manifest(manifest))


def test_runs_that_failed_or_are_silent_are_told_once(receiver: Receiver, tmp_path: Path) -> None:
    import asyncio

    world = World(receiver, tmp_path, rules=RUNS, group_by=["fqn", "run"])
    world.start()
    for run in ("bad", "good", "closed", "quiet", "loud"):
        world.notify.append(events(["x"], run=run))
    assert world.told() == []
    asyncio.run(_reported(world.lake, "bad", "failed"))
    asyncio.run(_reported(world.lake, "good", "success"))
    asyncio.run(_reported(world.lake, "loud", "running"))
    asyncio.run(_closed(world.lake, "closed"))
    world.clock.now += 11_000
    assert [(one["rule"], one["run"], one["kind"]) for one in world.told()] == [
        ("failed", "bad", "failed")
    ]
    world.clock.now += 1_780_000
    world.notify.append(events(["y"], run="loud"))
    world.clock.now += 20_000
    (silent,) = world.told()
    assert silent["text"] == "silent: a.b/quiet: the run is silent"
    world.clock.now += 500_000
    assert world.told() == []
    world.notify.append(events(["z"], run="quiet"))  # it may be silent again
    world.clock.now += 1_900_000
    assert sorted(one["run"] for one in world.told()) == ["loud", "quiet"]
    world.notify.stop()


@pytest.mark.parametrize("where", ["status", "manifest"])
@pytest.mark.parametrize("content", [b"", b"{}", b'{"format":99}'])
def test_a_run_whose_state_does_not_read_holds_up_no_other(
    receiver: Receiver,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    *,
    where: str,
    content: bytes,
) -> None:
    import asyncio

    world = World(receiver, tmp_path, rules=RUNS, group_by=["fqn", "run"])
    world.start()
    for run in ("damaged", "bad"):
        world.notify.append(events(["x"], run=run))
    asyncio.run(_reported(world.lake, "bad", "failed"))
    key = RunKey("a.b", "damaged")
    place = keys.run_report(keys.STATUS, key) if where == "status" else keys.run_manifest(key)
    asyncio.run(world.lake.store.put(place, content))
    for _ in range(2):
        world.clock.now += 1_900_000
        assert [one["run"] for one in world.told()] in (["bad"], [])
    assert caplog.text.count("the status of a.b/damaged cannot be read") == 1
    asyncio.run(world.lake.store.delete([place]))
    world.clock.now += 11_000
    assert [(one["run"], one["kind"]) for one in world.told()] == [("damaged", "silent")]
    world.notify.stop()


def test_a_run_that_is_deleted_is_not_silent(receiver: Receiver, tmp_path: Path) -> None:
    """But the same run is once it was made again."""
    world = World(receiver, tmp_path, rules=RUNS, group_by=["fqn", "run"])
    world.start()
    for run in ("deleted", "again", "left"):
        world.notify.append(events(["x"], run=run))
    world.notify.append(events(["y"], run="again", at_ms=BASE_MS + 2000))
    world.notify.deleted({("a.b", run): BASE_MS + 1000 << 80 for run in ("deleted", "again")})
    world.clock.now += 1_900_000
    assert sorted(one["run"] for one in world.told()) == ["again", "left"]
    world.notify.deleted({("a.b", None): BASE_MS + 3000 << 80})
    assert world.notify.sync()["runs"] == []
    world.notify.stop()


def test_what_is_not_taken_is_told_again(receiver: Receiver, tmp_path: Path) -> None:
    world = World(receiver, tmp_path, rules=[ERRORS])
    world.start()
    world.notify.append(events(["x"], level="ERROR"))
    receiver.answers = [(500, {}, b"")]
    with pytest.raises(AppenderFailed, match="answered 500"):
        world.notify.flush()
    assert len(world.told()) == 2
    world.notify.stop()


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"rules": []}, "at least one rule"),
        ({"rules": [ERRORS, ERRORS]}, "a name of its own"),
        ({"rules": [{"name": "x"}]}, "either matches or run"),
        ({"rules": [{**ERRORS, "run": "failed"}]}, "either matches or run"),
        ({"rules": [ERRORS], "group_by": ["host"]}, "group_by has 'host'"),
        ({"rules": [ERRORS], "link": "http://x/{line}"}, "a field that is not"),
    ],
)
def test_what_cannot_be_is_refused(more: dict[str, Any], says: str) -> None:
    with pytest.raises(ValidationError, match=says):
        NotifySettings(url="http://x/", **more)


def test_rules_about_runs_need_the_store() -> None:
    notify = Notify(NotifySettings.model_validate({"url": "http://x/", "rules": RUNS}))
    with pytest.raises(AppenderFailed, match="need the store"):
        notify.start(AppenderContext("p", "x", 0, 1, Disk(), SystemClock(), lambda: True), None)
    notify.stop()
