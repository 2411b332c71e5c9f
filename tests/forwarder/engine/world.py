"""An engine on real files and a real checkpoint log, with a clock that the test moves.

The packer here takes one line for one record, unless a world `packs` as a real forwarder. The
service is a dictionary that keeps the rules of the real one: an id names its bytes for ever, and a
run has its batches in the order of arrival.
`tests/e2e` has the real ones.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tailrace.forwarder.checkpoints import Checkpoints
from tailrace.forwarder.config.source import FileSource
from tailrace.forwarder.delivery.targets import (
    CloseRun,
    Question,
    Shipment,
    Task,
    Verdict,
    VerdictKind,
)
from tailrace.forwarder.engine.engine import ForwarderEngine
from tailrace.forwarder.engine.state import EngineParts, FileRegistry, SourceParts, SourceTally
from tailrace.forwarder.entries.packer import EntryPacker
from tailrace.forwarder.entries.splitting import Rest, rest_of_lines
from tailrace.forwarder.files.content import Handles
from tailrace.forwarder.files.finder import Confines, Finder, FoundFile, Glob
from tailrace.forwarder.model import EntryCursor, FileFacts, Packed
from tailrace.forwarder.naming import Namer
from tailrace.logstore.filesystem import FileSystem
from tailrace_client.records import BatchIds, id_after

FQN = "shop.orders"


@dataclass
class HandClock:
    """Stands still until it is moved."""

    seconds: float = 1000.0
    wall_ms: int = 1_800_000_000_000

    def now_ms(self) -> int:
        return self.wall_ms

    def monotonic(self) -> float:
        return self.seconds

    def move(self, seconds: float) -> None:
        self.seconds += seconds
        self.wall_ms += int(seconds * 1000)


class LinePacker:
    """One line, one record."""

    longest = 1 << 20

    def rest(self, data: bytes, start: EntryCursor) -> Rest:
        assert start.offset >= 0
        return rest_of_lines(data)

    def __init__(self, prefix: bytes = b"") -> None:
        self._prefix = prefix

    def pack(
        self, data: bytes, start: EntryCursor, file: FileFacts, *, final: bool, most: int
    ) -> Packed | None:
        end = len(data) if final else data.rfind(b"\n") + 1
        if end > most:
            end = data.rfind(b"\n", 0, most) + 1 or data.find(b"\n") + 1 or end
        if end == 0:
            return None
        body = self._prefix.join([b"", *data[:end].splitlines(keepends=True)])
        records = body.count(b"\n") + (not body.endswith(b"\n"))
        cursor = EntryCursor(start.offset + end, start.records + records)
        return Packed(cursor, body, "text/plain", records)


@dataclass
class Store:
    """The service: what arrived, in order."""

    batches: dict[str, tuple[str, bytes]] = field(default_factory=dict)
    closed: list[str] = field(default_factory=list)
    refusals: dict[str, VerdictKind] = field(default_factory=dict)
    deleted_through: str = ""
    deleted_ms: int = 0
    away: bool = False

    def lines(self, run: str | None = None) -> list[str]:
        """All lines, or those of a run, in the order in which they arrived."""
        bodies = [body for of, body in self.batches.values() if run in (None, of)]
        return [line for body in bodies for line in body.decode().splitlines()]

    def runs(self) -> list[str]:
        return list(dict.fromkeys(run for run, _ in self.batches.values()))

    def take(self, run: str, batch: str, body: bytes) -> bool:
        """Whether the batch is known."""
        if batch in self.batches:
            assert self.batches[batch] == (run, body), "an id names its bytes for ever"
            return True
        self.batches[batch] = (run, body)
        return False


class Post:
    """The delivery: what the engine sends waits here until `carry`."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.engine: ForwarderEngine | None = None
        self.waiting: deque[Task] = deque()

    def submit(self, shipment: Shipment) -> None:
        self.waiting.append(shipment)

    def ask(self, file: str, fqn: str, run: str, batch: str) -> None:
        self.waiting.append(Question(file, fqn, run, batch))

    def close_run(
        self,
        file: str,
        fqn: str,
        run: str,
        outcome: str | None = None,
        *,
        started_ms: int | None = None,
        ended_ms: int | None = None,
    ) -> None:
        self.waiting.append(CloseRun(file, fqn, run, outcome, started_ms, ended_ms))

    def carry(self) -> bool:
        """Delivers everything; False if nothing waits."""
        assert self.engine is not None
        if self.store.away or not self.waiting:
            return False
        while self.waiting:
            task = self.waiting.popleft()
            self.engine.on_verdict(task.file, self._verdict(task))
        return True

    def _verdict(self, task: Task) -> Verdict:
        if isinstance(task, Question):
            return Verdict("present" if task.batch in self.store.batches else "missing", task.batch)
        if isinstance(task, CloseRun):
            self.store.closed.append(task.run)
            return Verdict("closed")
        refusal = self.store.refusals.get(task.run)
        if refusal == "renew":
            del self.store.refusals[task.run]
        if refusal is not None:
            return Verdict(refusal, task.batch, reason=f"it is said to be {refusal}")
        through = self.store.deleted_through
        if task.batch <= through:
            # The same next id each time, as of a node whose clock is behind.
            moment_ms, following = self.store.deleted_ms, id_after(through)
            return Verdict("deleted", task.batch, moment_ms=moment_ms, next_batch=following)
        known = self.store.take(task.run, task.batch, task.body)
        return Verdict("acknowledged", task.batch, duplicate=known)


