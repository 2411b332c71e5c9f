"""Random histories of writers, rotations, kills and refusals, and what the store must hold then.

A history is made of a seed. Writers append numbered lines to logs, which are rotated by rename or
by copy and truncate, compressed, deleted and made anew, or are symbolic links that are pointed
elsewhere; the engine is polled, starved of the service, and killed, with or without what it had
sent. At the end every line that is still on the disk, or that the engine had the time to read, must
be in the store once, in the order of the file.
"""

from __future__ import annotations

import gzip
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from tailrace.forwarder.delivery.targets import Shipment
from tests.forwarder.engine.world import World

_KEEP = 4
_MORE_THAN_ROTATE_WAIT = 6


@dataclass
class Content:
    """What one generation of a log holds."""

    lines: list[str] = field(default_factory=list)
    sure: int = 0
    """So many of its lines must arrive, whatever becomes of the file."""
    matched: bool = False
    """A scan can have seen it."""
    path: Path | None = None


class Log:
    """One log: `a.log`, its rotations `a.log.1`, …, and what was written to it."""

    def __init__(self, world: World, name: str, dice: Random, preamble: bool) -> None:
        self.world = world
        self.name = name
        self.dice = dice
        self.path = world.logs / f"{name}.log"
        self.preamble = [f"{name} preamble {number}" for number in range(60)] if preamble else []
        self.number = 0
        self.live = Content()
        self.contents: list[Content] = []
        self.partial = ""
        self.ticks = 1_800_000_000 * 10**9

    def append(self, lines: int) -> None:
        if self.live.path is None:
            self.live = Content(path=self.path)
            self.contents.append(self.live)
            for line in self.preamble:
                self._write(f"{line}\n")
                self.live.lines.append(line)
        for _ in range(lines):
            self.number += 1
            line = f"{self.name} {self.number:06} {'x' * self.dice.randrange(60)}"
            self._write(f"{line}\n")
            self.live.lines.append(line)
        self._touch(self.path)

    def rename(self) -> None:
        if self.live.path is not None:
            self._shift()
            self._move(self.live, self._rotated(1))
            self.live = Content()

    def copy_truncate(self) -> None:
        if self.live.path is None:
            return
        self._shift()
        copy = self._rotated(1)
        shutil.copy(self.path, copy)
        self._touch(copy)
        self.live.path = copy
        if self.dice.random() < 0.3:
            self.world.poll()  # the copy is seen before the original is truncated
        os.truncate(self.path, 0)
        self._touch(self.path)
        self.live = Content()

    def compress(self) -> None:
        for content in self.contents:
            if content.path is not None and content.path.suffix[1:].isdigit():
                packed = content.path.with_name(content.path.name + ".gz")
                data = gzip.compress(content.path.read_bytes())
                stat = content.path.stat()
                if self.dice.random() < 0.3:
                    packed.write_bytes(data[: self.dice.randrange(len(data))])
                    self._touch(packed)
                    self.world.poll()
                packed.write_bytes(data)
                os.utime(packed, ns=(stat.st_mtime_ns, stat.st_mtime_ns))
                if self.dice.random() < 0.3:
                    self.world.poll()
                content.path.unlink()
                content.path = packed
                return

    def delete(self) -> None:
        if self.live.path is not None:
            self.path.unlink()
            self.live.path = None
            self.live = Content()

    def polled(self) -> None:
        """The engine had the time to read everything that it can find."""
        for content in self.contents:
            if content.path == self.path:
                content.matched = True
            if content.path is not None and (content.matched or self._inside(content.path)):
                content.matched = True
                content.sure = len(content.lines)

    def check(self) -> None:
        expected = [line for content in self.contents for line in self._sure(content)]
        stored = self.world.store.lines(self.name)
        numbered = [line for line in stored if "preamble" not in line]
        assert len(set(numbered)) == len(numbered), "no line twice"
        written = {line for content in self.contents for line in content.lines}
        assert set(stored) <= written, "no line that nobody wrote"
        sure = {line for line in expected if line not in self.preamble}
        assert [line for line in numbered if line in sure] == [
            line for line in expected if line in sure & set(stored)
        ], "in the order in which they were written"
        missing = [line for line in expected if line not in set(stored)]
        assert missing == [], "nothing is lost that could be read"
        for line in set(self.preamble):
            assert expected.count(line) <= stored.count(line) <= len(self.contents)

    def _sure(self, content: Content) -> list[str]:
        return content.lines[: content.sure]

    def _inside(self, path: Path) -> bool:
        return any(Path(path).match(pattern) for pattern in self.world.config.include)

    def _write(self, text: str) -> None:
        with self.path.open("a") as file:
            file.write(text)

    def _touch(self, path: Path) -> None:
        self.ticks += 10**9
        os.utime(path, ns=(self.ticks, self.ticks))

    def _rotated(self, number: int) -> Path:
        return self.world.logs / f"{self.name}.log.{number}"

    def _shift(self) -> None:
        """`.1` becomes `.2`, and the oldest goes."""
        for content in self.contents:
            if content.path is None or content.path == self.path:
                continue
            bare, _, end = content.path.name.removeprefix(f"{self.name}.log.").partition(".")
            number = int(bare) + 1
            if number > _KEEP:
                content.path.unlink()
                content.path = None
            else:
                name = f"{self.name}.log.{number}{'.' + end if end else ''}"
                self._move(content, content.path.with_name(name))

    def _move(self, content: Content, path: Path) -> None:
        assert content.path is not None
        content.path.rename(path)
        content.path = path


