"""Records that other nodes hold, for searches.

| question | asks | answer |
| --- | --- | --- |
| `records` | `{"fqn", "run", "low", "high"}`: names or null, ULIDs | `{"confirmed": [number, position], "end"}`: the last confirmed segment and its end, and one past the last record; two parts, the records as an Arrow stream without `carried`, which earlier versions do not know, and `carried` as one |

The answer has the records of the node's journal that are in no confirmed segment. A node that would
have to send more than 64 MiB of text refuses.
"""  # noqa: E501

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

import pyarrow as pa

from logstore import ulid as ulids
from logstore.errors import LimitReached
from logstore.segments.schema import CARRIED
from service.journal.view import JournalPin
from service.peers import messages
from service.peers.messages import Message
from service.peers.peers import Peers
from service.peers.transport import PeerRefused
from service.query.elsewhere import FoundElsewhere
from service.query.hot import SCHEMA, Encode, HotRecords
from service.query.request import QueryRequest
from service.query.tiles import Tile

_MOST_BYTES = 64 << 20
_MARKS = pa.schema([SCHEMA.field(CARRIED)])
_PLAIN = SCHEMA.remove(SCHEMA.get_field_index(CARRIED))


async def answer_records(pin: Callable[[], JournalPin], encode: Encode, message: Message) -> bytes:
    """The answer to `records`. Raises `LimitReached`."""
    head = message.head
    fqn = None if head["fqn"] is None else str(head["fqn"])
    run = None if head["run"] is None else str(head["run"])
    tile = Tile(ulids.decode(head["low"]), ulids.decode(head["high"]))
    with pin() as held:
        return await asyncio.to_thread(_encoded, held, encode, fqn, run, tile)


def _encoded(
    pin: JournalPin, encode: Encode, fqn: str | None, run: str | None, tile: Tile
) -> bytes:
    hot = HotRecords(pin, encode, tile, fqn, run)
    size = hot.size(tile)
    if size > _MOST_BYTES:
        raise LimitReached(f"{size} bytes of records are in no segment yet")
    parts = encoded(hot.records(tile) if size else ())
    head = {"confirmed": [pin.confirmed_seq, pin.confirmed_pos], "end": pin.end_pos}
    return messages.encode(head, parts)


class RecordsOfOthers:
    """Asks the other nodes for records."""

    def __init__(self, peers: Peers) -> None:
        self._peers = peers

    async def __call__(self, request: QueryRequest) -> FoundElsewhere:
        """What they hold, and who did not say."""
        if not self._peers:
            return FoundElsewhere()
        gathered = await self._peers.ask(question(request), "records")
        silent = set(gathered.silent)
        tables, nodes = [SCHEMA.empty_table()], []
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
    """The question for what a search may find."""
    low, high = ulids.encode(request.low), ulids.encode(request.high)
    return messages.encode({"fqn": request.fqn, "run": request.run, "low": low, "high": high})


def encoded(batches: Iterable[pa.RecordBatch]) -> list[bytes]:
    """Records as the parts of an answer."""
    sinks = [pa.BufferOutputStream(), pa.BufferOutputStream()]
    with (
        pa.ipc.new_stream(sinks[0], _PLAIN) as plain,
        pa.ipc.new_stream(sinks[1], _MARKS) as marks,
    ):
        for batch in batches:
            plain.write_batch(batch.select(_PLAIN.names))
            marks.write_batch(batch.select(_MARKS.names))
    return [sink.getvalue().to_pybytes() for sink in sinks]


def decoded(answer: Message) -> pa.Table:
    """The records of an answer; one of an earlier version has no marks. Raises `PeerRefused`."""
    try:
        with pa.ipc.open_stream(answer.parts[0]) as stream:
            records = stream.read_all()
        marks = pa.nulls(len(records), pa.bool_())
        if len(answer.parts) > 1:
            with pa.ipc.open_stream(answer.parts[1]) as stream:
                marks = stream.read_all().column(CARRIED)
        return records.append_column(CARRIED, marks).select(SCHEMA.names).cast(SCHEMA)
    except (pa.ArrowException, KeyError, IndexError, ValueError) as error:
        raise PeerRefused(f"not an answer with records: {error}") from error
