"""A node's reports, made from the node: it has its parts only once it is started."""

from __future__ import annotations

from typing import Protocol

from logstore.batch import RunKey
from logstore.errors import JournalFull, StoreUnavailable
from logstore.filesystem import FileSystem
from service.runs.run_logs import Text
from service.runtime.parts import Seams
from service.status.expiry import Expiry
from service.status.reports import Reports
from service.status.status import KeepFree, RunStatus, StatusLimits
from service.tail import Tail


class Owner(Protocol):
    """What is asked of the node, late: a node that starts anew has new ones."""

    @property
    def text(self) -> Text: ...
    @property
    def tail(self) -> Tail: ...


def open_status(owner: Owner, seams: Seams, limits: StatusLimits) -> RunStatus:
    """The reports of what `owner` stands on."""

    def horizon(key: RunKey) -> int:
        return owner.text.deletions.horizon(key)

    async def exists(key: RunKey) -> bool:
        return await owner.text.exists(key)

    def room(size: int) -> None:
        if limits.keep_free is not None:
            _check_room(seams.fs, limits.keep_free, size)

    reports = Reports(
        seams.store,
        seams.clock,
        seams.entropy,
        horizon=horizon,
        room=room,
        cache_bytes=limits.cache_bytes,
    )
    return RunStatus(
        reports,
        seams.clock,
        limits,
        tail=lambda: owner.tail,
        expiry=Expiry(seams.store, seams.clock, exists),
    )


def _check_room(fs: FileSystem, keep: KeepFree, size: int) -> None:
    """Reports may not take what batches are refused for. Raises `JournalFull`."""
    try:
        free = fs.free_bytes(keep.folder)
    except OSError as error:
        raise StoreUnavailable(f"the disk of the store does not answer: {error}") from error
    if free - size < keep.bytes:
        raise JournalFull(
            "the disk of the store is full: reports have no room beside the "
            f"{keep.bytes} bytes that are kept free"
        )