class World:
    """One folder of logs, one of checkpoints, one store; the engine may die and start again."""

    def __init__(self, folder: Path, **config: Any) -> None:
        self.logs = folder / "logs"
        self.logs.mkdir(exist_ok=True)
        self.state = folder / "state"
        self.disk: FileSystem | None = config.pop("disk", None)
        self.clock = HandClock()
        self.store = Store()
        self.said: list[str] = []
        self.shown: list[tuple[str, str]] = []
        self.packs = config.pop("packs", False)
        self.batch_bytes: int = config.pop("batch_bytes", 1 << 20)
        include = config.pop("include", [str(self.logs / "*.log*")])
        config = {"start_at": "beginning", "fqn": FQN, "hints": False, **config}
        self.config = FileSource(include=include, **config)
        self.ids = BatchIds(now_ms=self.clock.now_ms)
        self.memory_bytes = 16 << 20
        self.prefix = b""
        self.start()

    def start(self, post: type[Post] = Post, *, hinted: bool = False) -> None:
        """A new process, on what the last one left."""
        config = self.config
        self.checkpoints = Checkpoints(str(self.state), self.disk, say=self.said.append)
        source = SourceParts(
            config=config,
            confines=Confines(config.within),
            finder=self.finder(),
            archives=tuple(Glob(each) for each in config.archive_include),
            packer=EntryPacker(config) if self.packs else LinePacker(self.prefix),
            name=self.namer().name,
            facts=lambda path: FileFacts(path, {}),
        )
        self.post = post(self.store)
        self.handles = Handles(config.max_concurrent_files)
        self.shared = EngineParts(
            sources={config.name: source},
            registry=FileRegistry(),
            handles=self.handles,
            checkpoints=self.checkpoints,
            clock=self.clock,
            mint=self.ids.mint,
            correct=self.ids.correct,
            say=self.said.append,
            show=lambda _fqn, _run, file, line: self.shown.append((file, line.decode())),
            tallies={config.name: SourceTally()},
        )
        self.engine = ForwarderEngine(
            self.shared,
            self.post,
            batch_bytes=self.batch_bytes,
            memory_bytes=self.memory_bytes,
            hinted=[config.name] if hinted else [],
        )
        self.post.engine = self.engine

    def namer(self) -> Namer:
        """What names the runs of files."""
        return Namer(self.config, host="here")

    def finder(self) -> Finder:
        """What finds the files of a process."""
        return Finder(
            self.config.include,
            self.config.exclude,
            older_than_ns=int(self.config.exclude_older_than * 1e9),
            confines=Confines(self.config.within),
            now_ns=lambda: self.clock.wall_ms * 1_000_000,
            unreadable=lambda path, error: self.said.append(f"{path}: {error}"),
            order=self.listed,
        )

    def listed(self, found: list[FoundFile]) -> list[FoundFile]:
        """The list of a scan, before the files are looked into."""
        return found

    @property
    def tally(self) -> SourceTally:
        return self.shared.tallies[self.config.name]

    def settle(self, seconds: float = 0.0) -> None:
        """Moves the clock, and goes on until nothing is left to do before it moves again."""
        until = self.clock.seconds + seconds
        for _ in range(100_000):
            wait = self.engine.round()
            assert len(self.handles) <= self.handles.limit
            if self.post.carry() or wait == 0.0:
                continue
            if self.clock.seconds + wait > until:
                self.clock.move(until - self.clock.seconds)
                return
            self.clock.move(wait)
        raise AssertionError("the engine does not come to rest")

    def poll(self) -> None:
        """Long enough for a scan, and for what it finds to be read."""
        self.settle(self.config.poll_interval + 0.05)

    def flush(self) -> None:
        """Long enough for an unfinished last line to be sent."""
        period = max(self.config.force_flush_period, self.config.unfinished_wait)
        self.settle(period + self.config.poll_interval + 0.1)

    def over(self) -> None:
        """Long enough for rotated files to be done."""
        self.settle(self.config.rotate_wait * 2 + 1)

    def kill(self) -> None:
        """The process is gone, with everything that it had not synced."""
        for tracked in list(self.shared.registry.files.values()):
            if tracked.handle is not None:
                self.handles.close(tracked.handle)
        self.checkpoints._pending.clear()
        self.checkpoints.close()

    def restart(self) -> None:
        """kill -9, and a new process."""
        self.kill()
        self.start()

    def path(self, name: str) -> Path:
        return self.logs / name

    def write(self, name: str, text: str) -> None:
        """Appends."""
        with self.path(name).open("a") as file:
            file.write(text)

    def lines(self, name: str, first: int, last: int) -> list[str]:
        """Appends numbered lines, and gives them."""
        lines = [f"{name} line {number} {'x' * 20}" for number in range(first, last)]
        self.write(name, "".join(f"{line}\n" for line in lines))
        return lines
