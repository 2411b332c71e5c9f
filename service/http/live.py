"""Streams a run live over server-sent events: its lines, and lines that are not finished yet.

    GET /logs/{fqn}/stream/{runId}          lines, see `service.http.sse` for the format
    GET /unfinished/{fqn}/stream/{runId}    progress bars and prompts, see `UnfinishedStream`

The reader's cursor only grows, and it alone decides what is sent: `service.tail` explains why
nothing is lost or sent twice between storage and the live end. A reader that cannot keep up waits
in its own send and continues from storage.

While the store does not answer, a reader gets the lines that nodes hold after its cursor, and an
event that says so. Once the store answers, the reader continues after those lines. If the store
has lines before them, the reader is asked to start over and continues from its place before the
outage (`service.run_log.lines`).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable, Sequence
from contextlib import suppress
from functools import partial
from typing import Annotated, Any, Final, Literal, NamedTuple, TypeVar

import orjson
from fastapi import APIRouter, Header, Query, Request
from pydantic import BaseModel
from starlette.responses import Response

from service.http import sse
from service.http.api import NodeApi
from service.http.authorization import WATCHED, Lasting
from service.http.body import Receive, Scope, Send, json_object
from service.http.connection import Connection
from service.http.json_body import shown
from service.http.pages import DAMAGED, Order, header_names
from service.http.query import unless_gone
from service.http.replies import CONNECTION
from service.http.sse import EventBatch, EventGroup, line_ids, parse_start, record_ids
from service.http.status import RunStatusStream, run_is_over
from service.http.targets import BASE, ROOT, name, run_key
from service.journal.format import decode_attributes, decode_meta, flags_of
from service.run_log.cursors import After, Begun, OneSource
from service.run_log.lines import HeldPlace, RecordPart, as_records
from service.run_log.read_records import ArrowRecords, RecordPiece
from service.run_log.read_text import LogPiece
from service.runtime.concurrency import SharedCalls
from service.runtime.counters import HttpCounters
from service.status.status import MOST_CHARS, UnfinishedLine, last_run
from service.tail import Published, Tick, Watcher
from tailrace.logstore.batch import RunKey
from tailrace.logstore.errors import (
    InvalidCursor,
    InvalidInput,
    NodeNotReady,
    StoreUnavailable,
    TailraceError,
    Unavailable,
)
from tailrace.logstore.position import Cursor

_MOST_TAIL = 100_000
_CATCH_UP_BYTES = 256 << 10
_BEGINNING = "0"
_RETRY_SECONDS = 1.0
_CLOSED = ("closed", "deleted")

Form = Literal["json", "text", "ndjson"]
T = TypeVar("T")


class Frame(NamedTuple):
    """The bytes of a tick for all readers at the place `before`, and their place `after` it."""

    before: Cursor
    after: Cursor
    event: bytes
    chunk: bytes
    """The event as HTTP/1.1 frames it."""


class EventStream(Response):
    """A response that lasts until its run ends, its client disconnects or the node stops."""

    def __init__(
        self,
        node: NodeApi,
        key: RunKey,
        *,
        after: str | None,
        tail: int | None,
        form: Form,
        named: bool,
        max_readers: int,
        counters: HttpCounters,
        reads: SharedCalls,
        damaged: Sequence[str] = (),
    ) -> None:
        """`damaged` are runs that cannot be read and may be later than the last run."""
        super().__init__()
        more = [(DAMAGED.encode(), header_names(damaged).encode())] if damaged else []
        self._start = [*sse.HEADERS, *more]
        self._reads = reads
        self._node = node
        self._key = key
        self._after = after
        self._tail = tail
        self._form = form
        self._named = named
        self._max_readers = max_readers
        self._counters = counters
        self._cursor: Cursor | int | HeldPlace | None = None
        self._silent: tuple[str, ...] = ()
        self._without_store = False
        self._skip = 0
        self._begun: Begun | None = None
        self._next_tick = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        tail = self._node.tail
        await send({"type": "http.response.start", "status": 200, "headers": self._start})
        if scope["method"] == "HEAD":
            await send({"type": "http.response.body", "body": b""})
            return
        if tail.readers >= self._max_readers:
            # With 200, as upstream does it: its page takes a 503 for "never again".
            await self._send(send, self._error("too many readers; try again later"))
            await send({"type": "http.response.body", "body": b""})
            return
        with sse.watching(tail, self._key, self._counters) as watcher:
            connection: Connection | None = scope.get(CONNECTION)
            if connection is not None:
                watcher.push = partial(self._push, watcher, connection, scope.get(WATCHED))
            try:
                # Also while the store or another node withholds lines that the stream waits for.
                await unless_gone(watcher.unless_left(self._run(watcher, send)), receive)
            except TailraceError as error:
                await self._send(send, self._error(f"{error} {error.hint}".strip()))
        await send({"type": "http.response.body", "body": b""})

    async def _run(self, watcher: Watcher, send: Send) -> None:
        """Sends the stream.

        It waits while the store is unavailable: upstream's clients end at `error`.
        """
        begun = False
        while not watcher.gone:
            try:
                if not begun:
                    await self._begin(send)
                    begun = True
                await self._go_on(watcher, send)
            except Unavailable as error:
                if isinstance(error, StoreUnavailable | NodeNotReady):
                    await self._say_silent(self._silent, send, store=True)
                await self._send(send, sse.HEARTBEAT)
                await asyncio.sleep(_RETRY_SECONDS)
            else:
                return

    async def _go_on(self, watcher: Watcher, send: Send) -> None:
        over, status = None, self._node.status
        while not watcher.gone:
            # If the end comes while storage is read, the next turn sees it and reads again. So
            # lines that came before the end are read after the end is known.
            ended = watcher.channel.ended or over
            mark = watcher.channel.mark()
            after = await self._catch_up(send)
            if after.more:
                continue
            if after.held:
                await self._wait_for_store(watcher, mark, send)
                continue
            if after.state in _CLOSED or (ended is not None and not after.silent):
                await self._send(send, self._complete(ended or "runFinished"))
                return
            if ended is not None:  # lines of a node that does not answer may be missing
                over = ended
                await self._wait_for_silent(watcher, send)
                continue
            if await self._reads.call(("over", self._key), partial(status.over, self._key)):
                over = "runFinished"
                continue
            await self._resolve()  # lines that came meanwhile follow it
            await self._follow(watcher, mark, send)

    async def _wait_for_silent(self, watcher: Watcher, send: Send) -> None:
        """Returns after a moment: an ended channel is not notified when a node answers again."""
        await self._send(send, sse.HEARTBEAT)
        with suppress(TimeoutError):
            async with asyncio.timeout(_RETRY_SECONDS):
                await watcher.wait()

    async def _say_silent(self, nodes: tuple[str, ...], send: Send, *, store: bool) -> None:
        """Sends the list of silent nodes if it differs from the last one that was sent."""
        if (nodes, store) != (self._silent, self._without_store):
            self._silent, self._without_store = nodes, store
            await self._send(send, sse.silent(nodes, store=store, named=self._form != "json"))

    async def _wait_for_store(self, watcher: Watcher, mark: int, send: Send) -> None:
        """Returns when lines have come, or the store may answer again."""
        taken = watcher.channel.take(mark, None)
        if taken.ticks or taken.behind:
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(_RETRY_SECONDS):
                if await watcher.wait() == "heartbeat":
                    await self._send(send, sse.HEARTBEAT)

    async def _resolve(self) -> None:
        """Replaces the cursor with one that names every node."""
        if not isinstance(self._cursor, Cursor) or not self._cursor.complete:
            cursor, reader = self._cursor, self._node.run_logs.reader
            self._cursor = await self._asked("resolved", lambda: reader.resolved(self._key, cursor))

    async def _asked(self, what: str, ask: Callable[[], Awaitable[T]]) -> T:
        """Asks storage; readers at this place that ask at the same time share one answer."""
        return await self._reads.call((what, self._key, self._at(), self._begun), ask)

    async def _begin(self, send: Send) -> None:
        if self._after is not None:
            try:
                self._cursor, self._skip, self._begun = parse_start(self._after)
            except InvalidCursor:
                # Upstream's way to say "start your view over": an empty replay.
                await self._send(send, self._start_over())
            else:
                return
        lines = self._tail
        if lines is not None:
            reader = self._node.run_logs.reader
            self._cursor = await self._reads.call(
                ("tail", self._key, lines), lambda: reader.tail_start(self._key, lines)
            )

    async def _catch_up(self, send: Send) -> After[LogPiece] | After[RecordPiece]:
        """Sends a piece of storage's lines after the cursor.

        The piece, its successor and the state of the run are of the same moment. So a wake costs
        one request for the run to all nodes, and no second one to learn that the piece was the
        last.
        """
        if self._form == "ndjson":
            return await self._catch_up_with_records(send)
        cursor, begun, reader = self._cursor, self._begun, self._node.run_logs.reader

        def ask() -> Awaitable[After[LogPiece]]:
            most = _CATCH_UP_BYTES
            return reader.batches_after(self._key, cursor, max_bytes=most, begun=begun)

        after = await self._asked("text", ask)
        await self._check(after, send)
        if await self._begins_again(after, send):
            return after._replace(piece=None, more=True)
        piece = after.piece
        if piece is not None:
            text, skipped = self._without_skipped(piece.text)
            if text:
                await self._send(send, self._frame(text, piece.cursor, skipped, piece.sources))
            self._passed(piece.cursor)
        else:
            await self._leave_held_place(after)
        return after

    async def _leave_held_place(self, after: After[LogPiece] | After[RecordPiece]) -> None:
        """Goes to the place that the store's answer gave; no piece came whose place follows."""
        if isinstance(self._cursor, HeldPlace) and not after.held:
            self._cursor = after.settled
            await self._resolve()

    async def _begins_again(self, after: After[LogPiece] | After[RecordPiece], send: Send) -> bool:
        """Returns true if the reader goes to its beginning, not to its place before the outage.

        A view of the JSON form is empty by now. Other readers that began with the last lines do so
        again.
        """
        begins_with_tail = self._tail is not None and self._after is None
        if not after.again or not (begins_with_tail or self._form == "json"):
            return False
        self._cursor, self._skip, self._begun = None, 0, None
        if begins_with_tail:
            await self._begin(send)
        return True

    async def _check(self, after: After[LogPiece] | After[RecordPiece], send: Send) -> None:
        """Sends which nodes do not answer, and whether lines come again."""
        await self._say_silent(after.silent, send, store=after.held)  # before its lines
        if after.again:
            await self._send(send, self._start_over(_BEGINNING) or sse.AGAIN)

    def _passed(self, place: Cursor | HeldPlace) -> None:
        self._cursor = place
        if isinstance(place, Cursor):  # the rest of a batch came first
            self._begun = None

    async def _catch_up_with_records(self, send: Send) -> After[RecordPiece]:
        cursor, begun, records = self._cursor, self._begun, self._node.run_logs.records

        async def ask() -> tuple[After[RecordPiece], ArrowRecords | None]:
            most = _CATCH_UP_BYTES
            after = await records.after(self._key, cursor, max_bytes=most, begun=begun)
            if after.piece is None:
                return after, None
            return after, await records.records(self._key, after.piece.parts)

        after, found = await self._asked("records", ask)
        await self._check(after, send)
        if await self._begins_again(after, send):
            return after._replace(piece=None, more=True)
        piece = after.piece
        if piece is None or found is None:
            await self._leave_held_place(after)
            return after
        skip = self._skip + piece.seen if self._skip else 0
        self._skip = max(skip - sum([part.lines for part in piece.parts]), 0)
        ids = _ids(record_ids, piece.sources)
        if isinstance(piece.cursor, HeldPlace):  # nodes order held lines differently
            ids = [self._before().encode()] * found.batch.num_rows
        frame = sse.records(found.batch, self._before(), piece.cursor.encode(), skip, ids)
        if frame:
            await self._send(send, frame)
        self._passed(piece.cursor)
        return after

    def _push(self, watcher: Watcher, connection: Connection, lasting: Lasting | None) -> bool:
        """Sends new ticks while this reader waits, without waking its task and without `send`."""
        if not isinstance(self._cursor, Cursor):
            return False
        ticks, next_tick, behind = watcher.channel.take(self._next_tick, self._cursor)
        for tick in ticks:
            frame = self._frame_of(tick)
            if (lasting is not None and lasting.due) or not connection.push(frame.chunk):
                return False
            if lasting is not None:
                lasting.count(len(frame.event))
            self._cursor = frame.after
            self._counters.stream_events += 1
            self._counters.stream_bytes += len(frame.event)
        self._next_tick = next_tick
        return not behind

    async def _follow(self, watcher: Watcher, next_tick: int, send: Send) -> None:
        """Sends ticks as they come; returns at the end, or when storage must be read again."""
        self._skip, self._begun, self._next_tick = 0, None, next_tick
        channel = watcher.channel
        while not watcher.gone:
            assert isinstance(self._cursor, Cursor)
            ticks, self._next_tick, behind = channel.take(self._next_tick, self._cursor)
            if behind:
                return
            if ticks:
                await self._send_ticks(ticks, send)
                continue
            if channel.ended is not None:
                return
            if await watcher.wait() == "heartbeat":
                await self._send(send, sse.HEARTBEAT)
                if await self._node.status.over(self._key):  # another node got the last status
                    self._node.tail.ended(self._key)

    async def _send_ticks(self, ticks: Sequence[Tick], send: Send) -> None:
        """Sends ticks in one piece; the bytes of each depend on the place after the last."""
        frames = []
        for tick in ticks:
            frames.append(self._frame_of(tick))
            self._cursor = frames[-1].after
        await self._send(send, b"".join([frame.event for frame in frames]))

    def _frame_of(self, tick: Tick) -> Frame:
        """Returns the tick's frame for this cursor; the first reader that needs it makes it.

        Readers that were sent one tick share one cursor object, which finds the frame; other
        readers find it by the cursor's text.
        """
        before = self._cursor
        assert isinstance(before, Cursor), "it was resolved before ticks are followed"
        this: Hashable = (self._form, self._named, id(before))
        frame: Frame | None = tick.frames.get(this)
        if frame is None or frame.before is not before:
            frame = tick.frames[this] = self._shared_frame(tick, before)._replace(before=before)
        return frame

    def _shared_frame(self, tick: Tick, before: Cursor) -> Frame:
        ids = None if self._form == "json" else self._before()
        places = sorted([(n, p.file, p.pos) for n, p in before.positions.items() if n != tick.node])
        form = (self._form, self._named)
        which: Hashable = (form, tuple(places), tuple(before.newest.items()), ids)
        frame: Frame | None = tick.frames.get(which)
        if frame is None:
            shared = self._node.tail.shared()
            after = before.advanced(tick.node, tick.last, tick.newest if shared else ())
            sources = [_source_of(tick, before)] if shared else []
            made = self._frame_of_records(tick, after, sources) if self._form == "ndjson" else None
            event = made or self._frame(tick.text, after, sources=sources)
            chunk = b"%x\r\n%b\r\n" % (len(event), event)
            frame = tick.frames[which] = Frame(before, after, event, chunk)
        return frame

    def _frame(
        self,
        text: bytes,
        after: Cursor | HeldPlace,
        skipped: int = 0,
        sources: Sequence[OneSource] = (),
    ) -> bytes:
        if self._form == "text":
            ids = _ids(line_ids, sources)
            if isinstance(after, HeldPlace):  # nodes order held lines differently
                ids = [self._before().encode()] * (skipped + text.count(b"\n"))
            return sse.text_lines(text, self._before(), after.encode(), skipped, ids)
        return self._event("logs", after.encode(), logs=shown(text))

    def _frame_of_records(self, tick: Tick, after: Cursor, sources: Sequence[OneSource]) -> bytes:
        batch = as_records(self._key, [_part_of(batch) for batch in tick.batches])
        ids = _ids(record_ids, sources)
        return sse.records(batch, self._before(), after.encode(), ids=ids)

    def _before(self) -> str:
        cursor = self._cursor
        return cursor.encode() if isinstance(cursor, Cursor | HeldPlace) else str(cursor or 0)

    def _without_skipped(self, text: bytes) -> tuple[bytes, int]:
        """Leaves out lines that the client has, if its `id` was in the middle of a group."""
        start = skipped = 0
        while self._skip > 0 and start < len(text):
            start = text.index(b"\n", start) + 1
            self._skip -= 1
            skipped += 1
        return text[start:], skipped

    def _complete(self, reason: str) -> bytes:
        if self._form != "json":
            return sse.text_complete()
        return self._event("complete", self._at(), reason=reason)

    def _at(self) -> str | None:
        return None if self._cursor is None else self._before()

    def _start_over(self, place: str | None = None) -> bytes:
        """Empties a view. Its reader continues from `place`, also on another connection."""
        if self._form != "json":
            return b""
        return self._event("logs", place, logs="", replay=True, truncated=True)

    def _error(self, message: str) -> bytes:
        if self._form != "json":
            return b"event: error\ndata: " + " ".join(message.split()).encode() + b"\n\n"
        return self._event("error", None, message=message)

    def _event(self, kind: str, cursor: str | None, **fields: Any) -> bytes:
        return sse.event(kind, self._key.run, cursor, named=self._named, **fields)

    async def _send(self, send: Send, frame: bytes) -> None:
        await sse.send_frame(send, self._counters, frame)


