"""Appends a batch: assigns its id, recognises known batches, and waits until it is durable.

**Duplicates.** A batch that is sent twice is stored once. A batch without an id gets one that was
never given out. A batch with a client's id is looked up among the recent batches of its run. Only
if its id is not above all known ids of the run, the journal and the run's chunks are searched too.
A batch that was acknowledged once is acknowledged again, never refused.

**Back-pressure.** If batches arrive faster than the store takes them, the journal fills. Long
before it is full every append waits a little, the longer the fuller the journal is. Clients then
send as fast as the store accepts, and are refused only if it accepts nothing for long.

**Active runs.** `ActiveRuns` keeps the known batches of the runs that are being written. The state
of a run is small and can be rebuilt from the journal and the store. It is therefore kept for the
runs used last and dropped for others. An append may have to know whether the run's chunks hold its
batch (`StoreLookup`). A store that does not answer blocks no append: a caller waits
`_PATIENCE_SECONDS` for the answer and then continues without it. While one look-up is overdue, and
for `_PAUSE_SECONDS` after it became so, no other is started. So a hanging store costs an occasional
wait, not one for every batch. Invariants:

- A late answer still counts: a run is `complete` once the store has answered, even if no caller
  waits any more.
- A run that was dropped meanwhile is another object by then, so a late answer claims nothing about
  batches that arrived in between.

**Gen-1 retries.** OpenMetadata's clients of the first generation send a batch again without an id.
Such a client waits for the reply to a batch before it sends the next one. If the reply is lost, it
sends the same lines again: at once, then after 1, 2 and 4 s. Its cookie jar still holds the cookie
of the previous reply, so the retry echoes an older ULID than that of the batch. If the reply
arrived, the next batch echoes the ULID of that batch, whatever its lines are. The rule applies to a
connector that opened the run with the empty call of its generation, and to lines equal to those it
sent last:

| the cookie echoes | the batch is |
| --- | --- |
| a ULID below the last batch's | its retry |
| the last batch, or above | a new one |
| nothing | its retry for `RETRY_MS`, then a new one |
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Protocol

import numpy as np

from service.ingest.batch import (
    AppendReceipt,
    IncomingBatch,
    KnownBatch,
    Submitted,
    attributes_digest,
)
from service.journal.format import decode_attributes, decode_meta, flags_of
from service.journal.journal import Journal
from service.journal.state import Connector, LastBatch
from service.runtime.health import MOST_MS
from service.settings import IngestSettings
from tailrace.logstore import ulid as ulids
from tailrace.logstore.batch import (
    AHEAD,
    MADE_AFTER_DELETION,
    RecordMeta,
    RunKey,
    digest,
    has_record_meta,
    of_batch,
    ulid_of,
)
from tailrace.logstore.cache import BoundedCache
from tailrace.logstore.clock import Clock
from tailrace.logstore.errors import (
    BatchConflict,
    BatchFromTheFuture,
    BatchTooOld,
    ChunkLost,
    InvalidInput,
    JournalFull,
    RunDeleted,
    Unavailable,
)

_KNOWN_BATCHES = 512


class ActiveRun:
    """The known batches of one run.

    `last` is the highest known ULID of a line. If `complete`, it covers the journal and the store,
    so a higher id is certainly new.
    """

    __slots__ = ("batches", "complete", "last")

    def __init__(self, last: int = 0) -> None:
        self.last = last
        self.complete = False
        self.batches: BoundedCache[int, KnownBatch] = BoundedCache(_KNOWN_BATCHES)

    def known(self, ulid: int) -> KnownBatch | None:
        """Returns a client's batch that is stored or being stored; drops a refused one."""
        batch = self.batches.peek(ulid)
        if batch is not None and batch.refused:
            self.batches.pop(ulid)
            return None
        return batch

    def remember(self, ulid: int, batch: KnownBatch) -> None:
        """Keeps a client's batch to recognise its retries."""
        # Dropped ones are found in the journal and the chunks; `complete` stays true,
        # because `last` is not forgotten.
        self.batches.put(ulid, batch)


class ActiveRuns:
    """The runs used last, at most `limit` of them."""

    def __init__(self, limit: int) -> None:
        self._runs: BoundedCache[RunKey, ActiveRun] = BoundedCache(limit)

    def get(self, key: RunKey) -> ActiveRun:
        """Returns the run's state, a new one if it is not in memory."""
        run = self._runs.get(key)
        if run is None:
            run = ActiveRun()
            self._runs.put(key, run)
        return run

    def peek(self, key: RunKey) -> ActiveRun | None:
        """Returns the run's state if it is in memory."""
        return self._runs.peek(key)

    def last_ulid(self, key: RunKey) -> int:
        """The highest ULID of a line of the run that is known in memory, else 0."""
        run = self._runs.peek(key)
        return 0 if run is None else run.last

    def __len__(self) -> int:
        return len(self._runs)


