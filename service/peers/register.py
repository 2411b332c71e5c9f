"""The register of all nodes on the store, forks, decommissioned nodes, and questions to all nodes.

**Entries.** `coordination/peers/{node}~{instance}` is the entry of one process of a node, as JSON:

| key | |
| --- | --- |
| `format` | 1 |
| `node`, `instance` | the node, and the ULID that its process took at its start |
| `url` | the URL at which it is asked |
| `parents`, `base` | the incarnations that it continues, and the first position that is its own |
| `start` | the position at which the process began |
| `files` | of a fork: `[[journal file, first pos, end pos], …]` from before it |
| `shared` | those of them that the node from which it forked has as well |
| `renewed_ms` | time of the last write, by the node's clock |
| `load` | its load; 1 is as much as it can take |
| `role` | `query` for a process that only reads |

An entry exists as long as the process may hold lines that no other node has. It is removed by a
stop that has brought everything into the store, and by the next process on the same folder. So a
killed node stays in the register, and is silent when asked, until it returns or until an operator
decommissions it (`tailrace leases forget-node`).

A process that only reads holds no lines and is not asked for any. It is in the register to be
notified of deletions and of runs that end. Its entry is removed if it was not written for three
minutes.

If a start finds an entry of its own incarnation whose process answers, two processes continue one
folder: `Register.twin` returns the other one, and the node that started later forks.

**Forks.** A node that forks registers its parents (`service/runtime/identity.py`) once and
permanently. `Registrations` reads these registrations, also of nodes that have left the register. A
cursor of a reader may name lines by the name that a copy of a journal had before the fork. Without
the registrations the reader would take them for new lines once the copy has brought them into the
store and is gone.

**Old lines.** `refuse_old_lines` refuses the journal of a node that was away for longer than
deletions are remembered. The compactor removes the record of a run's deletion once its lines are
older than the retention by `compaction.away_days` (`compactor/cleanup.py`). Lines that are older
than that and in no segment may have been deleted meanwhile, and no record would show it.

**Decommissioned nodes.** `tailrace leases forget-node` writes `coordination/forgotten/{node}`
before the entries of the node leave the register, as JSON that changes by compare-and-swap:

| key | |
| --- | --- |
| `format` | 1 |
| `node` | the node |
| `forgotten_ms` | time of the decommissioning, by the operator's clock |
| `seen_ms` | time when the node wrote its entry last, by its own clock |
| `stored_seq` | its last segment in the store |
| `stored_pos` | its lines from this position on were only in its journal |
| `runs` | `[fqn, run]` of its runs with lines that were in no chunk |
| `returned_ms` | time when it joined again, by its own clock; null if it has not |
| `version` | a fresh ULID |

Other nodes make the chunks of its lines in segments. From then on no node asks it, notifies it of
closes and deletions, or waits for it. It may return with its journal unchanged. It joins as the
same node, because its segments, positions and ids never belonged to another one, and it reads the
deletions before it shows or accepts a line.

**Questions to all.** `Peers` asks all other nodes at once, with a deadline. After a node did not
answer (`service.peers.rpc.Contacts`), readers do not ask it again for a while, first for a second
and at most for half a minute. It counts as silent meanwhile: one dead node must not cost every page
a deadline. Changes (`Peers.everyone`) ask it all the same.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Collection,
    Iterable,
    Mapping,
    Sequence,
)
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from typing import Final, NamedTuple, TypeVar

from service.journal.journal import Journal
from service.peers import rpc
from service.peers.rpc import Contacts, Message, Network, NodeAddress, PeerRefused, PeerSilent
from service.run_log.backlog import Fork
from service.runtime.health import HealthProblem
from service.runtime.identity import TakenOver, taken_over
from service.settings import Settings
from service.shipping.missing import decode_missing
from tailrace.logstore import keys
from tailrace.logstore import ulid as ulids
from tailrace.logstore.batch import RunKey, lowest_and_highest
from tailrace.logstore.cas import Document, swap
from tailrace.logstore.clock import Clock, Entropy
from tailrace.logstore.errors import (
    Conflict,
    Damaged,
    NodeNotReady,
    NotFound,
    TailraceError,
    UnsupportedVersion,
)
from tailrace.logstore.keys import decode
from tailrace.logstore.objects.store import ObjectInfo, ObjectStore
from tailrace.logstore.runs.report import read_watermark
from tailrace.logstore.segments.reader import read_footer
from tailrace.logstore.state import advice, decode_checked, encode_checked

FORMAT = 1
READER: Final = "query"
_RENEW_SECONDS = 60.0
_READER_GONE_SECONDS = 3 * _RENEW_SECONDS
_HELLO_SECONDS = 2.0
_LOAD_STEP = 0.1


@dataclass(frozen=True, slots=True)
class NodeEntry:
    """A process of a node in the register; `files` are (journal file, first pos, end pos)."""

    node: str
    instance: str
    url: str
    parents: tuple[str, ...] = ()
    base: int = 0
    files: TakenOver = ()
    renewed_ms: int = 0
    load: float = 0.0
    start: int = 0
    role: str = ""
    shared: tuple[str, ...] = ()
    newer: bool = False
    """Whether a newer version of Tailrace wrote it, which this one cannot read. Not stored."""

    @property
    def holds(self) -> bool:
        """Whether it may hold lines that no other node has."""
        return self.role != READER

    @property
    def address(self) -> NodeAddress:
        """The address at which it is asked."""
        return NodeAddress(self.node, self.instance, self.url)


def encode_entry(entry: NodeEntry) -> bytes:
    """The bytes of an entry."""
    stored = asdict(entry)
    del stored["newer"]
    return encode_checked({"format": FORMAT, **stored})


def unreadable_register(error: Exception) -> HealthProblem:
    """The problem that the register cannot be read, and the reason."""
    what = "the register of nodes cannot be read"
    return HealthProblem.from_error(what, error)


def decode_entry(body: bytes) -> NodeEntry:
    """Decodes an entry. Raises `Damaged`, `UnsupportedVersion`."""
    try:
        value = decode_checked(body)
        if value["format"] > FORMAT:
            raise UnsupportedVersion(f"an entry of a node of format {value['format']}")
        return NodeEntry(
            node=str(value["node"]),
            instance=str(value["instance"]),
            url=str(value["url"]),
            parents=tuple([str(parent) for parent in value["parents"]]),
            base=int(value["base"]),
            files=taken_over(value["files"]),
            renewed_ms=int(value["renewed_ms"]),
            load=float(value.get("load", 0)),
            start=int(value.get("start", 0)),
            role=str(value.get("role", "")),
            shared=tuple([str(file) for file in value.get("shared", ())]),
        )
    except (ValueError, TypeError, KeyError) as error:
        raise Damaged(f"not an entry of a node: {error}") from error


def entry_at(key: str, body: bytes) -> NodeEntry:
    """Returns the entry at a key. An unreadable entry has no address, so its node is silent.

    Its node counts as one that may hold lines. A live process writes a damaged entry again within a
    minute. An entry of a newer format is `newer`. A key without `~` is a node's name.
    """
    name, parted, instance = key.removeprefix(keys.PEERS).rpartition("~")
    name = name if parted else instance
    try:
        return decode_entry(body)
    except UnsupportedVersion:
        return NodeEntry(decode(name) or name, instance, "", newer=True)
    except Damaged:
        return NodeEntry(decode(name) or name, instance, "")


class Twin(NamedTuple):
    """Another process that continues the same incarnation, and its journal files."""

    url: str
    files: tuple[str, ...] = ()


class Register:
    """The register as one process sees it. `own` is its entry, which `publish` writes."""

    def __init__(
        self, store: ObjectStore, clock: Clock, entropy: Entropy, network: Network
    ) -> None:
        self._store = store
        self._clock = clock
        self._network = network
        self.contacts = Contacts(network.transport, clock)
        self.instance = ulids.fresh_text(clock, entropy)
        self._own: NodeEntry | None = None
        self._others: dict[str, NodeEntry] = {}
        self._read: dict[str, tuple[str, NodeEntry]] = {}
        self._looking = asyncio.Lock()
        self._writing = asyncio.Lock()
        self._withdrawn = False
        self._earlier: list[NodeEntry] = []
        """Entries of earlier processes of the node, which go once this one's is written."""
        self._reported: dict[str, NodeEntry] = {}
        """Entries of which their processes told this one since it began to read the register."""
        self._unacknowledged: set[str] = set()
        """Processes that may not know this one yet: they were told of it, and did not answer."""
        self._heard: list[Callable[[], None]] = []
        self._unchanged: dict[str, tuple[str, float]] = {}
        """Of entries of readers, the ETag and since when it is there."""
        self.on_removed: Callable[[], None] = lambda: None
        """Called when the own entry was gone and is there again: deletions may have been missed."""
        self._looked = clock.monotonic()
        self.last_error: str | None = None

    @property
    def age_seconds(self) -> float:
        """Seconds since the register was read last."""
        return self._clock.monotonic() - self._looked

    @property
    def others(self) -> Mapping[str, NodeEntry]:
        """The other processes at the last read, by instance."""
        return self._others

    @property
    def holders(self) -> Mapping[str, NodeEntry]:
        """The other processes that may hold lines."""
        return {instance: entry for instance, entry in self._others.items() if entry.holds}

    @property
    def own(self) -> NodeEntry | None:
        """This process's entry, once it is written."""
        return self._own

    def on_change(self, callback: Callable[[], None]) -> None:
        """Calls `callback` when other processes come or go."""
        self._heard.append(callback)

    async def publish(
        self,
        node: str,
        parents: Sequence[str] = (),
        base: int = 0,
        files: TakenOver = (),
        start: int = 0,
        role: str = "",
        shared: Sequence[str] = (),
    ) -> None:
        """Writes this process's entry and notifies the others. Raises `Unavailable`, `Damaged`."""
        own = NodeEntry(
            *(node, self.instance, self._network.url, tuple(parents), base, files),
            start=start,
            role=role,
            shared=tuple(shared),
        )
        async with self._writing:
            if self._withdrawn:
                raise NodeNotReady("the node is stopping")
            await self._write(own)
            before, self._own = self._own, own
            if before is not None and before.node != node:
                await self._store.delete([_key(before)])
            while self._earlier:
                await self._remove(self._earlier[-1])
                self._earlier.pop()
        await self.look()
        self._unacknowledged = set(self._others)
        await self.introduce()

    @property
    def unacknowledged(self) -> Collection[str]:
        """Processes that may not know this one yet, by instance."""
        return self._unacknowledged

    async def introduce(self) -> None:
        """Sends its entry to processes that may not know it yet, and waits for them briefly."""
        strangers = [e for e in self._others.values() if e.instance in self._unacknowledged]
        await asyncio.gather(*[self._hello(entry) for entry in strangers])

    def meet(self, node: str, instance: str, body: bytes) -> None:
        """Adds the entry that a process has just written, before it is read from the store.

        So that process is asked for its lines from its first acknowledgement on, also while the
        store hangs.
        """
        self._unacknowledged.discard(instance)  # it has read this one's entry
        if instance != self.instance:
            self._reported[instance] = entry_at(keys.peer(node, instance), body)
            self._know({**self._others, **self._reported})

    async def twin(self, node: str) -> Twin | None:
        """Returns another live process of the same incarnation; None if no other exists.

        Entries of earlier processes of the node are removed only once the entry of this one is
        written: without an entry, others would conclude that the node has left. Raises
        `Unavailable`, `Damaged`.
        """
        self._earlier.clear()
        await self.look()
        for entry in list(self._others.values()):
            if entry.node != node:
                continue
            try:
                files = await self._greet(entry)
            except (PeerRefused, PeerSilent):
                # The lock on the folder was free, so that process has ended. Or this folder is a
                # copy and the other one cannot be reached, which segment numbers will show.
                self._earlier.append(entry)
            else:
                return Twin(entry.url, files)
        return None

    async def look(self) -> None:
        """Reads the register. Raises `Unavailable`, `Damaged`."""
        async with self._looking:
            began = self._clock.monotonic()
            found: dict[str, NodeEntry] = {}
            read: dict[str, tuple[str, NodeEntry]] = {}
            self._reported.clear()  # they were written before, so the listing has them
            async for info in self._store.list(keys.PEERS):
                known = self._read.get(info.key)
                if known is None or known[0] != info.etag:
                    try:
                        newest, body = await self._store.get(info.key)
                    except NotFound:
                        continue
                    known = (newest.etag, entry_at(info.key, body))
                read[info.key] = known
                if known[1].instance != self.instance and await self._is_there(info, known[1]):
                    found[known[1].instance] = known[1]
            self._unchanged = {k: seen for k, seen in self._unchanged.items() if k in read}
            self._read, self._looked = read, began
            self._know(found | self._reported)

    def _know(self, found: dict[str, NodeEntry]) -> None:
        changed = _names(found) != _names(self._others)
        self._others = found
        self._unacknowledged &= found.keys()
        self.contacts.forget_all_but(found)
        if changed:
            for callback in self._heard:
                callback()

    async def _is_there(self, info: ObjectInfo, entry: NodeEntry) -> bool:
        """Removes a reader's entry that was not written for three minutes."""
        now = self._clock.monotonic()
        etag, since = self._unchanged.get(info.key, ("", now))
        if entry.holds:
            return True
        if etag != info.etag:
            self._unchanged[info.key] = info.etag, now
        elif now - since > _READER_GONE_SECONDS:
            del self._unchanged[info.key]
            await self._store.delete([info.key])
            return False
        return True

    async def run(self, seconds: float) -> None:
        """Reads the register regularly and renews the own entry, until cancelled."""
        renewed = self._clock.monotonic()
        while True:
            await self._clock.sleep(seconds)
            try:
                await self.look()
                age = self._clock.monotonic() - renewed
                # A copy of this node's folder may have removed it as that of an earlier process.
                gone = self._own is not None and _key(self._own) not in self._read
                if self._own is not None and (gone or age >= _RENEW_SECONDS):
                    await self._renew()
                    renewed = self._clock.monotonic()
                    if gone:
                        self.on_removed()
                self.last_error = None
            except TailraceError as error:
                self.last_error = unreadable_register(error)

    async def report_load(self, load: float) -> None:
        """Writes the load into the own entry if it has changed by a tenth. Raises `Unavailable`."""
        if self._own is None or abs(self._own.load - load) < _LOAD_STEP:
            return
        self._own = replace(self._own, load=round(load, 2))
        await self._renew()

    async def withdraw(self) -> None:
        """Removes the own entry for good: all lines of this process are in the store.

        A renewal that is under way does not bring it back. Raises `Unavailable`.
        """
        async with self._writing:
            if self._own is not None:
                await self._store.delete([_key(self._own)])
            self._own, self._withdrawn = None, True

    async def close(self) -> None:
        """Ends all connections to other nodes."""
        await self._network.transport.close()

    async def _renew(self) -> None:
        async with self._writing:
            if self._own is not None:
                await self._write(self._own)

    async def _write(self, entry: NodeEntry) -> None:
        entry = replace(entry, renewed_ms=self._clock.now_ms())
        await self._store.put(_key(entry), encode_entry(entry))

    async def _remove(self, entry: NodeEntry) -> None:
        await self._store.delete([_key(entry)])
        self._others.pop(entry.instance, None)

    async def _hello(self, entry: NodeEntry) -> None:
        with suppress(PeerSilent, PeerRefused):  # it is notified again, or finds this one by itself
            await self._greet(entry, self._own)
            self._unacknowledged.discard(entry.instance)

    async def _greet(self, entry: NodeEntry, own: NodeEntry | None = None) -> tuple[str, ...]:
        """Sends the `own` entry to a live process, and returns its journal files."""
        head = {"instance": self.instance} | ({} if own is None else {"node": own.node})
        body = rpc.encode(head, [] if own is None else [encode_entry(own)])
        answer = await self.contacts.ask(entry.address, "hello", body, _HELLO_SECONDS)
        return tuple([str(file) for file in answer.head.get("files", ())])


