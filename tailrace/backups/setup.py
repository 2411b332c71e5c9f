"""Opens store, data folder and the folder of backups from settings, and copies between them."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version

from service.peers.register import entries
from service.settings import Settings
from tailrace.backups.repository import Backup, BackupFolder, Part
from tailrace.backups.restore import Restore
from tailrace.backups.save import EarlierBackup, StoreCopy, copy_journals
from tailrace.logstore import keys
from tailrace.logstore.clock import SystemClock, system_entropy
from tailrace.logstore.errors import InvalidInput
from tailrace.logstore.filesystem import Disk
from tailrace.logstore.objects.config import open_store
from tailrace.logstore.objects.store import ObjectStore
from tailrace.logstore.table.table import open_table


@dataclass(frozen=True, slots=True)
class BackupParts:
    """The parts that a backup or a restore covers: the data folder, the store."""

    data: bool = True
    store: bool = True

    @property
    def names(self) -> list[Part]:
        """As backups name them."""
        named: dict[Part, bool] = {"data": self.data, "store": self.store}
        return [part for part, is_wanted in named.items() if is_wanted]


def open_folder(path: str) -> BackupFolder:
    """The folder of backups at `path`; only this user may read what comes into it."""
    return BackupFolder(Disk(private=True), os.path.abspath(path), SystemClock(), system_entropy())


async def back_up(
    settings: Settings, path: str, parts: BackupParts, progress: Callable[[int], None]
) -> tuple[Backup, int]:
    """Makes a backup in the folder `path`; gives it, and how many bytes are new there.

    Raises `InvalidInput`, `Conflict`, `StoreUnavailable`, `UnsupportedVersion`, `Damaged`.
    """
    clock, entropy, disk = SystemClock(), system_entropy(), Disk()
    folder, data = open_folder(path), os.path.abspath(settings.data)  # noqa: ASYNC240
    inside = [data] if settings.bucket is not None else [data, settings.store_folder]
    for place in inside:
        if f"{folder.path}/".startswith(f"{os.path.abspath(place)}/"):  # noqa: ASYNC240
            raise InvalidInput(
                f"{folder.path} is inside {place}, which the backup would include",
                hint="Name a folder outside of it, preferably on another disk.",
            )
    made, created_ms, known = folder.fresh_id(), clock.now_ms(), folder.newest()
    with folder.held():
        async with open_store(settings, clock, entropy, disk) as store:
            # The journal first: what it has let go is in the store by then.
            nodes, files = await copy_journals(disk, data, folder) if parts.data else ([], [])
            prefix = settings.runs.prefix
            copied = StoreCopy(
                store, open_table(settings), folder, EarlierBackup(known), prefix, progress
            )
            if parts.store:
                await copied.copy()
            backup = Backup(
                made,
                created_ms,
                version("tailrace"),
                _place(settings),
                prefix,
                tuple(nodes),
                tuple(await _registered(store)),
                (*files, *copied.entries.values()),
                tuple(sorted(copied.absent)),
            )
        if not backup.entries:
            raise InvalidInput(
                f"there is nothing to back up: {data} has no node, and the store is empty",
                hint="Name the data folder with --data, or the settings file with --config.",
            )
        folder.write(backup)
    return backup, folder.written_bytes


def _place(settings: Settings) -> str:
    bucket = settings.bucket
    return settings.store_folder if bucket is None else f"s3://{bucket.name}/{bucket.prefix}"


async def _registered(store: ObjectStore) -> list[str]:
    return sorted({entry.node for entry in (await entries(store, keys.PEERS)).values()})


async def restore(
    settings: Settings, path: str, wanted: str | None, parts: BackupParts, *, replace_all: bool
) -> tuple[Backup, list[str]]:
    """Restores a backup of the folder `path`; gives it, and the nodes that the folder is now.

    Raises `InvalidInput`, `Conflict`, `Damaged`, `StoreUnavailable`.
    """
    clock, entropy, disk = SystemClock(), system_entropy(), Disk(private=True)
    folder, data = open_folder(path), os.path.abspath(settings.data)  # noqa: ASYNC240
    backup = folder.chosen(wanted, parts.names)
    async with open_store(settings, clock, entropy, Disk()) as store:
        work = Restore(
            folder, backup, disk, data, store if parts.store else None, parts.data, clock, entropy
        )
        return backup, await work.run(replace_all=replace_all)
