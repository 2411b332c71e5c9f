"""Rolling objects: each event once, whatever call to the store is the last one of a process."""

from __future__ import annotations

import gzip
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import pytest
from pydantic import ValidationError

from tailrace.logstore import ulid
from tailrace.logstore.clock import Clock, SystemClock
from tailrace.logstore.filesystem import Disk
from tailrace.logstore.objects.config import StoreSettings
from tailrace.logstore.objects.store import ObjectStore
from tailrace.pipelines.appenders.contract import AppenderContext, AppenderFailed, State
from tailrace.pipelines.appenders.rolling.object import (
    Objects,
    RollingObject,
    RollingObjectSettings,
)
from tailrace.pipelines.events import Deleted
from tests.pipelines.appenders.rolling.test_rolling_clock import HandClock
from tests.pipelines.events import BASE_MS, events
from tests.seeds import some
from tests.servers.minio import Bucket

T = TypeVar("T")


class Killed(BaseException):
    """The process is gone. Nothing but a test catches it."""


@dataclass
class Calls:
    """Counts the calls to the store that change something; ends the process at one of them."""

    last: int | None = None
    count: int = 0
    dead: bool = False
    names: list[str] = field(default_factory=list)


class Mortal:
    """A store whose process ends before or behind a call that changes something."""

    def __init__(self, store: ObjectStore, calls: Calls) -> None:
        self._store, self._calls = store, calls

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._store, name)
        if name not in ("put", "compose", "delete"):
            return found

        async def call(*arguments: Any, **more: Any) -> Any:
            calls = self._calls
            if calls.dead:
                raise Killed
            calls.count += 1
            calls.names.append(name)
            ends = calls.count == calls.last
            calls.dead = ends
            if ends and calls.count % 2:
                raise Killed
            result = await found(*arguments, **more)
            if ends:
                raise Killed
            return result

        return call


def opening(calls: Calls) -> Callable[[StoreSettings, Clock], Objects]:
    class MortalObjects(Objects):
        def call(self, call: Callable[[ObjectStore], Awaitable[T]]) -> T:
            return super().call(lambda store: call(Mortal(store, calls)))

    return MortalObjects


class World:
    """Objects in a folder, a clock and deletions that a test sets."""

    def __init__(self, folder: Path | None, **settings: Any) -> None:
        self.clock = HandClock()
        self.deletions: Deleted = {}
        store = {} if folder is None else {"store": str(folder)}
        self.settings = RollingObjectSettings.model_validate({**store, **settings})
        self.calls = Calls()
        self.store: StoreSettings | None = None
        self.objects = RollingObject(self.settings)

    def start(self, state: State | None = None) -> None:
        self.objects = RollingObject(self.settings, opening(self.calls))
        context = AppenderContext(
            *("p", "objects", 0, 1, Disk(), self.clock, lambda: True),
            store=self.store,
            deletions=lambda: self.deletions,
        )
        self.objects.start(context, state)

    def save(self) -> State:
        state = self.objects.sync()
        self.objects.saved()
        return state


def texts(folder: Path) -> dict[str, str]:
    found = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if path.is_file() and not any(part.startswith(".") for part in name.split("/")):
            data = path.read_bytes()
            found[name] = (gzip.decompress(data) if name.endswith(".gz") else data).decode()
    return found


def test_objects_are_by_namespace_day_and_program_and_numbered(tmp_path: Path) -> None:
    world = World(tmp_path, max_object_size=4)
    world.start()
    world.objects.append(events(["a", "b"], fqn="shop.load"))
    world.save()
    world.objects.append(events(["c"], fqn="shop.load"))
    world.objects.append(events(["d"], fqn="x"))
    state = world.save()
    world.objects.stop()
    day = "2023-11-14"
    expected = {
        f"logs/shop/{day}/shop.load/log.000001.txt": "a\nb\n",
        f"logs/shop/{day}/shop.load/log.000002.txt": "c\n",
        f"logs/x/{day}/x/log.000001.txt": "d\n",
    }
    assert texts(tmp_path) == expected
    world.start(state)
    world.objects.append(events(["e"], fqn="x"))
    world.save()
    world.clock.now += 6 * 3_600_000
    assert world.objects.flush()
    world.objects.append(events(["f"], fqn="x"))
    world.save()
    world.objects.stop()
    expected[f"logs/x/{day}/x/log.000001.txt"] = "d\ne\n"
    expected[f"logs/x/{day}/x/log.000002.txt"] = "f\n"
    assert texts(tmp_path) == expected


