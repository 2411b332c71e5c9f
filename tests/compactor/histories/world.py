"""A store, whoever writes to it, and drivers that come and go: one random history of it.

`Driver` is one pass with what goes wrong in it. `World` keeps the model beside the store and
looks whether both agree, at every version that somebody could see.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections.abc import Callable, Collection, Coroutine, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any, TypeVar

import orjson
import pyarrow.parquet as pq
from deltalake import DeltaTable

from compactor.compactor import Compactor
from compactor.place.folder import FolderPlacement
from compactor.report import Report
from compactor.schedule import once
from compactor.settings import Compaction
from compactor.sharing.shares import Alone
from compactor.spark.engine import Engine
from logstore import keys, ulid
from logstore.errors import OutcomeUnknown, Unavailable
from logstore.objects.local import LocalStore, inline
from logstore.runs.deletion import Deletion, encode_deletion
from logstore.segments.carry import Carry
from logstore.segments.writer import encode_segment
from logstore.table.snapshot import Snapshot
from logstore.table.table import Table
from tests.batches import make_batches
from tests.compactor.histories.bad import CORRUPTED, newer
from tests.compactor.histories.dated import HOUR_MS, DatedDisk, MovedClock, play
from tests.compactor.histories.lossy import Losses, LossyTable
from tests.compactor.histories.model import Model, Said, end_of_hour
from tests.compactor.lake import Batch, Record, records
from tests.compactor.plain_engine import PlainEngine
from tests.faulty_store import Crash, FaultyStore, Schedule

T = TypeVar("T")
NODES = ("a", "b", "c")
DAY_MS = 24 * HOUR_MS
PINNED_MS = DAY_MS
AGES = 10_000


class Some(Alone):
    """Leaves some nodes to others, who do the same or do not: leases must not matter."""

    def __init__(self, left: Collection[str]) -> None:
        self._left = left

    async def among(self, nodes: Sequence[str], waiting: Collection[str]) -> list[str]:
        return [node for node in nodes if node in waiting and node not in self._left]


@dataclass
class Troubles:
    """What goes wrong in one pass: at which step it is killed, what others do meanwhile.

    The driver leaves the nodes `left` alone.
    """

    left: Collection[str] = ()
    store: Schedule = field(default_factory=Schedule.none)
    losses: Losses = field(default_factory=Losses)
    killed_at: int = 0
    meanwhile: dict[int, Callable[[], None]] = field(default_factory=dict)
    steps: list[str] = field(default_factory=list)

    def reached(self, step: str) -> None:
        """A step is over."""
        self.steps.append(step)
        number = len(self.steps)
        if number in self.meanwhile:
            self.meanwhile[number]()
        if number == self.killed_at:
            raise Crash(step)


@dataclass
class World:
    """The store below `root`."""

    root: Path
    dice: Random
    engine: Engine = field(default_factory=PlainEngine)
    limits: Compaction = field(default_factory=Compaction)
    clock: MovedClock = field(default_factory=MovedClock)
    model: Model = field(default_factory=Model)
    story: list[str] = field(default_factory=list)
    sent: list[Batch] = field(default_factory=list)
    _made: list[int] = field(default_factory=list)
    _pins: list[tuple[int, Snapshot, list[Record]]] = field(default_factory=list)
    _contents: dict[str, list[Record]] = field(default_factory=dict)
    _pos: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.disk = DatedDisk(self.clock)
        self.store = self._store()
        self.table = Table(self.store.uri(keys.TABLE))

    def _store(self) -> LocalStore:
        bits = Random(self.dice.random())
        return LocalStore(str(self.root), self.disk, self.clock, bits, run=inline)

    # What others do.

    def put(self, node: str, batches: Sequence[Batch]) -> None:
        """The node flushes a segment."""
        body = self._segment(node, batches)
        self.tell(f"{node} puts {len(batches)} batches")
        self._stored(node, body, records(batches))
        self.sent += batches

    def put_bad(self, node: str, batches: Sequence[Batch]) -> None:
        """A segment of the node comes to harm."""
        kind = self.dice.choice(list(CORRUPTED))
        body = CORRUPTED[kind](self._segment(node, batches), self.dice)
        self.tell(f"{node} puts a segment that is {kind}")
        self._stored(node, body, set())
        self.model.unreadable[node, len(self.model.segments[node])] = self.clock.ms

    def put_newer(self, node: str, batches: Sequence[Batch]) -> None:
        """The node is of a newer version, from here on."""
        body = newer(self._segment(node, batches))
        self.tell(f"{node} puts a segment of a newer version")
        self._stored(node, body, set())
        self.model.newer.setdefault(node, len(self.model.segments[node]))

    def delete(self, fqn: str, run: str | None, t: int) -> None:
        """A run or pipeline is deleted; an earlier deletion's bound stays, if it is higher."""
        earlier = self.model.deletions.get((fqn, run))
        bound = max(t, earlier[0].t if earlier else 0)
        deletion = Deletion(fqn, run, bound, ulid.encode(ulid.fresh(self.clock, self.dice)))
        self.tell(f"{fqn} {run} is deleted up to {ulid.encode(bound)}")
        self.run(self.store.put(deletion.key, encode_deletion(deletion)))
        self.model.deletions[fqn, run] = (deletion, self.clock.ms)

    def texts_made(self, node: str) -> None:
        """All segments of the node are in their runs' texts."""
        seq = len(self.model.segments.get(node, ()))
        body = {"seq": seq, "pos": 0, "low": 0, "version": ulid.encode(1)}
        self.run(self.store.put(keys.text_mark(node), orjson.dumps(body)))

    def pin(self) -> None:
        """A query begins, and reads what it pinned for as long as it may."""
        snapshot = self.table.snapshot()
        self._pins.append((self.clock.ms, snapshot, self._read(snapshot)))

    def pass_time(self, ms: int) -> None:
        self.tell(f"{ms / HOUR_MS:.2f} h pass")
        self.clock.advance(ms)

    # Drivers.

    def drive(self, troubles: Troubles | None = None) -> Report | None:
        """One pass. None if it did not come to its end."""
        met = troubles or Troubles()
        self.tell("a pass begins")
        report = None
        try:
            report = self.attempt(met)
        except (Crash, Unavailable, OutcomeUnknown) as error:
            self.tell(f"it ended by {type(error).__name__} {error}")
        self.tell(f"it went through {met.steps}")
        if met.losses.late is not None and self.dice.random() < 0.5:
            met.losses.commit(lambda: None)
        self.check()
        return report

    def attempt(self, troubles: Troubles) -> Report:
        """The pass alone. Raises what ends it."""
        return self.run(once(self._compactor(troubles)))

    def _compactor(self, met: Troubles) -> Compactor:
        table = LossyTable(self.table.uri, clock=self.clock, losses=met.losses, made=self._made)
        return Compactor(
            FaultyStore(self._store(), met.store),
            table,
            FolderPlacement(self.disk, table.uri),
            self.clock,
            Random(self.dice.random()),
            self.limits,
            self.engine,
            met.reached,
            sharing=Some(met.left),
        )

    # What must hold.

    def check(self) -> None:
        """Raises `AssertionError` if something is there twice, lost, or not gone."""
        snapshot = self.table.snapshot()
        self.model.check(self._read(snapshot), self._said(snapshot))
        self._check_segments(snapshot)
        self._pins = [pin for pin in self._pins if self.clock.ms - pin[0] < PINNED_MS]
        for _, pinned, found in self._pins:
            assert self._read(pinned) == found

    def check_settled(self) -> None:
        """Nothing is left to do: the table has what it must have, the store nothing else."""
        snapshot = self.table.snapshot()
        said = self._said(snapshot)
        found = self._read(snapshot)
        assert set(found) == self.model.settled(said)
        assert dict(said.marks) == self.model.readable()
        oldest = self.clock.ms - (self.limits.retention_days or AGES) * DAY_MS
        assert not [record for record in found if end_of_hour(record) <= oldest]
        if self.limits.retention_bytes is None:
            assert said.expired_ms <= max(oldest, 0)
        there = {p.relative_to(self.table.uri) for p in Path(self.table.uri).rglob("*.*")}
        data = {str(path) for path in there if path.parts[0] != "_delta_log"}
        assert data <= self._needed(), "orphans are left"

    def _needed(self) -> set[str]:
        """Files of versions that some reader of the last day may have."""
        first = max(bisect_right(self._made, self.clock.ms - PINNED_MS) - 1, 0)
        newest = self.table.snapshot().version
        tables = (DeltaTable(self.table.uri, version=v) for v in range(first, newest + 1))
        return {f.path for t in tables for f in Snapshot(self.table.uri, t.version(), t).files}

    def left_segments(self) -> set[tuple[str, int]]:
        """Segments in the store."""
        return {parsed for key in self.keys("segments/") if (parsed := keys.parse_segment(key))}

    def kept_aside(self) -> set[tuple[str, int]]:
        """Segments that cannot be read and may still be repaired: retention would take no line."""
        days = self.limits.retention_days
        oldest = self.clock.ms - (days + 1) * DAY_MS if days else 0
        return {name for name, stored_ms in self.model.unreadable.items() if stored_ms > oldest}

    def _check_segments(self, snapshot: Snapshot) -> None:
        left = self.left_segments()
        for node, some in self.model.segments.items():
            above = {(node, seq) for seq in range(snapshot.mark(node) + 1, len(some) + 1)}
            assert above <= left, f"not in the table, and gone: {sorted(above - left)}"
        assert self.kept_aside() <= left
        aside = {(key.split("/")[2], int(key.split("/")[3])) for key in self.keys(keys.ASIDE)}
        assert aside <= self.model.unreadable.keys()
        for node, seq in self.kept_aside() - aside:
            assert snapshot.mark(node) < seq

    def _said(self, snapshot: Snapshot) -> Said:
        marks = {node: snapshot.mark(node) for node in self.model.segments}
        return Said(marks, snapshot.purged_ms, snapshot.expired_ms)

    def _read(self, snapshot: Snapshot) -> list[Record]:
        found: list[Record] = []
        for file in snapshot.files:
            assert Path(file.uri).exists(), f"version {snapshot.version} lacks {file.path}"
            if file.path not in self._contents:
                self._contents[file.path] = _content(file.uri)
            some = self._contents[file.path]
            assert file.rows == len(some) > 0
            ids = [record[2] for record in some]
            assert file.ulids == (min(ids), max(ids))
            assert {end_of_hour(record) // HOUR_MS % 24 for record in some} == {
                (file.hour + 1) % 24
            }
            found += some
        return found

    # How it is done.

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """What it gives; also from the midst of another driver's pass, which waits meanwhile."""
        outcome: list[T] = []
        failure: list[BaseException] = []

        def go() -> None:
            try:
                outcome.append(play(work))
            except BaseException as error:  # noqa: BLE001 - raised below
                failure.append(error)

        thread = threading.Thread(target=go)
        thread.start()
        thread.join()
        if failure:
            raise failure[0]
        return outcome[0]

    def keys(self, prefix: str) -> list[str]:
        async def listed() -> list[str]:
            return [info.key async for info in self.store.list(prefix)]

        return self.run(listed())

    def tell(self, line: str) -> None:
        """For who reads of a failure."""
        self.story.append(line)

    def _segment(self, node: str, batches: Sequence[Batch]) -> bytes:
        first = self._pos.get(node, 0)
        self._pos[node] = first + sum(text.count(b"\n") for _, _, text in batches)
        seq = len(self.model.segments.get(node, ())) + 1
        entries = make_batches(node, list(batches), first_pos=first)
        return bytes(encode_segment(entries, node=node, seq=seq, carry=Carry()).body)

    def _stored(self, node: str, body: bytes, content: set[Record]) -> None:
        of_node = self.model.segments.setdefault(node, [])
        of_node.append(content)
        self.run(self.store.put(keys.segment(node, len(of_node)), body))


def _content(path: str) -> list[Record]:
    rows = pq.ParquetFile(path).read(["fqn", "run_id", "ulid", "message"]).to_pylist()
    found = [(row["fqn"], row["run_id"], row["ulid"], row["message"]) for row in rows]
    assert [record[:3] for record in found] == sorted(record[:3] for record in found)
    return found