def _source_of(tick: Tick, before: Cursor) -> OneSource:
    """Returns the source of the tick's batches, which follow the place `before`."""
    batches = [(b.ulid, b.pos, b.records, b.lines, 0, 0) for b in tick.batches]
    return OneSource(before, tick.node, tick.last.file, batches)


def _group_of(source: OneSource) -> EventGroup:
    """Returns the batches as a group in which ids name records."""
    batches = tuple([EventBatch(*batch) for batch in source.batches])
    return EventGroup(source.node, source.file, batches, source.begun)


def _part_of(batch: Published) -> RecordPart:
    """Returns the batch as a part of its run."""
    shared = decode_attributes(batch.meta) if flags_of(batch.meta) else None
    meta = decode_meta(batch.meta) if batch.meta and shared is None else None
    return RecordPart(
        batch.ulid,
        0,
        batch.pos,
        batch.records,
        batch.lines,
        batch.text,
        meta,
        batch.connector,
        shared,
    )


def _ids(
    made: Callable[[str, EventGroup], list[bytes]], sources: Sequence[OneSource]
) -> list[bytes] | None:
    """Returns ids of the lines that follow; None if the lines have their final place."""
    if not sources:
        return None
    return [one for each in sources for one in made(each.before.encode(), _group_of(each))]


