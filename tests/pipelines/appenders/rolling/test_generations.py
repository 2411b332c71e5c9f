"""A run that was deleted and is made again begins a file where the path is of several runs."""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pydantic import ValidationError

from tailrace.logstore import ulid
from tailrace.logstore.clock import SystemClock
from tailrace.logstore.filesystem import Disk
from tailrace.pipelines.appenders.contract import AppenderContext, AppenderFailed, State
from tailrace.pipelines.appenders.rolling.file import RollingFile
from tailrace.pipelines.appenders.rolling.paths import PathTemplate
from tailrace.pipelines.appenders.rolling.rolled import Generations, RollingFileSettings
from tailrace.pipelines.appenders.wrappers import (
    Async,
    AsyncSettings,
    RetryingAppender,
    RetrySettings,
)
from tailrace.pipelines.events import Deleted
from tests.pipelines.appenders.rolling.test_rolling_clock import Files
from tests.pipelines.appenders.rolling.test_rolling_object import World, texts
from tests.pipelines.events import BASE_MS, events

T = ulid.encode(BASE_MS + 1000 << 80)
T1, T2 = ((BASE_MS + ms) << 80 for ms in (1000, 3000))


def old(message: str, **more: Any) -> pa.Table:
    return events([message], **more)


def new(message: str, **more: Any) -> pa.Table:
    return events([message], at_ms=BASE_MS + 2000, **more)


def test_its_file_is_rolled_once_before_its_first_line(tmp_path: Path) -> None:
    files = Files(tmp_path, path="{fqn}.log")
    files.start()
    files.files.append(pa.concat_tables([old("old r", run="r"), old("old s", run="s")]))
    files.files.append(old("other", fqn="c", run="r"))
    state = files.save()
    files.deletions = {("a.b", "r"): T1, ("a.b", "of no matter"): T2}
    files.files.deleted(files.deletions)
    files.files.append(new("s goes on", run="s"))
    assert files.names() == {"a.b.log": "old r\nold s\ns goes on\n", "c.log": "other\n"}
    files.files.append(pa.concat_tables([new("s", run="s"), new("new r", run="r")]))
    files.files.append(new("more", run="r"))
    rolled = {"a.b.000001.log": "old r\nold s\ns goes on\n", "a.b.log": "s\nnew r\nmore\n"}
    assert files.names() == {**rolled, "c.log": "other\n"}

    files.files.stop()  # a crash: the last checkpoint knows of no roll, and what came comes again
    files.start(state)
    assert files.names() == {"a.b.log": "old r\nold s\n", "c.log": "other\n"}
    files.files.append(pa.concat_tables([new("s goes on", run="s"), new("new r", run="r")]))
    state = files.save()
    files.files.stop()
    files.start(state)  # a restart behind it: the file goes on
    files.files.append(new("more", run="r"))
    rolled = {"a.b.000001.log": "old r\nold s\n", "a.b.log": "s goes on\nnew r\nmore\n"}
    assert files.names() == {**rolled, "c.log": "other\n"}

    files.deletions = {("a.b", "r"): T2}
    files.files.append(events(["third"], at_ms=BASE_MS + 4000, run="r"))
    files.files.stop()
    assert files.names()["a.b.log"] == "third\n"
    assert files.names()["a.b.000002.log"] == "s goes on\nnew r\nmore\n"


def test_a_pipeline_that_is_made_again_rolls_a_file_of_many_once(tmp_path: Path) -> None:
    files = Files(tmp_path, path="{service}/all.log")
    files.start()
    files.files.append(pa.concat_tables([old("old", fqn="a.b"), old("other", fqn="a.c")]))
    files.deletions = {("a.b", None): T1, ("a.b", "r"): 1}
    for run in ("r", "s", "t"):
        files.files.append(new(run, fqn="a.b", run=run))
    files.deletions = {("a.b", None): T1, ("a.b", "s"): T2}
    files.files.append(events(["s again", "s more"], at_ms=BASE_MS + 4000, fqn="a.b", run="s"))
    files.files.append(new("t", fqn="a.b", run="t"))
    files.files.stop()
    assert files.names() == {
        "a/all.000001.log": "old\nother\n",
        "a/all.000002.log": "r\ns\nt\n",
        "a/all.log": "s again\ns more\nt\n",
    }


