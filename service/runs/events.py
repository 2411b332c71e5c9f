"""Events by which one part of run logs notifies the others.

Each part is made after the parts that it uses. A part that must hear of an earlier one
subscribes here, so that no part holds one that is made later.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from logstore.batch import RunKey
from logstore.runs.manifest import Manifest


class RunEvents:
    """Calls the subscribers of an event in order; their errors reach the publisher."""

    def __init__(self) -> None:
        self._flushed: list[Callable[[Manifest], Awaitable[None]]] = []
        self._ended: list[Callable[[RunKey], None]] = []
        self._deleted: list[Callable[[RunKey], None]] = []
        self._inherited: list[Callable[[], None]] = []

    def on_flushed(self, hear: Callable[[Manifest], Awaitable[None]]) -> None:
        """Subscribes to flushes."""
        self._flushed.append(hear)

    def on_ended(self, *hear: Callable[[RunKey], None]) -> None:
        """Subscribes to ends of runs."""
        self._ended += hear

    def on_deleted(self, *hear: Callable[[RunKey], None]) -> None:
        """Subscribes to deletions of runs."""
        self._deleted += hear

    def on_inherited(self, *hear: Callable[[], None]) -> None:
        """Subscribes to takeovers of lost nodes' lines."""
        self._inherited += hear

    async def flushed(self, manifest: Manifest) -> None:
        """Publishes that a flush has swapped in this manifest."""
        for hear in self._flushed:
            await hear(manifest)

    def ended(self, key: RunKey) -> None:
        """Publishes that the run was closed, so that no line follows."""
        for hear in self._ended:
            hear(key)

    def deleted(self, key: RunKey) -> None:
        """Publishes that the run was deleted, so that subscribers drop it."""
        for hear in self._deleted:
            hear(key)

    def inherited(self) -> None:
        """Publishes that lines of a lost node, of any runs, can be read here now."""
        for hear in self._inherited:
            hear()