_DESCRIPTION = (
    "Events logs, complete, error. The event silent (in the JSON form a comment) names nodes"
    " that do not answer; their newest lines follow later."
)
_EVENTS = {"content": {"text/event-stream": {"schema": {"type": "string"}}}}


def live_routes(node: NodeApi, max_readers: int, counters: HttpCounters) -> APIRouter:
    """`GET /logs/{fqn}/stream/{runId}`."""
    router = APIRouter(prefix=BASE, tags=["runs"])
    reads = SharedCalls()

    @router.get(
        "/{fqn}/stream/{runId}",
        summary="A run live, as server-sent events; `last` is the pipeline's last run",
        response_class=Response,
        responses={200: {"description": _DESCRIPTION, **_EVENTS}},
    )
    async def stream(
        fqn: str,
        runId: str,  # noqa: N803
        after: Annotated[
            str | None,
            Query(
                description="Cursor; all lines after it are sent. Without it: from the beginning."
            ),
        ] = None,
        last_event_id: Annotated[str | None, Header(description="The same, by clients.")] = None,
        tail: Annotated[
            int | None,
            Query(
                description="Begin with this many of the last lines; a cursor takes precedence.",
                ge=0,
                le=_MOST_TAIL,
            ),
        ] = None,
        format: Annotated[  # noqa: A002
            Form, Query(description="`text`: a line per event; `ndjson`: a record per event.")
        ] = "json",
        events: Annotated[
            Literal["named", "unnamed"],
            Query(
                description="`unnamed`: JSON events have no name, so that `onmessage` of a plain"
                " `EventSource` gets them; `eventType` says what each is."
            ),
        ] = "named",
        order: Annotated[
            Order, Query(description="`arrival`, the only order of a live view.")
        ] = "arrival",
    ) -> Response:
        if order == "ulid":
            raise InvalidInput(
                "a live view cannot be in the order of ULIDs: a lower one may come at any time",
                field="order",
                hint="Leave it out, read pages or the download with order=ulid, or follow"
                " GET /query/stream?fqn=…&run=…, which waits for a window.",
            )
        if events == "unnamed" and format != "json":
            raise InvalidInput(
                f"events=unnamed is given with format={format}",
                field="events",
                hint="Leave it out: there every line or record is an event without a name already.",
            )
        damaged: Sequence[str] = ()
        if runId == "last":
            last = await last_run(node.status, node.run_logs.listing, name(fqn.encode(), "fqn"))
            key, damaged = last.key, last.damaged
        else:
            key = run_key(fqn, runId)
        return EventStream(
            node,
            key,
            # A client that reconnects keeps its first URL and adds the header.
            after=last_event_id or after or None,
            tail=tail,
            form=format,
            named=events == "named",
            max_readers=max_readers,
            counters=counters,
            reads=reads,
            damaged=damaged,
        )

    return router


