"""Wrappers: what they do to events, and that what they wrap stays exact."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pytest

from tailrace.logstore.clock import SystemClock
from tailrace.logstore.errors import InvalidInput
from tailrace.logstore.filesystem import Disk
from tailrace.pipelines.appenders.contract import (
    AppenderContext,
    AppenderFailed,
    PipelineAppender,
    State,
)
from tailrace.pipelines.appenders.registry import AppenderRegistry
from tailrace.pipelines.appenders.rolling.file import RollingFile
from tailrace.pipelines.appenders.rolling.rolled import RollingFileSettings
from tailrace.pipelines.appenders.wrappers import (
    Async,
    AsyncSettings,
    RetryingAppender,
    RetrySettings,
)
from tailrace.pipelines.definition import PipelineConfig, parse
from tailrace.pipelines.events import Deleted
from tests.pipelines.events import events


def context() -> AppenderContext:
    return AppenderContext("p", "x", 0, 1, Disk(), SystemClock(), lambda: True)


def pipeline(**appender: Any) -> PipelineConfig:
    return parse({"name": "p", "appenders": [{"name": "x", **appender}]}, AppenderRegistry())


def write(appender: PipelineAppender, *tables: pa.Table) -> None:
    """Gives events to an appender, and checkpoints."""
    appender.start(context(), None)
    for table in tables:
        appender.append(table)
    appender.sync()
    appender.saved()
    appender.stop()


def file(folder: Path, **more: Any) -> dict[str, Any]:
    return {"type": "rolling_file", "dir": str(folder), "path": "all.log", **more}


def test_wrappers_in_wrappers_give_what_is_left_to_the_last(tmp_path: Path) -> None:
    rules = [{"pattern": "(?i)(password)=[^ ]+", "replace": r"\1=***"}, {"pattern": "[0-9]{16}"}]
    inner = {"type": "mask", "rules": rules, "to": file(tmp_path, layout={"type": "json"})}
    kept = {"type": "filter", "drop": {"contains": "noise"}, "to": {"type": "async", "to": inner}}
    config = pipeline(type="retry", to=kept)
    table = events(
        ["Password=abc card 1234567812345678", "noise", "plain"], attributes={"k": "password=x"}
    )
    write(config.appenders[0].make(), table)
    lines = [json.loads(line) for line in (tmp_path / "all.log").read_text().splitlines()]
    assert [line["message"] for line in lines] == ["Password=*** card ***", "plain"]
    assert lines[0]["attributes"] == {"k": "password=***"}


def test_events_without_attributes_are_masked_as_well(tmp_path: Path) -> None:
    some = pa.concat_tables([events(["a"], attributes={"k": "secret"}), events(["secret"])])
    rules = [{"pattern": "secret"}]
    config = pipeline(
        type="mask", rules=rules, to=file(tmp_path, layout={"type": "pattern", "pattern": "%m %X"})
    )
    write(config.appenders[0].make(), some.slice(1), some)
    assert (tmp_path / "all.log").read_text() == "*** \na k=***\n*** \n"


@pytest.mark.parametrize(
    ("rules", "size"),
    [
        ([{"pattern": "", "replace": "x" * 200}], 20_000),
        ([{"pattern": ".", "replace": "y" * 200}], 20_000),
        ([{"pattern": "(.+)", "replace": r"\1" * 100}], 2 << 20),
        ([{"pattern": "a", "replace": "aa"}] * 40, 20_000),
    ],
    ids=["nothing", "each character", "references", "each again"],
)
def test_a_text_that_its_mask_would_blow_up_is_masked_as_a_whole(
    tmp_path: Path, rules: list[dict[str, str]], size: int
) -> None:
    config = pipeline(
        type="mask", rules=rules, to=file(tmp_path, layout={"type": "pattern", "pattern": "%m|%X"})
    )
    long = "a" * size
    table = events([long, "b", long], attributes={"k": long})
    write(config.appenders[0].make(), table)
    lines = (tmp_path / "all.log").read_text().splitlines()
    assert len(lines) == 3
    whole = "(masked as a whole: its replacements need too much room)"
    assert [line.partition("|")[0] == whole for line in lines] == [True, False, True]
    assert all(line.endswith(f"|k={whole}") for line in lines)


def test_texts_are_masked_in_their_order_however_long_they_are(tmp_path: Path) -> None:
    config = pipeline(
        type="mask", rules=[{"pattern": "b"}], to=file(tmp_path, layout={"type": "raw"})
    )
    texts = [f"{number}b" + "a" * size for number, size in enumerate((0, 1 << 19, 1 << 21, 9, 0))]
    write(config.appenders[0].make(), events(texts), events([]), events(texts[2:3]))
    expected = [text.replace("b", "***") for text in [*texts, texts[2]]]
    assert (tmp_path / "all.log").read_text().splitlines() == expected


def test_what_is_masked_is_masked_in_the_dead_letters_too(tmp_path: Path) -> None:
    mask = {"type": "mask", "rules": [{"pattern": "secret"}], "to": file(tmp_path / "x")}
    content = {"type": "retry", "to": mask}
    config = parse(
        {
            "name": "p",
            "error_threshold": 1,
            "dead_letter_dir": str(tmp_path),
            "appenders": [{"name": "x", **content}],
        },
        AppenderRegistry(),
    )
    write(config.appenders[0].make_dead_letter(config.settings), events(["a secret"]))
    letter = json.loads((tmp_path / "p.x.0.json").read_text())
    assert letter["message"] == "a ***"


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ({"type": "mask", "rules": []}, "appenders.0.to must be the appender"),
        ({"type": "mask", "rules": [], "to": {"type": "stdout"}}, "at least one rule"),
        (
            {"type": "mask", "rules": [{"pattern": "("}], "to": {"type": "stdout"}},
            r"rules.0: the rule '\(' is invalid",
        ),
        (
            {
                "type": "mask",
                "rules": [{"pattern": "a", "replace": r"\7"}],
                "to": {"type": "stdout"},
            },
            "the rule 'a' is invalid",
        ),
        (
            {
                "type": "mask",
                "rules": [{"pattern": "a", "replace": "x" * 201}],
                "to": {"type": "stdout"},
            },
            "rules.0.replace: .*200",
        ),
        (
            {"type": "mask", "rules": [{"pattern": "a"}] * 101, "to": {"type": "stdout"}},
            "has more than 100 rules",
        ),
        ({"type": "retry", "to": {"type": "stdout", "name": "y"}}, "its wrapper has it"),
        ({"type": "retry", "to": {"type": "stdout", "filter": {}}}, "put it at the wrapper"),
        ({"type": "retry", "to": {"type": "stdout", "x": 1}}, "unknown key appenders.0.to.x"),
        (
            {"type": "retry", "to": {"type": "kafka"}},
            "this process has no appender of the type 'kafka'",
        ),
        ({"type": "retry", "attempts": 0, "to": {"type": "stdout"}}, "attempts: .*greater"),
        ({"type": "stdout", "to": {"type": "stdout"}}, "unknown key appenders.0.to"),
    ],
)
def test_what_is_wrong_is_named(content: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidInput, match=says):
        pipeline(**content)


class Failing(RollingFile):
    """A rolling file whose calls fail in the middle, at these numbers of calls."""

    failing: ClassVar[set[int]] = set()
    calls: ClassVar[int] = 0

    def append(self, events: pa.Table) -> None:
        super().append(events.slice(0, 1))
        self._perhaps_fail()
        super().append(events.slice(1))

    def sync(self) -> State:
        state = super().sync()
        self._perhaps_fail()
        return state

    def _perhaps_fail(self) -> None:
        cls = type(self)
        cls.calls += 1
        if cls.calls in cls.failing:
            raise AppenderFailed(f"call {cls.calls}")


def failing(folder: Path, *calls: int) -> Callable[[], PipelineAppender]:
    Failing.failing, Failing.calls = set(calls), 0
    return lambda: Failing(RollingFileSettings(dir=str(folder), path="all.log", max_file_size=4))


@pytest.mark.parametrize("calls", [[1], [2], [3], [4], [5], [2, 3], [3, 4], [1, 3, 5]])
def test_what_is_tried_again_is_written_once(tmp_path: Path, calls: list[int]) -> None:
    settings = RetrySettings(attempts=3, pause=0.0)
    appender = RetryingAppender(settings, failing(tmp_path, *calls))
    appender.start(context(), None)
    appender.append(events(["a", "b", "c"]))
    appender.sync()
    appender.saved()
    appender.append(events(["d", "e"]))
    appender.sync()  # this one is not saved
    appender.append(events(["f", "g"]))
    appender.sync()
    appender.saved()
    appender.stop()
    paths = [*sorted(tmp_path.glob("all.0*.log")), tmp_path / "all.log"]
    assert "".join([path.read_text() for path in paths]) == "a\nb\nc\nd\ne\nf\ng\n"
    assert Failing.calls > max(calls)


def test_what_fails_again_and_again_is_said_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class Down(Failing):
        def append(self, events: pa.Table) -> None:
            raise AppenderFailed("nobody answers")

    down = RollingFileSettings(dir=str(tmp_path))
    appender = RetryingAppender(RetrySettings(attempts=5, pause=0.0), lambda: Down(down))
    appender.start(context(), None)
    for _ in range(2):
        with pytest.raises(AppenderFailed, match="nobody answers"):
            appender.append(events(["a"]))
    appender.stop()
    assert caplog.text.count("tries again: nobody answers") == 1


def test_attempts_end(tmp_path: Path) -> None:
    appender = RetryingAppender(RetrySettings(attempts=2, pause=0.0), failing(tmp_path, 1, 2, 3))
    appender.start(context(), None)
    with pytest.raises(AppenderFailed, match="call 3"):
        appender.append(events(["a"]))
    appender.stop()


def test_no_more_is_kept_for_another_attempt_than_may_be(tmp_path: Path) -> None:
    """With too much since the checkpoint a failure is the pipeline's, and nothing is kept."""
    table = events(["a", "b", "c"])
    settings = RetrySettings(attempts=3, pause=0.0, buffer_size=table.nbytes * 2)
    appender = RetryingAppender(settings, failing(tmp_path, 4, 8))
    appender.start(context(), None)
    before = pa.total_allocated_bytes()
    for _ in range(3):
        appender.append(events(["a", "b", "c"]))
    assert pa.total_allocated_bytes() - before < table.nbytes
    with pytest.raises(AppenderFailed, match="call 4"):
        appender.append(table)
    appender.stop()
    appender = RetryingAppender(settings, failing(tmp_path / "2", 8))
    appender.start(context(), None)
    for _ in range(3):
        appender.append(table)
    appender.sync()
    appender.saved()
    for _ in range(2):
        appender.append(table)
    appender.sync()  # the seventh call; the eighth fails, and is tried again
    appender.saved()
    appender.append(table)
    appender.sync()
    appender.stop()
    lines = sorted((tmp_path / "2").glob("all*.log"))
    assert sum(path.read_text().count("\n") for path in lines) == 18