@pytest.mark.parametrize("path", ["{fqn}/{run}.log", "{run}.log"])
def test_nothing_is_rolled_where_the_path_tells_generations(tmp_path: Path, path: str) -> None:
    files = Files(tmp_path, path=path)
    files.start()
    files.files.append(old("old", run="r"))
    files.deletions = {("a.b", "r"): T1}
    files.files.append(new("new", run="r"))
    assert "generations" not in files.save()
    files.files.stop()
    assert sorted(files.names().values()) == ["new\n", "old\n"]


def test_an_object_that_waits_or_grows_gets_no_line_of_the_next_generation(tmp_path: Path) -> None:
    world = World(tmp_path, path="{fqn}.txt")
    world.start()
    world.objects.append(old("waits", run="r"))
    world.deletions = {("a.b", "r"): T1}
    world.objects.append(new("new", run="r"))
    state = world.save()
    expected = {"a.b.000001.txt": "waits\n", "a.b.000002.txt": "new\n"}
    assert texts(tmp_path) == expected
    world.objects.stop()
    world.start(state)
    world.objects.append(new("more", run="r"))
    state = world.save()
    world.deletions = {("a.b", None): T2}  # the name tells that
    world.objects.append(events(["third"], at_ms=BASE_MS + 4000, run="r"))
    world.save()
    world.objects.stop()
    expected |= {"a.b.000002.txt": "new\nmore\n"}
    assert texts(tmp_path) == {**expected, f"a.b~{ulid.encode(T2)}.000001.txt": "third\n"}


def test_one_that_is_forgotten_rolls_once_more() -> None:
    known = Generations(PathTemplate("all.log"))
    deleted: Deleted = {("a.b", f"r{number}"): T1 for number in range(1001)}

    def begin(number: int) -> bool:
        table = new("x", run=f"r{number}")
        groups = list(PathTemplate("all.log").groups(table, 0))
        return known.begin(table, groups, deleted) == ["all.log"]

    assert all(begin(number) for number in range(1000))
    assert not begin(0)
    assert begin(1000)  # r1 has rolled a file the longest ago
    assert not begin(0)
    assert begin(1)
    assert len(known) == len(known.known) == 1000


class Failing(RollingFile):
    """Fails once, with what it was given last half written."""

    failures = 0

    def append(self, events: pa.Table) -> None:
        super().append(events)
        if Failing.failures:
            Failing.failures -= 1
            raise AppenderFailed("once")


def test_a_retry_gives_nothing_again_that_was_deleted_meanwhile(tmp_path: Path) -> None:
    deleted: Deleted = {}
    settings = RollingFileSettings(dir=str(tmp_path), path="{fqn}/{run}.log")
    retry = RetryingAppender(RetrySettings(pause=0), lambda: Failing(settings))
    context = AppenderContext("p", "x", 0, 1, Disk(private=True), SystemClock(), lambda: True)
    retry.start(replace(context, deletions=lambda: deleted), None)
    retry.append(old("old", run="r"))
    retry.append(old("kept", run="s"))
    deleted, Failing.failures = {("a.b", "r"): T1}, 1
    retry.append(new("new", run="r"))
    retry.sync()
    retry.stop()
    found = {path.name: path.read_text() for path in (tmp_path / "a.b").iterdir()}
    assert found == {f"r~{ulid.encode(T1)}.log": "new\n", "s.log": "kept\n"}


class Acknowledgements:
    """Notes the generation of the run of each batch."""

    def __init__(self) -> None:
        self.generations: list[int] = []
        self.go = threading.Event()

    def start(self, context: AppenderContext, state: State | None) -> None:
        self.context = context

    def append(self, events: pa.Table) -> None:
        self.go.wait()
        self.generations.append(self.context.generation("a.b", "r"))

    def sync(self) -> State:
        return {}

    def saved(self) -> None:
        pass

    def stop(self) -> None:
        pass


def test_a_queue_keeps_the_generation_that_its_events_were_looked_at_with() -> None:
    deleted: Deleted = {}
    told = Acknowledgements()
    queue = Async(AsyncSettings(), lambda: told)
    context = AppenderContext("p", "x", 0, 1, Disk(private=True), SystemClock(), lambda: True)
    queue.start(replace(context, deletions=lambda: deleted), None)
    queue.append(old("old"))
    deleted = {("a.b", "r"): T1}
    queue.append(new("new"))
    told.go.set()
    queue.sync()
    queue.stop()
    assert told.generations == [0, T1]


