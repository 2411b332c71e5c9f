"""The segments of a service, over HTTP: what `docs/segments.md` describes, and nothing else.

`GET /segments` says which segments there are, `GET /segments/{id}` gives their records, and
`GET /segments/deletions` what must be forgotten. Each pipeline has a consumer group at the service,
`pipeline:NAME@http`, which keeps its segments, and is evicted by size and not by age as those of
other pipelines. It moves by leases: what is leased and done is committed, what is leased and needed
is held by renewals, a few segments at a time. Reading takes no lease. A process that stops gives
its leases back, one that dies lets them run out, and the next one takes them up; a pipeline's
segments do not fail by attempts, however often its processes end.

Checkpoints, leases of appenders and what operators say are in a store of the processes' own.
"""

from __future__ import annotations

import asyncio
import io
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final
from urllib.parse import quote

import pyarrow as pa
import pyarrow.parquet as pq

from coordination.groups import Start, remote_group
from logstore import ulid
from logstore.clock import Clock
from logstore.errors import Damaged, GroupEvicted, LeaseLost, NotFound, TailraceError
from pipelines.deletions import Deleted
from pipelines.events import EVENTS, Origin, as_events
from pipelines.sources.client import ServiceClient
from pipelines.sources.contract import Fetched, Held, Node, Segment
from pipelines.sources.memory import held_by, summed
from pipelines.sources.stored import decoded

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
class _Group:
    """A pipeline's group: how far it is, and what of it this process holds."""

    cursors: Mapping[str, int] = field(default_factory=dict)
    held: dict[Origin, _Lease] = field(default_factory=dict)


class ServiceSegments:
    """The segments of a service."""

    def __init__(self, client: ServiceClient, clock: Clock) -> None:
        self._client = client
        self._clock = clock
        self._groups: dict[str, _Group] = {}
        self._whole = False
        self._deleted: Deleted = {}
        self.unreadable: Mapping[
            tuple[str, str | None], str
        ] = {}  # the service gives no such lines
        self._tag = ""

    # --- what there is -------------------------------------------------------------------

    async def nodes(self, known: Mapping[str, Node]) -> dict[str, Node]:
        """As `Segments.nodes`: a page for each node, behind its last known segment."""
        if self._whole:
            known, self._whole = {}, False
        found: dict[str, Node] = {}
        for name, one in known.items():
            low = self._low(name)
            sizes = {seq: size for seq, size in one.sizes.items() if seq >= low}
            found[name] = Node(low, sizes, set(one.quarantined))
        last = {name: max(one.sizes, default=0) for name, one in known.items()}
        after: Origin | None = None
        while True:
            place = {} if after is None else {"after": f"{after.node}-{after.seq}"}
            asked: dict[str, str | float] = {"groups": "false", "limit": _PAGE, **place}
            page = (await self._client.ask("GET", "/segments", asked)).json()
            for row in page["segments"]:
                after = Origin(row["node"], row["seq"])
                node = found.setdefault(after.node, Node(self._low(after.node)))
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
        """As `Segments.deletions`; pages that have not changed are not sent again."""
        found: dict[tuple[str, str | None], int] = {}
        tag, after = self._tag, ""
        while True:
            answer = await self._client.ask(
                "GET",
                "/segments/deletions",
                {"limit": _DELETIONS_PAGE, **({"after": after} if after else {})},
                headers={"If-None-Match": tag} if tag and not after else None,
            )
            if answer.status_code == 304:
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
        """As `Segments.fetch`: Parquet, checked against its seal unless rows were deleted."""
        path = f"/segments/{quote(f'{origin.node}-{origin.seq}', safe='')}"
        answer = await self._client.ask("GET", path, {"format": "parquet"})
        whole = "tailrace-rows" in answer.headers
        return partial(decoded if whole else _rest, answer.content)

    async def held(self, origin: Origin) -> Held:
        """As `Segments.held`."""
        segment = await asyncio.to_thread(await self.fetch(origin))
        return held_by(segment.events)

    # --- what is kept --------------------------------------------------------------------

    async def keep(self, pipeline: str, start: Start) -> None:
        """As `Segments.keep`: the first lease makes the group."""
        known = self._groups.get(pipeline)
        if known is None:
            known = _Group()
            await self._lease(pipeline, known, {}, start)
            await self._look(pipeline, known)
            self._groups[pipeline] = known
            self._whole = True  # it may need what the others have

    async def release(self, pipeline: str, needed: Mapping[str, int]) -> None:
        """As `Segments.release`: commits what is done, and holds what is needed."""
        group = self._groups.get(pipeline)
        if group is None:
            return
        try:
            for origin in list(group.held):
                await self._settle(pipeline, group, origin, needed)
            for _ in range(_AT_ONCE):
                full = len(group.held) >= _MOST_HELD
                if full or not await self._lease(pipeline, group, needed, Start.OLDEST):
                    break
            await self._look(pipeline, group)
        except GroupEvicted:
            del self._groups[pipeline]  # `keep` says so
            raise

    async def close(self) -> None:
        """As `Segments.close`. Leases are given back, so that the next process need not wait."""
        with suppress(TailraceError):
            for pipeline, group in self._groups.items():
                for origin, lease in group.held.items():
                    more = {"reason": "its process ended"}
                    await self._tell(pipeline, origin, lease, "failed", more)
        await self._client.close()

    async def _lease(
        self, pipeline: str, group: _Group, needed: Mapping[str, int], start: Start
    ) -> bool:
        """Leases a segment, and commits it if it is done; False: there is none."""
        asked: dict[str, str | float] = {
            "group": remote_group(pipeline),
            "lease_seconds": _LEASE_SECONDS,
            "start": start.value,
        }
        answer = await self._client.ask("POST", "/segments/next", asked)
        if answer.status_code == 204:
            return False
        given: dict[str, Any] = answer.json()
        origin = Origin(given["node"], given["seq"])
        group.held[origin] = _Lease(given["epoch"], self._clock.monotonic())
        await self._settle(pipeline, group, origin, needed)
        return True

    async def _settle(
        self, pipeline: str, group: _Group, origin: Origin, needed: Mapping[str, int]
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
        """Holds a segment for so many seconds from now; None: commits it."""
        if seconds is None:
            await self._tell(pipeline, origin, lease, "commit", {})
        else:
            await self._tell(pipeline, origin, lease, "renew", {"lease_seconds": seconds})

    async def _tell(
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

    async def _look(self, pipeline: str, group: _Group) -> None:
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


def _rest(body: bytes) -> Segment:
    """What is left of a segment of which rows were deleted. Raises `Damaged`."""
    try:
        with pq.ParquetFile(io.BytesIO(body), page_checksum_verification=True) as file:
            events = file.read(columns=EVENTS.names, use_threads=False)
    except (OSError, pa.ArrowException) as error:
        raise Damaged(f"the service sent what is no Parquet: {error}") from error
    return summed(as_events(events), len(body))
