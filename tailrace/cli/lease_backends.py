"""The two backends of `tailrace leases`: a store opened from its settings, or a service over HTTP.

Both give rows in the format of `/leases` and `/segments/groups`, so that people and programs see
the same. `Desk` is their interface.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import httpx

from service.peers.register import ForgottenNode, NodeEntry, all_forgotten, entries, forget
from service.settings import QueueSettings, RunSettings
from tailrace.cli.main import complain
from tailrace.cli.remote import authorization, check, component, errors_as_ours, trusted
from tailrace.coordination.admin import LeaseAdmin, LeaseFilter
from tailrace.coordination.groups import GroupStart
from tailrace.coordination.lease import StoreTime
from tailrace.coordination.named_leases import NamedLeases, StoredLeases, text_lease
from tailrace.coordination.open import open_partitions
from tailrace.coordination.partitions import Status
from tailrace.coordination.settings import SourceCoordination
from tailrace.logstore import ulid as ulids
from tailrace.logstore.clock import Clock, Entropy, SystemClock, system_entropy
from tailrace.logstore.errors import InvalidInput
from tailrace.logstore.filesystem import Disk
from tailrace.logstore.objects.config import StoreSettings, open_store
from tailrace.logstore.objects.store import ObjectStore, newest_date_of
from tailrace.logstore.openmetadata_settings import translate
from tailrace.logstore.settings import load, read_file

if TYPE_CHECKING:
    from service.queue.queue import SegmentQueue


class OperatorSettings(StoreSettings):
    """Where the store is, that of partitions, and what is below which prefix."""

    source_coordination: SourceCoordination = SourceCoordination()
    runs: RunSettings = RunSettings()


@dataclass(frozen=True, slots=True)
class OpenedStore:
    """A store, and the administration of its leases."""

    admin: LeaseAdmin
    store: ObjectStore
    clock: Clock
    entropy: Entropy
    time: StoreTime
    prefix: str


def load_settings(data: str | None, config: str | None) -> OperatorSettings:
    """Settings from a flag, environment and file.

    Raises `InvalidInput`, also for a folder that is not there: opening it would make it.
    """
    flags = {} if data is None else {"data": data}
    file = translate(read_file(config))[0]
    settings = load(OperatorSettings, flags=flags, file=file, strict=False)
    if settings.bucket is None and not os.path.isdir(settings.store_folder):
        raise InvalidInput(
            f"there is no store at {settings.store_folder}",
            hint="Name the service's data folder with --data or its settings with --config, or "
            "ask a running service with --url.",
        )
    return settings


@asynccontextmanager
async def open_leases(*, data: str | None, config: str | None) -> AsyncIterator[OpenedStore]:
    """Opens the leases of the settings' store while the block runs.

    Raises `InvalidInput`, `StoreUnavailable`.
    """
    settings = load_settings(data, config)
    coordination = settings.source_coordination
    clock, entropy = SystemClock(), system_entropy()
    async with open_store(settings, clock, entropy, Disk()) as store:
        newest_date = newest_date_of(store)
        opening = open_partitions(
            coordination.store,
            store,
            clock,
            entropy,
            newest_date=newest_date,
            ageing_ms=coordination.limits.ageing_ms,
        )
        async with opening as partitions:
            await partitions.start()
            time = StoreTime(clock, newest_date)
            admin = LeaseAdmin(partitions, StoredLeases(store, clock, entropy, time))
            yield OpenedStore(admin, store, clock, entropy, time, settings.runs.prefix)


Row: TypeAlias = Mapping[str, Any]

_PAGE = 1000
_READ_SECONDS = 60


class Desk(Protocol):
    """The interface of a backend: leases, and actions on them.

    All methods raise the errors of the store or the service.
    """

    async def page(self, filters: Row, after: str | None) -> tuple[list[Row], str | None]:
        """Some leases, and what continues them; filters are those of `GET /leases`."""
        ...

    async def show(self, source: str, key: str) -> Row:
        """One, with its progress."""
        ...

    async def act(self, act: str, source: str, key: str, options: Row) -> Row:
        """`reset`, `reopen`, `fail`: the lease as it is then."""
        ...

    async def purge(self, source: str, older_than_seconds: float) -> int:
        """How many were removed."""
        ...

    async def groups(self) -> list[Row]:
        """Consumer groups of the segment queue."""
        ...

    async def group(self, group: str) -> Row:
        """One, with its leases and failed segments."""
        ...

    async def retry_group(self, group: str, segment: str | None) -> list[str]:
        """The failed segments, one or all, that are free again."""
        ...

    async def reset_group(self, group: str, to: str) -> Row:
        """The group as it begins again, from `oldest` or `now`."""
        ...

    async def forget_group(self, group: str) -> None:
        """Removes a group: it holds back nothing any more."""
        ...


class InStore:
    """By the store itself."""

    def __init__(self, opened: OpenedStore) -> None:
        self._admin = opened.admin
        self._opened = opened

    async def page(self, filters: Row, after: str | None) -> tuple[list[Row], str | None]:
        status = filters.get("status")
        wanted = LeaseFilter(
            source=filters.get("source"),
            status=None if status is None else Status(status),
            owner=filters.get("owner"),
            prefix=filters.get("prefix", ""),
            older_than_ms=round(filters.get("older_than_seconds", 0) * 1000),
        )
        found = await self._admin.page(wanted, after=after, limit=_PAGE)
        _complain_of(sorted(found.unreadable))
        return [entry.spelled(whole=False) for entry in found.entries], found.after

    async def show(self, source: str, key: str) -> Row:
        return (await self._admin.show(source, key)).spelled(whole=True)

    async def act(self, act: str, source: str, key: str, options: Row) -> Row:
        admin = self._admin
        if act == "reset":
            found = await admin.reset(source, key, **options)
        elif act == "reopen":
            found = await admin.reopen(source, key)
        else:
            found = await admin.fail(source, key, **options)
        return found.spelled(whole=True)

    async def purge(self, source: str, older_than_seconds: float) -> int:
        older_than_ms = round(older_than_seconds * 1000)
        return await self._admin.purge(source, older_than_ms=older_than_ms)

    async def groups(self) -> list[Row]:
        from service.http.segment_bodies import group_row

        queue = self._queue()
        found = await queue.report()
        _complain_of(sorted(queue.unreadable))
        rows = [group_row(group, queue.catalog, queue.now_ms()) for group in found]
        return [row.model_dump() for row in rows]

    async def group(self, group: str) -> Row:
        from service.http.segment_bodies import group_details

        queue = self._queue()
        await queue.report()
        found = await queue.group(group)
        return group_details(found, queue.catalog, queue.now_ms()).model_dump()

    async def retry_group(self, group: str, segment: str | None) -> list[str]:
        from service.queue.catalog import parse_id

        chosen = None if segment is None else [parse_id(segment)]
        return [name.id for name in await self._queue().retry(group, chosen)]

    async def reset_group(self, group: str, to: str) -> Row:
        from service.http.segment_bodies import group_row

        queue = self._queue()
        found = await queue.reset(group, GroupStart(to))
        await queue.report()
        return group_row(found, queue.catalog, queue.now_ms()).model_dump()

    async def forget_group(self, group: str) -> None:
        await self._queue().forget(group)

    def _queue(self) -> SegmentQueue:
        from service.queue.queue import SegmentQueue

        opened = self._opened
        return SegmentQueue(
            opened.store, opened.clock, opened.entropy, opened.time, QueueSettings(), woken=_never
        )


def _complain_of(unreadable: Iterable[str]) -> None:
    for key in unreadable:
        complain(f"{key} cannot be read, and is not listed", "Run `tailrace verify` for details.")


class AtService:
    """By a service's routes."""

    def __init__(self, client: httpx.AsyncClient) -> None:
        self._client = client

    async def page(self, filters: Row, after: str | None) -> tuple[list[Row], str | None]:
        beyond = {} if after is None else {"after": after}
        found = await self._ask("GET", "/leases", {**filters, **beyond, "limit": _PAGE})
        _complain_of(found.get("unreadable", ()))
        return found["leases"], found["after"]

    async def show(self, source: str, key: str) -> Row:
        return await self._ask("GET", "/leases/one", {"source": source, "key": key})

    async def act(self, act: str, source: str, key: str, options: Row) -> Row:
        return await self._ask("POST", f"/leases/{act}", {"source": source, "key": key, **options})

    async def purge(self, source: str, older_than_seconds: float) -> int:
        params = {"source": source, "older_than_seconds": older_than_seconds}
        return int((await self._ask("POST", "/leases/purge", params))["purged"])

    async def groups(self) -> list[Row]:
        found = await self._ask("GET", "/segments/groups", {})
        _complain_of(found.get("unreadable", ()))
        rows: list[Row] = found["groups"]
        return rows

    async def group(self, group: str) -> Row:
        return await self._ask("GET", f"/segments/groups/{component(group)}", {})

    async def retry_group(self, group: str, segment: str | None) -> list[str]:
        one = {} if segment is None else {"segment": segment}
        free: list[str] = (
            await self._ask("POST", f"/segments/groups/{component(group)}/retry", one)
        )["retried"]
        return free

    async def reset_group(self, group: str, to: str) -> Row:
        return await self._ask("POST", f"/segments/groups/{component(group)}/reset", {"to": to})

    async def forget_group(self, group: str) -> None:
        await self._ask("DELETE", f"/segments/groups/{component(group)}", {})

    async def _ask(self, method: str, path: str, params: Row) -> Row:
        with errors_as_ours(str(self._client.base_url)):
            answer = await self._client.request(method, path, params=dict(params))
        check(answer)
        row: Row = answer.json()
        return row


