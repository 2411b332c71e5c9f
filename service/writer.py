"""The part of a node that accepts lines: from a batch to its segment in the store.

    append ──► journal ──► shipper: segments, in order
                  └──► journal files are released

A `Writer` belongs to one incarnation. If the node finds that its folder is a copy, or that the
store lacks its segments (`Forked`), it closes this writer and opens the next one over the same
journal files. A node that only reads has no writer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from service.erasure import JournalEraser
from service.ingest.appender import ActiveRuns, Appender
from service.journal.file import back_from
from service.journal.journal import Appended, Journal
from service.journal.recovery import Recovered, recover
from service.journal.state import JournalState
from service.run_log.run_logs import RunLogs
from service.runtime.environment import Environment
from service.runtime.health import HealthProblem
from service.runtime.identity import NodeIdentity
from service.settings import Settings
from service.shipping.shipper import SegmentShipper
from service.shipping.watermarks import Confirmations, Lineage, Watermarks
from tailrace.logstore import ulid as ulids
from tailrace.logstore.errors import TailraceError

_LAG_SHARE: Final = 16


async def recovered_journal(
    environment: Environment, folder: str, before: Writer | None = None
) -> Recovered:
    """Recovers the journal in a folder; `before` is the closed writer that a fork replaces."""
    recovered = await environment.offload(lambda: recover(environment.fs, folder))
    if before is not None:
        before.journal.succession.hand_over(before.journal.files, recovered.files)
        recovered.keep(before.recovered)
    return recovered


def state_of(recovered: Recovered, identity: NodeIdentity) -> JournalState:
    """The state of a journal for a node; a new incarnation begins with that of its parent."""
    state = recovered.state or JournalState(identity.node)
    if state.node != identity.node:
        files = [file.first_pos for file in recovered.files]
        state.reincarnate(identity.node, identity.base, files)
        if identity.missing:
            state.delete_again()
    return state


class Writer:
    """The journal of a node, its shipper, and the appender that accepts batches.

    Raises the errors of opening the journal. Call `accept_for` before the first batch.
    """

    appender: Appender

    def __init__(
        self,
        environment: Environment,
        settings: Settings,
        folder: str,
        recovered: Recovered,
        state: JournalState,
        synced: Callable[[Sequence[Appended]], None],
        *,
        marks: Watermarks,
        confirmations: Confirmations,
    ) -> None:
        """`synced` is told of the batches that a sync of the journal in `folder` made durable."""
        self._environment = environment
        self._settings = settings
        self._state = state
        self._syncer = environment.syncer()
        self.recovered = recovered
        try:
            self.journal = Journal(
                environment.fs,
                folder,
                self._syncer,
                environment.clock,
                environment.entropy,
                settings.journal,
                recovered,
                state,
                synced,
                offload=environment.offload,
            )
        except TailraceError:
            self._syncer.close()
            raise
        self.lineage = Lineage(self.journal, environment.store, environment.clock, marks)
        self.shipper = SegmentShipper(
            self.journal,
            environment.store,
            environment.clock,
            settings.flush,
            offload=environment.offload,
            lineage=self.lineage,
            confirmations=confirmations,
            encode=environment.encode,
        )
        self.active = ActiveRuns(settings.runs.max_concurrent_streams)
        self.eraser = JournalEraser(self.journal, environment.clock, settings.journal.erase_seconds)

    def accept_for(self, run_logs: RunLogs) -> None:
        """Connects the writer with the run logs that its lines go into."""
        self.shipper.on_confirmed(run_logs.confirmed)
        run_logs.deletions.on_raised = self.eraser.note
        for (fqn, run), t in self._state.deleted.all().items():
            run_logs.deletions.note(fqn, run, t, own=True)
        environment = self._environment
        self.appender = Appender(
            self.journal,
            run_logs,
            environment.clock,
            ulids.Minter(environment.clock, environment.entropy, last=self._state.last_ulid),
            self._settings.ingest,
            active=self.active,
            deletions=run_logs.deletions,
            confirmed_through=self.shipper.confirmed_through,
        )

    def problems(self, identity: NodeIdentity) -> list[str]:
        """Problems of the segments and the journal, as sentences."""
        found: list[str] = []
        if self.shipper.last_error is not None:
            error = self.shipper.last_error
            found.append(HealthProblem.with_detail("segments wait in the journal", error))
        found += [
            f"{missing.sentence()}. {missing.advice(identity.node)}"
            for missing in identity.missing
            if missing.lost != 0
        ]
        found += self.shipper.ongoing.problems()
        return [*found, *self.journal.problems(), *self.recovered.problems()]

    def release(self, flushed: int) -> None:
        """Releases journal files that neither the segments nor the run logs need.

        The lines below position `flushed` are in the run logs.
        """
        confirmed, most = self.journal.state.confirmed.end, self._settings.journal.max_bytes
        if self.journal.bytes > most // 2:
            # Run logs can be rebuilt from segments, with more work; space for batches cannot.
            kept = most // _LAG_SHARE
            flushed = max(flushed, back_from(confirmed, kept, self.journal.files))
        self.journal.release(min(confirmed, flushed))

    def stop(self) -> None:
        """Accepts no more batches, and ends shipping after the present segment."""
        self.shipper.stop()
        self.appender.stop()

    async def close(self) -> None:
        """Closes the journal; `stop` was called, and no task uses the writer any more."""
        await self.journal.close()
        self._syncer.close()
