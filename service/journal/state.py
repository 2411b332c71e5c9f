"""The state of a journal: everything that a node needs to continue, besides the batches.

Every journal file begins with the whole state (`state`). The entries `cut`, `close`, `tombstone`,
`open`, `confirm` and `finish` change it from there on. So the state of the newest file and the
entries after it are complete; older files are needed only for their batches.

A `StateChange` is the body of an entry together with its effect on the state: the journal writes
the body and applies the effect. `JournalReplay` makes the same changes from the entries that it
reads back.

**Deletions.** The state has two lists of them, both `[[fqn, run or null, T], …]`. `tombstones` are
still to be done, and each start continues them. `deleted` are done, the latest at the end; with
them a node that cannot reach its store at the start still refuses deleted lines. Past `MOST` the
oldest one is removed from the state and only the store knows it, so the state stays small.

**Connectors.** OpenMetadata's clients of the first generation (gen-1: 1.10 to 1.12.8) begin a run
with a call without lines. If the reply to a batch is lost, they send the batch again, without an
id. The state therefore holds the connectors that opened a run so, and the last batch of each, as
`[[fqn, run, connector, last], …]` with the one used last at the end. `last` is null or `[ULID,
digest, bytes, records, milliseconds of arrival, end]`. Invariants:

- A batch that may not be in the journal is never recorded as the last of a connector: its retry
  would look like a copy of a batch that does not exist. The state at the start of a file leaves
  such a batch out, and it counts again once its own entry is read.
- If a connector is forgotten, its retry becomes a second batch; no line is lost. So the state only
  keeps the connectors that were used last, and none with long names.

**Replay.** `JournalReplay` applies the entries of a journal one after another. The `state` of a
file replaces the state so far. If it cannot be read, the older state with all later changes is as
good: the node finds segments that were confirmed since then in the store. If segments are missing
between two cuts, or if no older state exists, it is unknown how the lines were cut. The state then
claims no segment at all: the node finds its own segments in the store, continues as a fork, and
ships all lines that it holds again. Readers recognise those lines by their ids.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

import orjson

from service.ingest.batch import KnownBatch
from service.journal import format as wal
from service.journal.file import JournalEntry, JournalFile
from tailrace.logstore import ulid as ulids
from tailrace.logstore.batch import AHEAD, RunKey
from tailrace.logstore.cache import BoundedCache
from tailrace.logstore.errors import Damaged

MOST = 1000
# Of names as JSON: a state with `MOST` connectors and `MOST` deletions stays well below the
# smallest journal file.
NAME_BYTES = 400


@dataclass(slots=True)
class LastBatch:
    """The last batch of a connector; `size` is the size of its text in bytes."""

    ulid: int
    size: int
    at_ms: int
    known: KnownBatch


@dataclass(slots=True)
class Connector:
    """A connector that opened a run; `last` is its last batch since then."""

    last: LastBatch | None = None


class Connectors:
    """The connectors that were used last, at most `most` of them."""

    def __init__(self, most: int = MOST) -> None:
        self._known: BoundedCache[tuple[RunKey, str], Connector] = BoundedCache(most)

    def __len__(self) -> int:
        return len(self._known)

    def get(self, key: RunKey, name: str) -> Connector | None:
        """Returns the connector if it opened the run, and counts it as used last."""
        return self._known.get((key, name))

    def open(self, key: RunKey, name: str) -> None:
        """Records that the connector begins the run; its earlier batches no longer count."""
        if not is_short(key, name):
            return
        self._known.put((key, name), Connector())

    def encoded(self) -> list[list[Any]]:
        """Encodes the connectors for a state that is written now."""
        return [
            [key.fqn, key.run, name, _encode(connector.last)]
            for (key, name), connector in self._known.items()
        ]


def is_short(key: RunKey, name: str) -> bool:
    """Whether the names are short enough to be remembered."""
    return len(orjson.dumps([key.fqn, key.run, name])) <= NAME_BYTES


def decode_connectors(rows: Sequence[Sequence[Any]]) -> Connectors:
    """Decodes the connectors that a state holds."""
    connectors = Connectors()
    for fqn, run, name, last in rows:
        connectors.open(RunKey(fqn, run), name)
        connector = connectors.get(RunKey(fqn, run), name)
        if connector is not None and last is not None:
            ulid, digest, size, records, at_ms, end = last
            known = KnownBatch(digest, records, end)
            connector.last = LastBatch(ulids.decode(ulid), size, at_ms, known)
    return connectors


def _encode(last: LastBatch | None) -> list[Any] | None:
    if last is None or not last.known.held:
        return None
    known = last.known
    ulid = ulids.encode(last.ulid)
    return [ulid, known.digest, last.size, known.records, last.at_ms, known.end]


class DoneDeletions:
    """The latest deletions that are done, at most `most`, none with long names."""

    def __init__(self, most: int = MOST) -> None:
        self._known: BoundedCache[tuple[str, str | None], int] = BoundedCache(most)

    def __len__(self) -> int:
        return len(self._known)

    def add(self, fqn: str, run: str | None, t: int) -> int:
        """Adds a deletion. If a run has several, the highest T counts.

        Returns the T of the deletion that was removed for it or that was not added; else 0.
        """
        if len(orjson.dumps([fqn, run])) > NAME_BYTES:
            return t
        gone = self._known.put((fqn, run), max(self._known.peek((fqn, run)) or 0, t))
        return gone[0][1] if gone else 0

    def all(self) -> Mapping[tuple[str, str | None], int]:
        """(fqn, run or None) to T."""
        return dict(self._known.items())


def encode_deletions(deletions: Mapping[tuple[str, str | None], int]) -> list[list[Any]]:
    """Encodes deletions as a state holds them."""
    return [[fqn, run, ulids.encode(t)] for (fqn, run), t in deletions.items()]


def decode_deletions(rows: Sequence[Sequence[Any]]) -> dict[tuple[str, str | None], int]:
    """Decodes the deletions that a state holds."""
    return {(fqn, run): ulids.decode(t) for fqn, run, t in rows}


def decode_done(rows: Sequence[Sequence[Any]]) -> DoneDeletions:
    """Decodes the done deletions that a state holds."""
    done = DoneDeletions()
    for (fqn, run), t in decode_deletions(rows).items():
        done.add(fqn, run, t)
    return done


@dataclass(frozen=True, slots=True)
class Cut:
    """A segment: its number and its range of positions, `end` exclusive."""

    seq: int
    first: int
    end: int


@dataclass(slots=True)
class JournalState:
    """Everything that the node must remember over a restart.

    `base` is the first position that belongs to this incarnation: lines below it belong to the
    parent and are in its segments. `closes` are recorded closes that are not finished, by run; all
    lines below the position of a close were received before it. `tombstones` are deletions that the
    store may not know yet: (fqn, run or None) to T. `deleted` are the latest ones that it knows.
    `connectors` are gen-1 connectors of OpenMetadata, which batches change as well.
    """

    node: str
    base: int = 0
    last_ulid: int = 0
    confirmed: Cut = field(default_factory=lambda: Cut(0, 0, 0))
    cuts: list[Cut] = field(default_factory=list)
    closes: dict[RunKey, int] = field(default_factory=dict)
    tombstones: dict[tuple[str, str | None], int] = field(default_factory=dict)
    deleted: DoneDeletions = field(default_factory=DoneDeletions)
    connectors: Connectors = field(default_factory=Connectors)
    files: list[str] = field(default_factory=list)

    def last_cut(self) -> Cut:
        """The newest segment that was cut, confirmed or not."""
        return self.cuts[-1] if self.cuts else self.confirmed

    def confirm(self, cut: Cut) -> None:
        """Records that the oldest unconfirmed segment is in the store."""
        self.cuts = [other for other in self.cuts if other.seq > cut.seq]
        self.confirmed = cut

    def close(self, key: RunKey, pos: int) -> None:
        """Records a close that is to be done: all lines of the run below `pos` came before it."""
        self.closes[key] = pos

    def finish_close(self, key: RunKey, pos: int) -> None:
        """Removes the close at `pos`, but not one that was recorded later."""
        if key in self.closes and self.closes[key] <= pos:
            del self.closes[key]

    def delete(self, fqn: str, run: str | None, t: int) -> None:
        """Records a deletion that is to be done, and drops earlier closes of its runs."""
        self.tombstones[fqn, run] = max(self.tombstones.get((fqn, run), 0), t)
        for key in [key for key in self.closes if key.fqn == fqn and run in (None, key.run)]:
            del self.closes[key]

    def finish_deletion(self, fqn: str, run: str | None, t: int) -> None:
        """Records that a deletion is done.

        The later ids of a run are above the T of its deletion. If the deletion is not remembered,
        all later ids are above its T.
        """
        if (fqn, run) in self.tombstones and self.tombstones[fqn, run] <= t:
            del self.tombstones[fqn, run]
        self.last_ulid = max(self.last_ulid, self.deleted.add(fqn, run, t))

    def reincarnate(self, node: str, base: int, files: Sequence[int] = ()) -> None:
        """Turns this state into the state of a new node that has shipped nothing yet.

        Unconfirmed cuts keep their ranges under new numbers: after an outage, one segment with all
        their lines might not fit into memory. If `base` lies among confirmed lines, those from
        `base` on are shipped again, cut at the first positions of journal `files`.
        """
        again = [base, *[pos for pos in files if base < pos < self.confirmed.end]]
        kept = [*zip(again, [*again[1:], self.confirmed.end], strict=True)]
        kept = [(first, end) for first, end in kept if first < end]
        kept += [(cut.first, cut.end) for cut in self.cuts if cut.first >= base]
        self.node, self.base, self.confirmed = node, base, Cut(0, base, base)
        self.cuts = [Cut(seq, first, end) for seq, (first, end) in enumerate(kept, start=1)]

    def delete_again(self) -> None:
        """Marks finished deletions as to be done again, for a store that has lost them.

        Lines that came after a deletion have ids above its T.
        """
        for (fqn, run), t in self.deleted.all().items():
            self.tombstones[fqn, run] = max(self.tombstones.get((fqn, run), 0), t)

    def encoded(self, *, pos: int, secret: bytes) -> dict[str, Any]:
        """The JSON of a `state` entry; `pos` is the next line's position, `secret` the file's."""
        return {
            "secret": secret.hex(),
            "node": self.node,
            "base": self.base,
            "pos": pos,
            "ulid": ulids.encode(self.last_ulid),
            "confirmed": _encode_cut(self.confirmed),
            "cuts": [_encode_cut(cut) for cut in self.cuts],
            "closes": [[key.fqn, key.run, end] for key, end in self.closes.items()],
            "tombstones": encode_deletions(self.tombstones),
            "deleted": encode_deletions(self.deleted.all()),
            "connectors": self.connectors.encoded(),
            "files": self.files,
        }


def decode_state(value: Mapping[str, Any]) -> JournalState:
    """The state that a `state` entry holds."""
    return JournalState(
        node=value["node"],
        base=value["base"],
        last_ulid=ulids.decode(value["ulid"]),
        confirmed=_decode_cut(value["confirmed"]),
        cuts=[_decode_cut(cut) for cut in value["cuts"]],
        closes={RunKey(fqn, run): end for fqn, run, end in value["closes"]},
        tombstones=decode_deletions(value["tombstones"]),
        # Older programs wrote states without both.
        deleted=decode_done(value.get("deleted", ())),
        connectors=decode_connectors(value.get("connectors", ())),
        files=list(value["files"]),
    )


def encode_cut_entry(node: str, cut: Cut) -> dict[str, Any]:
    """The JSON of a `cut` entry."""
    return {"node": node, "cut": _encode_cut(cut)}


def decode_cut_entry(value: Mapping[str, Any]) -> tuple[str, Cut]:
    """Returns the node that cut the segment, and the segment."""
    return value["node"], _decode_cut(value["cut"])


def _encode_cut(cut: Cut) -> list[int]:
    return [cut.seq, cut.first, cut.end]


def _decode_cut(value: list[int]) -> Cut:
    seq, first, end = value
    return Cut(seq, first, end)


def _unchanged(_: JournalState) -> None:
    """The effect of an entry whose change is already in the state."""


Apply: TypeAlias = Callable[[JournalState], None]


class StateChange(NamedTuple):
    """The body of an entry, and the change to apply to the state once it is synced."""

    body: bytes
    apply: Apply

    @staticmethod
    def none() -> StateChange:
        """No entry and no effect; its future is done when all earlier entries are synced."""
        return StateChange(b"", _unchanged)

    @staticmethod
    def cut(node: str, made: Cut) -> StateChange:
        """The change that records a segment that `node` cut."""
        body = wal.encode_json(wal.CUT, encode_cut_entry(node, made))
        return StateChange(body, lambda state: state.cuts.append(made))

    @staticmethod
    def confirm(node: str, made: Cut) -> StateChange:
        """Records that a segment is in the store; the state has that change already."""
        return StateChange(wal.encode_json(wal.CONFIRM, encode_cut_entry(node, made)), _unchanged)

    @staticmethod
    def close(key: RunKey, pos: int) -> StateChange:
        """The change that records a close; all lines below `pos` came before it."""
        value = {"fqn": key.fqn, "run": key.run, "pos": pos}
        return StateChange(wal.encode_json(wal.CLOSE, value), lambda state: state.close(key, pos))

    @staticmethod
    def tombstone(fqn: str, run: str | None, t: int) -> StateChange:
        """The change that records that all ULIDs up to `t` of a run, or a pipeline, are deleted."""
        value = {"fqn": fqn, "run": run, "t": ulids.encode(t)}
        body = wal.encode_json(wal.TOMBSTONE, value)
        return StateChange(body, lambda state: state.delete(fqn, run, t))

    @staticmethod
    def opened(key: RunKey, connector: str) -> StateChange:
        """The change that records that a gen-1 connector begins a run."""
        value = {"fqn": key.fqn, "run": key.run, "connector": connector}
        body = wal.encode_json(wal.OPEN, value)
        return StateChange(body, lambda state: state.connectors.open(key, connector))

    @staticmethod
    def finished_close(key: RunKey, pos: int) -> StateChange:
        """The change that records that the run's manifest has the close at `pos`."""
        value = {"fqn": key.fqn, "run": key.run, "pos": pos}
        body = wal.encode_json(wal.FINISH, value)
        return StateChange(body, lambda state: state.finish_close(key, pos))

    @staticmethod
    def finished_deletion(fqn: str, run: str | None, t: int) -> StateChange:
        """The change that records that the deletion up to `t` is done in the store."""
        value = {"fqn": fqn, "run": run, "t": ulids.encode(t)}
        body = wal.encode_json(wal.FINISH, value)
        return StateChange(body, lambda state: state.finish_deletion(fqn, run, t))