class LinkedLog(Log):
    """A log that is a symbolic link; a rotation points it at another file, out of the patterns."""

    def append(self, lines: int) -> None:
        if self.live.path is None:
            target = self.world.logs.parent / "targets" / f"{self.name}.{len(self.contents)}"
            target.parent.mkdir(exist_ok=True)
            target.touch()
            link = self.path.with_suffix(".link")
            link.symlink_to(target)
            link.rename(self.path)
        super().append(lines)

    def rename(self) -> None:
        # What waits for a lost predecessor is read after that: nothing leads to it behind this.
        self.world.settle(_MORE_THAN_ROTATE_WAIT)
        self.live.path = None
        self.live = Content()

    def copy_truncate(self) -> None:
        self.rename()


class History:
    """One seed's history; `linked`: its logs are symbolic links."""

    def __init__(self, folder: Path, seed: int, *, linked: bool = False) -> None:
        self.dice = dice = Random(seed)
        include = ["*.log*"] if dice.random() < 0.6 else ["*.log"]
        self.world = World(
            folder,
            include=[str(folder / "logs" / each) for each in include],
            run="{stem}",
            fingerprint_size=dice.choice([16, 100, 1000]),
            max_concurrent_files=dice.choice([2, 3, 1000]),
            order=dice.choice(["fair", "oldest"]),
        )
        self.inside = include == ["*.log*"] and not linked
        self.logs = [
            (LinkedLog if linked else Log)(self.world, name, dice, preamble=dice.random() < 0.3)
            for name in "abc"[: dice.randrange(1, 4)]
        ]
        self.trace: list[str] = []
        self.lost = 0

    def run(self, steps: int) -> None:
        actions: list[tuple[float, str, Callable[[Log], None]]] = [
            (6, "append", lambda log: log.append(self.dice.choice([1, 3, 40, 400]))),
            (4, "poll", lambda log: self.poll()),
            (1.5, "rename", lambda log: self._rotate(log.rename)),
            (1.0, "copy and truncate", lambda log: self._rotate(log.copy_truncate)),
            (0.8, "compress", Log.compress),
            (0.3, "delete", Log.delete),
            (1.0, "rounds", lambda log: self.some_rounds()),
            (0.8, "kill", lambda log: self.kill()),
            (0.5, "away", lambda log: self.away()),
            (0.3, "over", lambda log: self.world.over()),
        ]
        for _ in range(steps):
            _, name, action = self.dice.choices(actions, [each[0] for each in actions])[0]
            log = self.dice.choice(self.logs)
            self.trace.append(f"{name} {log.name}")
            action(log)
        self.trace.append("end")
        self.poll()
        self.world.over()
        for log in self.logs:
            log.polled()
            log.check()
        if all(content.sure == len(content.lines) for log in self.logs for content in log.contents):
            assert self.lost + self.world.tally.lost_bytes == 0, "no loss is said that was none"

    def poll(self) -> None:
        self.world.store.away = False
        self.world.poll()
        self.world.settle(1)
        for log in self.logs:
            log.polled()

    def some_rounds(self) -> None:
        for _ in range(self.dice.randrange(1, 4)):
            self.world.engine.round()
            if self.dice.random() < 0.5:
                self.world.post.carry()
            self.world.clock.move(self.dice.choice([0, 0.05, 0.3]))

    def kill(self) -> None:
        """With answers on their way that nobody hears."""
        for shipment in list(self.world.post.waiting):
            if isinstance(shipment, Shipment) and self.dice.random() < 0.5:
                self.world.store.take(shipment.run, shipment.batch, shipment.body)
        self.lost += self.world.tally.lost_bytes
        self.world.restart()

    def away(self) -> None:
        self.world.store.away = True
        self.world.settle(self.dice.choice([0.1, 1, 8]))

    def _rotate(self, how: Callable[[], None]) -> None:
        if not self.inside:
            self.poll()  # a generation that no scan saw under its name is none that we know
        how()