_PATIENCE_SECONDS = 2.0
_PAUSE_SECONDS = 10.0
# After this time a look-up counts as lost, and the store is asked again.
_LOST_SECONDS = 60.0


class StoredBatches(Protocol):
    """The run's chunks, as the source of known batches."""

    async def find_batch(self, key: RunKey, ulid: int) -> tuple[int, int] | None:
        """The digest and record count of a batch in the chunks. Raises `Unavailable`."""
        ...

    async def last_ulid(self, key: RunKey) -> int:
        """The highest ULID in the chunks, 0 if there are none. Raises `Unavailable`."""
        ...


class StoreLookup:
    """Looks batches up in `stored`, inside the running loop."""

    def __init__(self, stored: StoredBatches) -> None:
        self._stored = stored
        self._loop = asyncio.get_running_loop()
        self._asking: set[asyncio.Task[KnownBatch | None]] = set()
        self._overdue: set[asyncio.Task[KnownBatch | None]] = set()
        self._paused_until = 0.0
        self.given_up = 0

    async def find(self, key: RunKey, run: ActiveRun, ulid: int) -> KnownBatch | None:
        """Finds the batch in the run's chunks; None if absent, or without an answer in time.

        `run.last` covers the journal already; afterwards `run` is complete if the store answered.
        """
        if self._overdue or self._loop.time() < self._paused_until:
            return None
        task = self._loop.create_task(self._ask(key, run, ulid), name="look-up")
        self._asking.add(task)
        task.add_done_callback(self._ended)
        await asyncio.wait([task], timeout=_PATIENCE_SECONDS)
        if task.done():
            return None if task.cancelled() else task.result()
        self.given_up += 1
        self._paused_until = self._loop.time() + _PAUSE_SECONDS
        self._overdue.add(task)
        return None

    def stop(self) -> None:
        """Stops look-ups: callers that wait for an answer continue without it."""
        for task in list(self._asking):
            task.cancel()

    def _ended(self, task: asyncio.Task[KnownBatch | None]) -> None:
        self._asking.discard(task)
        self._overdue.discard(task)
        if not task.cancelled():
            task.exception()  # of a late answer: the next caller gets the same error

    async def _ask(self, key: RunKey, run: ActiveRun, ulid: int) -> KnownBatch | None:
        try:
            async with asyncio.timeout(_LOST_SECONDS):
                if not run.complete:
                    run.last = max(run.last, await self._stored.last_ulid(key))
                    run.complete = True
                if ulid > run.last:
                    return None
                stored = await self._stored.find_batch(key, ulid)
        except (Unavailable, ChunkLost, TimeoutError):
            return None
        return None if stored is None else KnownBatch(*stored, end=0)


RETRY_MS = 30_000


def is_retry(last: LastBatch, batch: IncomingBatch, checksum: int, now_ms: int) -> bool:
    """Whether `batch`, which has no id, is a retry of `last`; `checksum` is of its text."""
    sent = last.known.digest, last.size, last.known.records
    if sent != (checksum, len(batch.text), batch.records):
        return False
    if batch.above:
        return batch.above < last.ulid
    # A time ahead of the clock does not count: a new batch taken for a retry would be lost.
    return 0 <= now_ms - last.at_ms <= RETRY_MS


_DAY_MS = 86_400_000
_SLOW_FROM = 0.6
_SLOWEST_SECONDS = 2.0


class DeletionHorizons(Protocol):
    """The deletions that the node knows."""

    def horizon(self, key: RunKey) -> int:
        """The ULID up to which the run is deleted, inclusive; 0 if it is not."""
        ...

    def age_ms(self, key: RunKey, now_ms: int) -> int:
        """The age of the run's last deletion in milliseconds."""
        ...


