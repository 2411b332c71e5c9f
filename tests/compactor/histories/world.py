"""A store, whoever writes to it, and drivers that come and go: one random history of it.

`World` keeps the model beside the store and looks whether both agree, at every version that
somebody could see.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any, TypeVar

from compactor.context import Compactor
from compactor.placement import FolderPlacement
from compactor.report import PassReport
from compactor.runner import once
from compactor.settings import Compaction
from compactor.skip_index import build
from compactor.spark.engine import SparkEngine
from tailrace.logstore import keys, ulid
from tailrace.logstore.batch import RunKey
from tailrace.logstore.errors import OutcomeUnknown, Unavailable
from tailrace.logstore.objects.local import LocalStore, inline
from tailrace.logstore.runs.deletions import FOR_EVER, RunRetention
from tailrace.logstore.runs.report import raise_watermark
from tailrace.logstore.segments.detect import Carry
from tailrace.logstore.segments.writer import encode_segment
from tailrace.logstore.table.snapshot import TableSnapshot
from tailrace.logstore.table.table import Table, TableChange, commit
from tests.batches import make_batches
from tests.compactor.histories.bad import CORRUPTED, newer
from tests.compactor.histories.consumers import check_kept, consume
from tests.compactor.histories.dated import HOUR_MS, DatedDisk, MovedClock, play
from tests.compactor.histories.deleted import Deleting
from tests.compactor.histories.kept import Kept, check_markers
from tests.compactor.histories.leased import RESTARTED, DriverClock, Some, leased
from tests.compactor.histories.lossy import LossyTable, Versions
from tests.compactor.histories.model import Model, end_of_hour
from tests.compactor.histories.readers import Readers
from tests.compactor.histories.troubles import MortalStore, Troubles
from tests.compactor.lake import Batch, Record, records
from tests.compactor.plain_engine import PlainEngine
from tests.simulation.faulty_store import Crash

T = TypeVar("T")
NODES = ("a", "b", "c")
DAY_MS = 24 * HOUR_MS
AGES = 10_000


@dataclass
class World:
    """The store below `root`."""

    root: Path
    dice: Random
    engine: SparkEngine = field(default_factory=PlainEngine)
    limits: Compaction = field(default_factory=Compaction)
    runs: RunRetention = FOR_EVER
    clock: MovedClock = field(default_factory=MovedClock)
    model: Model = field(default_factory=Model)
    scenario: list[str] = field(default_factory=list)
    sent: list[Batch] = field(default_factory=list)
    _newer: dict[tuple[str, int], tuple[bytes, set[Record]]] = field(default_factory=dict)
    _restarted: bool = False
    _pos: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.disk = DatedDisk(self.clock)
        self.store = self._store()
        self.table = Table(self.store.uri(keys.TABLE))
        self.versions = Versions(self.table.uri)
        self.readers = Readers(self.versions, self.model, self.clock)
        table_days, days = self.retention_days, self.runs.longest_days
        away = max(table_days, days) + self.limits.away_days if table_days and days else 0
        self._kept = Kept(
            self.store, self.clock, self.versions, self.run, self.limits.grace_seconds * 1000
        )
        self._deleting = Deleting(
            self.store, self.clock, self.dice, self.model, self.runs, self.run, away
        )

    @property
    def retention_days(self) -> float:
        """After so many days the table forgets; 0 is never."""
        days = self.limits.retention_days
        return self.runs.longest_days if days is None else days

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
        body = self._segment(node, batches)
        self.tell(f"{node} puts a segment of a newer version")
        self._stored(node, newer(body), set())
        seq = len(self.model.segments[node])
        self._newer[node, seq] = body, records(batches)
        self.model.newer.setdefault(node, seq)

    def upgrade(self) -> None:
        """Drivers that know the newer version, which is as if it were this one."""
        self.tell("drivers are of the newer version")
        for (node, seq), (body, content) in self._newer.items():
            self.run(self.store.put(keys.segment(node, seq), body))
            self.model.segments[node][seq - 1] = content
        self._newer.clear()
        self.model.newer.clear()

    def delete(
        self, fqn: str, run: str | None, t: int, between: Callable[[], None] = lambda: None
    ) -> None:
        """A run or pipeline is deleted; `between` manifest and record others may do something."""
        self.tell(f"{fqn} {run} is deleted up to {ulid.encode(t)}")
        self._deleting.delete(fqn, run, t, between)

    def sweep(self) -> None:
        """The service looks after its runs."""
        self.tell("runs expire")
        newest: dict[RunKey, int] = {}
        for key, first, _ in self.sent:
            newest[key] = max(newest.get(key, 0), first | ulid.LINE_MASK)
        self._deleting.sweep(newest)

    def consume(self) -> None:
        """A consumer comes."""
        self.tell(self.run(consume(self.store, self.clock, self.dice)))

    def texts_made(self, node: str) -> None:
        """All segments of the node are in their runs' texts."""
        self.tell(f"texts of {node} are made")
        seq = self._kept.texts[node] = len(self.model.segments.get(node, ()))

        def fresh_id() -> str:
            return ulid.fresh_text(self.clock, self.dice)

        self.run(raise_watermark(self.store, node, fresh_id=fresh_id, seq=seq))

    def commit_nothing(self) -> None:
        """Somebody's commit that changes no line: the table is busy."""
        self.tell("somebody commits")
        job = ulid.fresh_text(self.clock, self.dice)
        commit(self.table, self.table.create(), TableChange(), job=job, clock=self.clock)
        self.versions.note(self.clock.ms)

    def pass_time(self, ms: int) -> None:
        self.tell(f"{ms / HOUR_MS:.2f} h pass")
        self.clock.advance(ms)

    # Drivers.

    def drive(self, troubles: Troubles | None = None) -> PassReport | None:
        """One pass. None if it did not come to its end."""
        met = troubles or Troubles()
        self.tell("a pass begins")
        if met.leases == RESTARTED and self._restarted:
            met.leases = "one more"  # what holds the lock is alive
        self._restarted |= met.leases == RESTARTED
        report = None
        try:
            report = self.attempt(met)
        except (Unavailable, OutcomeUnknown) as error:
            self.tell(f"it ended by {type(error).__name__} {error}")
        except (Crash, asyncio.CancelledError, BaseExceptionGroup) as end:
            if not met.dead:  # of a killed one nobody hears how its tasks end
                raise
            self.tell(f"it was killed: {end}")
        self.tell(f"it went through {met.steps}")
        self._restarted &= met.leases != RESTARTED
        if met.losses.late is not None and self.dice.random() < 0.5:
            met.losses.arrive()
        self.check()
        return report

    def attempt(self, troubles: Troubles) -> PassReport:
        """The pass alone. Raises what ends it."""
        return self.run(once(self._compactor(troubles)))

    def _compactor(self, met: Troubles) -> Compactor:
        met.losses.turn = met.turn
        store = MortalStore(self._store(), met)
        bits = Random(self.dice.random())
        waiting = DriverClock(self.clock)
        met.wake = waiting.wake
        return Compactor(
            store,
            LossyTable(self.table.uri, clock=self.clock, losses=met.losses, versions=self.versions),
            FolderPlacement(self.disk, self.table.uri),
            self.clock,
            bits,
            self.limits,
            self.engine,
            met.reached,
            assigner=(
                leased(store, self.clock, waiting, bits, met.leases)
                if met.leases
                else Some(met.left)
            ),
            runs=self.runs,
        )

    # What must hold.

    def check(self) -> None:
        """Raises `AssertionError` if something is there twice, lost, or not gone."""
        newest = self.versions.newest()
        self._deleting.check(newest.purged_ms)
        self.readers.check()
        self._check_expired(newest.expired_ms)
        self._check_segments(newest)

    def check_settled(self) -> None:
        """Nothing is left to do: the table has what it must have, the store nothing else."""
        snapshot = self.versions.newest()
        said = self.readers.said(snapshot)
        found = self.readers.read(snapshot)
        assert set(found) == self.model.settled(said)
        assert dict(said.marks) == self.model.readable()
        assert not [record for record in found if end_of_hour(record) <= self._oldest_ms()]
        there = {p.relative_to(self.table.uri) for p in Path(self.table.uri).rglob("*.*")}
        data = {str(path) for path in there if path.parts[0] not in ("_delta_log", "_index")}
        assert data <= self.readers.needed(), "orphans are left"
        self._check_indexes(snapshot, data)
        waiting = {
            (node, seq)
            for node, first in self.model.newer.items()
            for seq in range(first, len(self.model.segments[node]) + 1)
        }
        assert self.left_segments() == self.kept_aside() | waiting

    def _check_indexes(self, snapshot: TableSnapshot, data: set[str]) -> None:
        """Each file of the newest version has its own skip index; no index is without a file."""
        indexes = self.run(self._listed(keys.SKIP_INDEXES))
        assert {keys.indexed_file(key).removeprefix(f"{keys.TABLE}/") for key in indexes} <= data
        for file in snapshot.files:
            key = keys.skip_index(file.path)
            assert key in indexes or self.limits.index_min_bytes != 1
            if key in indexes:
                assert self.run(self.store.get(key))[1] == self.run(build(self.store, file))

    async def _listed(self, prefix: str) -> set[str]:
        return {info.key async for info in self.store.list(prefix)}

    def taken_in(self) -> int:
        """Segments that the table has."""
        snapshot = self.versions.newest()
        return sum(snapshot.mark(node) for node in self.model.segments)

    def nodes(self) -> set[str]:
        """Nodes that have segments in the store."""
        return {node for node, _ in self.left_segments()}

    def left_segments(self) -> set[tuple[str, int]]:
        """Segments in the store."""
        return {parsed for key in self.keys("segments/") if (parsed := keys.parse_segment(key))}

    def aside(self) -> set[tuple[str, int]]:
        """The segments that have a marker."""
        return {(key.split("/")[2], int(key.split("/")[3])) for key in self.keys(keys.QUARANTINE)}

    def kept_aside(self) -> set[tuple[str, int]]:
        """Segments that cannot be read and may still be repaired: retention would take no line."""
        days = self.retention_days
        oldest = self.clock.ms - round((days + 1) * DAY_MS) if days else 0
        return {name for name, stored_ms in self.model.unreadable.items() if stored_ms > oldest}

    def _oldest_ms(self) -> int:
        return max(self.clock.ms - round((self.retention_days or AGES) * DAY_MS), 0)

    def _check_expired(self, expired_ms: int) -> None:
        if self.limits.retention_bytes is None:
            assert expired_ms <= self._oldest_ms()

    def _check_segments(self, snapshot: TableSnapshot) -> None:
        left = self.left_segments()
        every = {(n, seq) for n, some in self.model.segments.items() for seq in _up_to(len(some))}
        above = {(node, seq) for node, seq in every if seq > snapshot.mark(node)}
        assert above <= left, f"not in the table, and gone: {sorted(above - left)}"
        assert self.kept_aside() <= left
        self.versions.note(self.clock.ms)
        check_markers(self.keys(keys.QUARANTINE), left)
        aside = self.aside()
        of_nodes = {node: len(some) for node, some in self.model.segments.items()}
        self._kept.check(of_nodes, left, aside)
        assert aside <= self.model.unreadable.keys()
        for node, seq in self.kept_aside() - aside:
            assert snapshot.mark(node) < seq
        self.run(check_kept(self.store, every - left, aside))

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
        self.scenario.append(line)

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


def _up_to(last: int) -> range:
    return range(1, last + 1)