class Slow:
    """An appender that waits until it may go on, and is told of everything."""

    def __init__(self) -> None:
        self.may = threading.Event()
        self.told: list[object] = []
        self.fails = self.flush_fails = False

    def start(self, context: AppenderContext, state: State | None) -> None:
        self.told.append(state)

    def append(self, events: pa.Table) -> None:
        self.may.wait()
        if self.fails:
            raise AppenderFailed("slow")
        self.told.append(events.column("message").to_pylist())

    def sync(self) -> State:
        return {"told": len(self.told)}

    def saved(self) -> None:
        self.told.append("saved")

    def stop(self) -> None:
        self.told.append("stop")

    def flush(self) -> bool:
        self.told.append("flush")
        if self.flush_fails:
            raise AppenderFailed("flush")
        return True

    def deleted(self, deleted: Deleted) -> None:
        self.told.append(deleted)


def test_a_queue_takes_events_while_the_appender_writes() -> None:
    slow = Slow()
    appender = Async(AsyncSettings(), lambda: slow)
    appender.start(context(), {"n": 1})
    appender.append(events(["a"]))
    appender.append(events(["b"]))
    assert not appender.flush()  # nor does this one wait
    assert not appender.flush()
    assert slow.told == [{"n": 1}]
    slow.may.set()
    appender.deleted({("a", None): 1})
    assert appender.sync() == {"told": 5}
    assert appender.flush()
    appender.saved()
    appender.stop()
    told = [{"n": 1}, ["a"], ["b"], "flush", {("a", None): 1}, "flush", "saved", "stop"]
    assert slow.told == told


def test_a_flush_that_fails_in_the_queue_is_raised_before_a_checkpoint() -> None:
    slow = Slow()
    appender = Async(AsyncSettings(), lambda: slow)
    appender.start(context(), None)
    appender.append(events(["a"]))
    assert not appender.flush()
    slow.flush_fails = True
    slow.may.set()
    with pytest.raises(AppenderFailed, match="flush"):
        appender.sync()
    with pytest.raises(AppenderFailed, match="flush"):
        appender.flush()
    appender.stop()


def test_a_queue_that_is_full_waits_and_a_failure_is_raised_by_the_next_call() -> None:
    slow = Slow()
    slow.fails = True
    appender = Async(AsyncSettings(queue_size=1), lambda: slow)
    appender.start(context(), None)
    appender.append(events(["a"]))
    raised: list[BaseException] = []

    def append() -> None:
        try:
            appender.append(events(["b"]))
        except AppenderFailed as error:
            raised.append(error)

    thread = threading.Thread(target=append)
    thread.start()
    slow.may.set()
    thread.join()
    assert [str(one) for one in raised] == ["slow"]
    with pytest.raises(AppenderFailed, match="slow"):
        appender.sync()
    appender.stop()
    assert slow.told == [None, "stop"]
