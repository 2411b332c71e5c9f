"""The erasure of deleted lines: its progress for each deletion, and erasing them from the journal.

    deleted     readers of Tailrace do not show the lines; other places may have their bytes
    purged      no file of the table's newest version has them either
    erased      no place within reach of Tailrace has them: `left` is empty

`Erasure` records nothing. It computes every answer from the present state, so the answer is true
when it is given, and a place that cannot be checked counts as one that has the lines.

- **Journals**: each process in the register reports its own. A node that does not answer, or that
  is stopped, may have lines on its disk.
- **Segments**: the footer names the runs. A segment whose lines all lie above T only has later
  lines.
- **The run's objects**: objects that its manifest does not name.
- **The table**: files that its newest version does not name, their skip indexes, and leftovers of
  jobs. The name shows when the job began; a job that began some minutes after the deletion left its
  lines out.
- **Copies of table files** on a node's disk are removed with their files.

A deletion of a pipeline counts as a deletion of each of its runs.

`JournalEraser` ends journal files that hold deleted lines, so that their bytes leave the disk. A
deletion hides lines at once, but their bytes stay in the newest journal file until new lines fill
it, which takes months on a quiet node. Some time after a deletion the journal therefore begins a
new file. The previous file is released as every file is: when its lines are in confirmed segments
and in the logs of their runs (`Journal.release`). Nothing else about the order of the journal
changes. Deletions come in bursts, and the expiry of runs is such a burst, too. All deletions of
`journal.erase_seconds` share one new file, and no file is begun for runs that the newest one does
not have. Released files are overwritten later and hold their old bytes until then
(`service/journal/files.py`). Files from before a deletion are removed instead.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Literal, Protocol

from service.journal.journal import Journal
from service.peers import rpc
from service.peers.register import Peers, all_forgotten, decode_registration
from service.run_log.contracts import UnflushedPin
from tailrace.logstore import keys
from tailrace.logstore import ulid as ulids
from tailrace.logstore.batch import RunKey, lowest_and_highest
from tailrace.logstore.clock import Clock
from tailrace.logstore.errors import Damaged, InvalidInput, JournalFull, NodeNotReady, NotFound
from tailrace.logstore.filesystem import FileSystem
from tailrace.logstore.keys import decode, encode
from tailrace.logstore.objects.store import ObjectStore
from tailrace.logstore.runs.deletions import Deletion, StoredDeletion, StoredDeletions, undo_flip
from tailrace.logstore.runs.manifest import Manifest, manifest_at
from tailrace.logstore.segments.reader import read_footer
from tailrace.logstore.table.snapshot import TableSnapshot

State = Literal["deleted", "purged", "erased"]
_JOB_MS: Final = 600_000
"""So long after a deletion every job that begins knows it, whatever the clocks say."""
_AT_ONCE: Final = 16
_MOST_FOOTERS: Final = 50_000


@dataclass(frozen=True, slots=True)
class DeletionState:
    """A deletion, and the places that may still have its lines: `left`, as text for people."""

    stored: StoredDeletion
    state: State
    left: tuple[str, ...]


class UnerasedRanges(Protocol):
    """The deleted lines that may be on the disk of one process."""

    async def of(self, deletions: Sequence[Deletion]) -> list[list[str]]:
        """Returns for each deletion the places that may have its lines."""
        ...


class LocalPlaces:
    """The places of this process: its journal, and its copies of table files."""

    def __init__(
        self,
        pin: Callable[[], UnflushedPin],
        fs: FileSystem,
        journal: str,
        is_due: Callable[[str, str | None], bool],
        horizon: Callable[[str, str | None], int],
        copied: Callable[[], Iterable[str]],
    ) -> None:
        """Takes the parts of this process.

        `is_due` says whether the journal still has to erase old bytes of a run. `horizon` returns
        the highest deleted ULID that this process knows, `copied` the paths of table files.
        """
        self._horizon = horizon
        self._pin = pin
        self._fs = fs
        self._journal = journal
        self._is_due = is_due
        self._copied = copied

    async def of(self, deletions: Sequence[Deletion]) -> list[list[str]]:
        """Returns for each deletion the places that may have its lines."""
        oldest = min((job_ms(path) for path in self._copied()), default=None)
        due = [
            self._horizon(one.fqn, one.run) < one.t or self._is_due(one.fqn, one.run)
            for one in deletions
        ]
        with self._pin() as pin:  # reading the index of a large journal takes a while
            aside, read = await asyncio.to_thread(self._look, pin, deletions)
        found = []
        for one, is_due, is_there in zip(deletions, due, read, strict=True):
            left = ["copies of damage in journal/aside"] if aside else []
            if is_due or is_there:
                left.append("the journal")
            if oldest is not None and oldest <= ulids.time_ms(one.t) + _JOB_MS:
                left.append("copies of table files")
            found.append(left)
        return found

    def _look(self, pin: UnflushedPin, deletions: Sequence[Deletion]) -> tuple[bool, list[bool]]:
        """Whether a start quarantined bytes, and for each deletion if the journal has lines."""
        # Tails and damaged bytes in quarantine: their runs are unknown.
        aside = any(True for _ in self._fs.scan(f"{self._journal}/aside"))
        runs = pin.batches().runs
        found = []
        for one in deletions:
            of_it = [key for key in runs if key.fqn == one.fqn and one.run in (None, key.run)]
            found.append(any(_has_deleted(pin, key, one.t) for key in of_it))
        return aside, found


def _has_deleted(pin: UnflushedPin, key: RunKey, t: int) -> bool:
    rows = pin.batches(run=key).rows
    return len(rows) > 0 and lowest_and_highest(rows)[0] <= t


def job_ms(path: str) -> int:
    """When the job began that wrote a file of the table; 0 if the name does not show it."""
    for part in path.split("/"):
        try:
            return ulids.time_ms(ulids.decode(part[:26]))
        except InvalidInput:
            continue
    return 0


@dataclass(frozen=True, slots=True)
class _Segment:
    """The footer of a segment; None for unreadable fields: it may hold any line."""

    key: str
    runs: frozenset[RunKey] | None
    low: str

    def may_hold(self, one: Deletion) -> bool:
        if self.runs is None:
            return True
        if not self.low or self.low > ulids.encode(one.t):
            return False
        return any(key.fqn == one.fqn and one.run in (None, key.run) for key in self.runs)


class Erasure:
    """Reports the progress of deletions, as this process sees the store and the other nodes.

    `snapshot` returns the newest version of the table; it blocks. `own` are the names of this
    node's incarnations, and `texts` is the prefix of run texts.
    """

    def __init__(
        self,
        store: ObjectStore,
        snapshot: Callable[[], TableSnapshot],
        held: Callable[[], UnerasedRanges],
        peers: Callable[[], Peers | None],
        own: Callable[[], Sequence[str]],
        *,
        texts: str,
    ) -> None:
        self._store = store
        self._snapshot = snapshot
        self._held = held
        self._peers = peers
        self._own = own
        self._texts = texts
        self._footers: dict[str, _Segment] = {}

    async def deletions(self) -> list[StoredDeletion]:
        """All deletions, the newest first. Raises `StoreUnavailable`, `Damaged`."""
        found = await StoredDeletions(damaged=undo_flip).all(self._store)
        return sorted(found, key=lambda one: (-one.modified_ms, one.key))

    async def states(self, stored: Sequence[StoredDeletion]) -> list[DeletionState]:
        """The progress of these deletions. Raises `StoreUnavailable`."""
        if not stored:
            return []
        deletions = [one.deletion for one in stored]
        on_nodes = await self._on_nodes(deletions)
        segments = await self._segments()
        snapshot = await asyncio.to_thread(lambda: self._snapshot().loaded())
        oldest = await self._oldest_leftover({file.path for file in snapshot.files})
        found = []
        for one, left in zip(stored, on_nodes, strict=True):
            purged = snapshot.delta is None or snapshot.purged_ms >= one.modified_ms
            if not purged:
                left.append("the table")
            if oldest is not None and oldest <= one.modified_ms + _JOB_MS:
                left.append("older versions of the table")
            left += [one_.key for one_ in segments if one_.may_hold(one.deletion)]
            if await self._has_text(one.deletion):
                left.append("objects of the run" if one.deletion.run else "objects of its runs")
            state: State = "erased" if not left else "purged" if purged else "deleted"
            found.append(DeletionState(one, state, tuple(left)))
        return found

    async def _on_nodes(self, deletions: Sequence[Deletion]) -> list[list[str]]:
        places = await self._held().of(deletions)
        own = [[f"{place} of this node" for place in some] for some in places]
        peers, known = self._peers(), set(self._own())
        unknown: list[str] = []
        if peers is not None:
            asked = [[one.fqn, one.run, ulids.encode(one.t)] for one in deletions]
            body = rpc.encode({"deletions": asked})
            gathered = await peers.everyone(body, "places", readers=True)
            unknown = [f"the node {node}, which does not answer" for node in gathered.silent]
            for entry in peers.entries(readers=True):
                known |= {entry.node, *entry.parents}
                answer = gathered.answers.get(entry.instance)
                if answer is not None:
                    for left, others in zip(own, answer.head["left"], strict=True):
                        left += [f"{place} of {entry.node}" for place in others]
        away = await self._away(known)
        unknown += [f"the node {node}, which is stopped or cannot be asked" for node in away]
        return [left + unknown for left in own]

    async def _away(self, known: set[str]) -> list[str]:
        """Former nodes that are absent now: their disks may hold lines."""
        records, unreadable = await all_forgotten(self._store)
        # A node that returned has its disk again, and may have stopped since.
        gone = [one.node for one in records if one.returned_ms is None]
        let_go = {encode(node) for node in (*gone, *unreadable)}
        away = dict[str, str]()
        async for info in self._store.list(keys.NODES):
            name = info.key.removeprefix(keys.NODES)
            node = decode(name) or name
            if node in known:  # the lines of its parent are on its disk
                known |= await self._parents(info.key)
            elif name not in let_go:
                away[name] = node
        return sorted(node for node in away.values() if node not in known)

    async def _parents(self, key: str) -> set[str]:
        try:
            return set(decode_registration((await self._store.get(key))[1]).parents)
        except (NotFound, Damaged):
            return set()

    async def _segments(self) -> list[_Segment]:
        infos = [info async for info in self._store.list(keys.SEGMENTS)]
        infos = [info for info in infos if keys.parse_segment(info.key) is not None]
        turns = asyncio.Semaphore(_AT_ONCE)

        async def look(key: str, size: int) -> _Segment | None:
            known = self._footers.get(key)
            if known is not None:
                return known
            async with turns:
                try:
                    footer = await read_footer(self._store, key, size=size)
                except NotFound:
                    return None
                except Damaged:
                    return _Segment(key, None, "")
            made = _Segment(key, frozenset(run.key for run in footer.runs), footer.low)
            self._footers[key] = made
            return made

        if len(self._footers) > _MOST_FOOTERS:
            self._footers.clear()
        found = await asyncio.gather(*(look(info.key, info.size) for info in infos))
        return [one for one in found if one is not None]

    async def _oldest_leftover(self, newest: set[str]) -> int | None:
        """When the oldest job began whose files exist but are in no newest version; else None."""
        oldest: int | None = None
        async for info in self._store.list(f"{keys.TABLE}/"):
            path = info.key.removeprefix(f"{keys.TABLE}/")
            if path.startswith("_delta_log/"):
                continue
            if info.key.startswith(keys.SKIP_INDEXES):
                path = keys.indexed_file(info.key).removeprefix(f"{keys.TABLE}/")
            if path not in newest:
                began = job_ms(path)
                oldest = began if oldest is None else min(oldest, began)
        return oldest

    async def _has_text(self, one: Deletion) -> bool:
        """Whether objects of the run, or runs, exist that no manifest names."""
        if one.run is not None:
            return await self._has_text_of(RunKey(one.fqn, one.run), one.t)
        runs = {info.key async for info in self._store.list(keys.manifests_of(one.fqn))}
        named = [key for name in runs if (key := keys.parse_run_manifest(name)) is not None]
        if len(named) < len(runs):
            return True  # truncated names: their runs are unknown
        looked = [await self._has_text_of(key, one.t) for key in named]
        folders = {f async for f in self._store.folders(keys.pipeline_texts(self._texts, one.fqn))}
        return any(looked) or any(decode(f) not in {key.run for key in named} for f in folders)

    async def _has_text_of(self, key: RunKey, t: int) -> bool:
        prefix = keys.run_texts(self._texts, key)
        there = [info.key async for info in self._store.list(prefix)]
        manifest = await self._manifest(key)
        if manifest is None:
            return bool(there)
        if manifest.chunks and manifest.generation < t:
            return True
        chunks = keys.chunks_of(self._texts, key)
        named = {chunk.id for chunk in manifest.chunks}
        for name in there:
            if name.startswith(chunks):
                if name.removeprefix(chunks).partition(".")[0] not in named:
                    return True
            elif manifest.state == "deleted":
                return True
        return False

    async def _manifest(self, key: RunKey) -> Manifest | None:
        name = keys.run_manifest(key)
        try:
            return manifest_at(name, (await self._store.get(name))[1])
        except NotFound:
            return None


class JournalEraser:
    """Erases deleted lines from one journal; `note` is called with each deletion."""

    def __init__(self, journal: Journal, clock: Clock, seconds: float) -> None:
        self._journal = journal
        self._clock = clock
        self._seconds = seconds
        self._noted: set[tuple[str, str | None]] = set()
        self._wake = asyncio.Event()

    def note(self, fqn: str, run: str | None) -> None:
        """Records a deletion of lines of a run, or of a pipeline's runs."""
        self._noted.add((fqn, run))
        self._wake.set()

    def is_due(self, fqn: str, run: str | None) -> bool:
        """Whether old bytes of the journal may hold lines of a run, or of a pipeline's runs."""
        return self._journal.succession.is_read or any(
            name == fqn and (run is None or other in (None, run)) for name, other in self._noted
        )

    async def run(self) -> None:
        """Ends the newest file some time after deletions, until cancelled."""
        while True:
            await self._wake.wait()
            await self._clock.sleep(self._seconds)
            self._wake.clear()
            await self._erase()

    async def _erase(self) -> None:
        noted = self._noted.copy()
        try:
            await self._journal.end_file_of(noted)
        except (JournalFull, NodeNotReady):  # no space or no descriptor: the next try is in a while
            self._wake.set()
        else:
            self._noted -= noted
