"""Decides which requests may pass: asks `service.access`, and tells routes what a caller may see.

`find_required_scope` maps each route to the scope that it requires, and to the pipelines for which
it requires it. A route without an entry requires `admin` for all pipelines, so a new route is
closed until somebody decides. Routes between nodes compare a secret of their own, or require
the scope `node`.

An append is checked before its body is read, on the fast path and on ASGI. Every other route is
checked after the router has decoded the names and before its handler runs. A reply that lasts is
checked again every minute, when its token ends, and when the rules have changed: at the next data
that it sends.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, Final

from fastapi import Request
from starlette.routing import BaseRoute, Mount, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.access.access import REMEMBERED_SECONDS, Access
from service.access.audit import AuditLog
from service.access.rules import Identity, PipelineNames
from service.http.errors import LOKI_SEARCHES, classify
from service.http.replies import CONNECTION
from service.http.targets import BASE, ROOT, name, request_id
from service.query.request import QueryRequest
from service.runtime.health import HealthProblem
from tailrace.logstore.clock import Clock
from tailrace.logstore.errors import (
    Forbidden,
    InvalidName,
    NotAuthenticated,
    OverQuota,
    TailraceError,
    TooManyAtOnce,
)
from tailrace.logstore.patterns import LinearRegex
from tailrace.logstore.search.conditions import All


class Pipelines(Enum):
    """The pipelines for which a route requires its scope, in words."""

    NAMED = "the pipeline in the path"
    SOME = "any pipeline; all others are left out"
    EVERY = "all pipelines"


@dataclass(frozen=True, slots=True)
class RequiredScope:
    """A scope for some pipelines. Calls that are `audited` are in the audit log."""

    scopes: tuple[str, ...]
    pipelines: Pipelines
    audited: bool = False


PUBLIC: Final = None
"""Routes for everybody: whether the node works, its version, pages without any line in them."""

INGEST: Final = RequiredScope(("ingest",), Pipelines.NAMED)
_READ: Final = RequiredScope(("read",), Pipelines.NAMED)
_ASK: Final = RequiredScope(("read", "ingest"), Pipelines.NAMED)
_SEARCH: Final = RequiredScope(("read",), Pipelines.SOME)
_CONSUME: Final = RequiredScope(("consume",), Pipelines.EVERY)
_CONTENTS: Final = RequiredScope(("consume",), Pipelines.SOME)
NODE: Final = RequiredScope(("node",), Pipelines.EVERY)
_GROUPS: Final = RequiredScope(("consume", "admin"), Pipelines.EVERY)
_METRICS: Final = RequiredScope(("metrics", "admin"), Pipelines.EVERY)
_DELETE: Final = RequiredScope(("admin",), Pipelines.NAMED, audited=True)
ADMIN: Final = RequiredScope(("admin",), Pipelines.EVERY, audited=True)
_LOOK: Final = RequiredScope(("admin",), Pipelines.EVERY)

_PEERS: Final = "/internal/"
_DOOR: Final[dict[str, RequiredScope | None]] = {"POST": RequiredScope(("ingest",), Pipelines.SOME)}
"""Records of other pipelines are refused, and the others are stored."""

_STATUS: Final = ROOT + "/{fqn}/pipelineStatus"
_TABLE: Final[dict[str, dict[str, RequiredScope | None]]] = {
    BASE: {"GET": _SEARCH},
    _STATUS: {"PUT": INGEST, "GET": _READ},
    _STATUS + "/{runId}": {"GET": _ASK},
    "/api/v1/system/version": {"GET": PUBLIC},
    "/health/live": {"GET": PUBLIC},
    "/health/ready": {"GET": PUBLIC},
    "/ready": {"GET": PUBLIC},
    "/loki/api/v1/status/buildinfo": {"GET": PUBLIC},
    "/": {"GET": PUBLIC},
    "/page/{name}": {"GET": PUBLIC},
    "/openapi.json": {"GET": PUBLIC},
    "/docs": {"GET": PUBLIC},
    "/docs/start.js": {"GET": PUBLIC},
    "/docs/{name}": {"GET": PUBLIC},
    "/metrics": {"GET": _METRICS},
    "/segments": {"GET": _CONSUME},
    "/segments/deletions": {"GET": _CONTENTS},
    "/segments/next": {"GET": _CONSUME, "POST": _CONSUME},
    "/segments/groups": {"GET": _GROUPS},
    "/segments/groups/{group}": {"GET": _GROUPS},
    "/segments/{id}": {"GET": _CONTENTS},
    "/deletions": {"GET": _LOOK},
    "/v1/logs": _DOOR,
    "/loki/api/v1/push": _DOOR,
    "/_bulk": _DOOR,
    "/{index}/_bulk": _DOOR,
    "/services/collector/event": _DOOR,
    "/services/collector/raw": _DOOR,
    "/leases": {"GET": _LOOK},
    "/leases/one": {"GET": _LOOK},
}
_SEARCHES: Final[dict[str, RequiredScope | None]] = {"GET": _SEARCH, "POST": _SEARCH}
_BELOW: Final[tuple[tuple[str, dict[str, RequiredScope | None]], ...]] = (
    (BASE + "/{fqn}", {"GET": _READ, "POST": INGEST, "DELETE": _DELETE}),
    (ROOT + "/progress/{fqn}/", {"GET": _READ, "PUT": INGEST}),
    (ROOT + "/unfinished/{fqn}/", {"GET": _READ, "PUT": INGEST}),
    (ROOT + "/metrics/{fqn}/", {"GET": _READ, "POST": INGEST}),
    ("/segments/{id}/", {"POST": _CONSUME}),
    ("/query", _SEARCHES),
    *[(path, _SEARCHES) for path in LOKI_SEARCHES],
    ("/pipelines", {"GET": _LOOK}),
)


def find_required_scope(path: str, method: str) -> RequiredScope | None:
    """Returns what the route with this pattern of its path requires; HEAD is GET."""
    method = "GET" if method == "HEAD" else method
    known = _TABLE.get(path)
    if known is not None:
        return known.get(method, ADMIN)
    if path.startswith(_PEERS):
        return PUBLIC
    for prefix, by_method in _BELOW:
        if path.startswith(prefix):
            return by_method.get(method, ADMIN)
    return ADMIN


WATCHED: Final = "tailrace.watched"
"""Key of a request's scope: the repeated check of a reply that lasts, if rules exist."""
NAMES: Final = "tailrace.names"
"""Key of a request's scope: the pipelines that it may see, if rules exist."""
WHO: Final = "tailrace.who"
ACCESS_CONTROL: Final = "tailrace.access_control"
LOADS: Final = "tailrace.loads"
"""Key of a request's scope: how often the rules had been read when it was admitted."""
_ALL: Final = ""
_REFUSALS: Final = (401, 403)
_ASKER_SECONDS: Final = 3600.0
_MOST_ASKERS: Final = 100
_TOKENS: Final = LinearRegex(
    r"trl_[a-z0-9]{4,32}_[0-9a-fA-F]{32,64}|eyJ[\w-]+(?:\.|%2[eE])eyJ[\w-]+(?:\.|%2[eE])[\w-]*"
)


