"""The two ways in which `tailrace leases` works: on a store by its settings, or over HTTP.

Both give rows as `/leases` and `/segments/groups` spell them, so that what people and programs
see is the same.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import httpx

from coordination.admin.admin import LeaseAdmin, LeaseFilter
from coordination.groups import Start
from coordination.named.stored import StoredLeases
from coordination.open import open_partitions
from coordination.partitions.partition import Status
from coordination.settings import SourceCoordination
from coordination.storetime import StoreTime
from logstore.clock import Clock, Entropy, SystemClock, system_entropy
from logstore.disk import Disk
from logstore.errors import InvalidInput
from logstore.log_storage import translate
from logstore.objects.open import open_store
from logstore.objects.remote import newest_date_of
from logstore.objects.settings import StoreSettings
from logstore.objects.store import ObjectStore
from logstore.settings import load, read_file
from service.runs.settings import RunSettings
from tailrace.cli import complain
from tailrace.remote.api import authorization, check, component, errors_as_ours, trusted


class OperatorSettings(StoreSettings):
    """Where the store is, that of partitions, and what is below which prefix."""

    source_coordination: SourceCoordination = SourceCoordination()
    runs: RunSettings = RunSettings()


@dataclass(frozen=True, slots=True)
class Opened:
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
            hint="Say --data or --config of the service, or --url to ask it.",
        )
    return settings


@asynccontextmanager
async def open_leases(*, data: str | None, config: str | None) -> AsyncIterator[Opened]:
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
            yield Opened(admin, store, clock, entropy, time, settings.runs.prefix)


if TYPE_CHECKING:  # bring the service, or what is needed for a store only
    from service.queue.queue import SegmentQueue

Row: TypeAlias = Mapping[str, Any]

_PAGE = 1000
_READ_SECONDS = 60


class Desk(Protocol):
    """Leases, and what operators do with them. All raise what the store or service answers."""

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

    def __init__(self, opened: Opened) -> None:
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
        found = await queue.reset(group, Start(to))
        await queue.report()
        return group_row(found, queue.catalog, queue.now_ms()).model_dump()

    async def forget_group(self, group: str) -> None:
        await self._queue().forget(group)

    def _queue(self) -> SegmentQueue:
        from service.queue.queue import SegmentQueue
        from service.queue.settings import QueueSettings

        opened = self._opened
        return SegmentQueue(
            opened.store,
            opened.clock,
            opened.entropy,
            opened.time,
            QueueSettings(),
            woken=_never,
        )


def _complain_of(unreadable: Iterable[str]) -> None:
    for key in unreadable:
        complain(f"{key} cannot be read, and is not listed", "`tailrace verify` says more.")


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
    from tailrace.lease_admin.desks import open_leases  # brings the stores' vendors

    async with open_leases(data=data, config=config) as opened:
        yield InStore(opened)
