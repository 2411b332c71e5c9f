"""Answers appends and closes: the hot path, so a bare ASGI callable without a framework.

    POST /api/v1/services/ingestionPipelines/logs/{fqn...}/{runId}
    POST …/close

The route caches the run and the cookies of a path by its raw bytes, so a request costs one
look-up instead of parsing. It decodes a body in place if the body arrived in one piece. A large or
compressed body uses the budget and a thread. The route awaits only the body, the node and the
reply.

Invariants: no part of a body is stored unless all of it arrived and decoded. The route never
redirects. Every error is a problem document with `code` and `message`.
"""

from __future__ import annotations

import asyncio
import threading
import traceback
from collections.abc import Awaitable, Callable, Container, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Final, TypeAlias, TypeVar

from service.http.authorization import AccessControl
from service.http.body import (
    BodyTooLarge,
    Bounds,
    Budget,
    Message,
    Receive,
    Scope,
    Send,
    Share,
    StoodStill,
    declared_length,
    drain,
    read_rest,
)
from service.http.decode import (
    KINDS,
    Decoded,
    charset_of,
    check_not_announced,
    decode,
    kind_of,
    parse_attributes,
    prefixed,
)
from service.http.errors import ProblemResponse, problem
from service.http.json_body import count_lines
from service.http.replies import JSON, QuickReply, appended, echo_cookie, receipt_reply
from service.http.targets import (
    PREFIX,
    append_target,
    echoed,
    parse_batch_id,
    request_id,
    run_tag,
    session_cookie,
)
from service.ingest.batch import AppendReceipt, Durability, IncomingBatch, Submitted
from service.journal.format import encode_attributes
from service.runtime.counters import HttpCounters
from service.settings import IngestSettings
from tailrace.logstore import ulid as ulids
from tailrace.logstore.batch import RunKey
from tailrace.logstore.errors import (
    InvalidInput,
    InvalidName,
    NodeNotReady,
    Overloaded,
    TailraceError,
    TooLarge,
)

_ROUTES_KEPT = 4096
_ROUTE_BYTES = 1024
_SMALL = 64 << 10
# Room for the text of a compressed body: its usual ratio to the body, and the least room of each.
_USUAL_RATIO = 32
_LEAST_ROOM = 1 << 20
_MORE_ROOM = 8
_COPIES = 2  # it is inflated in pieces, which are then joined
_DURABILITIES: Final[dict[bytes | None, Durability]] = {
    None: "durable",
    b"fast": "fast",
    b"durable": "durable",
    b"bulk": "bulk",
}
T = TypeVar("T")
Get: TypeAlias = Callable[[bytes], bytes | None]


class Route:
    """The values that are the same for every request to one path."""

    __slots__ = ("close", "key", "session", "tag")

    def __init__(self, key: RunKey, close: bool) -> None:
        self.key = key
        self.close = close
        self.tag = run_tag(key)
        self.session = (b"set-cookie", session_cookie(key))


