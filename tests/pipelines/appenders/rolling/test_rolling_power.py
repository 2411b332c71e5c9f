"""Rolling files: each event once, whatever call the power is cut at."""

from __future__ import annotations

import gzip
import random
from collections.abc import Iterator
from typing import Any

import pytest

from tailrace.logstore.clock import SystemClock
from tailrace.logstore.filesystem import FileSystem
from tailrace.pipelines.appenders.contract import AppenderContext, State
from tailrace.pipelines.appenders.rolling.file import RollingFile
from tailrace.pipelines.appenders.rolling.rolled import Rolled, RolledSettings, RollingFileSettings
from tailrace.pipelines.events import Deleted
from tests.pipelines.events import BASE_MS, events
from tests.seeds import some
from tests.simulation.powercut import EPOCH_NS, PowerCut, PowerCutFileSystem

STORIES: dict[str, dict[str, Any]] = {
    "plain": {},
    "sequence": {"max_file_size": 40},
    "compressed": {"max_file_size": 40, "compress": "gzip"},
    "window": {"max_file_size": 40, "names": "fixed_window"},
    "compressed window": {"max_file_size": 40, "names": "fixed_window", "compress": "gzip"},
    "few open": {"max_open_files": 1},
    "by time": {"roll_every": "20m", "names": "timestamp", "compress": "gzip"},
    "by time and size": {"roll_every": "20m", "max_file_size": 40, "names": "fixed_window"},
    "idle": {"roll_idle": "5m", "names": "timestamp"},
    "made again": {"compress": "gzip"},
    "some of them": {"max_file_size": 40, "compress": "gzip", "keep_files": 1},
    "some of a window": {"max_file_size": 30, "names": "fixed_window", "keep_bytes": 40},
}
_BATCH_SECONDS = 600
_DELETED_AT = 3  # the batch before which the runs of "made again" are deleted


class BatchClock(SystemClock):
    """Ten minutes a batch, from when the simulated disk's clock begins."""

    def __init__(self) -> None:
        self.batch = 0

    def now_ms(self) -> int:
        return EPOCH_NS // 1_000_000 + self.batch * _BATCH_SECONDS * 1000

    def monotonic(self) -> float:
        return float(self.batch * _BATCH_SECONDS)


def batches() -> Iterator[tuple[str, list[str]]]:
    dice, number = random.Random(7), 0
    for _ in range(6):
        count = dice.randrange(1, 9)
        yield dice.choice(["a", "b"]), [f"line {number + i:03d}" for i in range(count)]
        number += count


class Checkpoint:
    """The checkpoint in the store, and how many batches it is behind."""

    def __init__(self) -> None:
        self.state: State | None = None
        self.batches = 0


def work(
    fs: FileSystem, saved: Checkpoint, settings: dict[str, Any], *, again: bool = False
) -> None:
    """Writes what is behind the checkpoint, and saves one after every second batch.

    `again`: the runs are deleted meanwhile, and go on as others.
    """
    files = RollingFile(RollingFileSettings(dir="/out", path="{fqn}.log", **settings))
    clock = BatchClock()
    clock.batch = saved.batches

    def deletions() -> Deleted:
        known = again and clock.batch >= _DELETED_AT
        return {("a", "r"): BASE_MS << 80, ("b", "r"): BASE_MS << 80} if known else {}

    context = AppenderContext("p", "files", 0, 1, fs, clock, lambda: True, deletions=deletions)
    try:
        files.start(context, saved.state)
        todo = list(batches())
        for number in range(saved.batches, len(todo)):
            clock.batch = number
            fqn, messages = todo[number]
            files.append(events(messages, fqn=fqn, at_ms=BASE_MS + number * 1000))
            files.deleted(deletions())
            files.flush()
            if number % 2:
                state = files.sync()
                saved.state, saved.batches = state, number + 1
                files.saved()
    finally:
        files.stop()


def contents(fs: FileSystem, settings: dict[str, Any]) -> dict[str, list[str]]:
    """The lines of each pipeline in the order of its files."""
    found: dict[str, list[str]] = {"a": [], "b": []}
    names = {name: value for name, value in settings.items() if name in RolledSettings.model_fields}
    rolled = Rolled(RolledSettings(**names), fs, "/out")
    for fqn, lines in found.items():
        path = f"{fqn}.log"
        for name in [*rolled.of(path), path]:
            if fs.stat(f"/out/{name}") is None:
                continue
            file = fs.open(f"/out/{name}", "read")
            data = file.pread(file.size(), 0)
            file.close()
            data = gzip.decompress(data) if name.endswith(".gz") else data
            lines.extend(data.decode().splitlines())
    return found


@pytest.mark.in_turn(3)
@pytest.mark.parametrize("story", STORIES)
def test_a_power_cut_at_every_call_loses_and_doubles_nothing(story: str) -> None:
    settings, again = STORIES[story], story == "made again"
    whole = PowerCutFileSystem()
    work(whole, Checkpoint(), settings, again=again)
    calls = list(whole.calls)
    expected = contents(whole, settings)
    rolled = whole.stat("/out/a.000001.log.gz") is not None
    assert rolled or not again
    assert sum(map(len, expected.values())) > (5 if story.startswith("some") else 20)
    for call in some(range(1, len(calls) + 1), 4, f"power cut {story}"):
        fs, saved = PowerCutFileSystem(fail_at=call), Checkpoint()
        with pytest.raises(PowerCut):
            work(fs, saved, settings, again=again)
        fs = fs.reboot(seed=call)
        work(fs, saved, settings, again=again)
        assert contents(fs, settings) == expected, (call, calls[call - 1])


@pytest.mark.parametrize("story", ["sequence", "window", "by time and size"])
def test_a_process_that_is_killed_at_every_call_loses_and_doubles_nothing(story: str) -> None:
    settings = STORIES[story]
    whole = PowerCutFileSystem()
    work(whole, Checkpoint(), settings)
    calls = list(whole.calls)
    expected = contents(whole, settings)
    for call in some(range(1, len(calls) + 1), 4, f"killed {story}"):
        fs, saved = PowerCutFileSystem(fail_at=call), Checkpoint()
        with pytest.raises(PowerCut):
            work(fs, saved, settings)
        fs.end_processes()
        fs.dead, fs.fail_at = False, None
        work(fs, saved, settings)
        assert contents(fs, settings) == expected, (call, calls[call - 1])


@pytest.mark.parametrize("story", ["by time", "by time and size", "idle"])
def test_the_clock_rolls_files(story: str) -> None:
    fs = PowerCutFileSystem()
    work(fs, Checkpoint(), STORIES[story])
    names = [name for name, is_folder in fs.scan("/out") if not is_folder]
    assert len([name for name in names if name.startswith("a.")]) > 1
