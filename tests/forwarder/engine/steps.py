"""A log that is rotated step by step, with a writer that appends at every step.

Each step of a rotation is one call of the file system, as logrotate makes them: files are shifted,
the log is renamed or copied (also piece by piece) and truncated, copies are compressed, now or at
the next rotation, and originals of archives are removed. Before and after each step the writer
appends, and the forwarder may look, look several times, be killed, or do nothing. A forwarder that
is killed starts again at once, or stays away for some steps.

`check` knows what must be stored: each line once and in order, but for lines that were written
between copy and truncation and that nobody read. Their bytes are what the forwarder may count as
lost, as far as it saw them.
"""

from __future__ import annotations

import gzip
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Literal

from tailrace.forwarder.delivery.targets import Shipment
from tests.forwarder.engine.world import World

_PIECE_SHARES = (0.3, 0.7)
Names = Literal["matched", "archives", "unmatched"]
Ends = Literal["never", "killed", "stopped"]
"""Whether the forwarder is killed between steps, and whether it then stays away."""


@dataclass
class Generation:
    """What the writer appended to the log between two truncations or renames."""

    lines: list[str] = field(default_factory=list)
    copied: int | None = None
    """So many of its lines are in its copy; None: all that there are, it was renamed."""
    seen: int = 0
    """So many of its lines were there when the forwarder looked last."""

    @property
    def doomed(self) -> list[str]:
        """The lines that only the truncated file had."""
        return [] if self.copied is None else self.lines[self.copied :]


@dataclass(frozen=True)
class Kind:
    """How a log is rotated."""

    copying: float
    """The share of rotations that copy and truncate."""
    compressing: bool
    delayed: bool
    """Compress at the next rotation."""
    dated: bool
    header: int
    """Bytes that each generation begins with."""
    longest: int
    """Bytes of a line, at most."""


