"""Verifies a store, and a data folder's journal, in the right order.

    per group of runs:   watermarks ─► manifests, chunks ─► segments ─► table ─► deletions

Lines move in this order, so a line that moves meanwhile is seen at least once. A line that need not
be somewhere yet is recognised: it is in a segment above the text mark. A group is some runs up to
`GROUP_BYTES` of text, so that no group takes longer than segments are kept after they were
consumed.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from compactor.placement import FolderPlacement, ObjectPlacement, Placement
from service.journal.recovery import recover
from service.journal.state import Cut, JournalState
from service.peers.register import unregistered
from service.query.duckdb import Database, LockedDatabase
from service.run_log.chunks import Chunks
from service.runtime.identity import read_identity
from service.runtime.process import in_thread
from service.settings import Settings
from service.shipping.missing import MissingSegments, find_missing, give_up_missing
from service.shipping.watermarks import Watermarks
from service.wiring import query_bucket
from tailrace.logstore import keys
from tailrace.logstore import ulid as ulids
from tailrace.logstore.batch import RunKey
from tailrace.logstore.clock import Clock, SystemClock, rfc3339, system_entropy
from tailrace.logstore.errors import Damaged, JournalFailed, NotFound, StoreUnavailable
from tailrace.logstore.filesystem import Disk, FileSystem
from tailrace.logstore.keys import encode
from tailrace.logstore.objects.config import open_store
from tailrace.logstore.objects.store import ObjectStore
from tailrace.logstore.runs.deletions import ALL_LINES, Deletion, StoredDeletions, names_in
from tailrace.logstore.runs.manifest import Manifest, decode_manifest
from tailrace.logstore.runs.report import Watermark, read_watermark
from tailrace.logstore.segments.file_format import check_quarantined, give_up
from tailrace.logstore.table.snapshot import TableFile, TableSnapshot
from tailrace.logstore.table.table import Table, open_table
from tailrace.logstore.ulid import fresh_text
from tailrace.verification.compare import Comparison, StoredLines, hold_deletions
from tailrace.verification.findings import Findings
from tailrace.verification.journal import JournalCheck
from tailrace.verification.remembered import ChangesSince, Remembered
from tailrace.verification.run_logs import RunText, Texts
from tailrace.verification.segments import Repair, SegmentRepair, VerifiedSegments, nothing, settled
from tailrace.verification.state import StateCheck, StateRepair, unreadable_state
from tailrace.verification.table import (
    SegmentsByCondition,
    TableCheck,
    TableFiles,
    blame_checkpoint,
    check_skip_indexes,
    check_table_log,
    oldest_kept,
)

GROUP_BYTES = 128 << 20
_PASSED_BYTES = 4096  # as much memory of a group as a run takes that is not read
_DAY_MS = 86_400_000
_TRIES = 4


@dataclass(slots=True)
class Verifier:
    """Verifies one store; every run is kept for `expiration_days`, 0 if for ever."""

    store: ObjectStore
    table: Table
    database: Database
    findings: Findings
    clock: Clock
    prefix: str
    expiration_days: float
    repair: SegmentRepair = nothing
    repair_state: StateRepair | None = None
    remembered: Remembered | None = None
    """What an earlier verification found sound; without it everything is read."""
    _changes: ChangesSince | None = field(init=False, default=None)
    _state: StateCheck = field(init=False)
    _catalog: VerifiedSegments = field(init=False)
    _texts: Texts = field(init=False)
    _files: TableFiles = field(init=False)
    _readable: bool = True
    """Whether the table's log reads."""

    def __post_init__(self) -> None:
        self._catalog = VerifiedSegments(self.store, self.findings, self.repair)
        self._files = TableFiles(self.store, self.database, self.findings)
        self._state = StateCheck(self.store, self.findings, self.repair_state)
        self._texts = Texts(
            self.store,
            self._state,
            Chunks(self.store, self.prefix),
            self.findings,
            self.clock.now_ms(),
            round(self.expiration_days * _DAY_MS),
        )

    async def verify(self, fs: FileSystem, data: str, *, repair: bool) -> None:
        """Verifies everything, and reports each fault when it is found.

        Raises `StoreUnavailable`; `Damaged` only if the store moves faster than it is read.
        """
        self._run("CREATE TEMP TABLE known (fqn VARCHAR, run_id VARCHAR, single BOOLEAN)")
        await self._state.check()
        await self._look_at_register()
        await self._look_at_log()
        await self._catalog.read_marks()
        await self._catalog.refresh()
        await self._look_for_known_losses()
        await self._look_for_changes()
        await self.journal(fs, data, repair=repair)
        await self._all_texts()
        if self._readable:
            await self._whole_table()
        if self._changes is not None and not self.findings.total:
            self._changes.keep_segments()

    async def _look_at_register(self) -> None:
        """Notes nodes that others do not ask although only they may have some lines."""
        for node, runs in sorted((await unregistered(self.store, self.prefix)).items()):
            self.findings.note(
                f"the node {node} is not in the register, so others do not ask it, and lines of"
                f" {runs} runs may be on its disk alone: start it on its folder"
            )

    async def _look_at_log(self) -> None:
        """Checks the table's log. Raises `StoreUnavailable` if it does not read and looks whole."""
        damaged = await check_table_log(self.store, self.findings)
        try:
            await asyncio.to_thread(lambda: self.table.snapshot().loaded().files)
        except StoreUnavailable as error:
            if not damaged and not await blame_checkpoint(self.store, self.findings, error):
                raise
            self._readable = False
            self.findings.note(
                "the table's log cannot be read: lines are compared with checksums alone, and"
                " neither the table's files nor skip indexes are checked"
            )

    async def _look_for_changes(self) -> None:
        if self.remembered is None or not self._readable:
            return
        snapshot = await asyncio.to_thread(self.table.snapshot)
        changes = ChangesSince(self.store, self.prefix, self.remembered, self.findings)
        self._files.trust(await changes.list_table(snapshot))
        segments = changes.changed_segments(self._catalog.segments(), self._catalog.marks)
        changed = await self._files.usable(changes.changed)
        try:
            changes.add_runs(self.database, [file.uri for file in changed], segments)
        except Damaged:  # it is reported where it is read
            self.findings.note("some changed objects cannot be read: everything is read")
            return
        self._changes = changes

    # --- the journal -----------------------------------------------------------------

    async def journal(self, fs: FileSystem, data: str, *, repair: bool) -> None:
        """The data folder's journal, unless there is none or a service holds it.

        No service can be started on the folder meanwhile. Raises `JournalFailed`.
        """
        folder = f"{data}/journal"
        self._identity(fs, data)
        if not any(True for _ in fs.scan(folder)):
            self.findings.note(f"{folder} has no journal files: only the store is compared")
            return
        lock = fs.lock(f"{data}/lock", wait=False)
        if lock is None:
            self.findings.note(f"a service holds {data}: its journal is not compared")
            return
        try:
            check = JournalCheck(fs, folder, self.findings)
            below = check.confirmed()
            if repair:
                for found in recover(fs, folder).found:
                    where = found.copy or "its place was recorded"
                    self.findings.note(f"{found.file} at {found.offset}: set aside, {where}")
            if below and check.state is not None:
                await self._look_for_lost(check.state, check.first_pos)
                await self._journal_lines(check, below)
        except OSError as error:
            raise JournalFailed(f"reading the journal failed: {error}") from error
        finally:
            lock.release()

    def _identity(self, fs: FileSystem, data: str) -> None:
        """Reports a damaged identity."""
        try:
            read_identity(fs, data)
        except Damaged as error:
            self.findings.add("state-damaged", f"{data}/node.json", f"{error}. {error.hint}")

    async def _look_for_lost(self, state: JournalState, kept: int) -> None:
        """Reports segments that the journal says the store has, and the store lacks."""
        missing = await self._missing(state.node, state.confirmed)
        if missing is not None:
            missing = missing.holding(kept)
            advice = (
                "Put the newer state of the store back, or start the service: it stores again what"
                " the journal has, and goes on under a new incarnation (docs/operate/backup.md)"
            )
            self._report_lost(missing, advice)

    async def _look_for_known_losses(self) -> None:
        """Reports segments that nodes found missing, unless they are back."""
        for node, known in self._state.lost:
            cut = Cut(known.last, known.pos or 0, known.end)
            if known.lost != 0 and await self._missing(known.node, cut) is not None:
                self._report_lost(known, known.advice(node))

    async def _missing(self, node: str, confirmed: Cut) -> MissingSegments | None:
        async def marks() -> tuple[Watermark, int]:
            mark = await read_watermark(self.store, node)
            return mark, await asyncio.to_thread(self.table.mark, node) if self._readable else 0

        try:
            return await find_missing(self.store, node, confirmed, marks)
        except Damaged:
            return None  # the watermark, which was reported

    def _report_lost(self, missing: MissingSegments, advice: str) -> None:
        place = keys.segment(missing.node, missing.first)
        detail = f"{missing.sentence()}. {advice}"
        self.findings.add("segment-lost", place, detail, lines=missing.lost or 0)

    async def _journal_lines(self, check: JournalCheck, below: int) -> None:
        group = Comparison(self.database, self.findings, "journal")
        for name, copies in check.files(below):
            group.begin()
            named: set[RunKey] = set()
            for key, records in copies:
                if key not in named:
                    named.add(key)
                    group.name(key, await self._manifest(key))
                group.take(key, records)
                self.findings.count("journal lines compared", records.num_rows)
            if not group.empty:
                await self._compare(group)
            self.findings.progress(f"journal file {name}", 0)

    async def _manifest(self, key: RunKey) -> Manifest | None:
        try:
            body = (await self.store.get(keys.run_manifest(key)))[1]
            return decode_manifest(body)
        except (NotFound, Damaged):
            return None  # told where all runs are read

    # --- texts -----------------------------------------------------------------------

    async def _all_texts(self) -> None:
        group = Comparison(self.database, self.findings, "text")
        size = 0
        group.begin()
        await self._catalog.read_marks()
        async for info in self.store.list(keys.RUNS):
            if not info.key.endswith(".json"):
                continue
            if self._changes is not None and await self._changes.is_unchanged(info):
                size += _PASSED_BYTES
            else:
                size += await self._take_run(group, info.key)
            if size > GROUP_BYTES:
                await self._end(group)
                size = 0
        await self._end(group)
        if self.remembered is not None:
            self.remembered.end_runs()

    async def _take_run(self, group: Comparison, where: str) -> int:
        """Reads a run into the group: how many bytes of text."""
        before = self.findings.total
        manifest = await self._texts.manifest(where)
        if manifest is None:
            return 0
        run = RunText(manifest)
        try:
            async for stretch in self._texts.read(run, where):
                group.take(stretch.key, stretch.records)
        except NotFound as error:
            run.comparable = False
            self.findings.note(f"{where} was removed while it was read: {error}")
        group.name(manifest.key, run.manifest, whole=run.comparable)
        if self._changes is not None and run.comparable and self.findings.total == before:
            self._changes.read(where, manifest.key)
        return manifest.bytes

    async def _end(self, group: Comparison) -> None:
        before = self.findings.total
        if self._readable and not group.empty:
            await self._compare(group)
            self._run("INSERT INTO known SELECT fqn, run_id, single FROM names")
        if self._changes is not None:
            self._changes.compared(sound=self.findings.total == before)
        group.begin()
        await self._catalog.read_marks()

    async def _compare(self, group: Comparison) -> None:
        if not self._readable:
            return
        for tries in range(_TRIES):
            await self._catalog.refresh()
            snapshot = await asyncio.to_thread(self.table.snapshot)
            deletions = await self._deletions()
            low, high = group.bounds
            files = [f for f in snapshot.files if f.fqns is None or _meets(f.fqns, low, high)]
            files = await self._files.usable(files)
            try:
                group.load(self._stored(snapshot, files), deletions)
            except Damaged:
                # A file does not read, or a segment was removed since it was listed.
                if not self._files.unreadable(files) and tries == _TRIES - 1:
                    raise
            else:
                group.compare()
                return

    def _stored(self, snapshot: TableSnapshot, files: Sequence[TableFile]) -> StoredLines:
        marks, texts = self._table_marks(snapshot), self._catalog.marks
        segments = self._catalog.segments()
        below = {s.uri for s in settled(segments, texts)}
        return StoredLines(
            [file.uri for file in files],
            [s.uri for s in segments if s.uri in below and s.seq > marks[s.node]],
            [s.uri for s in segments if s.uri not in below],
            oldest_kept(snapshot),
        )

    def _table_marks(self, snapshot: TableSnapshot) -> Mapping[str, int]:
        return snapshot.marks({segment.node for segment in self._catalog.segments()})

    # --- the table -------------------------------------------------------------------

    async def _whole_table(self) -> None:
        for tries in range(_TRIES):
            await self._catalog.read_marks()
            await self._catalog.refresh()
            snapshot = await asyncio.to_thread(self.table.snapshot)
            hold_deletions(self.database, await self._deletions())
            marks, segments = self._table_marks(snapshot), self._catalog.segments()
            below = settled(segments, self._catalog.marks)
            parts = SegmentsByCondition(
                held=[s for s in segments if s.seq <= marks[s.node]],
                settled=below,
                fresh=[s for s in segments if s not in below],
            )
            check = TableCheck(
                self._files, self.database, self.findings, self._oldest(), self._is_run
            )
            if self._changes is not None:
                check.is_unchanged = self._changes.is_unchanged_range
                check.sound = self._changes.take_range
            try:
                await check.check(snapshot, parts)
            except Damaged:  # a segment was removed since it was listed
                if tries == _TRIES - 1:
                    raise
            else:
                self._note_outdated(snapshot)
                self._files.note_unchecked()
                files = await self._files.usable(snapshot.files)
                if self._changes is not None:
                    files = [file for file in files if not self._changes.passed(file)]
                before = self.findings.total
                await check_skip_indexes(self.store, self.findings, files)
                if self._changes is not None and self.findings.total == before:
                    self._changes.keep_ranges()
                return

    async def _deletions(self) -> Sequence[Deletion]:
        """All deletions; a damaged one, which was reported, is taken to be of all lines.

        Nobody can tell then which lines should be where, so they are not compared.
        """
        stored = StoredDeletions(damaged=_of_all_lines)
        return await stored.above(self.store, 0)

    def _note_outdated(self, snapshot: TableSnapshot) -> None:
        outdated = [file.size for file in snapshot.files if file.outdated]
        if outdated:
            self.findings.note(
                f"{len(outdated)} of {len(snapshot.files)} table files, {sum(outdated)} bytes, are"
                " in the layout of an older version: readers cannot skip parts of them. The"
                " compactor rewrites them, some in each pass"
            )

    def _oldest(self) -> str:
        """The lowest ULID of which the run's text is surely kept."""
        if not self.expiration_days:
            return ulids.encode(0)
        kept = self.clock.now_ms() - round(self.expiration_days * _DAY_MS)
        return ulids.encode(ulids.lowest_at(kept))

    async def _is_run(self, key: RunKey) -> bool:
        try:
            await self.store.head(keys.run_manifest(key))
        except NotFound:
            return False
        return True

    def _run(self, statement: str) -> None:
        for _ in self.database.run(statement, {}):
            pass


