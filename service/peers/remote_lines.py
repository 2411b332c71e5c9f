"""Lines of a run, and records of a search, that only the journals of other nodes hold.

**Lines of a run.** The answer to the question `hot` has the rows of all batches of the run that are
in no chunk yet, and their texts as far as they are small. `text` fetches further texts. A node
answers from a pin that it takes at that moment, and it is asked before the manifest is read: lines
that it flushes meanwhile are in both, and the manifest shows which.

| question | asks | answer |
| --- | --- | --- |
| `hot` | `{"fqn", "run"}`, optionally `"held": true` | `{"deleted", "sources"}` |
| `text` | `{"fqn", "run", "node", "first", "end"}`: rows by position | `{"positions": […]}` |

`held` reads the journal without the store. `deleted` is the ULID up to which the node knows the run
as deleted. A source is `{"node", "end", "connectors", "files", "texts"}` and has two parts: the
rows (`tailrace.logstore.batch.BATCH`), and the texts and metadata of its first `texts` rows. With
`held` a source also has `flushed`: its lines below this position are in chunks. Earlier versions
leave it out. The answer to `text` has one part: the texts and metadata of the rows at `positions`,
one row after another.

**Records of a search.** The question `records` is `{"fqn", "run", "low", "high"}`: names or null,
and ULIDs. The answer is `{"confirmed": [number, position], "end"}`: the last confirmed segment and
its end, and the position after the last record. It has two parts: the records as an Arrow stream
without the column `carried`, which earlier versions do not know, and the column `carried` alone.
The records are those of the node's journal that are in no confirmed segment. A node that would have
to send more than 64 MiB of text refuses.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from service.journal.format import decode_attributes, decode_meta, encode_attributes, encode_meta
from service.journal.reader import JournalPin
from service.peers import rpc
from service.peers.register import NodeEntry, Peers
from service.peers.rpc import Message, PeerRefused, PeerSilent
from service.query.request import QueryRequest, UlidRange
from service.query.sources import FoundElsewhere
from service.query.unflushed import Encode, JournalRecords
from service.run_log.backlog import Elsewhere, Fork, HeldSource, Unfetched
from service.run_log.chunks import Moved, NewBatches
from tailrace.logstore import ulid as ulids
from tailrace.logstore.batch import BATCH, CONSTANT_ATTRIBUTES, Indexes, RecordMeta, Rows, RunKey
from tailrace.logstore.errors import InvalidInput, LimitReached
from tailrace.logstore.position import Position
from tailrace.logstore.segments.file_format import CARRIED
from tailrace.logstore.table.schema import RECORD_SCHEMA

_AT_ONCE_BYTES = 1 << 20
_STEP_BYTES = 4 << 20
_TEXT_SECONDS = 30.0
Files = Sequence[tuple[str, int]]
"""Journal files and their first positions, in order."""


@dataclass(slots=True)
class RemoteBatches:
    """Batches of another node: rows, and the fetched texts by row."""

    node: str
    rows: Rows
    runs: Sequence[RunKey]
    connectors: Sequence[str | None]
    entry: NodeEntry
    peers: Peers
    texts: dict[int, tuple[bytes, bytes]] = field(default_factory=dict)

    def text(self, indexes: Indexes) -> bytes:
        return b"".join([self._held(index)[0] for index in indexes.tolist()])

    def slice(self, index: int, low: int, high: int) -> bytes:
        return self._held(int(index))[0][low:high]

    def meta(self, index: int) -> RecordMeta | None:
        if not self.rows["meta"][index] or self.rows["flags"][index] & CONSTANT_ATTRIBUTES:
            return None
        return decode_meta(self._held(int(index))[1])

    def constant_attributes(self, index: int) -> Mapping[str, str] | None:
        if not self.rows["flags"][index] & CONSTANT_ATTRIBUTES:
            return None
        return decode_attributes(self._held(int(index))[1])

    def _held(self, index: int) -> tuple[bytes, bytes]:
        held = self.texts.get(index)
        if held is None:
            raise Unfetched(lambda: self._fetch(index))
        return held

    async def _fetch(self, index: int) -> None:
        """Fetches the texts from this row on, up to about 4 MiB. Raises `Moved`."""
        end = index + fitting(self.rows[index:], _STEP_BYTES)
        first, last = int(self.rows["pos"][index]), int(self.rows["pos"][end - 1])
        head = {"fqn": self.runs[0].fqn, "run": self.runs[0].run, "node": self.node}
        body = rpc.encode({**head, "first": first, "end": last + 1})
        try:
            answer = await self.peers.one(self.entry, body, "text", _TEXT_SECONDS)
            placed = _texts(self.rows, answer.head["positions"], answer.parts[0])
        except (PeerSilent, PeerRefused) as error:
            raise Moved(str(error)) from error
        if index not in placed:
            raise Moved(f"{self.node} does not hold a batch any more")
        self.texts |= placed


def fitting(rows: Rows, size: int) -> int:
    """The number of first rows with at most `size` bytes of text and metadata; at least one."""
    ends = np.cumsum(rows["size"].astype(np.int64) + rows["meta"])
    return max(int(np.searchsorted(ends, size, "right")), min(len(rows), 1))


def _texts(rows: Rows, positions: Sequence[int], body: bytes) -> dict[int, tuple[bytes, bytes]]:
    """Returns texts and metadata of the rows with these positions, by row."""
    found, at = {}, 0
    for pos in positions:
        index = int(np.searchsorted(rows["pos"], pos))
        if index == len(rows) or int(rows["pos"][index]) != pos:
            raise PeerRefused(f"an answer with position {pos}, which was not asked for")
        middle = at + int(rows["size"][index])
        end = middle + int(rows["meta"][index])
        found[index] = (body[at:middle], body[middle:end])
        at = end
    if at != len(body):
        raise PeerRefused(f"{len(body)} bytes of text instead of {at}")
    return found


async def ask_for_lines(
    key: RunKey,
    own: str,
    peers: Peers,
    note_deletion: Callable[[str, str | None, int], None],
    *,
    held: bool = False,
) -> Elsewhere:
    """Asks all nodes but `own` for their lines of a run; names the nodes without an answer."""
    asked = {"fqn": key.fqn, "run": key.run} | ({"held": True} if held else {})
    gathered = await peers.ask(rpc.encode(asked), "hot")
    sources: list[NewBatches] = []
    files: dict[str, Files] = {}
    flushed: dict[str, int] = {}
    silent = dict(gathered.silent)
    entries = peers.entries()
    for entry in entries:
        answer = gathered.answers.get(entry.instance)
        if answer is None:
            continue
        try:
            found = decode_sources(key, answer, entry, peers)
            deleted = int(ulids.parse(answer.head["deleted"]))
        except (PeerRefused, InvalidInput, KeyError) as error:
            silent[entry.node] = str(error)
            continue
        if deleted:
            note_deletion(*key, deleted)
        for source, its_files, its_flushed in found:
            if source.node != own:
                sources.append(source)
                files[source.node] = its_files
                flushed[source.node] = its_flushed
    mine = peers.register.own
    every = entries if mine is None else [*entries, mine]
    forks = [Fork(e.node, e.parents, e.base, e.files, e.shared) for e in every if e.files]

    def position(node: str, pos: int) -> Position | None:
        return file_of(files[node], pos) if node in files else None

    silent_nodes = tuple(sorted(silent))
    return Elsewhere(sources, silent_nodes, forks, position, alone=False, flushed=flushed)


def file_of(files: Files, pos: int) -> Position:
    """The position of a line in one of these files."""
    at = bisect_right(files, pos, key=lambda file: file[1]) - 1
    return Position(files[at][0] if at >= 0 else "", pos)


def encode_sources(found: Sequence[HeldSource], *, horizon: str) -> bytes:
    """Encodes the answer to `hot`: rows of sources, and small texts."""
    heads: list[dict[str, Any]] = []
    parts: list[bytes] = []
    left = _AT_ONCE_BYTES
    for source, indexes, files, flushed in found:
        rows = source.batches.rows[indexes].copy()
        rows["run"] = 0
        metas = _metas(source, indexes, rows)
        count = 0
        if len(rows):
            ends = np.cumsum(rows["size"].astype(np.int64) + rows["meta"])
            count = int(np.searchsorted(ends, left, "right"))
        texts = _joined(source, indexes[:count], metas)
        left -= len(texts)
        heads.append(
            {
                "node": source.node,
                "end": source.end,
                "connectors": list(source.batches.connectors),
                "files": [list(file) for file in files],
                "texts": count,
                **({"flushed": flushed} if flushed else {}),
            }
        )
        parts += [rows.tobytes(), texts]
    return rpc.encode({"sources": heads, "deleted": horizon}, parts)


def encode_texts(source: NewBatches | None, indexes: Indexes) -> bytes:
    """Encodes the answer to `text`: these rows of a source."""
    if source is None or len(indexes) == 0:
        return rpc.encode({"positions": []}, [b""])
    rows = source.batches.rows[indexes].copy()
    texts = _joined(source, indexes, _metas(source, indexes, rows))
    return rpc.encode({"positions": rows["pos"].tolist()}, [texts])


def _metas(source: NewBatches, indexes: Indexes, rows: Rows) -> list[bytes]:
    """The encoded metadata of each row; `rows` gets their lengths."""
    found = []
    for number, index in enumerate(indexes.tolist()):
        body = b""
        if rows["meta"][number]:
            attributes = source.batches.constant_attributes(index)
            meta = source.batches.meta(index) if attributes is None else None
            body = encode_meta(meta) if attributes is None else encode_attributes(attributes)
        rows["meta"][number] = len(body)
        found.append(body)
    return found


def _joined(source: NewBatches, indexes: Indexes, metas: Sequence[bytes]) -> bytes:
    if not any(metas[: len(indexes)]):
        return source.batches.text(indexes) if len(indexes) else b""
    pieces: list[bytes] = []
    for number, index in enumerate(indexes.tolist()):
        pieces += [source.batches.text(np.array([index])), metas[number]]
    return b"".join(pieces)


def decode_sources(
    key: RunKey, answer: Message, entry: NodeEntry, peers: Peers
) -> list[tuple[NewBatches, Files, int]]:
    """The sources in an answer to `hot`. Raises `PeerRefused`."""
    found: list[tuple[NewBatches, Files, int]] = []
    try:
        for number, head in enumerate(answer.head["sources"]):
            rows = np.frombuffer(answer.parts[2 * number], BATCH)
            connectors = [None if name is None else str(name) for name in head["connectors"]]
            batches = RemoteBatches(str(head["node"]), rows, [key], connectors, entry, peers)
            texts = answer.parts[2 * number + 1]
            batches.texts = _texts(rows, rows["pos"][: head["texts"]].tolist(), texts)
            files = [(str(file), int(first)) for file, first in head["files"]]
            source = NewBatches(batches, int(head["end"]))
            found.append((source, files, int(head.get("flushed", 0))))
    except (ValueError, TypeError, KeyError, IndexError) as error:
        raise PeerRefused(f"not an answer with lines: {error}") from error
    return found


_MOST_BYTES = 64 << 20
_MARKS = pa.schema([RECORD_SCHEMA.field(CARRIED)])
_PLAIN = RECORD_SCHEMA.remove(RECORD_SCHEMA.get_field_index(CARRIED))


async def answer_records(pin: Callable[[], JournalPin], encode: Encode, message: Message) -> bytes:
    """The answer to `records`. Raises `LimitReached`."""
    head = message.head
    fqn = None if head["fqn"] is None else str(head["fqn"])
    run = None if head["run"] is None else str(head["run"])
    time_range = UlidRange(ulids.decode(head["low"]), ulids.decode(head["high"]))
    with pin() as held:
        return await asyncio.to_thread(_encoded, held, encode, fqn, run, time_range)


def _encoded(
    pin: JournalPin, encode: Encode, fqn: str | None, run: str | None, time_range: UlidRange
) -> bytes:
    unflushed = JournalRecords(pin, encode, time_range, fqn, run)
    size = unflushed.size(time_range)
    if size > _MOST_BYTES:
        raise LimitReached(f"{size} bytes of records are in no segment yet")
    parts = encoded(unflushed.records(time_range) if size else ())
    head = {"confirmed": [pin.confirmed_seq, pin.confirmed_pos], "end": pin.end_pos}
    return rpc.encode(head, parts)


class RecordsOfOthers:
    """Asks the other nodes for records."""

    def __init__(self, peers: Peers) -> None:
        self._peers = peers

    async def __call__(self, request: QueryRequest) -> FoundElsewhere:
        """Returns their records, and the nodes without an answer."""
        if not self._peers:
            return FoundElsewhere()
        gathered = await self._peers.ask(question(request), "records")
        silent = set(gathered.silent)
        tables, nodes = [RECORD_SCHEMA.empty_table()], []
        for entry in self._peers.entries():
            answer = gathered.answers.get(entry.instance)
            if answer is None:
                continue
            try:
                tables.append(await asyncio.to_thread(decoded, answer))
                nodes.append(entry.node)
            except PeerRefused:
                silent.add(entry.node)
        return FoundElsewhere(pa.concat_tables(tables), nodes, sorted(silent))


def question(request: QueryRequest) -> bytes:
    """Encodes the question for the records of a search."""
    low, high = ulids.encode(request.low), ulids.encode(request.high)
    return rpc.encode({"fqn": request.fqn, "run": request.run, "low": low, "high": high})


def encoded(batches: Iterable[pa.RecordBatch]) -> list[bytes]:
    """Encodes records as the parts of an answer."""
    sinks = [pa.BufferOutputStream(), pa.BufferOutputStream()]
    with pa.ipc.new_stream(sinks[0], _PLAIN) as plain, pa.ipc.new_stream(sinks[1], _MARKS) as marks:
        for batch in batches:
            plain.write_batch(batch.select(_PLAIN.names))
            marks.write_batch(batch.select(_MARKS.names))
    return [sink.getvalue().to_pybytes() for sink in sinks]


def decoded(answer: Message) -> pa.Table:
    """Decodes the records of an answer. Earlier versions send no marks. Raises `PeerRefused`."""
    try:
        with pa.ipc.open_stream(answer.parts[0]) as stream:
            records = stream.read_all()
        marks = pa.nulls(len(records), pa.bool_())
        if len(answer.parts) > 1:
            with pa.ipc.open_stream(answer.parts[1]) as stream:
                marks = stream.read_all().column(CARRIED)
        return records.append_column(CARRIED, marks).select(RECORD_SCHEMA.names).cast(RECORD_SCHEMA)
    except (pa.ArrowException, KeyError, IndexError, ValueError) as error:
        raise PeerRefused(f"not an answer with records: {error}") from error