def visible(request: Request) -> PipelineNames | None:
    """Returns the pipelines that a request may see; None: all."""
    names: PipelineNames | None = request.scope.get(NAMES)
    return None if names is None or names.every else names


def require_all(request: Request, fqns: Iterable[str], what: str) -> None:
    """Raises `Forbidden` if the request may not see one of the pipelines that `what` has."""
    names = visible(request)
    if names is None or all(map(names.hold, fqns)):
        return
    raise _noted(
        request,
        Forbidden(
            f"{what} has lines of pipelines that this token may not see",
            hint="It is given only as a whole. `GET /query` searches in the pipelines of a token.",
        ),
    )


def _noted(request: Request, error: Forbidden) -> Forbidden:
    """Counts a refusal, writes it to the audit log and returns it."""
    control: AccessControl = request.scope[ACCESS_CONTROL]
    control.refused(request.scope, error)
    return error


def restricted(request: Request, asked: QueryRequest) -> QueryRequest:
    """Limits the search to the pipelines that its sender may read.

    Raises `Forbidden` if it names another pipeline.
    """
    names = visible(request)
    if names is None:
        return asked
    if asked.fqn is not None:
        if not names.hold(asked.fqn):
            error = Forbidden(f"there is no right to read the pipeline {asked.fqn[:200]!r}")
            raise _noted(request, error)
        return asked
    condition = names.condition()
    if condition is None:
        return asked
    whole = condition if asked.condition is None else All((condition, asked.condition))
    return replace(asked, condition=whole)