def _names(entries: Mapping[str, NodeEntry]) -> set[tuple[str, str]]:
    return {(instance, entry.node) for instance, entry in entries.items()}


def _key(entry: NodeEntry) -> str:
    return keys.peer(entry.node, entry.instance)


_MOST: Final = 10_000


class Registrations:
    """Registrations of nodes, each read once."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._read: dict[str, Fork | None] = {}

    async def forks(self, nodes: Collection[str]) -> Sequence[Fork]:
        """The forks among the nodes. Raises `StoreUnavailable`, `Damaged`."""
        for node in nodes:
            if node not in self._read:
                if len(self._read) >= _MOST:
                    self._read.clear()
                self._read[node] = await self._fork(node)
        return [fork for node in nodes if (fork := self._read[node]) is not None]

    async def _fork(self, node: str) -> Fork | None:
        key = keys.node_registration(node)
        try:
            found = decode_registration((await self._store.get(key))[1])
        except NotFound:
            return None  # it has no acknowledged lines, or is no node
        except Damaged as error:
            raise Damaged(f"{key}: {error}", hint=advice(key)) from error
        return found if found.files else None


def decode_registration(body: bytes) -> Fork:
    """Decodes a registration. Raises `Damaged`."""
    try:
        value = decode_checked(body)
        return Fork(
            str(value["node"]),
            tuple([str(parent) for parent in value["parents"]]),
            int(value["base"]),
            taken_over(value.get("files", ())),
            tuple([str(file) for file in value.get("shared", ())]),
            decode_missing(value.get("missing", ())),
        )
    except (ValueError, TypeError, KeyError) as error:
        raise Damaged(f"not the registration of a node: {error}") from error


_DAY_MS = 86_400_000


class AwayTooLong(Conflict):
    """The journal holds lines that are older than the store's records of deletions."""

    hint = (
        "Start the node on an empty data folder, and keep this one: it is as it was. To bring its"
        " lines in all the same, with those that were deleted meanwhile, raise"
        " compaction.away_days for this start."
    )


