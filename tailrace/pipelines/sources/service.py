"""The segments of a service, over HTTP, by the routes that `docs/use/segments.md` describes.

`GET /segments` lists segments, `GET /segments/{id}` returns their records, and
`GET /segments/deletions` the deletions. Each pipeline has a consumer group at the service,
`pipeline:NAME@http`, which keeps its segments, and is evicted by size and not by age as those of
other pipelines. It moves by leases: segments that are leased and done are committed, segments that
are leased and needed are held by renewals, a few at a time. Reading takes no lease. A process that
stops gives its leases back, one that dies lets them expire, and the next one takes them up; a
pipeline's segments do not fail by attempts, however often its processes end.

Checkpoints, leases of appenders and operators' control are in a store of the processes' own.
`MemorySegments` is for tests of appenders.
"""

from __future__ import annotations

import asyncio
import io
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, NamedTuple
from urllib.parse import quote, urlsplit

import aiohttp
import orjson
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tailrace.coordination.groups import GroupStart, remote_group
from tailrace.logstore import ulid
from tailrace.logstore.clock import Clock
from tailrace.logstore.errors import (
    Damaged,
    GroupEvicted,
    InvalidInput,
    LeaseLost,
    NotFound,
    StoreUnavailable,
    TailraceError,
)
from tailrace.logstore.filesystem import hint_of_trust, read_token, trust
from tailrace.pipelines.events import EVENTS, Deleted, Origin, as_events, runs_of
from tailrace.pipelines.sources.segments import EventSegment, Fetched, NodeSegments, SegmentContents
from tailrace.pipelines.sources.stored import decoded

# Requests to a service: its token, its certificates, and the meaning of its answers.


_ERRORS: Final[Mapping[str, type[Exception]]] = {
    "lease-lost": LeaseLost,
    "group-evicted": GroupEvicted,
    "not-found": NotFound,
    "damaged": Damaged,
}
_SAID: Final = 300


class ServiceReply(NamedTuple):
    """The answer to a request: status, headers by names in any case, and the whole body."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> Any:
        """The body's value. Raises `ValueError`."""
        return orjson.loads(self.body)


class ServiceClient:
    """A client of one service, by its URL.

    The token is read from its file for each request, so a file that is replaced counts at once.
    """

    def __init__(
        self, url: str, *, token_file: str = "", ca_file: str = "", seconds: float = 60.0
    ) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise InvalidInput(
                "pipelines.source_url must be http://HOST:PORT or https://HOST:PORT",
                field="pipelines.source_url",
            )
        if parts.username or parts.password:
            raise InvalidInput(
                "pipelines.source_url has a user or password in it",
                field="pipelines.source_url",
                hint="Use pipelines.source_token_file.",
            )
        self._url = url.rstrip("/")
        self._token_file = token_file
        tls = trust(ca_file, field="pipelines.source_ca_file") if ca_file else True
        self._token()
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(ssl=tls),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=seconds, sock_read=seconds),
            trust_env=True,
        )

    async def aclose(self) -> None:
        """Closes the connections."""
        await self._session.close()

    async def ask(
        self,
        method: str,
        path: str,
        parameters: Mapping[str, str | float],
        *,
        headers: Mapping[str, str] | None = None,
    ) -> ServiceReply:
        """The answer, of status 200, 204 or 304.

        Raises `NotFound`, `Damaged`, `LeaseLost`, `GroupEvicted`, and `StoreUnavailable` for
        everything that may be otherwise later: no answer, a refused token.
        """
        sent = {**(headers or {}), **self._authorization()}
        try:
            async with self._session.request(
                method,
                f"{self._url}{path}",
                params=dict(parameters),
                headers=sent,
                allow_redirects=False,
            ) as got:
                answer = ServiceReply(got.status, got.headers, await got.read())
        except (aiohttp.ClientError, OSError) as error:  # a TimeoutError is an OSError
            raise StoreUnavailable(
                f"{self._url} does not answer: {type(error).__name__}: {error}",
                hint=hint_of_trust(error, "pipelines.source_ca_file")
                or "Set pipelines.source_url to the address of the service.",
            ) from error
        if answer.status in (200, 204, 304):
            return answer
        raise self._error(answer)

    def _error(self, answer: ServiceReply) -> Exception:
        problem: dict[str, Any] = {}
        if "json" in answer.headers.get("content-type", ""):
            found = answer.json()
            problem = found if isinstance(found, dict) else {}
        kind = str(problem.get("type", "")).rpartition(":")[2].rpartition("/")[2]
        text = answer.body.decode(errors="replace")
        said = str(problem.get("detail") or problem.get("message") or text)[:_SAID]
        known = _ERRORS.get(kind)
        if known is not None:
            return known(said)
        hint = "Tailrace retries."
        if answer.status in (401, 403):
            hint = "pipelines.source_token_file must hold a token with the scope `consume`."
        return StoreUnavailable(f"{self._url} answers {answer.status}: {said}", hint=hint)

    def _authorization(self) -> dict[str, str]:
        try:
            token = self._token()
        except InvalidInput as error:  # it is being replaced
            raise StoreUnavailable(str(error), hint=error.hint) from error
        return {"Authorization": f"Bearer {token}"} if token else {}

    def _token(self) -> str:
        if not self._token_file:
            return ""
        return read_token(self._token_file, field="pipelines.source_token_file")