class AppendRoutes:
    """Answers appends and closes; returns None for any other request."""

    def __init__(
        self,
        append: Callable[[IncomingBatch], Awaitable[AppendReceipt]],
        submit: Callable[[IncomingBatch], Submitted | None],
        close: Callable[[RunKey], Awaitable[str]],
        open_run: Callable[[RunKey, str], Awaitable[int]],
        *,
        settings: IngestSettings,
        counters: HttpCounters,
        fresh_id: Callable[[], str],
        now: Callable[[], float],
        hosts: Container[bytes | None],
        sheds: Callable[[], bool],
        silent: Callable[[], Sequence[str]] = tuple,
    ) -> None:
        """`silent` returns the nodes that this one cannot reach."""
        self._append = append
        self._submit = submit
        self._close = close
        self._open_run = open_run
        self._prefixes = settings.prefix_connector
        self.settings = settings
        self.counters = counters
        self.fresh_id = fresh_id
        self.now = now
        self._sheds = sheds
        self.silent = silent
        self.hosts = hosts
        """`Host` values that the service answers to, as far as they were checked."""
        self.control: AccessControl | None = None
        """Asked about every append and close, if there are rules of access."""
        self._appended = appended(counters.request_seconds)
        self._routes: dict[bytes, Route] = {}
        self.known: dict[bytes, Route] = {}
        """The runs that were appended to, by the path as it stands in the request."""
        self.small = min(_SMALL, settings.max_body_bytes)
        """Bodies up to this size are decoded in place."""
        self._threads = ThreadPoolExecutor(settings.decode_threads, thread_name_prefix="decode")
        self._over = threading.Event()
        self.bounds = Bounds(settings.max_text_bytes, settings.max_meta_bytes, self._go_on)
        self.budget = Budget(settings.in_flight_bytes)

    def answer(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None] | None:
        """Returns the coroutine that answers a POST below the logs' prefix."""
        path = scope["raw_path"]
        route = self._routes.get(path)
        if route is None:
            if not path.startswith(PREFIX):
                return None
            try:
                route = self._learn(path)
            except Exception as error:  # noqa: BLE001
                return self._refuse(error, scope, receive, send)
        if route.close:
            return self._answer_close(route, scope, receive, send)
        return self._answer_append(route, scope, receive, send)

    def pipeline(self, path: bytes) -> str | None:
        """Returns the pipeline of a path below `PREFIX` as `answer` reads it; None if it cannot."""
        route = self._routes.get(path)
        if route is None:
            try:
                route = self._learn(path)
            except TailraceError:
                return None
        return route.key.fqn

    async def refuse(self, error: Exception, scope: Scope, send: Send) -> None:
        """Answers a request that reaches no route with `error`."""
        refusal = problem(error, request_id(scope["headers"], self.fresh_id()))
        await reply_to(send, refusal.status, refusal.headers, refusal.body)

    def shut(self) -> None:
        """Stops decoding and ends the threads, for which the process would wait."""
        self._over.set()
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _go_on(self) -> None:
        if self._over.is_set():
            raise NodeNotReady("the node is stopping")

    def _learn(self, path: bytes) -> Route:
        target = append_target(path)
        route = Route(target.key, target.close)
        if len(path) <= _ROUTE_BYTES:
            if len(self._routes) >= _ROUTES_KEPT:
                self._routes.clear()
                self.known.clear()
            self._routes[path] = route
            if not route.close:
                self.known[path] = route
        return route

    async def _answer_append(
        self, route: Route, scope: Scope, receive: Receive, send: Send
    ) -> None:
        self.counters.append_requests += 1
        try:
            get = dict(scope["headers"]).get
            if self._sheds() and _is_sent_again(get):
                self.counters.shed += 1
                raise Overloaded("this node has too much to do")
            message = await receive()
            if message["type"] == "http.disconnect":
                self.counters.disconnects += 1
                return
            body = message.get("body", b"")
            if (
                message.get("more_body", False)
                or len(body) > self.small
                or get(b"content-encoding")
                or _may_hold_gzip(body)
            ):
                await self._store_large(route, scope, message, receive, send)
            else:
                self.counters.body_bytes += len(body)
                decoded = self._decode_small(body, get(b"content-type"))
                await self._store(route, scope, decoded, send)
        except asyncio.CancelledError:  # a stop waits no longer
            await self._refuse(NodeNotReady("the node is stopping"), scope, receive, send)
        except Exception as error:  # noqa: BLE001 -- every error is an answer
            await self._refuse(error, scope, receive, send)

    def _decode_small(self, body: bytes, content_type: bytes | None) -> Decoded:
        kind = KINDS.get(content_type) or kind_of(content_type)
        charset, plain = charset_of(content_type), kind == "text" and body.isascii()
        if plain and charset is None and body[-1:] == b"\n" and 0 not in body[:2]:
            lines = count_lines(body)
            return Decoded(body, lines, lines)
        return decode(body, kind, None, self.bounds, charset)

    async def _store_large(
        self, route: Route, scope: Scope, first: Message, receive: Receive, send: Send
    ) -> None:
        """Stores a body that is still arriving, is large, or may become large once inflated."""
        get = dict(scope["headers"]).get
        most = self.settings.max_body_bytes
        if (declared_length(get(b"content-length")) or 0) > most:
            raise BodyTooLarge(most)
        share = self.budget.share()
        try:
            body = await read_rest(first, receive, most, share)
            if body is None:
                self.counters.disconnects += 1
                return
            self.counters.body_bytes += len(body)
            decoded = await self._decode(
                body, get(b"content-type"), get(b"content-encoding"), share
            )
            del body
            share.charge(len(decoded.text))
            await self._store(route, scope, decoded, send)
        finally:
            share.end()

    async def _store(self, route: Route, scope: Scope, decoded: Decoded, send: Send) -> None:
        if self.control is not None:
            self.control.confirm(scope, fqn=route.key.fqn)
        batch = self._batch(route, dict(scope["headers"]).get, decoded)
        if not decoded.text:
            await self._take_nothing(route, decoded, batch.durability, send)
            return
        receipt = await self._append(batch)
        headers, reply = receipt_reply(
            receipt,
            route.tag,
            route.session,
            replaced=decoded.replaced,
            unknown_levels=decoded.unknown_levels,
            silent=self.silent(),
        )
        self.counters.replaced += decoded.replaced
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": reply})

    def quick(self, path: bytes, headers: dict[bytes, bytes], body: bytes) -> QuickReply | None:
        """Accepts a small append to a known run, if the node accepts it at once.

        Returns None and stores nothing for refusals and for requests that `answer` must handle.
        """
        route, get, start = self.known[path], headers.get, self.now()
        if self._sheds() and _is_sent_again(get):
            return None
        try:
            if _may_hold_gzip(body):
                return None
            decoded = self._decode_small(body, get(b"content-type"))
            if not decoded.text:
                return None
            batch = self._batch(route, get, decoded)
            submitted = self._submit(batch)
        except Exception:  # noqa: BLE001 -- `answer` meets the same error and reports it
            return None
        if submitted is None:
            return None
        counters = self.counters
        counters.append_requests += 1
        counters.body_bytes += len(body)
        counters.replaced += decoded.replaced
        return QuickReply(
            self,
            batch,
            submitted,
            tag=route.tag,
            session=route.session,
            headers=headers,
            start=start,
        )

    def stored(self, records: int, start: float) -> None:
        """Counts a batch that `quick` accepted, as `metered_append` counts the other batches."""
        seconds = self.now() - start
        self._appended.observe(seconds)
        self.counters.append_seconds.observe(seconds)
        self.counters.batch_lines.observe(records)
        self.counters.stored += 1

    def not_stored(
        self, error: BaseException, headers: list[tuple[bytes, bytes]], start: float
    ) -> ProblemResponse:
        """Counts a batch that `quick` accepted and the disk refused."""
        self.counters.not_stored += 1
        refusal = self._refusal(error, headers)
        seconds = appended(self.counters.request_seconds, refusal.status)
        seconds.observe(self.now() - start)
        return refusal

    def not_said(self, error: Exception, headers: list[tuple[bytes, bytes]]) -> ProblemResponse:
        """Counts a batch of `quick` for which no answer could be made, which is a defect."""
        return self._refusal(error, headers)

    def _refusal(self, error: BaseException, headers: list[tuple[bytes, bytes]]) -> ProblemResponse:
        """Counts a refused append and returns the answer."""
        self.counters.append_refused += 1
        return problem(error, request_id(headers, self.fresh_id()))

    async def _take_nothing(
        self, route: Route, decoded: Decoded, durability: str, send: Send
    ) -> None:
        """Answers an append without lines. OpenMetadata's older clients open a run with one."""
        reply = (
            b'{"batch":null,"lines":0,"duplicate":false,"durability":"%b","last":null}'
            % durability.encode()
        )
        headers = [JSON, route.session]
        if decoded.opens and decoded.connector is not None:
            below = await self._open_run(route.key, decoded.connector)
            headers.append(echo_cookie(ulids.encode(below).encode(), route.tag))
        await reply_to(send, 200, headers, reply)

    def _batch(self, route: Route, get: Get, decoded: Decoded) -> IncomingBatch:
        batch_id = get(b"tailrace-batch")
        cookies = get(b"cookie")
        shared = get(b"tailrace-attributes")
        if shared is None:
            check_not_announced(get(b"content-type"))
        meta = decoded.meta if shared is None else _constant_meta(shared, get)
        if self._prefixes and decoded.text:
            decoded = prefixed(decoded)
        return IncomingBatch(
            route.key,
            decoded.text,
            decoded.records,
            decoded.lines,
            None if batch_id is None else parse_batch_id(batch_id),
            0 if cookies is None else echoed(cookies, route.tag),
            decoded.connector,
            meta,
            _DURABILITIES.get(get(b"tailrace-durability")) or _durability(get),
            decoded.replaced,
            decoded.unknown_levels,
        )

    async def _decode(
        self, body: bytes, content_type: bytes | None, encoding: bytes | None, share: Share
    ) -> Decoded:
        kind, charset = kind_of(content_type), charset_of(content_type)
        if encoding is None and not _may_hold_gzip(body):
            if len(body) < self.settings.offload_bytes:
                return decode(body, kind, None, self.bounds, charset)
            return await self.in_thread(lambda: decode(body, kind, None, self.bounds, charset))
        return await self.within_budget(
            lambda bounds: decode(body, kind, encoding, bounds, charset), len(body), share
        )

    async def within_budget(self, inflate: Callable[[Bounds], T], size: int, share: Share) -> T:
        """Returns the result of `inflate`, called in a thread with the body of `size` bytes.

        It reserves room for the text first: for the usual ratio, and for more only if that was too
        little. Afterwards the room is free again, and the caller charges the result.
        """
        most, room = self.bounds.text_bytes, 0
        try:
            while True:
                before = room
                room = min(most, max(_MORE_ROOM * room, _USUAL_RATIO * size, _LEAST_ROOM))
                await share.reserve(_COPIES * (room - before))
                bounds = replace(self.bounds, text_bytes=room)
                try:
                    return await self.in_thread(partial(inflate, bounds))
                except TooLarge:
                    if room == most:
                        raise
        finally:
            share.charge(-_COPIES * room)

    async def in_thread(self, work: Callable[[], T]) -> T:
        """Returns the result of `work` in one of the threads that decode bodies."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, _freed, work)

    async def _answer_close(self, route: Route, scope: Scope, receive: Receive, send: Send) -> None:
        self.counters.close_requests += 1
        try:
            state = await self._close(route.key)
            reply = b'{"message":"Log stream closed successfully","state":"%b"}' % state.encode()
            await reply_to(send, 200, [JSON, route.session], reply)
        except Exception as error:  # noqa: BLE001
            await self._refuse(error, scope, receive, send)

    async def _refuse(self, error: Exception, scope: Scope, receive: Receive, send: Send) -> None:
        if isinstance(error, InvalidName):
            error.hint = error.hint or "POST to …/logs/{fqn}/{runId}."
        refusal = self._refusal(error, scope["headers"])
        if isinstance(error, BodyTooLarge):
            await drain(receive, self.settings.max_body_bytes)
        if isinstance(error, BodyTooLarge | StoodStill):
            refusal.headers.append((b"connection", b"close"))
        await reply_to(send, refusal.status, refusal.headers, refusal.body)


def _freed(work: Callable[[], T]) -> T:
    """Calls `work`. If it fails, frees what it held here: that takes long, and not in the loop."""
    try:
        return work()
    except Exception as error:
        cause: BaseException | None = error
        while cause is not None:
            traceback.clear_frames(cause.__traceback__)
            cause = cause.__context__
        raise


def _constant_meta(value: bytes, get: Get) -> bytes:
    """Returns the metadata of lines that all have the attributes of the request's header."""
    attributes = parse_attributes(value, kind_of(get(b"content-type")))
    return encode_attributes(attributes) if attributes else b""


def _is_sent_again(get: Get) -> bool:
    """Returns true if the client sends a batch again until it is stored."""
    return get(b"tailrace-batch") is not None or get(b"tailrace-durability") is not None


def _durability(get: Get) -> Durability:
    given = (get(b"tailrace-durability") or b"").strip().lower()
    durability = _DURABILITIES.get(given)
    if durability is None:
        raise InvalidInput(
            f"Tailrace-Durability is {given.decode('latin-1')!r}",
            field="Tailrace-Durability",
            hint="One of fast, durable, bulk.",
        )
    return durability


def _may_hold_gzip(body: bytes) -> bool:
    """Returns true if the body may be a JSON object with compressed `logs`."""
    first = body[:1]
    return (first == b"{" or first.isspace()) and b'"compressed"' in body


async def reply_to(
    send: Send, status: int, headers: list[tuple[bytes, bytes]], body: bytes
) -> None:
    """Sends a whole reply, with its length."""
    if not any(name == b"content-length" for name, _ in headers):
        headers = [*headers, (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