@pytest.mark.parametrize("on_delete", ["keep", "remove"])
def test_a_run_that_is_made_again_has_files_of_its_own(tmp_path: Path, on_delete: str) -> None:
    files = Files(tmp_path, path="{fqn}/{run}/x.log", on_delete=on_delete, max_file_size=6)
    files.start()
    files.write("old 1", "old 2", fqn="a.b", run="r")
    files.write("other", fqn="a.b", run="r2")
    files.save()
    files.write("old 3", fqn="a.b", run="r")
    files.deletions = {("a.b", "r"): ulid.decode(T)}
    files.files.deleted(files.deletions)
    files.write("new", fqn="a.b", run="r", at_ms=BASE_MS + 2000)
    state = files.save()
    files.files.stop()
    old = {
        "a.b/r/x.000001.log": "old 1\n",
        "a.b/r/x.000002.log": "old 2\n",
        "a.b/r/x.log": "old 3\n",
    }
    new = {"a.b/r2/x.log": "other\n", f"a.b/r~{T}/x.log": "new\n"}
    assert files.names() == ({**old, **new} if on_delete == "keep" else new)
    files.deletions = {("a.b", None): ulid.decode(T) + 1}
    files.start(state)
    files.files.deleted(files.deletions)
    files.files.stop()
    assert files.names() == ({**old, **new} if on_delete == "keep" else {})


@pytest.mark.parametrize(
    ("path", "deleted", "closed"),
    [
        ("{fqn}/{run}.log", ("a", "r"), {"a/r.log"}),
        ("{fqn}/{run}.log", ("a", None), {"a/r.log", "a/s.log"}),
        ("{fqn}.log", ("a", "r"), set()),
        ("{fqn}.log", ("a", None), {"a.log"}),
        ("{service}/all.log", ("a", None), set()),
    ],
)
def test_open_files_of_what_is_deleted_are_closed(
    tmp_path: Path, path: str, deleted: tuple[str, str | None], closed: set[str]
) -> None:
    """And no others, nor those of the run that is written again."""
    files = Files(tmp_path, path=path)
    files.start()
    for fqn, run in (("a", "r"), ("a", "s"), ("b", "r")):
        files.write("x", fqn=fqn, run=run)
    before = opened(tmp_path)
    files.deletions = {deleted: ulid.decode(T)}
    files.files.deleted(files.deletions)
    assert before - opened(tmp_path) == closed
    files.write("y", fqn="a", run="r", at_ms=BASE_MS + 2000)
    again = opened(tmp_path)
    files.deletions = {**files.deletions, ("other", None): 1}
    files.files.deleted(files.deletions)
    assert opened(tmp_path) == again
    files.save()
    files.files.stop()


def opened(folder: Path) -> set[str]:
    """The files below a folder that this process has open, but for the appender's own."""
    found = set()
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError):
            found.add(os.readlink(f"/proc/self/fd/{name}"))
    own = f"{folder}/"
    return {
        one.removeprefix(own) for one in found if one.startswith(own) and ".tailrace" not in one
    }


def test_a_pipeline_that_is_made_again_has_a_file_of_its_own(tmp_path: Path) -> None:
    files = Files(tmp_path, path="{fqn}.log")
    files.start()
    files.write("old", fqn="a.b")
    files.deletions = {("a.b", None): ulid.decode(T), ("a.b", "r"): 1}
    table = [events([f"{name}"], fqn=name) for name in ("a.b", "c")]
    for one in table:
        files.files.append(one)
    files.files.stop()
    assert files.names() == {"a.b.log": "old\n", f"a.b~{T}.log": "a.b\n", "c.log": "c\n"}


def test_removal_needs_folders_of_runs() -> None:
    for path in ("{fqn}.log", "{fqn}/{run}.log", "{run}/x.log"):
        with pytest.raises(ValidationError, match=r"needs \{fqn\} and \{run\} as folders"):
            RollingFileSettings(dir="/x", path=path, on_delete="remove")