@pytest.mark.parametrize(
    ("keeps", "kept"),
    [({"keep_objects": 2}, [4, 5]), ({"keep_bytes": 11}, [5]), ({"keep_for": "1d"}, [])],
)
def test_old_objects_are_removed_behind_a_checkpoint(
    tmp_path: Path, keeps: dict[str, Any], kept: list[int]
) -> None:
    """The open one, another path's, and what is not the appender's stay."""
    world = World(tmp_path, path="logs/{fqn}/log.txt", max_object_size=4, **keeps)
    world.clock.now = SystemClock().now_ms()
    world.start()
    world.objects.append(events(["x"], fqn="other"))
    other = tmp_path / "logs" / "other" / "log.000001.txt"
    foreign = tmp_path / "logs" / "a" / "notes.000001.txt"
    world.save()
    for number in range(1, 6):
        world.objects.append(events([f"{number}1234"], fqn="a"))
        world.objects.sync()
        world.objects.saved()
    assert len(list(foreign.parent.iterdir())) == 5, "it was looked at a moment ago"
    foreign.write_text("not ours")
    world.clock.now += 2 * 86_400_000
    assert world.objects.flush(), "it asks for a checkpoint"
    world.objects.sync()
    assert len(list(foreign.parent.iterdir())) == 6
    world.objects.append(events(["new"], fqn="a"))
    state = world.save()
    names = [f"logs/a/log.{number:06d}.txt" for number in kept]
    found = texts(tmp_path)
    mine = {name for name in found if name.startswith("logs/a/log.")}
    assert mine == {*names, max(mine)}
    assert found[max(mine)] == "new\n"
    assert foreign.exists()
    assert other.exists() == ("keep_for" not in keeps)
    world.objects.stop()
    world.start(state)
    world.objects.append(events(["more"], fqn="a"))
    world.save()
    assert "more\n" in texts(tmp_path).values(), "it goes on from the checkpoint"
    world.objects.stop()


def test_an_object_is_kept_while_it_is_open() -> None:
    with pytest.raises(ValidationError, match="shorter than max_object_age"):
        RollingObjectSettings.model_validate({"keep_for": "1h"})


def test_tailraces_own_store_is_the_default(tmp_path: Path) -> None:
    world = World(None, path="{fqn}.txt")
    with pytest.raises(AppenderFailed, match="there is no store"):
        world.start()
    world.store = StoreSettings(data=str(tmp_path))
    world.start()
    world.objects.append(events(["a"], fqn="x"))
    world.save()
    world.objects.stop()
    assert texts(tmp_path) == {"store/pipelines/p/objects/x.000001.txt": "a\n"}


STORIES: dict[str, dict[str, Any]] = {
    "plain": {},
    "small": {"max_object_size": 30},
    "compressed": {"max_object_size": 60, "compress": "gzip"},
    "little memory": {"buffer_size": 20},
}


def work(world: World, saved: list[Any]) -> None:
    """Writes what is behind the checkpoint, and saves one after every second batch."""
    dice = random.Random(5)
    todo = [
        (dice.choice("ab"), [f"{n}.{i} {'x' * 5}" for i in range(dice.randrange(1, 6))])
        for n in range(7)
    ]
    world.start(saved[0])
    try:
        for number in range(saved[1], len(todo)):
            fqn, messages = todo[number]
            world.objects.append(events(messages, fqn=fqn))
            if number % 2 or number == len(todo) - 1:
                state = world.objects.sync()
                saved[:] = [state, number + 1]
                world.objects.saved()
    finally:
        world.objects.stop()


def contents(folder: Path) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {"a": [], "b": []}
    for name, text in texts(folder).items():
        found[name[0]].extend(text.splitlines())
    return found


