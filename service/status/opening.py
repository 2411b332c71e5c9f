"""Composes the reports of a node.

Reports look up the node's run logs and tail at each call: the node makes them when it starts, and
makes new ones after a fork.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

from logstore.batch import RunKey
from logstore.errors import JournalFull, StoreUnavailable
from logstore.filesystem import FileSystem
from service.runs.run_logs import RunLogs
from service.runtime.clock_skew import ClockSkew
from service.runtime.seams import Seams
from service.settings import Settings
from service.status.reports import Expiry, Reports
from service.status.status import RunStatus
from service.tail import Tail


class KeepFree(NamedTuple):
    """The folder that reports are written to, and how much of its disk stays free."""

    folder: str
    bytes: int


class Owner(Protocol):
    """The parts of the node that reports use."""

    @property
    def run_logs(self) -> RunLogs: ...
    @property
    def tail(self) -> Tail: ...


def open_status(owner: Owner, seams: Seams, settings: Settings) -> RunStatus:
    """The reports of `owner`, over its store."""
    keep_free = _keep_free(settings)

    def horizon(key: RunKey) -> int:
        return owner.run_logs.deletions.horizon(key)

    async def exists(key: RunKey) -> bool:
        return await owner.run_logs.listing.exists(key)

    def check_space(size: int) -> None:
        if keep_free is not None:
            _check_space(seams.fs, keep_free, size)

    reports = Reports(
        seams.store,
        seams.clock,
        seams.entropy,
        horizon=horizon,
        check_space=check_space,
        cache_bytes=settings.openmetadata.report_cache_bytes,
    )
    return RunStatus(
        reports,
        seams.clock,
        settings.openmetadata,
        settings.runs,
        tail=lambda: owner.tail,
        expiry=Expiry(seams.store, seams.clock, exists, ClockSkew(seams.newest_date)),
    )


def _keep_free(settings: Settings) -> KeepFree | None:
    """None for a store on S3, where reports take no disk of ours."""
    if settings.bucket is not None:
        return None
    return KeepFree(settings.store_folder, settings.journal.min_free_bytes)


def _check_space(fs: FileSystem, keep: KeepFree, size: int) -> None:
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
