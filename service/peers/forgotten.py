"""Nodes that an operator let go: what of theirs may be lost, and that they returned after all.

`coordination/forgotten/{node}` is written by `tailrace leases forget-node` before the node's
entries leave the register, as JSON that changes by compare-and-swap:

| key | |
| --- | --- |
| `format` | 1 |
| `node` | the node |
| `forgotten_ms` | when it was let go, by the operator's clock |
| `seen_ms` | when the node wrote its entry last, by its own clock |
| `stored_seq` | its last segment in the store |
| `stored_pos` | its lines from that position on were in its journal only |
| `runs` | `[fqn, run]` of which it held lines that were in no chunk |
| `returned_ms` | when it joined again, by its own clock; null: it has not |
| `version` | a fresh ULID |

Of its runs' lines in segments, other nodes make the chunks.

From then on nobody asks the node, tells it of closes and deletions, or waits for it. It may return:
its journal is as it was. It joins as the node that it is, because its segments, positions and ids
were never anybody else's, and it reads the deletions before it shows or takes a line.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import asdict, dataclass, replace
from typing import TypeVar

from logstore import keys
from logstore.batch import RunKey
from logstore.checked import decode_checked, encode_checked
from logstore.clock import Clock
from logstore.errors import Conflict, Damaged, NotFound, UnsupportedVersion
from logstore.names import decode
from logstore.objects.store import ObjectStore
from logstore.runs.watermark import read_watermark
from logstore.segments.reader import read_footer
from logstore.swap import Document, swap
from service.peers.register import Entry, entry_at

FORMAT = 1
_LATELY_MS = 11 * 60_000  # ids of clients may lie ten minutes ahead
Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class Forgotten:
    """A node that was let go; lines from position `stored_pos` on were in its journal only."""

    node: str
    forgotten_ms: int
    seen_ms: int
    stored_seq: int
    stored_pos: int
    runs: tuple[RunKey, ...] = ()
    returned_ms: int | None = None
    version: str = ""

    def sentence(self) -> str:
        """What an operator has to know of it."""
        after = (
            f"what it took after segment {self.stored_seq}, from position {self.stored_pos} on,"
            " is on its disk only"
        )
        runs = ", ".join(f"{key.fqn}/{key.run}" for key in self.runs) or "none is known"
        return f"the node {self.node} was let go and has not returned: {after}; its runs: {runs}"


def encode_forgotten(value: Forgotten) -> bytes:
    """The bytes of a record."""
    return encode_checked(
        {"format": FORMAT, **asdict(value), "runs": [list(r) for r in value.runs]}
    )


def decode_forgotten(body: bytes) -> Forgotten:
    """The record that the bytes hold. Raises `Damaged`, `UnsupportedVersion`."""
    try:
        value = decode_checked(body)
        if value["format"] > FORMAT:
            raise UnsupportedVersion(f"a node that was let go, of format {value['format']}")
        returned = value["returned_ms"]
        return Forgotten(
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


async def entries(store: ObjectStore, prefix: str = keys.PEERS) -> dict[str, Entry]:
    """The register's entries by their keys. Raises `StoreUnavailable`."""
    return await _all(store, prefix, entry_at)


async def all_forgotten(store: ObjectStore) -> tuple[list[Forgotten], list[str]]:
    """All records, and the nodes whose records cannot be read. Raises `StoreUnavailable`."""
    found = await _all(store, keys.FORGOTTEN, _forgotten_at)
    unreadable = [_named(key) for key, record in found.items() if record is None]
    return [record for record in found.values() if record is not None], unreadable


def _forgotten_at(_key: str, body: bytes) -> Forgotten | None:
    try:
        return decode_forgotten(body)
    except Damaged:
        return None