class AccessControl:
    """Applies the access rules of a node to its routes."""

    def __init__(
        self, access: Access, audit: AuditLog, clock: Clock, fresh_id: Callable[[], str]
    ) -> None:
        self.access = access
        self.audit = audit
        self._askers: dict[str, tuple[float, int]] = {}
        self.clock = clock
        self._fresh_id = fresh_id

    def knows(self, request: Request) -> bool:
        """Returns true if the rules know the caller."""
        return request.scope.get(WHO) is not None

    def problems(self) -> list[str]:
        """Returns the problems of the rules and of the audit log, as sentences."""
        audit = self.audit.problem
        what = "the audit log cannot be written"
        more = [HealthProblem.with_detail(what, audit)] if audit else []
        return [*self.access.problems(), *more]

    # --- appends -------------------------------------------------------------------

    async def append(
        self,
        scope: Scope,
        receive: Receive,
        fqn: str | None,
        answer: Callable[[Receive], Awaitable[None] | None],
        refuse: Callable[[TailraceError], Awaitable[None]],
    ) -> None:
        """Awaits `answer` to an append or close of the pipeline.

        None if the path names no pipeline.
        """
        try:
            who = await self._admitted(scope, INGEST, fqn)
            self.access.begin(who)
        except TailraceError as error:
            self.refused(scope, error, fqn)
            await refuse(error)
            return
        try:
            answering = answer(receive if who.quota is None else _counting(receive, who))
            if answering is not None:
                await answering
        finally:
            self.access.end(who)

    def confirm(
        self, scope: Scope, required: RequiredScope = INGEST, fqn: str | None = None
    ) -> None:
        """Raises `NotAuthenticated` if an admitted request would not be admitted now.

        Its body has arrived in the meantime. A caller that lost the right must not change anything.
        """
        if self.access.still_holds(scope[WHO], scope[LOADS]) or self.still(scope, required):
            return
        error = NotAuthenticated("the token lost its right while its request arrived")
        self.refused(scope, error, fqn)
        raise error

    async def node(self, scope: Scope) -> None:
        """Raises `NotAuthenticated` or `Forbidden` unless a node asks, by a token of the rules."""
        try:
            await self._admitted(scope, NODE, _ALL)
        except TailraceError as error:
            self.refused(scope, error)
            raise

    def quick(self, headers: dict[bytes, bytes], fqn: str) -> Identity | None:
        """Returns the sender of an append on the fast path, if it may append."""
        return self.access.admits(headers.get(b"authorization"), fqn)

    # --- all other routes ----------------------------------------------------------

    def guard(self, route: BaseRoute) -> None:
        """Restricts a route to callers that may use it."""
        if not isinstance(route, Route | Mount):
            raise TypeError(f"{type(route).__name__} is no route that the rules of access can hold")
        route.app = self.guarded(route.app, route.path)

    def guarded(self, app: ASGIApp, path: str) -> ASGIApp:
        """Wraps the app of the route with this pattern for callers that may use it."""

        async def asked(scope: Scope, receive: Receive, send: Send) -> None:
            required = find_required_scope(path, scope["method"])
            if required is None:
                await self._recognise(scope)
                await app(scope, receive, send)
                return
            try:
                who = await self._admitted(scope, required, _named(scope, required))
                self.access.begin(who)
            except TailraceError as error:
                self.refused(scope, error)
                raise
            try:
                if required.audited:
                    send = await self._audited(scope, who, send)
                if who.quota is not None:
                    receive = _counting(receive, who)
                watched = scope[WATCHED] = Lasting(self, scope, required, who, send)
                await app(scope, self._confirming(receive, scope, required), watched)
            finally:
                self.access.end(who)

        return asked

    async def _admitted(self, scope: Scope, required: RequiredScope, fqn: str | None) -> Identity:
        who = await self.access.identify(scope["headers"], _peer(scope))
        scope[WHO], scope[ACCESS_CONTROL], scope[LOADS] = who, self, self.access.loads
        scope[NAMES] = self.access.require(who, required.scopes, fqn)
        if who.quota is not None:
            who.quota.take(1, 0)
        return who

    async def _recognise(self, scope: Scope) -> None:
        """Identifies the caller of a route that is open to everybody, if it is known."""
        try:
            scope[WHO] = await self.access.identify(scope["headers"], _peer(scope))
        except TailraceError:
            scope[WHO] = None

    def _confirming(self, receive: Receive, scope: Scope, required: RequiredScope) -> Receive:
        """Checks the caller again when the whole body has arrived."""

        async def confirmed() -> Message:
            message = await receive()
            if message["type"] == "http.request" and not message.get("more_body", False):
                self.confirm(scope, required)
            return message

        return confirmed

    def still(self, scope: Scope, required: RequiredScope) -> bool:
        """Returns true if an admitted request would be admitted now."""
        try:
            who = self.access.identify_now(scope["headers"], _peer(scope))
            names = who.names(required.scopes)
        except Exception:  # noqa: BLE001 -- a key that must be fetched counts as unknown
            return False
        return bool(names == scope[NAMES])

    async def _audited(self, scope: Scope, who: Identity, send: Send) -> Send:
        request = request_id(scope["headers"], self._fresh_id())
        event = "deleted" if scope["method"] == "DELETE" else "admin"
        await self.audit.write(
            event, who=who.name, key=who.key, **_described(scope), request=request
        )

        async def noted(message: Message) -> None:
            if message["type"] == "http.response.start":
                self.audit.note("answered", status=message["status"], request=request)
            await send(message)

        return noted

    def node_refused(self, scope: Scope, asker: str, error: Exception) -> None:
        """Notes in the audit log that a node asks with another secret, once an hour for each.

        `asker` is the URL that the node names. It asks every second, so its other questions are
        only counted.
        """
        name, now = asker or _peer(scope) or "", self.clock.monotonic()
        since, left_out = self._askers.pop(name, (float("-inf"), 0))
        if now - since >= _ASKER_SECONDS:
            more = {"left_out": left_out} if left_out else {}
            self.audit.refused(
                status=401, reason=str(error), asker=asker, **more, **_described(scope)
            )
            since, left_out = now, 0
        else:
            left_out += 1
        self._askers[name] = since, left_out
        while len(self._askers) > _MOST_ASKERS:
            del self._askers[next(iter(self._askers))]

    def refused(self, scope: Scope, error: TailraceError, fqn: str | None = None) -> None:
        """Counts a refusal and notes it in the audit log, with the pipeline of an append."""
        who: Identity | None = scope.get(WHO)
        self.access.refused[_reason(error)] += 1
        self.audit.refused(
            status=classify(error)[0],
            reason=str(error),
            who=None if who is None else who.name,
            key=None if who is None else who.key,
            **({} if fqn is None else {"fqn": _without_tokens(fqn)}),
            **_described(scope),
        )