class SteppedLog:
    """`app.log`, its writer and its rotations."""

    def __init__(self, world: World, kind: Kind, dice: Random) -> None:
        self.world = world
        self.kind = kind
        self.dice = dice
        self.live = world.path("app.log")
        self.generations = [Generation()]
        self.trace: list[str] = []
        self._header = "".join(f"header {number:04}\n" for number in range(kind.header // 12))
        self._number = 0
        self._rotation = 0
        self._ticks = 1_700_000_000 * 10**9
        self._open = self.live
        self._uncompressed: list[Path] = []
        self.lost = 0
        self.killed = False
        self.away = False
        self.returns = 1.0
        """How likely a forwarder that is away starts again at a step."""

    @property
    def now(self) -> Generation:
        """What the writer appends to."""
        return self.generations[-1]

    def append(self) -> None:
        """A few lines, in one write."""
        text = "" if self.now.lines else self._header
        for _ in range(self.dice.choice([1, 1, 2, 5])):
            self._number += 1
            text += f"{self._number:06} {'x' * self.dice.randrange(self.kind.longest)}\n"
        with self._open.open("a") as file:
            file.write(text)
        self.now.lines += text.splitlines()
        self._touch(self._open)

    def rotate(self) -> Iterator[str]:
        """One rotation; between two steps anything may happen."""
        self._rotation += 1
        if self.kind.delayed:
            yield from self._compress()
        if not self.kind.dated:
            yield from self._shift()
        first = self.live.with_name(
            f"app.log-202611{self._rotation:02}" if self.kind.dated else "app.log.1"
        )
        if self.dice.random() < self.kind.copying:
            yield from self._copy(first)
        else:
            self.live.rename(first)
            self._open = first
            yield "rename"
            self.generations.append(Generation())
            self._open = self.live
            self._open.touch()
            yield "create"
        self._uncompressed.append(first)
        if self.kind.compressing and not self.kind.delayed:
            yield from self._compress()

    def _copy(self, first: Path) -> Iterator[str]:
        whole = self.live.read_bytes()
        if self.dice.random() < 0.5:
            for share in _PIECE_SHARES:
                first.write_bytes(whole[: int(len(whole) * share)])
                self._touch(first)
                yield f"copy {share:.0%}"
            whole = self.live.read_bytes()
        first.write_bytes(whole)
        self._touch(first)
        self.now.copied = len(self.now.lines)
        yield "copy"
        os.truncate(self.live, 0)
        self._touch(self.live)
        self.generations.append(Generation())
        yield "truncate"

    def _compress(self) -> Iterator[str]:
        plain, self._uncompressed = self._uncompressed, []
        for path in plain:
            packed, stat = path.with_name(f"{path.name}.gz"), path.stat()
            data = gzip.compress(path.read_bytes())
            packed.write_bytes(data[: len(data) // 2])
            yield "half an archive"
            packed.write_bytes(data)
            os.utime(packed, ns=(stat.st_mtime_ns, stat.st_mtime_ns))
            yield "an archive"
            path.unlink()
            yield "remove"

    def _shift(self) -> Iterator[str]:
        numbered = [path for path in self.live.parent.iterdir() if path != self.live]
        for path in sorted(numbered, key=_number, reverse=True):
            ending = ".gz" if path.suffix == ".gz" else ""
            shifted = path.with_name(f"app.log.{_number(path) + 1}{ending}")
            path.rename(shifted)
            self._uncompressed = [shifted if each == path else each for each in self._uncompressed]
            yield f"shift {_number(path)}"

    def look(self) -> None:
        """The forwarder looks, and reads what it finds."""
        if self.away:
            self.start()
        self.world.store.away = False
        self.world.settle(1.5)
        self.now.seen = len(self.now.lines)

    def kill(self) -> None:
        """With answers on their way that nobody gets."""
        for shipment in list(self.world.post.waiting):
            if isinstance(shipment, Shipment) and self.dice.random() < 0.5:
                self.world.store.take(shipment.run, shipment.batch, shipment.body)
        self.killed = True
        self.lost += self.world.tally.lost_bytes
        self.world.kill()
        self.away = True
        if self.returns == 1.0:
            self.start()

    def start(self) -> None:
        """A new process, whose first scan is to come."""
        self.away = False
        self.world.start()

    def check(self) -> None:
        """Raises `AssertionError` if a line is missing, doubled or in the wrong place."""
        stored = self.world.store.lines()
        numbered = [line for line in stored if not line.startswith("header")]
        doomed = {line for each in self.generations for line in each.doomed}
        written = [
            line
            for each in self.generations
            for line in each.lines
            if not line.startswith("header")
        ]
        assert sorted(set(numbered)) == sorted(numbered), "no line twice"
        found = set(numbered)
        assert [line for line in written if line not in found | doomed] == [], "none is missing"
        for run in self.world.store.runs():
            there = [line for line in self.world.store.lines(run) if line in found]
            assert there == sorted(there), "in their order"
        headers = [line for line in stored if line.startswith("header")]
        began = sum(bool(each.lines) for each in self.generations)
        assert len(headers) == self._header.count("\n") * began
        gone = sum(len(line) + 1 for line in doomed - found)
        seen = sum(
            len(line) + 1
            for each in self.generations
            for line in each.lines[: each.seen]
            if line in doomed - found
        )
        lost = self.lost + self.world.tally.lost_bytes
        assert lost <= gone, "no more is counted than was lost"
        if not self.killed:
            assert lost >= seen, "what was seen and not read is counted"

    def _touch(self, path: Path) -> None:
        self._ticks += 10**9
        os.utime(path, ns=(self._ticks, self._ticks))


def _number(path: Path) -> int:
    return int(path.name.removeprefix("app.log.").removesuffix(".gz"))


def run_steps(
    folder: Path, seed: int, *, names: Names, ends: Ends, rotations: int = 8
) -> SteppedLog:
    """A random history; `names`: which patterns match rotated names."""
    inside = names != "unmatched"
    dice = Random(f"{seed} {names} {ends == 'killed'}")
    stops = Random(f"{seed} {names} stops") if ends == "stopped" else None
    world = World(
        folder,
        include=[str(folder / "logs" / ("app.log*" if names == "matched" else "app.log"))],
        archive_include=[str(folder / "logs" / "app.log?*")] if names == "archives" else [],
        run="{stem}",
        fingerprint_size=dice.choice([16, 100, 1000]),
        max_concurrent_files=dice.choice([3, 1000]),
    )
    kind = Kind(
        copying=dice.choice([0, 0.5, 1, 1]),
        compressing=dice.random() < 0.5,
        delayed=dice.random() < 0.5,
        dated=dice.random() < 0.3,
        header=dice.choice([0, 12, 1800]),
        longest=dice.choice([10, 60, 400]),
    )
    log = SteppedLog(world, kind, dice)
    if stops is not None:
        log.returns = stops.choice([0.03, 0.1, 0.5])
        world.batch_bytes = stops.choice([100, 1000, 1 << 20])
        world.restart()
    log.trace.append(f"{kind} {world.config.fingerprint_size} {world.config.max_concurrent_files}")
    log.trace.append(f"{log.returns} {world.batch_bytes}")
    for _ in range(rotations):
        for _ in range(dice.choice([1, 3, 20])):
            log.append()
            _meanwhile(log, kills=ends != "never")
        if not inside:
            log.append()
            log.look()
        for step in log.rotate():
            log.trace.append(step)
            log.append()
            _meanwhile(log, kills=ends != "never")
        if not inside:
            log.look()
    log.look()
    world.over()
    log.look()
    world.over()
    log.check()
    return log


def _meanwhile(log: SteppedLog, *, kills: bool) -> None:
    if log.away:
        if log.dice.random() >= log.returns:
            return
        log.trace.append("start")
        log.start()
    action = log.dice.choices(
        ["nothing", "look", "round", "away", "kill"], [5, 4, 2, 1, 1 if kills else 0]
    )[0]
    if action != "nothing":
        log.trace.append(action)
    if action == "look":
        log.look()
    elif action == "round":
        log.world.engine.round()
        if log.dice.random() < 0.5:
            log.world.post.carry()
        log.world.clock.move(log.dice.choice([0, 0.05, 0.3]))
    elif action == "away":
        log.world.store.away = True
        log.world.settle(log.dice.choice([0.1, 1, 8]))
    elif action == "kill":
        log.kill()