def refuse_old_lines(journal: Journal, settings: Settings, clock: Clock) -> None:
    """Returns if all lines in no segment are young enough. Raises `AwayTooLong`."""
    compaction = settings.compaction
    days = settings.runs.remembered_days(compaction.retention_days, compaction.away_days)
    if not days:
        return
    oldest_ms = clock.now_ms() - round(days * _DAY_MS)
    with journal.pin() as pin:
        waiting = pin.batches(start=journal.state.confirmed.end).rows
        lowest = lowest_and_highest(waiting)[0]
    if len(waiting) and ulids.time_ms(lowest) < oldest_ms:
        raise AwayTooLong(
            f"{len(waiting)} batches of the journal are in no segment, the first one of"
            f" {_day(ulids.time_ms(lowest))}; deletions of lines from before {_day(oldest_ms)} are"
            f" forgotten (retention and compaction.away_days: {days:g} days)"
        )


def _day(ms: int) -> str:
    return time.strftime("%Y-%m-%d", time.gmtime(ms / 1000))


_LATELY_MS = 11 * 60_000  # ids of clients may lie ten minutes ahead
Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class ForgottenNode:
    """A decommissioned node. Its lines from position `stored_pos` on were only in its journal."""

    node: str
    forgotten_ms: int
    seen_ms: int
    stored_seq: int
    stored_pos: int
    runs: tuple[RunKey, ...] = ()
    returned_ms: int | None = None
    version: str = ""

    def sentence(self) -> str:
        """A sentence about its possible losses, for operators."""
        after = (
            f"what it took after segment {self.stored_seq}, from position {self.stored_pos} on,"
            " is on its disk only"
        )
        runs = ", ".join(f"{key.fqn}/{key.run}" for key in self.runs) or "none is known"
        return f"the node {self.node} was let go and has not returned: {after}; its runs: {runs}"