class Lasting:
    """A `send` that checks a lasting reply again, and counts its bytes."""

    __slots__ = ("_control", "_due", "_loads", "_refuses", "_required", "_scope", "_send", "_who")

    def __init__(
        self,
        control: AccessControl,
        scope: Scope,
        required: RequiredScope,
        who: Identity,
        send: Send,
    ) -> None:
        self._control, self._scope, self._required, self._who = control, scope, required, who
        self._send = send
        self._refuses = False
        self._loads = control.access.loads
        self._due = self._next()

    def _next(self) -> float:
        """Returns the time of the next check."""
        clock, seconds = self._control.clock, REMEMBERED_SECONDS
        if self._who.expires_ms is not None:
            seconds = min(seconds, (self._who.expires_ms - clock.now_ms()) / 1000)
        return clock.monotonic() + seconds

    async def __call__(self, message: Message) -> None:
        self.count(len(message.get("body", b"")))
        control = self._control
        if message["type"] == "http.response.start":
            self._refuses = message["status"] in _REFUSALS
        if self.due and not self._refuses:
            self._due, self._loads = self._next(), control.access.loads
            if not self._control.still(self._scope, self._required):
                self._end()
        await self._send(message)

    @property
    def due(self) -> bool:
        """Returns true if the reply must be checked before more data is sent."""
        control = self._control
        return control.clock.monotonic() >= self._due or control.access.loads != self._loads

    def count(self, size: int) -> None:
        """Counts bytes of the reply that were sent, also without this `send`."""
        if self._who.quota is not None:
            self._who.quota.take(0, size)

    def _end(self) -> None:
        connection: Any = self._scope.get(CONNECTION)
        if connection is None:
            raise NotAuthenticated("the token is not valid any more")
        connection.cut_off()


