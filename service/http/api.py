"""Defines the interface of a node that the routes use: protocols with two implementations.

`service.node.Node` is one implementation. Tests of routes use the other, a node in memory.

Cursors towards clients are text: a decimal line offset, or `Cursor.encode()`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Protocol

from service.ingest.batch import AppendReceipt, IncomingBatch, Submitted
from service.run_log.cursors import After, Begun, LinePage
from service.run_log.delete import Wanted, always
from service.run_log.lines import HeldPlace, RecordPart
from service.run_log.listing import NamePage, Newest, ReportedRuns, RunFilter, RunPage
from service.run_log.read_records import ArrowRecords, RecordPage, RecordPiece
from service.run_log.read_text import LogPiece, LogSize
from service.status.status import RunStatus
from service.tail import Tail
from tailrace.logstore.batch import RunKey
from tailrace.logstore.patterns import TextTest
from tailrace.logstore.position import Cursor


class RunReader(Protocol):
    """Reads the logs of runs, stored and live parts together."""

    async def page(
        self,
        key: RunKey,
        *,
        after: str | None,
        limit: int,
        tail: int | None = None,
        before: str | None = None,
        around: int | None = None,
        max_bytes: int = ...,
        stored: bool = False,
    ) -> LinePage:
        """Returns at most `limit` lines after or before a cursor, at the end, or around a record.

        If the lines have more than about `max_bytes`, `missing` is the number of lines left out
        after `after`. If the store does not answer, the page has the lines that nodes hold, unless
        the caller asks for `stored` lines only.

        Raises `NotFound`, `InvalidCursor`, `StoreUnavailable`.
        """
        ...

    async def batches_after(
        self,
        key: RunKey,
        where: Cursor | int | HeldPlace | None,
        *,
        max_bytes: int,
        begun: Begun | None = None,
    ) -> After[LogPiece]:
        """Returns the batches after a place, up to about `max_bytes`; none at the live end.

        Of a batch that was `begun` it returns only the remaining lines.
        """
        ...

    async def tail_start(self, key: RunKey, lines: int) -> Cursor | int | HeldPlace | None:
        """Returns the place that the last `lines` lines follow."""
        ...

    async def resolved(self, key: RunKey, cursor: Cursor | int | HeldPlace | None) -> Cursor:
        """Returns the same place as a cursor that names every node with lines of the run."""
        ...

    def held_text(self, key: RunKey) -> AsyncIterator[bytes]:
        """Yields the text of the lines that nodes hold, without the store."""
        ...

    def download(
        self,
        key: RunKey,
        *,
        offset: int = 0,
        size: int | None = None,
        measured: LogSize | None = None,
    ) -> AsyncIterator[bytes]:
        """Yields at most `size` bytes of the text as it was `measured`, from byte `offset` on."""
        ...

    async def size(self, key: RunKey) -> LogSize:
        """Returns lengths and state; zero and `none` for a run that never existed."""
        ...


class RecordsReader(Protocol):
    """Reads runs as records, in order of arrival or of ULID."""

    async def page(
        self,
        key: RunKey,
        *,
        after: str | None = None,
        limit: int,
        tail: int | None = None,
        before: str | None = None,
        around: int | None = None,
        by_ulid: bool = False,
        max_bytes: int = ...,
        stored: bool = False,
    ) -> RecordPage:
        """Returns records of about `limit` lines.

        Raises `NotFound`, `InvalidCursor`, `Unavailable`.
        """
        ...

    async def after(
        self,
        key: RunKey,
        where: Cursor | int | HeldPlace | None,
        *,
        max_bytes: int,
        begun: Begun | None = None,
    ) -> After[RecordPiece]:
        """Returns the records after a place, up to about `max_bytes`; none at the live end.

        Of a batch that was `begun` it returns only the records of the remaining lines.
        """
        ...

    def whole(
        self, key: RunKey, *, by_ulid: bool, max_bytes: int, held: bool = False
    ) -> AsyncIterator[Sequence[RecordPart]]:
        """Yields all records, or those that nodes hold, piece by piece."""
        ...

    async def records(self, key: RunKey, parts: Sequence[RecordPart]) -> ArrowRecords:
        """Returns the records of parts, with all metadata that is known of them."""
        ...


class RunListing(Protocol):
    """Lists pipelines and runs."""

    async def newest(self, fqn: str, reported: ReportedRuns) -> Newest:
        """Returns the run of a pipeline that began last."""
        ...

    async def newest_held(self, fqn: str) -> Newest:
        """Returns the newest run among those of which nodes hold lines, without the store."""
        ...

    async def run_page(
        self,
        fqn: str,
        wanted: RunFilter,
        limit: int,
        after: str | None,
        *,
        now_ms: int,
        reported: ReportedRuns,
    ) -> RunPage:
        """Returns some runs of a pipeline, the last changed first. Raises `InvalidCursor`."""
        ...

    async def pipeline_page(
        self,
        wanted: TextTest | None,
        limit: int,
        after: str | None,
        *,
        reported: ReportedRuns,
    ) -> NamePage:
        """Returns names of pipelines that have runs. Raises `InvalidCursor`."""
        ...


class RunLogsApi(Protocol):
    """The run logs of the node."""

    @property
    def reader(self) -> RunReader: ...
    @property
    def records(self) -> RecordsReader: ...
    @property
    def listing(self) -> RunListing: ...


class SheddingApi(Protocol):
    """Load shedding as the API needs it."""

    @property
    def active(self) -> bool:
        """Returns true if the node refuses batches that their clients will send to another node."""
        ...


class NodeApi(Protocol):
    """The node behind the HTTP API."""

    @property
    def ready(self) -> bool: ...
    @property
    def shedding(self) -> SheddingApi: ...

    @property
    def cut_off_from(self) -> Sequence[str]:
        """Returns the nodes with lines that this node cannot reach now."""
        ...

    @property
    def run_logs(self) -> RunLogsApi: ...
    @property
    def tail(self) -> Tail: ...
    @property
    def status(self) -> RunStatus: ...

    def problems(self) -> Sequence[str]:
        """Returns the reasons why the node is not ready, and other problems, as sentences."""
        ...

    def submit(self, batch: IncomingBatch) -> Submitted | None: ...
    async def append(self, batch: IncomingBatch) -> AppendReceipt: ...
    async def find_repeat(self, batch: IncomingBatch, since_ms: int) -> AppendReceipt | None:
        """Returns the receipt of an equal batch of the same sender since then."""
        ...

    async def open_run(self, key: RunKey, connector: str) -> int: ...
    async def close_run(self, key: RunKey) -> str: ...
    async def delete_run(self, key: RunKey, wanted: Wanted = always) -> None: ...
    async def delete_pipeline(self, fqn: str, wanted: Wanted = always) -> Sequence[str]: ...
    def unacknowledged(self, fqn: str, run: str | None) -> Sequence[str]:
        """Returns the nodes that have not acknowledged the newest deletion yet."""
        ...