def encode_forgotten(value: ForgottenNode) -> bytes:
    """The bytes of a record."""
    return encode_checked(
        {"format": FORMAT, **asdict(value), "runs": [list(r) for r in value.runs]}
    )


def decode_forgotten(body: bytes) -> ForgottenNode:
    """Decodes a record. Raises `Damaged`, `UnsupportedVersion`."""
    try:
        value = decode_checked(body)
        if value["format"] > FORMAT:
            raise UnsupportedVersion(f"a node that was let go, of format {value['format']}")
        returned = value["returned_ms"]
        return ForgottenNode(
            str(value["node"]),
            int(value["forgotten_ms"]),
            int(value["seen_ms"]),
            int(value["stored_seq"]),
            int(value["stored_pos"]),
            tuple([RunKey(str(fqn), str(run)) for fqn, run in value["runs"]]),
            None if returned is None else int(returned),
            str(value["version"]),
        )
    except (ValueError, TypeError, KeyError) as error:
        raise Damaged(f"not a record of a node that was let go: {error}") from error


async def entries(store: ObjectStore, prefix: str = keys.PEERS) -> dict[str, NodeEntry]:
    """The register's entries by their keys. Raises `StoreUnavailable`."""
    return await _all(store, prefix, entry_at)


async def all_forgotten(store: ObjectStore) -> tuple[list[ForgottenNode], list[str]]:
    """All records, and the nodes whose records cannot be read. Raises `StoreUnavailable`."""
    found = await _all(store, keys.FORGOTTEN, _forgotten_at)
    unreadable = [_named(key) for key, record in found.items() if record is None]
    return [record for record in found.values() if record is not None], unreadable


