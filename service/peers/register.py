"""The register: which nodes there are on the store, and where they are asked.

`coordination/peers/{node}~{instance}` is the entry of one process of a node, as JSON:

| key | |
| --- | --- |
| `format` | 1 |
| `node`, `instance` | the node, and the ULID that its process took at its start |
| `url` | where it is asked |
| `parents`, `base` | the incarnations that it continues, and the first position that is its own |
| `start` | the position at which the process began |
| `files` | of a fork: `[[journal file, first pos, end pos], …]` from before it |
| `shared` | those of them that the node from which it forked has as well |
| `renewed_ms` | when it was written last, by the node's clock |
| `load` | what it has to do, 1 for as much as it can take |
| `role` | `query` for a process that only reads |

An entry is there as long as the process may hold lines that nobody else has. It is removed by a
stop that has brought everything into the store, and by the next process on the same folder. So a
node that was killed stays in the register until it returns, or until somebody lets it go
(`tailrace leases forget-node`), and who asks it finds it silent.

A process that only reads holds no lines. It is there to be told of deletions and of runs that end;
of lines nobody asks it. Its entry goes once it has not been written for three minutes.

If a start finds an entry of its own incarnation whose process answers, two processes continue
one folder: `twin` names it, and the node that started later forks.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from typing import Final, NamedTuple

from logstore import keys
from logstore import ulid as ulids
from logstore.checked import decode_checked, encode_checked
from logstore.clock import Clock, Entropy
from logstore.errors import (
    Damaged,
    NodeNotReady,
    NotFound,
    TailraceError,
    UnsupportedVersion,
    with_hint,
)
from logstore.names import decode
from logstore.objects.store import ObjectInfo, ObjectStore
from service.peers import messages
from service.peers.contact import Contacts
from service.peers.transport import Address, Network, PeerRefused, PeerSilent
from service.runtime.identity import TakenOver, taken_over
from service.runtime.problem import Problem

FORMAT = 1
READER: Final = "query"
_RENEW_SECONDS = 60.0
_READER_GONE_SECONDS = 3 * _RENEW_SECONDS
_HELLO_SECONDS = 2.0
_LOAD_STEP = 0.1


@dataclass(frozen=True, slots=True)
class Entry:
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
        """Whether it may hold lines that nobody else has."""
        return self.role != READER

    @property
    def address(self) -> Address:
        """Where it is asked."""
        return Address(self.node, self.instance, self.url)


def encode_entry(entry: Entry) -> bytes:
    """The bytes of an entry."""
    stored = asdict(entry)
    del stored["newer"]
    return encode_checked({"format": FORMAT, **stored})


def unreadable_register(error: Exception) -> Problem:
    """That nobody knows which nodes there are, and why."""
    what = "the register of nodes cannot be read"
    return Problem(what, f"{what}: {with_hint(error)}")


def decode_entry(body: bytes) -> Entry:
    """The entry that the bytes hold. Raises `Damaged`, `UnsupportedVersion`."""
    try:
        value = decode_checked(body)
        if value["format"] > FORMAT:
            raise UnsupportedVersion(f"an entry of a node of format {value['format']}")
        return Entry(
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


def entry_at(key: str, body: bytes) -> Entry:
    """The entry at a key; one that cannot be read has no address, so its node is silent.

    It counts as one that may hold lines. Its process, if it lives, writes a damaged one again
    within a minute. One of a newer format is `newer`. A key without `~` is a node's name.
    """
    name, parted, instance = key.removeprefix(keys.PEERS).rpartition("~")
    name = name if parted else instance
    try:
        return decode_entry(body)
    except UnsupportedVersion:
        return Entry(decode(name) or name, instance, "", newer=True)
    except Damaged:
        return Entry(decode(name) or name, instance, "")


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
        self._own: Entry | None = None
        self._others: dict[str, Entry] = {}
        self._read: dict[str, tuple[str, Entry]] = {}
        self._looking = asyncio.Lock()
        self._writing = asyncio.Lock()
        self._withdrawn = False
        self._earlier: list[Entry] = []
        """Entries of earlier processes of the node, which go once this one's is written."""
        self._told: dict[str, Entry] = {}
        """Entries of which their processes told this one since it began to read the register."""
        self._untold: set[str] = set()
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
        """Seconds since it was read last."""
        return self._clock.monotonic() - self._looked

    @property
    def others(self) -> Mapping[str, Entry]:
        """The other processes, by instance, as they were found last."""
        return self._others

    @property
    def holders(self) -> Mapping[str, Entry]:
        """Those of them that may hold lines."""
        return {instance: entry for instance, entry in self._others.items() if entry.holds}

    @property
    def own(self) -> Entry | None:
        """This process's entry, once it is written."""
        return self._own

    def on_change(self, hear: Callable[[], None]) -> None:
        """Calls `hear` when other processes came or went."""
        self._heard.append(hear)

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
        """Writes this process's entry and tells the others. Raises `Unavailable`, `Damaged`."""
        own = Entry(
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
        self._untold = set(self._others)
        await self.introduce()

    @property
    def untold(self) -> Collection[str]:
        """Processes that may not know this one yet, by instance."""
        return self._untold

    async def introduce(self) -> None:
        """Tells its entry to the processes that may not know it yet, and waits for them briefly."""
        strangers = [e for e in self._others.values() if e.instance in self._untold]
        await asyncio.gather(*[self._hello(entry) for entry in strangers])

    def meet(self, node: str, instance: str, body: bytes) -> None:
        """Takes note of the entry that a process has just written, before it is read in the store.

        So its lines are asked for from its first acknowledgement on, also while the store hangs.
        """
        self._untold.discard(instance)  # it has read this one's entry
        if instance != self.instance:
            self._told[instance] = entry_at(keys.peer(node, instance), body)
            self._know({**self._others, **self._told})

    async def twin(self, node: str) -> Twin | None:
        """A process that lives and continues the same incarnation, if there is one.

        Entries of earlier processes of the node go once this one's is written. Without one, others
        would take the node for one that has left. Raises `Unavailable`, `Damaged`.
        """
        self._earlier.clear()
        await self.look()
        for entry in list(self._others.values()):
            if entry.node != node:
                continue
            try:
                files = await self._greet(entry)
            except (PeerRefused, PeerSilent):
                # The lock on the folder was free: it is gone. Or this folder is a copy and the
                # other one cannot be reached, which the numbers of segments will show.
                self._earlier.append(entry)
            else:
                return Twin(entry.url, files)
        return None

    async def look(self) -> None:
        """Reads who is there. Raises `Unavailable`, `Damaged`."""
        async with self._looking:
            began = self._clock.monotonic()
            found: dict[str, Entry] = {}
            read: dict[str, tuple[str, Entry]] = {}
            self._told.clear()  # they were written before, and so they are listed
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
            self._know(found | self._told)

    def _know(self, found: dict[str, Entry]) -> None:
        changed = _names(found) != _names(self._others)
        self._others = found
        self._untold &= found.keys()
        self.contacts.forget_all_but(found)
        if changed:
            for hear in self._heard:
                hear()

    async def _is_there(self, info: ObjectInfo, entry: Entry) -> bool:
        """Removes the entry of a reader that has not written it for long."""
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
        """Looks every so often, and renews the own entry, until cancelled."""
        renewed = self._clock.monotonic()
        while True:
            await self._clock.sleep(seconds)
            try:
                await self.look()
                age = self._clock.monotonic() - renewed
                # A copy of this node's folder may have taken it for that of an earlier process.
                gone = self._own is not None and _key(self._own) not in self._read
                if self._own is not None and (gone or age >= _RENEW_SECONDS):
                    await self._renew()
                    renewed = self._clock.monotonic()
                    if gone:
                        self.on_removed()
                self.last_error = None
            except TailraceError as error:
                self.last_error = unreadable_register(error)

    async def tell_load(self, load: float) -> None:
        """Writes the load into the own entry if it has changed by a tenth. Raises `Unavailable`."""
        if self._own is None or abs(self._own.load - load) < _LOAD_STEP:
            return
        self._own = replace(self._own, load=round(load, 2))
        await self._renew()

    async def withdraw(self) -> None:
        """Removes the own entry for good: all that this process held is in the store.

        What renews the entry meanwhile does not bring it back. Raises `Unavailable`.
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

    async def _write(self, entry: Entry) -> None:
        entry = replace(entry, renewed_ms=self._clock.now_ms())
        await self._store.put(_key(entry), encode_entry(entry))

    async def _remove(self, entry: Entry) -> None:
        await self._store.delete([_key(entry)])
        self._others.pop(entry.instance, None)

    async def _hello(self, entry: Entry) -> None:
        with suppress(PeerSilent, PeerRefused):  # it is told again, or finds this one by itself
            await self._greet(entry, self._own)
            self._untold.discard(entry.instance)

    async def _greet(self, entry: Entry, own: Entry | None = None) -> tuple[str, ...]:
        """The journal files of a process that lives; it is told of this one's `own` entry."""
        head = {"instance": self.instance} | ({} if own is None else {"node": own.node})
        body = messages.encode(head, [] if own is None else [encode_entry(own)])
        answer = await self.contacts.ask(entry.address, "hello", body, _HELLO_SECONDS)
        return tuple([str(file) for file in answer.head.get("files", ())])


def _names(entries: Mapping[str, Entry]) -> set[tuple[str, str]]:
    return {(instance, entry.node) for instance, entry in entries.items()}


def _key(entry: Entry) -> str:
    return keys.peer(entry.node, entry.instance)