async def _never() -> None:
    """No segment is confirmed here, and nobody waits for one."""
    await asyncio.Event().wait()


@asynccontextmanager
async def open_desk(
    *, data: str | None, config: str | None, url: str | None, ca_file: str = ""
) -> AsyncIterator[Desk]:
    """A service's desk if there is a `url`, else that of the settings' store.

    Raises `InvalidInput`, `StoreUnavailable`.
    """
    if url is not None:
        timeout = httpx.Timeout(10, read=_READ_SECONDS)
        with errors_as_ours(url):
            client = httpx.AsyncClient(
                base_url=url, timeout=timeout, headers=authorization(), verify=trusted(ca_file)
            )
        async with client:
            yield AtService(client)
        return

    async with open_leases(data=data, config=config) as opened:
        yield InStore(opened)


# Registered nodes and nodes that were let go: `tailrace leases nodes`, `forget-node`.
#
# Both work on the store itself, so that a node that does not return can be let go when no service
# is left.


async def nodes(*, data: str | None, config: str | None) -> list[Row]:
    """The register, then the nodes that were let go. Raises as `open_leases`.

    A node that was let go is `unreadable` if its record is damaged or of a newer version.
    """
    async with open_leases(data=data, config=config) as opened:
        leases = _leases(opened)
        there = (await entries(opened.store)).values()
        rows = [
            {
                "node": entry.node,
                "state": await _state(leases, entry),
                "url": entry.url,
                "seen_ms": entry.renewed_ms,
            }
            for entry in sorted(there, key=lambda e: (e.node, e.instance))
        ]
        forgotten, unreadable = await all_forgotten(opened.store)
        rows += [{"node": node, "state": "unreadable"} for node in unreadable]
        return rows + [spelled(one) for one in forgotten]


