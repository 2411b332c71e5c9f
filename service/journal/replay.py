"""Entries of a journal, applied one after another to what the node knows.

A file's `state` replaces the state so far. If it cannot be read, the older state with all
changes since says as much: the node finds segments that were confirmed meanwhile in the
store. If segments are missing between two cuts, or there is no older state, it is unknown
how the lines were cut. The state then claims no segment at all. The node finds its own
segments in the store, continues as a fork, and ships all that it holds again. Readers know
those lines by their ids.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson

from logstore import ulid as ulids
from logstore.batch import AHEAD, RunKey
from logstore.errors import Damaged
from service.ingest.batch import KnownBatch
from service.journal import format as wal
from service.journal.connectors import LastBatch
from service.journal.file import JournalFile
from service.journal.scan import Entry
from service.journal.state import Cut, JournalState, decode_cut_entry, decode_state

_KINDS = (wal.STATE, wal.CUT, wal.CLOSE, wal.TOMBSTONE, wal.CONFIRM, wal.OPEN, wal.FINISH)


class Replay:
    """The state after the files read so far. `low_pos` is the first position of the oldest."""

    def __init__(self) -> None:
        self.state: JournalState | None = None
        self.low_pos = 0
        self._cuts_known = True

    def apply(self, entry: Entry, file: JournalFile) -> None:
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

    def _batch(self, entry: Entry, file: JournalFile) -> None:
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
            # The one between is damaged, but its ends are those of its neighbours.
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
    """Replays a connector's batch. Its ULID stands for its time of arrival, which is not stored."""
    if batch.connector is None:
        return
    connector = state.connectors.get(batch.key, batch.connector)
    if connector is not None:
        known = KnownBatch(batch.digest, batch.records, batch.pos + batch.records)
        at_ms = ulids.time_ms(batch.ulid)
        connector.last = LastBatch(batch.ulid, batch.text_size, at_ms, known)