def _of_all_lines(key: str, _body: bytes, error: Damaged) -> Deletion:
    fqn, run = names_in(key)
    if fqn is None:
        raise error  # the name is in a hash alone
    return Deletion(fqn, run, ALL_LINES)


def _meets(bounds: tuple[str, str], low: str, high: str) -> bool:
    return bounds[0] <= high and bounds[1] >= low


# Opens a store from settings, a folder or a place on S3, and verifies it.


_SPILL_BYTES: Final = 64 << 30


async def verify(
    settings: Settings,
    findings: Findings,
    spill: str,
    *,
    repair: bool,
    remember: str | None = None,
    sample: float = 0.0,
) -> None:
    """Compares everything into `findings`; `spill` is a folder for data that exceeds memory.

    With the file `remember`, it passes over what was sound before and did not change, but for the
    share `sample` of it.

    Raises `StoreUnavailable`, `LimitReached` if memory and spill do not do, `Damaged` if the
    store moves faster than it is read.
    """
    data = os.path.abspath(settings.data)  # noqa: ASYNC240 - before there is anything to hold up
    clock, entropy, disk = SystemClock(), system_entropy(), Disk()
    table = open_table(settings)
    async with open_store(settings, clock, entropy, disk) as store:
        folders = [store.uri(keys.SEGMENTS.rstrip("/")), table.uri]
        database = _database(settings, folders, spill)
        repairing = _database(settings, folders, spill) if repair else None
        remembered = None
        if remember is not None:
            remembered = Remembered(disk, remember, clock, entropy, sample)
        placement: Placement = (
            FolderPlacement(disk, table.uri) if settings.bucket is None else ObjectPlacement(store)
        )
        try:
            repair_segment: SegmentRepair = nothing
            repair_state: StateRepair | None = None
            if repairing is not None:
                marks = Watermarks(store, clock, entropy, in_thread, table.mark)
                repair_state = StateRepair(store, marks, clock, entropy)
                repair_segment = Repair(store, table, placement, repairing, clock, entropy).segment
            verifier = Verifier(
                store,
                table,
                database,
                findings,
                clock,
                settings.runs.prefix,
                settings.runs.shortest_days,
                repair_segment,
                repair_state,
                remembered,
            )
            if remembered is not None and (why := remembered.open()):
                findings.note(why)
            await verifier.verify(disk, data, repair=repair)
            if remembered is not None:
                remembered.finish()
        finally:
            if remembered is not None:
                remembered.abandon()
            database.close()
            if repairing is not None:
                repairing.close()


