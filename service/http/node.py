"""What the HTTP doors need of a node; `service.node.Node` is one, tests bring a small one.

Cursors towards clients are text: a decimal line offset, or `Cursor.encode()`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Protocol

from logstore.batch import RunKey
from logstore.position import Cursor
from service.ingest.batch import IncomingBatch, Receipt, Submitted
from service.status.status import RunStatus
from service.tail import Tail


class Page(Protocol):
    """Lines of a run, whole, each with its newline; totals are of the run as it is now."""

    @property
    def text(self) -> bytes: ...
    @property
    def after(self) -> str | None: ...
    @property
    def before(self) -> str | None: ...
    @property
    def total_lines(self) -> int: ...
    @property
    def total_bytes(self) -> int: ...
    @property
    def state(self) -> str: ...
    @property
    def streaming(self) -> bool: ...
    @property
    def missing(self) -> int: ...


class TextPiece(Protocol):
    """Whole lines, and the cursor after the last of them."""

    @property
    def text(self) -> bytes: ...
    @property
    def cursor(self) -> Cursor: ...


class TextSize(Protocol):
    """How long the text is now, and how much of it is in the store under which ETag."""

    @property
    def stored_bytes(self) -> int: ...
    @property
    def total_bytes(self) -> int: ...
    @property
    def etag(self) -> str | None: ...
    @property
    def state(self) -> str: ...


class RunSummary(Protocol):
    """A run in a list; times in milliseconds since the epoch."""

    @property
    def run(self) -> str: ...
    @property
    def state(self) -> str: ...
    @property
    def lines(self) -> int | None: ...
    @property
    def bytes(self) -> int: ...
    @property
    def first_ms(self) -> int | None: ...
    @property
    def last_ms(self) -> int | None: ...


class RunText(Protocol):
    """Reading the text of runs, stored and hot parts together."""

    async def page(
        self,
        key: RunKey,
        *,
        after: str | None,
        limit: int,
        tail: int | None = None,
        before: str | None = None,
        max_bytes: int = ...,
    ) -> Page:
        """At most `limit` lines after a cursor, before one, or the last `tail`.

        If they take more than about `max_bytes`, `missing` says how many are left behind `after`.

        Raises `NotFound`, `InvalidCursor`, `StoreUnavailable`.
        """
        ...

    async def batches_after(
        self, key: RunKey, cursor: Cursor | int | None, *, max_bytes: int
    ) -> Sequence[TextPiece]:
        """What follows a cursor, up to about `max_bytes`; nothing when level with the hot end."""
        ...

    async def tail_start(self, key: RunKey, lines: int) -> Cursor | int | None:
        """The place that the last `lines` lines follow."""
        ...

    def download(
        self, key: RunKey, *, offset: int = 0, size: int | None = None
    ) -> AsyncIterator[bytes]:
        """The text from byte `offset`, at most `size` bytes of it."""
        ...

    async def size(self, key: RunKey) -> TextSize:
        """Lengths and state; zero and `none` for a run that never was."""
        ...

    async def runs(self, fqn: str, limit: int) -> Sequence[RunSummary]:
        """Runs of a pipeline, newest first."""
        ...

    async def pipelines(self) -> Sequence[str]:
        """Names of all pipelines that have runs."""
        ...


class NodeApi(Protocol):
    """The node behind the doors."""

    @property
    def ready(self) -> bool: ...
    @property
    def text(self) -> RunText: ...
    @property
    def tail(self) -> Tail: ...
    @property
    def status(self) -> RunStatus: ...

    def problems(self) -> Sequence[str]:
        """What keeps it from being ready, or worries it, as sentences."""
        ...

    def submit(self, batch: IncomingBatch) -> Submitted | None: ...
    async def append(self, batch: IncomingBatch) -> Receipt: ...
    async def open_run(self, key: RunKey, connector: str) -> int: ...
    async def close_run(self, key: RunKey) -> str: ...
    async def delete_run(self, key: RunKey) -> None: ...
    async def delete_pipeline(self, fqn: str) -> Sequence[str]: ...