_KINDS = (wal.STATE, wal.CUT, wal.CLOSE, wal.TOMBSTONE, wal.CONFIRM, wal.OPEN, wal.FINISH)


class JournalReplay:
    """The state after the files read so far. `low_pos` is the first position of the oldest."""

    def __init__(self) -> None:
        self.state: JournalState | None = None
        self.low_pos = 0
        self._cuts_known = True

    def apply(self, entry: JournalEntry, file: JournalFile) -> None:
        """Applies an entry whose checksum fits.

        Raises `Damaged`, `InvalidInput`, `ValueError`, `KeyError` or `TypeError`, having
        changed nothing, if its body makes no sense.
        """
        if entry.kind == wal.BATCH:
            self._batch(entry, file)
            return
        if entry.kind not in _KINDS:
            raise Damaged(f"an entry of the unknown kind {entry.kind}")
        value = orjson.loads(entry.body[1:])
        if entry.kind == wal.STATE:
            self.state = decode_state(value)
            self._cuts_known = True
        elif self.state is not None:
            self._change(entry.kind, value, self.state)

    def without_state(self, node: str) -> None:
        """Continues in a file of `node` whose `state` cannot be read."""
        if self.state is None:
            self.state = JournalState(node, base=self.low_pos)
            self._forget_cuts(self.state)
        elif self.state.node != node:
            self.state.reincarnate(node, self.low_pos)
            self._forget_cuts(self.state)

    def _batch(self, entry: JournalEntry, file: JournalFile) -> None:
        batch = wal.decode_batch(entry.body)
        if batch.pos < file.end_pos:
            raise Damaged(f"positions fall from {file.end_pos} to {batch.pos}")
        file.index.add(
            batch.key,
            batch.connector,
            offset=entry.offset + batch.text_at,
            pos=batch.pos,
            ulid=batch.ulid,
            digest=batch.digest,
            size=batch.text_size,
            records=batch.records,
            lines=batch.lines,
            meta=batch.meta_size,
            flags=batch.flags,
        )
        file.end_pos = batch.pos + batch.records
        if self.state is not None:
            if not batch.flags & AHEAD:
                self.state.last_ulid = max(self.state.last_ulid, batch.ulid)
            _sent(batch, self.state)

    def _change(self, kind: int, value: Mapping[str, Any], state: JournalState) -> None:
        if kind in (wal.CUT, wal.CONFIRM):
            node, cut = decode_cut_entry(value)
            if node == state.node and self._cuts_known:
                self._cut(cut, state) if kind == wal.CUT else _confirm(cut, state)
        elif kind == wal.OPEN:
            state.connectors.open(_run(value), str(value["connector"]))
        elif kind == wal.CLOSE:
            state.close(_run(value), _pos(value))
        elif kind == wal.TOMBSTONE:
            state.delete(*_deletion(value))
        elif "pos" in value:
            state.finish_close(_run(value), _pos(value))
        else:
            state.finish_deletion(*_deletion(value))

    def _cut(self, cut: Cut, state: JournalState) -> None:
        last = state.last_cut()
        if cut.seq == last.seq + 2:
            # The cut between them is damaged, but its ends follow from its neighbours.
            state.cuts.append(Cut(last.seq + 1, last.end, cut.first))
        elif cut.seq > last.seq + 2:
            self._forget_cuts(state)
            return
        if cut.seq > last.seq:
            state.cuts.append(cut)

    def _forget_cuts(self, state: JournalState) -> None:
        low = max(state.base, self.low_pos)
        state.confirmed, state.cuts = Cut(0, low, low), []
        self._cuts_known = False


def _run(value: Mapping[str, Any]) -> RunKey:
    return RunKey(str(value["fqn"]), str(value["run"]))


def _pos(value: Mapping[str, Any]) -> int:
    pos = value["pos"]
    if not isinstance(pos, int):
        raise Damaged("a close without a position")
    return pos


def _deletion(value: Mapping[str, Any]) -> tuple[str, str | None, int]:
    run = value["run"]
    return str(value["fqn"]), None if run is None else str(run), ulids.decode(str(value["t"]))


def _confirm(cut: Cut, state: JournalState) -> None:
    if cut.seq > state.confirmed.seq:
        state.confirm(cut)


def _sent(batch: wal.BatchEntry, state: JournalState) -> None:
    """Replays a connector's batch. The arrival is not stored: the time of the ULID replaces it."""
    if batch.connector is None:
        return
    connector = state.connectors.get(batch.key, batch.connector)
    if connector is not None:
        known = KnownBatch(batch.digest, batch.records, batch.pos + batch.records)
        at_ms = ulids.time_ms(batch.ulid)
        connector.last = LastBatch(batch.ulid, batch.text_size, at_ms, known)