def _counting(receive: Receive, who: Identity) -> Receive:
    """Counts the bytes of a body as they arrive."""

    async def counted() -> Message:
        message = await receive()
        body = message.get("body")
        if body and who.quota is not None:
            who.quota.take(0, len(body))
        return message

    return counted


def _named(scope: Scope, required: RequiredScope) -> str | None:
    """Returns the pipeline for which the scope is required, None for any."""
    if required.pipelines is Pipelines.EVERY:
        return _ALL
    if required.pipelines is Pipelines.SOME:
        return None
    try:
        return name(scope["path_params"]["fqn"].encode(), "fqn")
    except InvalidName:  # the handler explains the error, to callers that may use it
        return None


def _peer(scope: Scope) -> str | None:
    client = scope.get("client")
    return None if client is None else client[0]


def _described(scope: Scope) -> dict[str, Any]:
    return _named_in(scope) | {
        "peer": _peer(scope),
        "method": scope["method"],
        "path": _without_tokens(scope["raw_path"].decode("latin-1")),
        "query": _without_tokens(scope["query_string"].decode("latin-1")),
    }


def _named_in(scope: Scope) -> dict[str, str]:
    """Returns the pipeline and the run of a request, decoded, as far as its path names them."""
    found = {}
    for part, field in (("fqn", "fqn"), ("runId", "run")):
        quoted = scope.get("path_params", {}).get(part)
        if isinstance(quoted, str):
            with suppress(InvalidName):
                found[field] = _without_tokens(name(quoted.encode(), part))
    return found


def _without_tokens(text: str) -> str:
    """Returns part of a URL without a token that somebody put into it by mistake."""
    shown, at = [], 0
    for begin, end in _TOKENS.spans(text):
        shown += [text[at:begin], "(a token)"]
        at = end
    return "".join([*shown, text[at:]])


def _reason(error: TailraceError) -> str:
    if isinstance(error, NotAuthenticated):
        return "invalid-token" if error.invalid else "no-token"
    if isinstance(error, Forbidden):
        return "scope"
    if isinstance(error, TooManyAtOnce):
        return "concurrency"
    return "quota" if isinstance(error, OverQuota) else "other"