@pytest.mark.parametrize("story", STORIES)
def test_a_process_that_ends_at_any_call_loses_and_doubles_nothing(
    story: str, tmp_path: Path
) -> None:
    settings = {"path": "{fqn}.txt", **STORIES[story]}
    whole = World(tmp_path / "whole", **settings)
    work(whole, [None, 0])
    expected = contents(tmp_path / "whole")
    assert sum(map(len, expected.values())) > 15
    for last in some(range(1, whole.calls.count + 1), 3, f"objects {story}"):
        folder, saved = tmp_path / f"{last}", [None, 0]
        world = World(folder, **settings)
        world.calls = Calls(last=last)
        with pytest.raises(Killed):
            work(world, saved)
        again = World(folder, **settings)
        work(again, saved)
        assert contents(folder) == expected, (last, whole.calls.names[last - 1])


def test_what_was_taken_away_is_begun_again_and_what_grew_is_cut(tmp_path: Path) -> None:
    world = World(tmp_path, path="{fqn}.txt")
    world.start()
    for name in ("a", "b"):
        world.objects.append(events(["1"], fqn=name))
    state = world.save()
    world.objects.stop()
    (tmp_path / "a.000001.txt").unlink()
    with (tmp_path / "b.000001.txt").open("a") as file:
        file.write("of a process whose lease was over\n")
    world.start(state)
    for name in ("a", "b"):
        world.objects.append(events(["2"], fqn=name))
    world.save()
    world.objects.stop()
    assert texts(tmp_path) == {"a.000001.txt": "2\n", "b.000001.txt": "1\n2\n"}


def test_another_writer_is_noticed(tmp_path: Path) -> None:
    first, second = (World(tmp_path, path="{fqn}.txt") for _ in range(2))
    for one in (first, second):
        one.start()
        one.objects.append(events(["x"], fqn="a"))
    first.save()
    with pytest.raises(AppenderFailed, match="another process writes these objects"):
        second.save()
    for one in (first, second):
        one.objects.stop()


@pytest.mark.parametrize("on_delete", ["keep", "remove"])
def test_a_run_that_is_made_again_has_objects_of_its_own(tmp_path: Path, on_delete: str) -> None:
    world = World(tmp_path, path="{fqn}/{run}/x.txt", on_delete=on_delete)
    world.start()
    world.objects.append(events(["old"], run="r"))
    world.objects.append(events(["other"], run="r2"))
    world.save()
    world.objects.append(events(["old"], run="r"))
    t = BASE_MS + 1000 << 80
    world.deletions = {("a.b", "r"): t}
    world.objects.deleted(world.deletions)
    world.objects.append(events(["new"], run="r", at_ms=BASE_MS + 2000))
    world.save()
    world.objects.stop()
    left = {"a.b/r2/x.000001.txt": "other\n", f"a.b/r~{ulid.encode(t)}/x.000001.txt": "new\n"}
    old = {"a.b/r/x.000001.txt": "old\nold\n"}
    assert texts(tmp_path) == (left if on_delete == "remove" else {**old, **left})


def test_what_cannot_be_is_refused() -> None:
    for given, says in (
        ({"path": "../x"}, "without"),
        ({"on_delete": "remove"}, "as folders"),
        ({"store": "/x", "s3": {"region": "x"}}, "s3 applies only to a store"),
    ):
        with pytest.raises(ValidationError, match=says):
            RollingObjectSettings.model_validate(given)


@pytest.mark.minio
def test_in_a_bucket_with_credentials_of_its_own(bucket: Bucket) -> None:
    settings = bucket.settings
    world = World(None, store=settings.store, s3=settings.s3, path="{fqn}.txt", compress="gzip")
    world.start()
    lines = [f"{n} {random.Random(n).randbytes(3000).hex()}" for n in range(1000)]
    world.objects.append(events(lines, fqn="a"))  # above 5 MiB, as multipart uploads need
    state = world.save()
    world.objects.append(events(["lost"], fqn="a"))
    world.objects.sync()  # this one is not saved
    world.objects.stop()
    world.start(state)
    world.objects.append(events(["last"], fqn="a"))
    world.save()
    world.objects.stop()
    objects = Objects(settings, world.clock)
    (found,) = objects.list("a.")
    body = objects.call(lambda store: store.get(found.key))[1]
    objects.close()
    assert gzip.decompress(body).decode().splitlines() == [*lines, "last"]