# Segments in memory, for tests of appenders: no node, service or file is needed.
#
#   segments = MemorySegments()
#   segments.put(events)                # a table with the columns of `EVENTS`
#   process = PipelinesProcess(replace(world, segments=segments), [pipeline])


class MemorySegments:
    """Segments in memory, which are removed once no pipeline needs them."""

    def __init__(self) -> None:
        self.deleted: dict[tuple[str, str | None], int] = {}
        """What `deletions` gives."""
        self.unreadable: Mapping[tuple[str, str | None], str] = {}
        self._segments: dict[Origin, EventSegment | None] = {}
        self._next: dict[str, int] = {}
        self._low: dict[str, int] = {}
        self._needed: dict[str, Mapping[str, int]] = {}

    def put(self, events: pa.Table, *, node: str = "memory") -> Origin:
        """Adds a segment of these events, in any order; columns of `EVENTS`."""
        events = as_events(events).sort_by("ulid")
        return self._put(node, summed(events, 0))

    def put_damaged(self, *, node: str = "memory") -> Origin:
        """Adds a segment that cannot be read."""
        return self._put(node, None)

    def __len__(self) -> int:
        return len(self._segments)

    async def nodes(self, known: Mapping[str, NodeSegments]) -> dict[str, NodeSegments]:  # noqa: ARG002
        """As `SegmentFeed.nodes`."""
        found = {node: NodeSegments(low) for node, low in self._low.items()}
        for node, seq in self._segments:
            found[node].sizes[seq] = 1
        return found

    async def deletions(self) -> Deleted:
        """As `SegmentFeed.deletions`."""
        return dict(self.deleted)

    async def fetch(self, origin: Origin) -> Fetched:
        """As `SegmentFeed.fetch`."""
        if origin not in self._segments:
            raise NotFound(f"no segment {origin.seq} of {origin.node}")
        found = self._segments[origin]
        if found is None:
            raise Damaged(f"segment {origin.seq} of {origin.node} is damaged")
        return lambda: found

    async def held(self, origin: Origin) -> SegmentContents:
        """As `SegmentFeed.held`."""
        return held_by((await self.fetch(origin))().events)

    async def keep(self, pipeline: str, start: GroupStart) -> None:  # noqa: ARG002
        """As `SegmentFeed.keep`."""
        self._needed.setdefault(pipeline, {})

    async def release(self, pipeline: str, needed: Mapping[str, int]) -> None:
        """As `SegmentFeed.release`: removes segments that no pipeline needs."""
        self._needed[pipeline] = dict(needed)
        for node in self._low:
            low = min(one.get(node, 1) for one in self._needed.values())
            self._low[node] = max(self._low[node], low)
        for origin in list(self._segments):
            if origin.seq < self._low[origin.node]:
                del self._segments[origin]

    async def close(self) -> None:
        """Nothing is held."""

    def _put(self, node: str, segment: EventSegment | None) -> Origin:
        origin = Origin(node, self._next.get(node, 1))
        self._next[node] = origin.seq + 1
        self._low.setdefault(node, 1)
        self._segments[origin] = segment
        return origin


def summed(events: pa.Table, fetched: int) -> EventSegment:
    """A segment of these events; columns of `EVENTS`, in the order of their ULIDs."""
    high = pc.max(events.column("ulid")).as_py()
    return EventSegment(events, ulid.time_ms(ulid.decode(high)) if high else 0, fetched)


def held_by(events: pa.Table) -> SegmentContents:
    """The contents of a segment with these events."""
    ulids = events.column("ulid")
    return SegmentContents(
        pc.min(ulids).as_py() or "", pc.max(ulids).as_py() or "", runs_of(events)
    )