_TAKES: Final[dict[str, Any]] = {
    "requestBody": {
        "required": True,
        "content": {
            "application/json": {
                "schema": {
                    "type": "object",
                    "required": ["producer", "number", "text"],
                    "properties": {
                        "producer": {
                            "type": "string",
                            "minLength": 1,
                            "maxLength": 100,
                            "description": "Name of the line's writer, which has one unfinished"
                            " line.",
                        },
                        "number": {
                            "type": "integer",
                            "description": "Grows with each state; an older state is ignored.",
                        },
                        "text": {
                            "type": "string",
                            "maxLength": MOST_CHARS,
                            "description": "Current text of the line; empty: the line is finished.",
                        },
                    },
                }
            }
        },
    }
}


class UnfinishedList(BaseModel):
    """The lines of a run that are not finished, by producer."""

    lines: list[dict[str, Any]]


def unfinished_routes(node: NodeApi, max_readers: int, counters: HttpCounters) -> APIRouter:
    """Returns the routes of `…/unfinished/…`.

    `PUT /unfinished/{fqn}/{runId}` replaces the last, unfinished line of a producer. Such lines are
    shown live and never stored.
    """
    router = APIRouter(prefix=ROOT, tags=["status"])

    @router.put(
        "/unfinished/{fqn}/{runId}",
        summary="Report the current text of an unfinished line of a run",
        response_class=Response,
        responses={200: {"description": "Live views show it; it is not stored."}},
        openapi_extra=_TAKES,
    )
    async def put_unfinished(fqn: str, runId: str, request: Request) -> Response:  # noqa: N803
        line = UnfinishedLine.from_json(await json_object(request))
        key, lines = run_key(fqn, runId), node.status.unfinished
        lines.put(key, line)
        lines.report(key, line)
        return Response()

    @router.get(
        "/unfinished/{fqn}/{runId}",
        summary="The unfinished lines of a run",
        response_model=UnfinishedList,
    )
    async def get_unfinished(fqn: str, runId: str) -> dict[str, Any]:  # noqa: N803
        return _shown(node, run_key(fqn, runId))

    @router.get(
        "/unfinished/{fqn}/stream/{runId}",
        summary="The unfinished lines of a run, live, as server-sent events",
        response_class=Response,
        responses={
            200: {"description": "All unfinished lines, sent again after each change.", **_EVENTS}
        },
    )
    async def stream_unfinished(fqn: str, runId: str) -> Response:  # noqa: N803
        key = run_key(fqn, runId)
        return UnfinishedStream(node, key, max_readers=max_readers, counters=counters)

    return router


