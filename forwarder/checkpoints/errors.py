"""What keeps checkpoints from being used. Each hint says what to do."""

from __future__ import annotations

from logstore.errors import Damaged, FolderLocked, Unavailable


class StorageInUse(FolderLocked):
    """Another forwarder has the storage."""

    hint = "Stop the other forwarder, or give this one another `storage`."


class StorageDamaged(Damaged):
    """Checkpoints that were synced are not what was written."""

    hint = (
        "`tailrace forward state reset --damaged` keeps the files that are still readable; it"
        " reads the others again."
    )


class StorageFailed(Unavailable):
    """The disk refused. What was put so far is kept in memory: sync again later."""

    hint = "Free disk space, or give `storage` a folder on a disk that can be written."