_PAGE: Final = 50
_DELETIONS_PAGE: Final = 10_000
_LEASE_SECONDS: Final = 60.0
_RENEW_SECONDS: Final = 20.0
_MOST_HELD: Final = 64
_AT_ONCE: Final = 1000


@dataclass(slots=True)
class _Lease:
    epoch: int
    renewed: float


@dataclass(slots=True)
class _PipelineGroup:
    """A pipeline's group: its progress, and the segments that this process holds."""

    cursors: Mapping[str, int] = field(default_factory=dict)
    held: dict[Origin, _Lease] = field(default_factory=dict)


class ServiceSegments:
    """The segments of a service."""

    def __init__(self, client: ServiceClient, clock: Clock) -> None:
        self._client = client
        self._clock = clock
        self._groups: dict[str, _PipelineGroup] = {}
        self._whole = False
        self._deleted: Deleted = {}
        self.unreadable: Mapping[
            tuple[str, str | None], str
        ] = {}  # the service gives no such lines
        self._tag = ""

    # --- what there is -------------------------------------------------------------------

    async def nodes(self, known: Mapping[str, NodeSegments]) -> dict[str, NodeSegments]:
        """As `SegmentFeed.nodes`: a page for each node, after its last known segment."""
        if self._whole:
            known, self._whole = {}, False
        found: dict[str, NodeSegments] = {}
        for name, one in known.items():
            low = self._low(name)
            sizes = {seq: size for seq, size in one.sizes.items() if seq >= low}
            found[name] = NodeSegments(low, sizes, set(one.quarantined))
        last = {name: max(one.sizes, default=0) for name, one in known.items()}
        after: Origin | None = None
        while True:
            place = {} if after is None else {"after": f"{after.node}-{after.seq}"}
            asked: dict[str, str | float] = {"groups": "false", "limit": _PAGE, **place}
            page = (await self._client.ask("GET", "/segments", asked)).json()
            for row in page["segments"]:
                after = Origin(row["node"], row["seq"])
                node = found.setdefault(after.node, NodeSegments(self._low(after.node)))
                if after.seq >= node.low:
                    node.sizes[after.seq] = row["bytes"]
                if row["aside"]:
                    node.quarantined.add(after.seq)
            if page["next"] is None or after is None:
                return found
            after = after._replace(seq=max(after.seq, last.get(after.node, 0)))

    def _low(self, node: str) -> int:
        """The lowest segment of the node that some pipeline may still need."""
        decided = [group.cursors.get(node, 0) for group in self._groups.values()]
        return min(decided, default=0) + 1

    async def deletions(self) -> Deleted:
        """As `SegmentFeed.deletions`; pages that have not changed are not sent again."""
        found: dict[tuple[str, str | None], int] = {}
        tag, after = self._tag, ""
        while True:
            answer = await self._client.ask(
                "GET",
                "/segments/deletions",
                {"limit": _DELETIONS_PAGE, **({"after": after} if after else {})},
                headers={"If-None-Match": tag} if tag and not after else None,
            )
            if answer.status == 304:
                return self._deleted
            if not after:
                tag = answer.headers.get("etag", "")
            page = answer.json()
            for one in page["deletions"]:
                found[one["fqn"], one["run"]] = ulid.decode(one["ulid"])
            after = page["next"] or ""
            if not after:
                # A tag is of the first page: of more pages it says too little.
                self._tag = tag if len(found) < _DELETIONS_PAGE else ""
                self._deleted = found
                return found

    # --- what is in it -------------------------------------------------------------------

    async def fetch(self, origin: Origin) -> Fetched:
        """As `SegmentFeed.fetch`: Parquet, checked against its seal unless rows were deleted."""
        path = f"/segments/{quote(f'{origin.node}-{origin.seq}', safe='')}"
        answer = await self._client.ask("GET", path, {"format": "parquet"})
        whole = "tailrace-rows" in answer.headers
        return partial(decoded if whole else _rest, answer.body)

    async def held(self, origin: Origin) -> SegmentContents:
        """As `SegmentFeed.held`."""
        segment = await asyncio.to_thread(await self.fetch(origin))
        return held_by(segment.events)

    # --- what is kept --------------------------------------------------------------------

    async def keep(self, pipeline: str, start: GroupStart) -> None:
        """As `SegmentFeed.keep`: the first lease makes the group."""
        known = self._groups.get(pipeline)
        if known is None:
            known = _PipelineGroup()
            await self._lease(pipeline, known, {}, start)
            await self._look(pipeline, known)
            self._groups[pipeline] = known
            self._whole = True  # it may need what the others have

    async def release(self, pipeline: str, needed: Mapping[str, int]) -> None:
        """As `SegmentFeed.release`: commits finished segments, and holds the needed ones."""
        group = self._groups.get(pipeline)
        if group is None:
            return
        try:
            for origin in list(group.held):
                await self._settle(pipeline, group, origin, needed)
            for _ in range(_AT_ONCE):
                full = len(group.held) >= _MOST_HELD
                if full or not await self._lease(pipeline, group, needed, GroupStart.OLDEST):
                    break
            await self._look(pipeline, group)
        except GroupEvicted:
            del self._groups[pipeline]  # `keep` says so
            raise

    async def close(self) -> None:
        """As `SegmentFeed.close`. Leases are given back, so that the next process need not wait."""
        with suppress(TailraceError):
            for pipeline, group in self._groups.items():
                for origin, lease in group.held.items():
                    more = {"reason": "its process ended"}
                    await self._send(pipeline, origin, lease, "failed", more)
        await self._client.aclose()

    async def _lease(
        self, pipeline: str, group: _PipelineGroup, needed: Mapping[str, int], start: GroupStart
    ) -> bool:
        """Leases a segment, and commits it if it is done; False: there is none."""
        asked: dict[str, str | float] = {
            "group": remote_group(pipeline),
            "lease_seconds": _LEASE_SECONDS,
            "start": start.value,
        }
        answer = await self._client.ask("POST", "/segments/next", asked)
        if answer.status == 204:
            return False
        given: dict[str, Any] = answer.json()
        origin = Origin(given["node"], given["seq"])
        group.held[origin] = _Lease(given["epoch"], self._clock.monotonic())
        await self._settle(pipeline, group, origin, needed)
        return True

    async def _settle(
        self, pipeline: str, group: _PipelineGroup, origin: Origin, needed: Mapping[str, int]
    ) -> None:
        """Commits a lease whose segment is not needed, renews another one in time."""
        lease, now = group.held[origin], self._clock.monotonic()
        done = origin.seq < needed.get(origin.node, 1)
        if not done and now - lease.renewed < _RENEW_SECONDS:
            return
        try:
            await self._hold(pipeline, origin, lease, None if done else _LEASE_SECONDS)
        except (LeaseLost, NotFound):  # it is leased again when it is free
            del group.held[origin]
            return
        if done:
            del group.held[origin]
        else:
            lease.renewed = now

    async def _hold(
        self, pipeline: str, origin: Origin, lease: _Lease, seconds: float | None
    ) -> None:
        """Holds a segment for this number of seconds from now; None: commits it."""
        if seconds is None:
            await self._send(pipeline, origin, lease, "commit", {})
        else:
            await self._send(pipeline, origin, lease, "renew", {"lease_seconds": seconds})

    async def _send(
        self,
        pipeline: str,
        origin: Origin,
        lease: _Lease,
        verb: str,
        more: Mapping[str, str | float],
    ) -> None:
        """Says what becomes of a lease."""
        path = f"/segments/{quote(f'{origin.node}-{origin.seq}', safe='')}/{verb}"
        asked = {"group": remote_group(pipeline), "epoch": lease.epoch, **more}
        await self._client.ask("POST", path, asked)

    async def _look(self, pipeline: str, group: _PipelineGroup) -> None:
        path = f"/segments/groups/{quote(remote_group(pipeline), safe='')}"
        found = (await self._client.ask("GET", path, {})).json()
        if found["evicted"] is not None:
            raise GroupEvicted(f"the service evicted it: {found['evicted']['reason']}")
        cursors = dict(found["cursors"])
        for one in found["open"]:
            if one["state"] == "failed":  # it is kept, and not handed out any more
                node, _, seq = one["id"].rpartition("-")
                cursors[node] = min(cursors.get(node, 0), int(seq) - 1)
        group.cursors = cursors


def _rest(body: bytes) -> EventSegment:
    """The remaining rows of a segment of which rows were deleted. Raises `Damaged`."""
    try:
        with pq.ParquetFile(io.BytesIO(body), page_checksum_verification=True) as file:
            events = file.read(columns=EVENTS.names, use_threads=False)
    except (OSError, pa.ArrowException) as error:
        raise Damaged(f"the reply of the service is not Parquet: {error}") from error
    return summed(as_events(events), len(body))
