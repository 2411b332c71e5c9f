"""Executors of a local cluster: processes that can be watched, halted and killed."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

_PATIENCE_SECONDS = 300.0
T = TypeVar("T")
_EXECUTOR = b"org.apache.spark.executor.CoarseGrainedExecutorBackend"


@dataclass(frozen=True, slots=True)
class Executor:
    """A process; `number` as Spark counts them."""

    pid: int
    number: int

    def writes_below(self, folder: Path) -> bool:
        """Whether it has a file open there, so is within a task that has not committed."""
        with suppress(OSError):
            for name in os.listdir(f"/proc/{self.pid}/fd"):
                with suppress(OSError):
                    target = os.readlink(f"/proc/{self.pid}/fd/{name}")
                    if target.startswith(f"{folder}/") and target.endswith(".parquet"):
                        return True
        return False

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)

    @contextmanager
    def halted(self) -> Iterator[None]:
        """It does not move while the block runs."""
        os.kill(self.pid, signal.SIGSTOP)
        try:
            yield
        finally:
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGCONT)

    def newest_shuffle(self) -> int:
        """The number of the last shuffle that it has a part of for others, or -1."""
        environment = Path(f"/proc/{self.pid}/environ").read_bytes().split(b"\0")
        places = [v for v in environment if v.startswith(b"SPARK_EXECUTOR_DIRS=")]
        folders = places[0].decode().partition("=")[2].split(":") if places else []
        files = (file for folder in folders for file in Path(folder).rglob("shuffle_*.data"))
        return max((int(file.name.split("_")[1]) for file in files), default=-1)


@contextmanager
def halted_while_writing(
    application: str, folder: Path, over: Callable[[], bool]
) -> Iterator[Executor | None]:
    """An executor that does not move while the block runs, in the midst of writing a file.

    It is one that has no part of a shuffle that others wait for. None if it is `over` before
    one was met.
    """
    executors = executors_of(application)
    while not over():
        for one in executors:
            if one.writes_below(folder):
                with one.halted():
                    if one.writes_below(folder) and _is_needed_by_none(one, executors):
                        yield one  # with its file still open: it stands before its commit
                        return
        time.sleep(0.001)
    yield None


def _is_needed_by_none(one: Executor, executors: Sequence[Executor]) -> bool:
    others = [other.newest_shuffle() for other in executors if other != one]
    return one.newest_shuffle() < max(others)


def executors_of(application: str) -> list[Executor]:
    """Those of a Spark of this machine that run now, by their numbers."""
    return _executors(words for words in commands() if application.encode() in words[1])


def executors_below(folder: Path) -> list[Executor]:
    """Those of whatever was started with the folder as `TEST_FOLDER`."""
    return _executors(commands_below(folder))


def commands() -> Iterator[tuple[int, list[bytes]]]:
    """Processes of this machine, and the words that started them."""
    for folder in Path("/proc").iterdir():
        if re.fullmatch("[0-9]+", folder.name):
            with suppress(OSError):  # it ended meanwhile
                yield int(folder.name), (folder / "cmdline").read_bytes().split(b"\0")


def commands_below(folder: Path) -> Iterator[tuple[int, list[bytes]]]:
    """Those that were started with the folder as `TEST_FOLDER`, and what they started."""
    mark = f"TEST_FOLDER={folder}".encode()
    for pid, words in commands():
        with suppress(OSError):
            if mark in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                yield pid, words


def first_of(processes: Mapping[int, T]) -> dict[int, T]:
    """Those that no other of them has started.

    Whoever starts a program, as Hadoop does to change a file's mode, is there twice until the
    new process has become that program.
    """
    return {pid: it for pid, it in processes.items() if _parent(pid) not in processes}


def _parent(pid: int) -> int | None:
    """None if it ended meanwhile."""
    with suppress(OSError):
        state = Path(f"/proc/{pid}/stat").read_text(errors="replace")
        return int(state.rpartition(")")[2].split()[1])
    return None


def _executors(processes: Iterable[tuple[int, list[bytes]]]) -> list[Executor]:
    found = {
        pid: int(words[words.index(b"--executor-id") + 1])
        for pid, words in processes
        if _EXECUTOR in words
    }
    made = [Executor(pid, number) for pid, number in first_of(found).items()]
    return sorted(made, key=lambda one: one.number)


def until(condition: Callable[[], bool]) -> None:
    """Waits; the deadline is for a test that would hang."""
    end = time.monotonic() + _PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < end, "it never came to be"
        time.sleep(0.02)
