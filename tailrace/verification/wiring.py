"""Opens a store from settings, and verifies it: a folder or a place on S3."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Final

from compactor.commit.folder import FolderPlacement
from compactor.commit.objects import ObjectPlacement
from compactor.commit.placement import Placement
from compactor.report import rfc3339
from logstore import keys
from logstore.clock import SystemClock, system_entropy
from logstore.disk import Disk
from logstore.names import encode
from logstore.objects.open import open_store
from logstore.segments.quarantine import check_quarantined, give_up
from logstore.table.options import open_table
from logstore.ulid import fresh_text
from service.query.database import Database
from service.query.locked import LockedDatabase
from service.runtime.threads import in_thread
from service.settings import Settings
from service.shipping.missing import give_up_missing
from service.shipping.watermarks import Watermarks
from service.wiring import query_bucket
from tailrace.verification.catalog import SegmentRepair, nothing
from tailrace.verification.fault import Findings
from tailrace.verification.remembered import Remembered
from tailrace.verification.repair import Repair
from tailrace.verification.state import StateRepair, unreadable_state
from tailrace.verification.verifier import Verifier

_SPILL_BYTES: Final = 64 << 30


async def verify(
    settings: Settings,
    findings: Findings,
    spill: str,
    *,
    repair: bool,
    remember: str | None = None,
    sample: float = 0.0,
) -> None:
    """Compares everything into `findings`; `spill` is a folder for data that exceeds memory.

    With the file `remember`, it passes over what was sound before and did not change, but for the
    share `sample` of it.

    Raises `StoreUnavailable`, `LimitReached` if memory and spill do not do, `Damaged` if the
    store moves faster than it is read.
    """
    data = os.path.abspath(settings.data)  # noqa: ASYNC240 - before there is anything to hold up
    clock, entropy, disk = SystemClock(), system_entropy(), Disk()
    table = open_table(settings)
    async with open_store(settings, clock, entropy, disk) as store:
        folders = [store.uri(keys.SEGMENTS.rstrip("/")), table.uri]
        database = _database(settings, folders, spill)
        repairing = _database(settings, folders, spill) if repair else None
        remembered = None
        if remember is not None:
            remembered = Remembered(disk, remember, clock, entropy, sample)
        placement: Placement = (
            FolderPlacement(disk, table.uri) if settings.bucket is None else ObjectPlacement(store)
        )
        try:
            repair_segment: SegmentRepair = nothing
            repair_state: StateRepair | None = None
            if repairing is not None:
                marks = Watermarks(store, clock, entropy, in_thread, table.mark)
                repair_state = StateRepair(store, marks, clock, entropy)
                repair_segment = Repair(store, table, placement, repairing, clock, entropy).segment
            verifier = Verifier(
                store,
                table,
                database,
                findings,
                clock,
                settings.runs.prefix,
                settings.runs.shortest_days,
                repair_segment,
                repair_state,
                remembered,
            )
            if remembered is not None and (why := remembered.open()):
                findings.note(why)
            await verifier.verify(disk, data, repair=repair)
            if remembered is not None:
                remembered.finish()
        finally:
            if remembered is not None:
                remembered.abandon()
            database.close()
            if repairing is not None:
                repairing.close()


async def give_up_segments(settings: Settings, segments: Sequence[str]) -> None:
    """Gives up the lines of the quarantined segments at these keys, none unless all are.

    The key of a node's registration stands for the missing segments that it names.
    Raises `InvalidInput` if one is not quarantined, `StoreUnavailable`, `OutcomeUnknown`.
    """
    clock, entropy = SystemClock(), system_entropy()
    async with open_store(settings, clock, entropy, Disk()) as store:
        nodes = [key for key in segments if key.startswith(keys.NODES)]
        quarantined = [key for key in segments if key not in nodes]
        for key in quarantined:
            await check_quarantined(store, key)
        for key in nodes:
            await give_up_missing(store, key)
        for key in quarantined:
            at, version = rfc3339(clock.now_ms()), fresh_text(clock, entropy)
            await give_up(store, key, at=at, version=version)


async def drop_objects(settings: Settings, names: Sequence[str]) -> dict[str, str]:
    """Removes state objects that cannot be read, none unless all are; where a copy of each is.

    Raises `InvalidInput` for one that reads well or is no state object, `StoreUnavailable`.
    """
    clock, entropy, disk = SystemClock(), system_entropy(), Disk(private=True)
    folder, copies = os.path.join(os.path.abspath(settings.data), "dropped"), {}  # noqa: ASYNC240
    async with open_store(settings, clock, entropy, Disk()) as store:
        bodies = {key: await unreadable_state(store, key) for key in names}
        disk.make_folders(folder)
        for key, body in bodies.items():
            copies[key] = os.path.join(folder, f"{fresh_text(clock, entropy)}.{encode(key)}")
            file = disk.open(copies[key], "create")
            try:
                file.write([body])
                file.sync()
            finally:
                file.close()
        disk.sync_folder(folder)
        await store.delete(list(names))
    return copies


def _database(settings: Settings, folders: list[str], spill: str) -> Database:
    query = settings.query.model_copy(update={"spill_bytes": _SPILL_BYTES})
    return Database(LockedDatabase(query, folders, spill, query_bucket(settings)))
