"""Hands prepared batches to the delivery, in order for each file, and takes its verdicts.

A batch is in the synced checkpoint log before it is handed over. `cursor` moves when it is
acknowledged, and the log may learn that later: after a crash the batch is sent once more under
the same id, and the service knows it.
"""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from math import inf
from typing import Protocol

from tailrace.forwarder.delivery.targets import Shipment, Verdict
from tailrace.forwarder.engine.state import EngineParts, PendingBatch, Tracked
from tailrace.forwarder.model import Prepared
from tailrace_client.records import decode, id_after

_SYNC_SECONDS = 1.0
_TIME_SHIFT = 80


class DeliveryPort(Protocol):
    """The sender of batches (`tailrace.forwarder.delivery`). `Sending.judged` gets its verdicts."""

    def submit(self, shipment: Shipment) -> None:
        """Sends a batch until something definite is known of it."""
        ...

    def ask(self, file: str, fqn: str, run: str, batch: str) -> None:
        """Asks whether the run has a batch."""
        ...

    def close_run(
        self,
        file: str,
        fqn: str,
        run: str,
        *,
        started_ms: int | None = None,
        ended_ms: int | None = None,
    ) -> None:
        """Closes a run, and says when it began and ended if it was reported."""
        ...


class Sending:
    """Batches on their way."""

    def __init__(self, shared: EngineParts, delivery: DeliveryPort) -> None:
        self._shared = shared
        self._delivery = delivery
        self._fresh: list[PendingBatch] = []
        self.sync_at = inf
        self.bytes = 0
        self.flying = 0

    def prepared(self, file: Tracked) -> None:
        """The file's last batch is new."""
        pending = file.pending[-1]
        self.bytes += len(pending.packed.body)
        if pending.stage == "new":
            self._fresh.append(pending)
        self.changed(file)

    def changed(self, file: Tracked) -> None:
        """The file's state is to be saved, and its first batch sent if it is not."""
        self._shared.change(file)

    def flush(self) -> None:
        """Saves what changed, syncs if batches are new, and sends. Raises `StorageFailed`."""
        due, changed = self.sync_at <= self._shared.clock.monotonic(), self._shared.changed
        if not changed and not self._shared.unsaved and not due:
            return
        now_ms, now = self._shared.clock.now_ms(), self._shared.clock.monotonic()
        for file in list(changed.values()):
            self._skip_empty(file)
            file.seen_at = now if file.readable else file.seen_at
            state = file.state(now_ms, now)
            archives = file.source in self._shared.with_archives
            self._shared.checkpoints.put(replace(state, archives=archives) if archives else state)
        self.sync_at = min(self.sync_at, now + _SYNC_SECONDS)
        if self._fresh or self._shared.unsaved or self.sync_at <= now:
            self._shared.checkpoints.sync()
            self._shared.unsaved = False
            self.sync_at = inf
            for pending in self._fresh:
                pending.stage = "saved"
            self._fresh.clear()
        self._shared.changed = {}
        for file in changed.values():
            self._send(file)

    def judged(self, file: Tracked, verdict: Verdict) -> None:
        """Handles the verdict of the file's request that is on its way."""
        batch = verdict.batch
        if verdict.kind == "acknowledged":
            self.acknowledged(file, batch, duplicate=verdict.duplicate)
        elif verdict.kind == "deleted":
            self.deleted(file, verdict)
        elif verdict.kind in ("conflict", "refused"):
            self.stopped(file, batch, verdict.reason)
        elif verdict.kind == "renew":
            self.renew(file, batch)
        elif verdict.kind in ("present", "missing"):
            self.present(file, batch, there=verdict.kind == "present")
        elif verdict.kind == "closed":
            self.flying -= 1

    def acknowledged(self, file: Tracked, batch: str, *, duplicate: bool) -> None:
        """The service has the batch."""
        pending = self._arrived(file, batch)
        if pending is None:
            return
        tally = self._shared.tallies[file.source]
        tally.duplicate_batches += duplicate
        file.closed = False
        if self._shared.reports is not None:
            self._shared.reports.heard(file.fqn, file.run)
        self._advance(file, pending)

    def deleted(self, file: Tracked, verdict: Verdict) -> None:
        """The run was deleted: batches read before that are dropped, the rest gets another id."""
        pending = self._arrived(file, verdict.batch)
        if pending is None:
            return
        moment_ms, new = verdict.moment_ms, verdict.next_batch
        if moment_ms is not None and new and _read_ms(pending.prepared) >= moment_ms:
            file.given = new if new > file.given else id_after(file.given)
            pending.prepared = replace(pending.prepared, batch=file.given, given=True)
            pending.stage = "new"
            self._fresh.append(pending)
            self.changed(file)
        else:
            self._shared.tallies[file.source].dropped_records += pending.packed.records
            self._shared.say(
                f"{file.path}: the run {file.fqn}/{file.run} was deleted; "
                f"{pending.packed.records} records from before that are dropped"
            )
            self._advance(file, pending)

    def stopped(self, file: Tracked, batch: str, reason: str) -> None:
        """The service refuses the batch: nothing more of this file is sent until `try_again`."""
        if self._arrived(file, batch) is None:
            return
        self._shared.tallies[file.source].failed_files += 1
        self._shared.say(f"ALARM: {file.path} is not read any more: {reason}")
        again = deque([each.prepared for each in file.pending if each.prepared.batch])
        self.rewind(file)
        file.resend, file.stage = again, "failed"

    def try_again(self, file: Tracked) -> None:
        """Sends a refused batch again, under its id, and then what follows it."""
        self._shared.say(
            f"ALARM: {file.path} was not read any more, because the service refused a batch of it:"
            " it is tried again"
        )
        file.stage = "open"
        file.wake()
        self.changed(file)

    def renew(self, file: Tracked, batch: str) -> None:
        """The run does not have the batch, and its id is of no use: it gets another one."""
        pending = self._arrived(file, batch)
        if pending is None:
            return
        if pending.stage == "unlike" or not pending.packed.body:
            self.rewind(file)
            return
        for each in file.pending:
            each.prepared = replace(each.prepared, batch=self._shared.mint())
            each.stage = "new"
            self._fresh.append(each)
        self.changed(file)

    def present(self, file: Tracked, batch: str, *, there: bool) -> None:
        """The answer to a question whether the run has the batch."""
        if file.resend and file.resend[0].batch == batch:
            self._answered(file, there=there)
            return
        if not there:
            self.renew(file, batch)
            return
        self.acknowledged(file, batch, duplicate=True)

    def rewind(self, file: Tracked) -> None:
        """Everything after the acknowledged offset is read again, for batches with new ids."""
        for pending in file.pending:
            self._release(pending)
        file.pending.clear()
        file.resend.clear()
        file.examined.clear()
        file.read = file.cursor
        file.tail = None if file.cursor.offset else b""
        if file.handle is not None:
            self._shared.handles.close(file.handle)
        file.wake()
        self.changed(file)

    def close_run(self, file: Tracked, started_ms: int, written_ns: int) -> None:
        """Closes the file's run, which began then (0: not reported) and was written to last."""
        file.closed = True
        self.flying += 1
        ended_ms = max(written_ns // 1_000_000, started_ms)
        if started_ms:
            self._delivery.close_run(
                file.id, file.fqn, file.run, started_ms=started_ms, ended_ms=ended_ms
            )
        else:
            self._delivery.close_run(file.id, file.fqn, file.run)

    def ask_for(self, file: Tracked) -> None:
        """Asks for the next batch whose bytes are gone."""
        prepared = file.resend[0]
        self.flying += 1
        self._delivery.ask(file.id, prepared.fqn, prepared.run, prepared.batch)

    def _answered(self, file: Tracked, *, there: bool) -> None:
        self.flying -= 1
        prepared = file.resend.popleft()
        if there:
            # Its bytes are gone, but their hash is not: by that the file is known if it comes back.
            size = prepared.end.offset - prepared.start.offset
            file.window = prepared.end.offset, size, prepared.content
            file.cursor = file.read = prepared.end
            file.tail = None
        else:
            # A copy may have what comes after the acknowledged offset, at least some of it.
            file.resend.clear()
            file.examined.clear()
            file.rotated_at = self._shared.clock.monotonic()
            if file.cursor.offset:  # and it may have less than was seen of the file
                before, file.fingerprint = file.fingerprint, file.fingerprint[: file.cursor.offset]
                self._shared.registry.index(file, before)
        self._look_for_rest(file)
        self.changed(file)

    def _look_for_rest(self, file: Tracked) -> None:
        """For a file that is gone and has no batch on its way: copies may have the rest."""
        if file.lost_sight and file.settled:
            self._shared.rescan.add(file.source)

    def _send(self, file: Tracked) -> None:
        if not file.pending or file.stage == "failed":
            return
        pending = file.pending[0]
        if pending.stage == "saved":
            pending.stage = "sent"
            self.flying += 1
            self._delivery.submit(shipment(file.id, pending))
        elif pending.stage == "unlike":
            pending.stage = "asked"
            self.flying += 1
            prepared = pending.prepared
            self._delivery.ask(file.id, prepared.fqn, prepared.run, prepared.batch)

    def _arrived(self, file: Tracked, batch: str) -> PendingBatch | None:
        """The batch on its way that a verdict is about."""
        if not file.pending or file.pending[0].prepared.batch != batch:
            return None
        pending = file.pending[0]
        if pending.stage not in ("sent", "asked"):
            return None
        self.flying -= 1
        return pending

    def _advance(self, file: Tracked, pending: PendingBatch) -> None:
        file.pending.popleft()
        self._release(pending)
        tally = self._shared.tallies[file.source]
        end, start = pending.prepared.end, file.cursor
        tally.acknowledged_bytes += end.offset - start.offset
        tally.acknowledged_records += pending.packed.records
        file.cursor, file.window = end, pending.window
        self._look_for_rest(file)
        self.changed(file)

    def _release(self, pending: PendingBatch) -> None:
        self.bytes -= len(pending.packed.body)

    def _skip_empty(self, file: Tracked) -> None:
        """A range without records needs no sending."""
        while file.pending and not file.pending[0].prepared.batch:
            self._advance(file, file.pending[0])


def shipment(file: str, pending: PendingBatch) -> Shipment:
    """A batch as the delivery takes it."""
    prepared, packed = pending.prepared, pending.packed
    return Shipment(
        file,
        prepared.fqn,
        prepared.run,
        prepared.batch,
        packed.body,
        packed.kind,
        packed.attributes,
        prepared.given,
    )


def _read_ms(prepared: Prepared) -> int:
    """When a batch was read; of one that an earlier version read, the time in its id."""
    return prepared.read_ms or decode(prepared.batch) >> _TIME_SHIFT