async def give_up_segments(settings: Settings, segments: Sequence[str]) -> None:
    """Gives up the lines of the quarantined segments at these keys, none unless all are.

    The key of a node's registration stands for the missing segments that it names.
    Raises `InvalidInput` if one is not quarantined, `StoreUnavailable`, `OutcomeUnknown`.
    """
    clock, entropy = SystemClock(), system_entropy()
    async with open_store(settings, clock, entropy, Disk()) as store:
        nodes = [key for key in segments if key.startswith(keys.NODES)]
        quarantined = [key for key in segments if key not in nodes]
        for key in quarantined:
            await check_quarantined(store, key)
        for key in nodes:
            await give_up_missing(store, key)
        for key in quarantined:
            at, version = rfc3339(clock.now_ms()), fresh_text(clock, entropy)
            await give_up(store, key, at=at, version=version)


async def drop_objects(settings: Settings, names: Sequence[str]) -> dict[str, str]:
    """Removes state objects that cannot be read, none unless all are; where a copy of each is.

    Raises `InvalidInput` for one that reads well or is no state object, `StoreUnavailable`.
    """
    clock, entropy, disk = SystemClock(), system_entropy(), Disk(private=True)
    folder, copies = os.path.join(os.path.abspath(settings.data), "dropped"), {}  # noqa: ASYNC240
    async with open_store(settings, clock, entropy, Disk()) as store:
        bodies = {key: await unreadable_state(store, key) for key in names}
        disk.make_folders(folder)
        for key, body in bodies.items():
            copies[key] = os.path.join(folder, f"{fresh_text(clock, entropy)}.{encode(key)}")
            file = disk.open(copies[key], "create")
            try:
                file.write([body])
                file.sync()
            finally:
                file.close()
        disk.sync_folder(folder)
        await store.delete(list(names))
    return copies


def _database(settings: Settings, folders: list[str], spill: str) -> Database:
    query = settings.query.model_copy(update={"spill_bytes": _SPILL_BYTES})
    return Database(LockedDatabase(query, folders, spill, query_bucket(settings)))
