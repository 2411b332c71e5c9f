"""A client beside an attack: what it waits for, and what a process holds meanwhile.

A probe asks again and again, in a process of its own: one thread a cheap route, another one an
append, and a live stream that has to show the line. A wait is told in two ways. `waited` is the
time by the clock, without the time for which the service's threads, or the probe itself, were
ready and had no processor. `held` is the processor's time that the loop's thread took meanwhile.
For the cheap route that is what callbacks hold, however slow or busy the machine is. An append and
a stream also wait for the disk, and the loop works for others meanwhile.

    python -m tests.fuzz.probe URL PID TOKEN     until its input ends; the worst of each as JSON
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import httpx

from tests.e2e.service_process import BASE

_PAUSE_SECONDS: Final = 0.01
_TIMEOUT_SECONDS: Final = 120.0
_LOOK_SECONDS: Final = 0.05
_PAGE: Final = 4096
_HEADERS: Final = {"content-type": "text/plain", "tailrace-durability": "fast"}


@dataclass(frozen=True)
class Wait:
    """The longest waits of a probe for one thing, in seconds, and how often it asked."""

    waited: float = 0.0
    held: float = 0.0
    count: int = 0

    def worst(self, waited: float, held: float) -> Wait:
        """With one more."""
        return Wait(max(self.waited, waited), max(self.held, held), self.count + 1)


class Probe:
    """Asks while the block runs; `waits` has the worst afterwards, by what was asked for."""

    def __init__(self, url: str, pid: int, token: str = "") -> None:
        self._command = [sys.executable, "-m", "tests.fuzz.probe", url, str(pid), token]
        self.waits: dict[str, Wait] = {}

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == "asks\n"
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        said, _ = self._process.communicate(timeout=_TIMEOUT_SECONDS)
        if kind is None:
            assert self._process.returncode == 0
            self.waits = {what: Wait(**wait) for what, wait in json.loads(said).items()}


class Memory:
    """The most memory of a process and its children while the block runs, in bytes."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look)
        self.before = own_bytes(pid)
        self.most = self.before

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._over.wait(_LOOK_SECONDS):
            self.most = max(self.most, own_bytes(self._pid))


def own_bytes(pid: int) -> int:
    """Memory of a process and its children, without what they share with files."""
    try:
        sizes = Path(f"/proc/{pid}/statm").read_text().split()
        children = [
            child
            for listed in Path(f"/proc/{pid}/task").glob("*/children")
            for child in listed.read_text().split()
        ]
    except (FileNotFoundError, ProcessLookupError):  # it has ended
        return 0
    return _PAGE * (int(sizes[1]) - int(sizes[2])) + sum(
        own_bytes(int(child)) for child in children
    )


def delayed(pid: int) -> float:
    """Seconds for which threads of a process waited for a processor, together.

    The loop also waits for a thread that holds the interpreter's lock and has no processor.
    """
    found = 0.0
    for path in Path(f"/proc/{pid}/task").glob("*/schedstat"):
        with suppress(FileNotFoundError, ProcessLookupError):  # the thread has ended
            found += int(path.read_text().split()[1]) / 1e9
    return found


def scheduled(thread: int | str = "thread-self") -> tuple[float, float]:
    """Seconds for which a process's first thread has run, and waited for a processor."""
    run, delayed, _ = Path(f"/proc/{thread}/schedstat").read_text().split()
    return int(run) / 1e9, int(delayed) / 1e9


class _Asking:
    def __init__(self, url: str, pid: int, token: str) -> None:
        self._url, self._loop = url, pid
        headers = {"authorization": f"Bearer {token}"} if token else {}
        self._client = httpx.Client(base_url=url, headers=headers, timeout=_TIMEOUT_SECONDS)
        self._shown = 0
        self._mark = f"beside {os.getpid()}"
        self._came = threading.Condition()
        self.waits: dict[str, Wait] = {}

    def follow(self) -> None:
        """Counts the lines of the live stream; runs in a thread."""
        with self._client.stream("GET", f"{BASE}/probe/stream/r") as response:
            for line in response.iter_lines():
                if line.startswith("data:"):
                    with self._came:
                        self._shown += line.count(self._mark)
                        self._came.notify()

    def ask_live(self) -> None:
        self._timed("live", lambda: self._client.get("/health/live").raise_for_status())

    def ask(self, number: int) -> None:
        line = f"{self._mark}\n".encode()
        self._timed(
            "append",
            lambda: self._client.post(
                f"{BASE}/probe/r", content=line, headers=_HEADERS
            ).raise_for_status(),
        )
        self._timed("stream", lambda: self._until_shown(number))

    def _until_shown(self, count: int) -> None:
        with self._came:
            assert self._came.wait_for(lambda: self._shown >= count, _TIMEOUT_SECONDS)

    def _timed(self, what: str, act: Callable[[], object]) -> None:
        ran, behind = scheduled(self._loop)[0], delayed(self._loop)
        late = scheduled()[1]
        begun = time.monotonic()
        act()
        passed = time.monotonic() - begun
        late = scheduled()[1] - late
        waited = max(passed - max(delayed(self._loop) - behind, 0.0) - late, 0.0)
        held = scheduled(self._loop)[0] - ran
        self.waits[what] = self.waits.get(what, Wait()).worst(waited, held)


def main(url: str, pid: str, token: str) -> None:
    """Asks until the input ends."""
    asking, over = _Asking(url, int(pid), token), threading.Event()

    def until_it_ends() -> None:
        sys.stdin.read()
        over.set()

    threading.Thread(target=until_it_ends, daemon=True).start()

    def live() -> None:
        """All the time, so that no turn of the loop that takes long is missed."""
        while not over.wait(_PAUSE_SECONDS):
            asking.ask_live()

    threading.Thread(target=asking.follow, daemon=True).start()
    asking.ask_live()
    asking.ask(1)
    asking.waits.clear()  # the first ones open connections
    with ThreadPoolExecutor(1) as pool:
        living = pool.submit(live)
        print("asks", flush=True)
        number = 1
        while not over.wait(_PAUSE_SECONDS):
            number += 1
            asking.ask(number)
        living.result()
    print(json.dumps({what: vars(wait) for what, wait in asking.waits.items()}), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