def _shown(node: NodeApi, key: RunKey) -> dict[str, Any]:
    return {"lines": [line.to_json() for line in node.status.unfinished.of_run(key)]}


class UnfinishedStream(RunStatusStream):
    """All unfinished lines of a run, again after each change, as server-sent events.

        data: {"lines": [{"producer": …, "number": …, "text": …}, …]}

    The first event has all unfinished lines of the run, even if there are none. Each later event
    replaces the one before. The stream of lines does not change, so clients that know only that
    stream are not affected. An event named `complete` ends the stream.
    """

    async def _events(self) -> AsyncIterator[bytes]:
        tail = self._node.tail
        if tail.readers >= self._max_readers:
            return
        with sse.watching(tail, self._key, self._counters) as watcher:
            sent: dict[str, Any] | None = None
            over: bool | None = None
            while not watcher.gone:
                # Nothing is awaited between reading and waiting, so no change is missed.
                now = _shown(self._node, self._key)
                if now != sent:  # an empty list is sent first: a view that reconnects has old lines
                    sent = now
                    yield self._counted(sse.json_data(orjson.dumps(now)))
                elif over is None:
                    over = await watcher.unless_left(run_is_over(self._node, self._key))
                elif over or watcher.channel.ended is not None:
                    yield self._counted(sse.COMPLETE)
                    return
                elif await watcher.wait() == "heartbeat":
                    over = None