async def _state(leases: NamedLeases, entry: NodeEntry) -> str:
    """A reader holds no lease; its entry goes by itself after its death."""
    if not entry.holds:
        return "reader"
    return "live" if await _holder(leases, entry.node) == entry.node else "silent"


async def forget_node(node: str, *, data: str | None, config: str | None) -> Row:
    """Lets a node go, and says what may be lost. Raises as `service.peers.register.forget`."""
    async with open_leases(data=data, config=config) as opened:
        leases = _leases(opened)

        async def held_by(name: str) -> str | None:
            return await _holder(leases, name)

        def fresh_id() -> str:
            return ulids.fresh_text(opened.clock, opened.entropy)

        made = await forget(
            opened.store,
            node,
            held_by=held_by,
            prefix=opened.prefix,
            now_ms=opened.clock.now_ms(),
            fresh_id=fresh_id,
        )
        return spelled(made)


def spelled(one: ForgottenNode) -> dict[str, Any]:
    """A node that was let go, for programs."""
    return {
        "node": one.node,
        "state": "forgotten" if one.returned_ms is None else "returned",
        "seen_ms": one.seen_ms,
        "forgotten_ms": one.forgotten_ms,
        "returned_ms": one.returned_ms,
        "stored_seq": one.stored_seq,
        "stored_pos": one.stored_pos,
        "runs": [{"fqn": key.fqn, "run": key.run} for key in one.runs],
    }


def node_lines(rows: Sequence[Row]) -> str:
    """Nodes for people: a line each, and below one that was let go what may be lost."""
    lines = []
    for row in rows:
        lines.append(f"{row['state']:<10}  {row['node']}  {row.get('url', '')}".rstrip())
        if row["state"] == "unreadable":
            lines.append("    was let go; its record cannot be read: see `tailrace verify`")
        if row["state"] == "forgotten":
            lines.append(
                f"    may be lost: lines from position {row['stored_pos']} on, taken after segment"
                f" {row['stored_seq']} (fast and durable ones; bulk ones are stored)"
            )
            lines += [f"    of the run {run['fqn']}/{run['run']}" for run in row["runs"]]
    return "\n".join(lines) or "no node is in the register, and none was let go"


def _leases(opened: OpenedStore) -> NamedLeases:
    return NamedLeases(opened.store, opened.clock, opened.entropy, opened.time, node="operator")


async def _holder(leases: NamedLeases, node: str) -> str | None:
    return await leases.held_by(text_lease(node))