class LetGo:
    """The nodes that were let go and have not returned; a record is read once in each version."""

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
        """Nodes that were let go in the last eleven minutes. Raises `Unavailable`."""
        since = self._clock.now_ms() - _LATELY_MS
        listed = self._store.list(keys.FORGOTTEN)
        return [_named(info.key) async for info in listed if info.modified_ms >= since]

    async def _is_away(self, key: str) -> bool:
        """Whether it has not returned; of what cannot be read, the key says who was let go."""
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
) -> Forgotten:
    """Lets a node go, and says what may be lost. `held_by` gives who has a node's text lease.

    A node that was stopped in good order has left the register; its registration stays, and with it
    the question what its disk has. Raises `NotFound` for a node of which the store has neither,
    `Conflict` for one that lives, `StoreUnavailable`, `OutcomeUnknown`, `Damaged`.
    """
    found = await entries(store)
    there = {key: entry for key, entry in found.items() if _is_of(node, key, entry)}
    registered_ms = await _registered_ms(store, node)
    if not there and (registered_ms is None or await _is_let_go(store, node)):
        others = sorted({entry.node for entry in found.values()})
        raise NotFound(
            f"the register has no node {node!r}",
            hint=f"It has {', '.join(others) or 'none'}. Nor has the store the registration of such"
            " a node that was stopped in good order and is not let go yet.",
        )
    if there and not any(entry.holds for entry in there.values()):
        raise Conflict(
            f"the node {node} only reads: it holds no lines, and nobody waits for it",
            hint="Its entry goes by itself three minutes after its death.",
        )
    if await held_by(node) == node:
        raise Conflict(
            f"the node {node} lives: it holds its lease",
            hint="Stop it with SIGTERM: it leaves by itself. If it is dead, wait until its lease is"
            " over (coordination.lease_seconds).",
        )
    seq, pos = await _stored(store, node)
    made = Forgotten(
        node,
        now_ms,
        max([entry.renewed_ms for entry in there.values()], default=registered_ms or 0),
        seq,
        pos,
        tuple(await active_runs(store, prefix, node)),
        version=fresh_id(),
    )

    async def change(_: Forgotten | None) -> Forgotten | None:
        return made

    await swap(_document(store, node), change)
    await store.delete(list(there))  # and no entry of a process that has come meanwhile
    return made


def _is_of(node: str, key: str, entry: Entry) -> bool:
    return entry.node == node or key.startswith(keys.peers_of(node))


async def returned(
    store: ObjectStore, node: str, *, now_ms: int, fresh_id: Callable[[], str]
) -> Forgotten | None:
    """Notes that a node is back, if it was let go. Raises `StoreUnavailable`, `OutcomeUnknown`."""

    async def change(found: Forgotten | None) -> Forgotten | None:
        if found is None or found.returned_ms is not None:
            return None
        return replace(found, returned_ms=now_ms, version=fresh_id())

    stored = await swap(_document(store, node), change)
    return stored.value if stored is not None and stored.written else None


async def _all(
    store: ObjectStore, prefix: str, decode_one: Callable[[str, bytes], Value]
) -> dict[str, Value]:
    """What is below a prefix, by key, without what goes away meanwhile."""
    found = {}
    async for info in store.list(prefix):
        try:
            found[info.key] = decode_one(info.key, (await store.get(info.key))[1])
        except NotFound:
            continue
    return found


async def _stored(store: ObjectStore, node: str) -> tuple[int, int]:
    """The last segment of a node in the store, and one past its last position."""
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
    """Whether it was let go, and has not returned."""
    found = await _document(store, node).read()
    return found is not None and found.value.returned_ms is None


async def _registered_ms(store: ObjectStore, node: str) -> int | None:
    """When a node wrote its registration; None if it has none."""
    try:
        return (await store.head(keys.node_registration(node))).modified_ms
    except NotFound:
        return None


async def active_runs(store: ObjectStore, prefix: str, node: str) -> list[RunKey]:
    """Runs with an active marker of the node."""
    return [key async for name, key in _active(store, prefix) if name == node]


async def unregistered(store: ObjectStore, prefix: str) -> Counter[str]:
    """Nodes that others ask no more though lines may be on their disks, with how many runs.

    Their entries in the register are gone, and nobody let them go. Empty where no node is in the
    register: then nobody asks anybody. Raises `StoreUnavailable`.
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


def _document(store: ObjectStore, node: str) -> Document[Forgotten]:
    return Document(store, keys.forgotten(node), decode_forgotten, encode_forgotten)