def _forgotten_at(_key: str, body: bytes) -> ForgottenNode | None:
    try:
        return decode_forgotten(body)
    except Damaged:
        return None


class LetGo:
    """Decommissioned nodes that have not returned. Each version of a record is read once."""

    def __init__(self, store: ObjectStore, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._read: dict[str, tuple[str, bool]] = {}

    async def nodes(self) -> tuple[str, ...]:
        """Their names. Raises `StoreUnavailable`."""
        found: dict[str, tuple[str, bool]] = {}
        async for info in self._store.list(keys.FORGOTTEN):
            known = self._read.get(info.key)
            if known is None or known[0] != info.etag:
                known = info.etag, await self._is_away(info.key)
            found[info.key] = known
        self._read = found
        return tuple([_named(key) for key, (_, is_away) in found.items() if is_away])

    async def lately(self) -> list[str]:
        """Nodes that were decommissioned in the last eleven minutes. Raises `Unavailable`."""
        since = self._clock.now_ms() - _LATELY_MS
        listed = self._store.list(keys.FORGOTTEN)
        return [_named(info.key) async for info in listed if info.modified_ms >= since]

    async def _is_away(self, key: str) -> bool:
        """Whether the node has not returned. An unreadable record counts: its key has the name."""
        try:
            return decode_forgotten((await self._store.get(key))[1]).returned_ms is None
        except Damaged:
            return True
        except NotFound:
            return False


def _named(key: str) -> str:
    """The node of a record's key."""
    name = key.removeprefix(keys.FORGOTTEN)
    return decode(name) or name


async def forget(
    store: ObjectStore,
    node: str,
    *,
    held_by: Callable[[str], Awaitable[str | None]],
    prefix: str,
    now_ms: int,
    fresh_id: Callable[[], str],
) -> ForgottenNode:
    """Decommissions a node, and returns the possible losses.

    `held_by` returns the holder of a node's flush lease. A node that was stopped in good order has
    left the register, but its registration stays, and its disk may still have lines. Raises
    `NotFound` for a node without an entry and a registration, `Conflict` for a live one,
    `StoreUnavailable`, `OutcomeUnknown`, `Damaged`.
    """
    found = await entries(store)
    there = {key: entry for key, entry in found.items() if _is_of(node, key, entry)}
    registered_ms = await _registered_ms(store, node)
    if not there and (registered_ms is None or await _is_let_go(store, node)):
        others = sorted({entry.node for entry in found.values()})
        raise NotFound(
            f"the register has no node {node!r}",
            hint=f"It has {', '.join(others) or 'none'}. The store has no registration of such a"
            f" stopped node either.",
        )
    if there and not any(entry.holds for entry in there.values()):
        raise Conflict(
            f"the node {node} is a query node: it holds no lines, and no node waits for it",
            hint="Its entry is removed three minutes after its death.",
        )
    if await held_by(node) == node:
        raise Conflict(
            f"the node {node} lives: it holds its lease",
            hint="Stop it with SIGTERM; it then leaves the register. If it is dead, wait until"
            " its lease is over (coordination.lease_seconds).",
        )
    seq, pos = await _stored(store, node)
    made = ForgottenNode(
        node,
        now_ms,
        max([entry.renewed_ms for entry in there.values()], default=registered_ms or 0),
        seq,
        pos,
        tuple(await active_runs(store, prefix, node)),
        version=fresh_id(),
    )

    async def change(_: ForgottenNode | None) -> ForgottenNode | None:
        return made

    await swap(_document(store, node), change)
    await store.delete(list(there))  # not the entry of a process that has joined meanwhile
    return made


def _is_of(node: str, key: str, entry: NodeEntry) -> bool:
    return entry.node == node or key.startswith(keys.peers_of(node))


async def returned(
    store: ObjectStore, node: str, *, now_ms: int, fresh_id: Callable[[], str]
) -> ForgottenNode | None:
    """Records the return of a decommissioned node. Raises `StoreUnavailable`, `OutcomeUnknown`."""

    async def change(found: ForgottenNode | None) -> ForgottenNode | None:
        if found is None or found.returned_ms is not None:
            return None
        return replace(found, returned_ms=now_ms, version=fresh_id())

    stored = await swap(_document(store, node), change)
    return stored.value if stored is not None and stored.written else None


async def _all(
    store: ObjectStore, prefix: str, decode_one: Callable[[str, bytes], Value]
) -> dict[str, Value]:
    """Reads the objects below a prefix, by key, without objects that are deleted meanwhile."""
    found = {}
    async for info in store.list(prefix):
        try:
            found[info.key] = decode_one(info.key, (await store.get(info.key))[1])
        except NotFound:
            continue
    return found


async def _stored(store: ObjectStore, node: str) -> tuple[int, int]:
    """Returns the last segment of a node in the store, and one past its last position."""
    mark = await read_watermark(store, node)
    seq, pos, size = mark.seq, mark.pos, 0
    async for info in store.list(keys.segments_of(node), after=keys.segment(node, seq)):
        parsed = keys.parse_segment(info.key)
        if parsed is not None and parsed[1] > seq:
            seq, size = parsed[1], info.size
    if seq > mark.seq:
        footer = await read_footer(store, keys.segment(node, seq), size=size)
        pos = max([pos, *[end for _, end in footer.ranges]])
    return seq, pos


async def _is_let_go(store: ObjectStore, node: str) -> bool:
    """Whether the node was decommissioned and has not returned."""
    found = await _document(store, node).read()
    return found is not None and found.value.returned_ms is None


async def _registered_ms(store: ObjectStore, node: str) -> int | None:
    """The time when a node wrote its registration; None if it has none."""
    try:
        return (await store.head(keys.node_registration(node))).modified_ms
    except NotFound:
        return None


async def active_runs(store: ObjectStore, prefix: str, node: str) -> list[RunKey]:
    """Runs with an active marker of the node."""
    return [key async for name, key in _active(store, prefix) if name == node]


async def unregistered(store: ObjectStore, prefix: str) -> Counter[str]:
    """Counts the active runs of nodes that are not asked though their disks may have lines.

    Their entries in the register are gone, and they were not decommissioned. Empty if no node is in
    the register, since then no node asks others. Raises `StoreUnavailable`.
    """
    there = (await entries(store)).values()
    records, unreadable = await all_forgotten(store)
    known = {*unreadable, *[record.node for record in records]}
    for entry in there:
        known.update((entry.node, *entry.parents))
    if not there:
        return Counter()
    return Counter([name async for name, _ in _active(store, prefix) if name not in known])


async def _active(store: ObjectStore, prefix: str) -> AsyncIterator[tuple[str, RunKey]]:
    """Each active marker: its node, and its run."""
    async for info in store.list(keys.all_active(prefix)):
        names = [decode(name) for name in info.key.removeprefix(keys.all_active(prefix)).split("/")]
        if len(names) == 3 and names[0] is not None and names[1] is not None and names[2]:
            yield names[2], RunKey(names[0], names[1])


def _document(store: ObjectStore, node: str) -> Document[ForgottenNode]:
    return Document(store, keys.forgotten(node), decode_forgotten, encode_forgotten)


_NOTHING = rpc.encode({"runs": [], "seconds": 0, "taken": None})
"""A question that costs nothing, and that every version knows."""


@dataclass(slots=True)
class Gathered:
    """The answers by instance, and the nodes without an answer with the reasons."""

    answers: dict[str, Message] = field(default_factory=dict)
    silent: dict[str, str] = field(default_factory=dict)


class Peers:
    """The other nodes. If the register is empty, no question is sent."""

    def __init__(self, register: Register, *, timeout_seconds: float) -> None:
        self.register = register
        self.timeout_seconds = timeout_seconds
        self._contacts = register.contacts

    @property
    def on_change(self) -> Callable[[], None]:
        """Called when a node becomes silent, and when it answers again."""
        return self._contacts.on_change

    @on_change.setter
    def on_change(self, callback: Callable[[], None]) -> None:
        self._contacts.on_change = callback

    def __bool__(self) -> bool:
        """Whether other nodes with lines exist."""
        return bool(self.register.holders)

    def entries(self, *, readers: bool = False) -> list[NodeEntry]:
        """The other processes that may hold lines, and `readers`, sorted by node."""
        found = self.register.others if readers else self.register.holders
        return sorted(found.values(), key=lambda e: (e.node, e.instance))

    async def ask(self, body: bytes, verb: str, *, readers: bool = False) -> Gathered:
        """Asks all nodes but those that were silent a moment ago."""
        found = Gathered()
        asked = []
        for entry in self.entries(readers=readers):
            why = self._contacts.pausing(entry.instance)
            if why is None:
                asked.append(entry)
            else:
                found.silent[entry.node] = why
        await self._ask(asked, verb, body, self.timeout_seconds, found)
        return found

    async def everyone(
        self, body: bytes, verb: str, seconds: float | None = None, *, readers: bool = False
    ) -> Gathered:
        """Asks all nodes that are in the register now. Raises `Unavailable` if it is unreadable.

        A node that was silent a moment ago gets no more time than a reader gives it.
        """
        await self.register.look()
        found = Gathered()
        asked = self.entries(readers=readers)
        await self._ask(asked, verb, body, seconds or self.timeout_seconds, found)
        return found

    async def one(self, entry: NodeEntry, body: bytes, verb: str, seconds: float) -> Message:
        """Asks one node. Raises `PeerSilent`, `PeerRefused`."""
        return await self._contacts.ask(entry.address, verb, body, seconds)

    async def _ask(
        self, entries: Iterable[NodeEntry], verb: str, body: bytes, seconds: float, found: Gathered
    ) -> None:
        async def ask(entry: NodeEntry) -> None:
            most = self.timeout_seconds if self.is_silent(entry) else seconds
            try:
                answer = await self.one(entry, body, verb, min(seconds, most))
                found.answers[entry.instance] = answer
            except (PeerSilent, PeerRefused) as error:
                found.silent[entry.node] = str(error)

        await asyncio.gather(*[ask(entry) for entry in entries])

    def loads(self) -> list[float]:
        """The last reported loads of the others, without nodes that were silent a moment ago."""
        return [e.load for e in self.entries() if self._contacts.pausing(e.instance) is None]

    def is_silent(self, entry: NodeEntry) -> bool:
        """Whether the last question to the process has no answer."""
        return self._contacts.is_unheard(entry.instance)

    def silent(self) -> tuple[str, ...]:
        """The nodes with lines that are silent or may not know this one yet, by name."""
        unacknowledged = self.register.unacknowledged
        if not (unacknowledged or self._contacts.any_unheard):
            return ()
        found = {
            e.node for e in self.entries() if e.instance in unacknowledged or self.is_silent(e)
        }
        return tuple(sorted(found))

    async def stay_in_touch(self, seconds: float) -> None:
        """Asks each node that was not asked for `seconds`, to find out whether it answers.

        A process that may not know this one gets its entry instead.
        """
        asked, unacknowledged = self._contacts.asked_within, self.register.unacknowledged
        quiet = [
            entry
            for entry in self.entries()
            if entry.instance not in unacknowledged and not asked(entry.instance, seconds)
        ]
        await asyncio.gather(
            self.register.introduce(),
            self._ask(quiet, "wait", _NOTHING, self.timeout_seconds, Gathered()),
        )

    def problems(self) -> list[str]:
        """Problems of other nodes, as sentences."""
        found = [] if self.register.last_error is None else [self.register.last_error]
        holders = [entry.address for entry in self.register.holders.values()]
        others = [entry.address for entry in self.register.others.values()]
        found += [
            f"the node {entry.node} is of a newer version, and its register entry cannot be read"
            " here: upgrade this node"
            for entry in self.register.others.values()
            if entry.newer
        ]
        return found + self._contacts.problems(holders, others, self.register.age_seconds)