class Appender:
    """Accepts the batches of a node."""

    def __init__(
        self,
        journal: Journal,
        stored: StoredBatches,
        clock: Clock,
        minter: ulids.Minter,
        settings: IngestSettings,
        *,
        active: ActiveRuns,
        deletions: DeletionHorizons,
        confirmed_through: Callable[[int], Awaitable[None]],
    ) -> None:
        self._journal = journal
        self._lookup = StoreLookup(stored)
        self._now_ms = clock.now_ms
        self._sleep = clock.sleep
        self._minter = minter
        self._settings = settings
        self._deletions = deletions
        self._horizon = deletions.horizon
        self._confirmed_through = confirmed_through
        self.active = active
        self.batches = 0
        self.lines = 0
        self.duplicates = 0
        self.slowed = 0
        self.echoes_ignored = 0

    def submit(self, batch: IncomingBatch) -> Submitted | None:
        """Accepts a batch that needs no look-up and only waits for the disk; None for any other.

        Raises as `append`; so does the future.
        """
        if (
            batch.ulid is not None
            or batch.durability == "bulk"
            or self._journal.fullness > _SLOW_FROM
            or self._gen1(batch) is not None
        ):
            return None
        run = self.active.get(batch.key)
        ulid = self._mint(batch, run)
        _, done = self._write(batch, ulid, digest(batch.text))
        last = ulid + batch.records - 1
        if last > run.last:
            run.last = last
        self.batches += 1
        self.lines += batch.records
        return Submitted(last, done)

    async def append(self, batch: IncomingBatch) -> AppendReceipt:
        """Stores a batch once; returns when it has the requested durability.

        Raises `BatchTooOld`, `BatchFromTheFuture`, `BatchConflict`, `RunDeleted`,
        `InvalidInput`, `JournalFull`, `JournalFailed`, `NodeNotReady`.
        """
        if self._journal.fullness > _SLOW_FROM:
            await self._slow_down()
        chosen = batch.ulid
        checksum = digest(batch.text)
        gen1 = self._gen1(batch)
        if chosen is None:
            sent = None if gen1 is None else self._sent_before(batch, gen1.last, checksum)
            if sent is not None:
                return await self._again(batch, *sent)
            run = self.active.get(batch.key)
            ulid = self._mint(batch, run)
        else:
            known = await self._known(batch, chosen, checksum)
            if known is not None:
                return await self._again(batch, chosen, known)
            # Only now: the run may have been dropped while the store was asked.
            run = self.active.get(batch.key)
            ulid = chosen
        pos, done = self._write(batch, ulid, checksum)
        last = ulid + batch.records - 1
        if last > run.last:
            run.last = last
        if chosen is None and gen1 is None:
            await done
        else:
            shared = _attributes(batch)
            known = KnownBatch(checksum, batch.records, pos + batch.records, done, shared)
            if chosen is not None:
                run.remember(ulid, known)
            if gen1 is not None:
                gen1.last = LastBatch(ulid, len(batch.text), self._now_ms(), known)
            # Shielded: a client that disconnects must not cancel what its retry waits for.
            await asyncio.shield(done)
        if batch.durability == "bulk":
            await self._confirmed_through(pos + batch.records)
        self.batches += 1
        self.lines += batch.records
        return AppendReceipt(ulid, batch.records, False, batch.durability, last)

    def stop(self) -> None:
        """Ends all waits for look-ups."""
        self._lookup.stop()

    async def find_repeat(self, batch: IncomingBatch, since_ms: int) -> AppendReceipt | None:
        """Returns the receipt of an equal batch of the same sender that the journal has since then.

        Equal are the text, and what its records carry beside it. Raises `JournalFailed`.
        """
        found = self._equal_batch(batch, since_ms)
        if found is None:
            return None
        ulid, end = found
        return await self._again(batch, ulid, KnownBatch(digest(batch.text), batch.records, end))

    def _equal_batch(self, batch: IncomingBatch, since_ms: int) -> tuple[int, int] | None:
        with self._journal.pin() as pin:
            found = pin.batches(
                run=batch.key, times=(since_ms, self._now_ms() + self._most_ahead_ms)
            )
            rows = found.rows
            equal = (rows["digest"] == digest(batch.text)) & (rows["size"] == len(batch.text))
            equal &= (rows["records"] == batch.records) & (rows["meta"] == len(batch.meta))
            sent: RecordMeta | None = None
            for index in np.flatnonzero(equal).tolist():
                row = rows[index]
                if found.connectors[int(row["connector"])] != batch.connector:
                    continue
                if ulid_of(row) <= self._horizon(batch.key):
                    continue
                if sent is None and batch.meta:  # nearly no batch has one that looks like it
                    sent = decode_meta(batch.meta)
                if found.meta(index) == sent:
                    return ulid_of(row), int(row["pos"]) + int(row["records"])
        return None

    async def open_run(self, key: RunKey, connector: str) -> int:
        """Accepts the empty call with which a gen-1 client begins a run.

        Returns a ULID below those of all later batches. The client echoes it, so the retry of its
        first batch is recognised, too. Raises `JournalFailed`, `NodeNotReady`.
        """
        # With a full journal the connector is not remembered: its retries are stored twice.
        with suppress(JournalFull):
            await self._journal.record_open(key, connector)
        run = self.active.get(key)
        run.last = self._minter.mint(run.last, deleted=self._horizon(key))
        return run.last

    def _gen1(self, batch: IncomingBatch) -> Connector | None:
        """Returns the state of a gen-1 sender; None for any other."""
        if batch.connector is None:
            return None
        # Looked up in the journal's state: its own memory outlives that of the run.
        return self._journal.state.connectors.get(batch.key, batch.connector)

    def _sent_before(
        self, batch: IncomingBatch, last: LastBatch | None, checksum: int
    ) -> tuple[int, KnownBatch] | None:
        """Returns the connector's last batch if this one is its retry."""
        if (
            last is None
            or not is_retry(last, batch, checksum, self._now_ms())
            or last.known.refused
            or last.ulid <= self._horizon(batch.key)
        ):
            return None
        return last.ulid, last.known

    def _write(
        self, batch: IncomingBatch, ulid: int, checksum: int
    ) -> tuple[int, asyncio.Future[None]]:
        return self._journal.append(
            batch.key,
            ulid,
            batch.text,
            records=batch.records,
            lines=batch.lines,
            digest=checksum,
            connector=batch.connector,
            meta=batch.meta,
            fast=batch.durability == "fast",
            flags=self._flags(batch.key, ulid),
        )

    def _flags(self, key: RunKey, ulid: int) -> int:
        """The flags for the journal of an id that is ahead of the clock."""
        time_ms, now_ms = ulids.time_ms(ulid), self._now_ms()
        if time_ms <= now_ms or ulid <= self._minter.last:
            return 0
        after = time_ms == ulids.time_ms(self._horizon(key)) + 1
        # The bits of any other id in this millisecond have no meaning.
        made_now = after and abs(ulids.made_ms(ulid) - now_ms) <= 2 * MOST_MS
        return AHEAD | MADE_AFTER_DELETION if made_now else AHEAD

    async def _slow_down(self) -> None:
        excess = (self._journal.fullness - _SLOW_FROM) / (1 - _SLOW_FROM)
        self.slowed += 1
        await self._sleep(min(excess, 1.0) * _SLOWEST_SECONDS)

    @property
    def _most_ahead_ms(self) -> int:
        """The limit for how far an id of any node may lie ahead of this node's clock.

        It is the limit for ids of clients or the margin of deletions, plus the difference of
        clocks.
        """
        return self._settings.deleted_ahead_ms + 2 * MOST_MS

    def _mint(self, batch: IncomingBatch, run: ActiveRun) -> int:
        return self._minter.mint(self._floor(batch, run), deleted=self._horizon(batch.key))

    def _floor(self, batch: IncomingBatch, run: ActiveRun) -> int:
        """The ULID above which an id is minted: the run's last one, the client's echo."""
        floor = run.last
        if batch.above > floor:
            ahead_ms = ulids.time_ms(batch.above) - self._now_ms()
            if ahead_ms > self._most_ahead_ms:
                self.echoes_ignored += 1
            else:
                floor = batch.above
        return floor

    async def _known(self, batch: IncomingBatch, ulid: int, checksum: int) -> KnownBatch | None:
        """Returns the batch if it is known already. Raises the error that refuses it.

        It awaits nothing between its last look-up and its return, so None is still true then.
        """
        self._check_deleted(batch.key, ulid)
        run = self.active.get(batch.key)
        known = run.known(ulid)
        if known is None and (ulid <= run.last or not run.complete):
            known = await self._look_up(batch.key, ulid)
            self._check_deleted(batch.key, ulid)
        if known is not None:
            if (known.digest, known.records) != (checksum, batch.records):
                raise BatchConflict(f"batch {ulids.encode(ulid)} is known with other bytes")
            if not _alike(known.attributes, _attributes(batch)):
                raise BatchConflict(f"batch {ulids.encode(ulid)} is known with other attributes")
            return known
        self._check_time(batch.key, ulid)
        return None

    def _check_deleted(self, key: RunKey, ulid: int) -> None:
        horizon = self._horizon(key)
        if ulid > horizon:
            return
        now_ms = self._now_ms()
        age_ms = self._deletions.age_ms(key, now_ms)
        raise RunDeleted(
            f"the run was deleted {age_ms} ms ago, with all batches up to"
            f" {ulids.encode(horizon)}, and so with {ulids.encode(ulid)}",
            deleted_through=horizon,
            deleted_ms=now_ms - age_ms,
            age_ms=age_ms,
            next_batch=self._minter.mint(self.active.last_ulid(key), deleted=horizon),
        )

    def _check_time(self, key: RunKey, ulid: int) -> None:
        if ulid & ulids.LINE_MASK:
            raise InvalidInput(
                f"{ulids.encode(ulid)} is a line's id: the last five characters of a batch "
                "id are 00000",
                field="Tailrace-Batch",
            )
        now_ms = self._now_ms()
        age_ms = now_ms - ulids.time_ms(ulid)
        if age_ms > self._settings.max_age_days * _DAY_MS:
            raise BatchTooOld(
                f"batch {ulids.encode(ulid)} is older than {self._settings.max_age_days} days",
                field="Tailrace-Batch",
            )
        # A client that begins a deleted run again has no lower id.
        deleted_ahead_ms = ulids.time_ms(self._horizon(key)) - now_ms
        latest_ms = max(self._settings.max_future_seconds * 1000, deleted_ahead_ms + 1)
        if -age_ms > latest_ms:
            raise BatchFromTheFuture(
                f"batch {ulids.encode(ulid)} is {-age_ms // 1000} s ahead of this node's clock",
                field="Tailrace-Batch",
            )

    async def _look_up(self, key: RunKey, ulid: int) -> KnownBatch | None:
        """Searches the journal, then the run's chunks, then what arrived meanwhile.

        Without the store's answer a second copy may be stored; the run's log and the table leave
        it out later.
        """
        found = await self._look_up_journal(key, ulid)
        if found is not None:
            return found
        found = await self._lookup.find(key, self.active.get(key), ulid)
        return await self._look_up_journal(key, ulid) or found

    async def _look_up_journal(self, key: RunKey, ulid: int) -> KnownBatch | None:
        """Finds the batch in memory or in the journal, once its presence is certain.

        A copy that is being written may still be refused, and its client may have cancelled
        its wait; the sync that covers it decides. Raises `JournalFull`, `JournalFailed`.
        """
        while True:
            run = self.active.get(key)
            known = run.known(ulid)
            if known is not None:
                return known
            unsynced = self._journal.unsynced(key)
            if all(item.ulid != ulid for item in unsynced):
                break
            await self._journal.synced(self._journal.next_pos)
        if not run.complete:
            run.last = max([run.last, *[item.ulid + item.records - 1 for item in unsynced]])
        return self._look_up_synced(key, run, ulid)

    def _look_up_synced(self, key: RunKey, run: ActiveRun, ulid: int) -> KnownBatch | None:
        with self._journal.pin() as pin:
            batches = pin.batches(run=key)
            rows = batches.rows
            if len(rows) == 0:
                return None
            if not run.complete:
                order = np.lexsort((rows["ulid_lo"], rows["ulid_hi"]))
                top = rows[order[-1]]
                run.last = max(run.last, ulid_of(top) + int(top["records"]) - 1)
            hits = np.flatnonzero(of_batch(rows, ulid))
            if len(hits) == 0:
                return None
            row = rows[hits[0]]
            return KnownBatch(
                int(row["digest"]),
                int(row["records"]),
                int(row["pos"]) + int(row["records"]),
                attributes=None
                if has_record_meta(row)
                else attributes_digest(batches.constant_attributes(int(hits[0]))),
            )

    async def _again(self, batch: IncomingBatch, ulid: int, known: KnownBatch) -> AppendReceipt:
        """Acknowledges a stored batch, once it is as durable as this request asks for."""
        if known.done is not None:
            # Also for `fast`: before this the first copy may not be written yet.
            await asyncio.shield(known.done)
        if batch.durability != "fast":
            await self._journal.synced(known.end)  # the first copy may have been `fast`
        if batch.durability == "bulk":
            await self._confirmed_through(known.end)
        self.duplicates += 1
        return AppendReceipt(ulid, batch.records, True, batch.durability, ulid + batch.records - 1)


def _attributes(batch: IncomingBatch) -> int | None:
    """The digest of its constant attributes; None if records have their own."""
    if not batch.meta:
        return 0
    return attributes_digest(decode_attributes(batch.meta)) if flags_of(batch.meta) else None


def _alike(known: int | None, sent: int | None) -> bool:
    """Whether the attributes are equal. Attributes of records are not compared; their text is."""
    return known is None or sent is None or known == sent
