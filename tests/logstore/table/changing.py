"""A table that changes at random, by us and by others. Its files are in its log only."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path

import orjson

from tailrace.logstore import ulid
from tailrace.logstore.table.log import commit_name
from tailrace.logstore.table.schema import NewFile
from tailrace.logstore.table.table import LOG, Advance, Table, TableChange, commit
from tests import reshaped
from tests.logstore.table.conftest import HOUR, NOON
from tests.simulation.clocks import ManualClock

NODES = ("a", "b", "c")
NAMES = ("svc.a", "svc.b", "späße 100%")
DAY = date(2026, 11, 21)


@dataclass
class ChangingTable:
    """Each method is a change; `step` makes one of them."""

    table: Table
    dice: random.Random
    clock: ManualClock = field(default_factory=lambda: ManualClock(NOON))
    made: int = 0

    def step(self) -> str:
        """Changes the table in some way, and says in which."""
        often: list[Callable[[], None]] = [*[self.add] * 6, *[self.replace] * 4, self.nothing]
        seldom = [self.many, self.by_another, self.clean_up, self.reshape]
        hard = [self.remake, self.remove, self.take_back]
        chosen = self.dice.choice([*often, *seldom, *hard])
        self.table.create()
        chosen()
        return chosen.__name__

    def add(self) -> None:
        """Some files, with a node's mark."""
        node = self.dice.choice(NODES)
        first = self.table.create().mark(node) + 1
        files = [self.file() for _ in range(self.dice.randrange(3))]
        self.commit(TableChange(files, [Advance(node, first, first + self.dice.randrange(3))]))

    def replace(self) -> None:
        """Some files by another."""
        there = self.table.create().files
        gone = self.dice.sample(there, min(len(there), self.dice.randrange(4)))
        self.commit(TableChange([self.file()], removed=gone, purged_ms=self.made, same_lines=True))

    def many(self) -> None:
        """More than to the next checkpoint."""
        for _ in range(self.dice.randrange(25)):
            self.add()

    def by_another(self) -> None:
        """Who says of a file that goes no more than its path."""
        gone = [file.path for file in self.table.create().files[:1]]
        actions = [{"remove": {"path": path, "dataChange": True}} for path in gone]
        lines = [orjson.dumps(action) for action in ({"commitInfo": {}}, *actions)]
        newest = int(self._commits()[-1].name[:20])
        (self.log / commit_name(newest + 1)).write_bytes(b"\n".join(lines))

    def reshape(self) -> None:
        """Its metadata."""
        reshaped.with_configuration(note=str(self.made))(Path(self.table.uri))

    def clean_up(self) -> None:
        """What a commit does to what is old and before a checkpoint."""
        for path in self.log.iterdir():
            moment = path.stat().st_mtime - 3 * 86_400
            os.utime(path, (moment, moment))
        self.commit(TableChange([self.file()]))

    def remove(self) -> None:
        """All of it."""
        shutil.rmtree(self.table.uri)

    def remake(self) -> None:
        """Another one in its place, perhaps at a later version."""
        shutil.rmtree(self.table.uri)
        self.many()

    def take_back(self) -> None:
        """The newest commit goes, as after a power cut, and another one comes in its place."""
        *_, newest = self._commits()
        if newest.name != commit_name(0) and not list(self.log.glob(f"{newest.name[:20]}.ch*")):
            newest.rename(f"{newest}.torn")
            self.commit(TableChange([self.file()]))

    def nothing(self) -> None:
        """No change at all."""

    def commit(self, change: TableChange) -> None:
        """As a compactor does."""
        self.made += 1
        job = f"J{self.made}"
        commit(self.table, self.table.create(), change, job=job, clock=self.clock)

    def file(self) -> NewFile:
        """A file with bounds, or without."""
        self.made += 1
        hour, fqn = self.dice.randrange(12, 24), self.dice.choice(NAMES)
        start = NOON + (hour - 12) * HOUR
        low, high = sorted(self.dice.sample(range(HOUR), 2))
        bounds = [ulid.encode(ulid.lowest_at(start + at)) for at in (low, high)]
        stats = {
            "numRecords": self.made,
            "minValues": {"ulid": bounds[0], "fqn": fqn, "run_id": "r1"},
            "maxValues": {"ulid": bounds[1], "fqn": fqn, "run_id": "r2"},
            "nullCount": {},
        }
        if self.made % 5 == 0:
            stats = {"numRecords": 1}
        path = f"date={DAY}/hour={hour}/{self.made}.parquet"
        text = orjson.dumps(stats).decode()
        return NewFile(path, self.made, self.made, DAY, hour, NOON, text)

    @property
    def log(self) -> Path:
        """The log's folder."""
        return Path(self.table.uri) / LOG

    def _commits(self) -> list[Path]:
        return sorted(self.log.glob("*.json"))
