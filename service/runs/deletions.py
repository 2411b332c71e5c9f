"""The deletions that this node knows, in memory; loaded from the store at the start.

Loading means listing, see `logstore.runs.deletions`. If one bit of a record has changed, the node
uses the record as it was; the damage is a problem of the node (`service/runtime/state_watch.py`).
Of any other damaged record, and of one of a newer version, nobody knows the T. The node then goes
on with the deletions that it knows, and `hiding` covers everything that the record may delete: no
search shows such lines, and each that would says that they are missing.

A deletion is of all ids of the next minutes as well if some node did not answer when it was made.
That node may acknowledge lines with such ids, and show them, until it hears of the deletion:
`TakenBack` counts them then.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

import numpy as np

from logstore import keys
from logstore import ulid as ulids
from logstore.batch import RunKey
from logstore.errors import Damaged, UnsupportedVersion
from logstore.objects.store import ObjectStore
from logstore.runs.deletions import (
    ALL_LINES,
    Deletion,
    StoredDeletions,
    decode_deletion,
    encode_deletion,
    moment_of,
    owner_of,
    undo_flip,
)
from logstore.swap import Document, swap
from service.runs.pin import Pin
from service.runs.selection import above
from service.runtime.clock_skew import MOST_MS, ClockSkew

log = logging.getLogger(__name__)

_UNSURE_MS = 3_000  # of the clock of a node of an earlier version, which did not allow for that


class Deletions:
    """Horizons: the highest ULID of a run, or of a pipeline's runs, that is deleted.

    `skew` is that of this node's clock to the store's.
    """

    def __init__(self, store: ObjectStore, skew: ClockSkew) -> None:
        self._store = store
        self._skew = skew
        self._moments: dict[tuple[str, str | None], tuple[int, int]] = {}
        self._runs: dict[RunKey, int] = {}
        self._pipelines: dict[str, int] = {}
        self._stored = StoredDeletions(damaged=undo_flip)
        self._owners: dict[str, tuple[str, str | None] | None] = {}
        self.on_heard: Callable[[str, str | None, int], None] = lambda *_: None
        """Called with a deletion of another node when this one hears of it."""
        self.on_raised: Callable[[str, str | None], None] = lambda *_: None
        """Called with a run, or a pipeline, of which more lines are deleted than before."""

    def horizon(self, key: RunKey) -> int:
        """ULIDs of the run at or below it do not exist; 0 if nothing was deleted."""
        return max(self._runs.get(key, 0), self._pipelines.get(key.fqn, 0))

    def highest(self, fqn: str, run: str | None) -> int:
        """The highest horizon of a run, or of a pipeline and its runs."""
        if run is not None:
            return self.horizon(RunKey(fqn, run))
        of_runs = [t for key, t in self._runs.items() if key.fqn == fqn]
        return max([self._pipelines.get(fqn, 0), *of_runs])

    def age_ms(self, key: RunKey, now_ms: int) -> int:
        """How long ago the run's last deletion was; not less than the truth."""
        of_pipeline = self._pipelines.get(key.fqn, 0)
        if of_pipeline == self.horizon(key):
            return self.age_of(key.fqn, None, of_pipeline, now_ms)
        return self.age_of(*key, self._runs[key], now_ms)

    def age_of(self, fqn: str, run: str | None, t: int, now_ms: int) -> int:
        """How long ago a deletion was; as `age_ms`."""
        known_t, moment_ms = self._moments.get((fqn, run), (0, 0))
        if known_t != t:
            moment_ms = self._moment_of(t)
        return max(now_ms - moment_ms, 0)

    def store_ms(self, now_ms: int) -> int:
        """The store's time at this node's time; rather too early than too late."""
        return now_ms - self._skew.bounds_ms[1]

    def _moment_of(self, t: int) -> int:
        """When a deletion was, by this node's clock; rather too early than too late."""
        moment_ms = moment_of(t)
        if moment_ms is None:  # of an earlier version
            return ulids.time_ms(t)
        least_ms, most_ms = self._skew.bounds_ms
        return moment_ms + least_ms - (_UNSURE_MS if least_ms < most_ms else 0)

    def note(
        self,
        fqn: str,
        run: str | None,
        t: int,
        *,
        own: bool = False,
        moment_ms: int | None = None,
    ) -> None:
        """Raises a horizon at once, in memory; `own`: the deletion is made here.

        `moment_ms` is when the deletion was, by this node's clock, for a caller that knows it. If
        it is another node's, the message may have waited while this one stood still.
        """
        if moment_ms is not None and t >= self._moments.get((fqn, run), (0, 0))[0]:
            earliest_ms = moment_ms if own else min(moment_ms, self._moment_of(t))
            self._moments[fqn, run] = (t, earliest_ms)
        if run is None:
            known = self._pipelines.get(fqn, 0)
            self._pipelines[fqn] = max(known, t)
        else:
            key = RunKey(fqn, run)
            known = self.horizon(key)
            self._runs[key] = max(self._runs.get(key, 0), t)
        if t > known:
            self.on_raised(fqn, run)
            if not own:
                self.on_heard(fqn, run, t)

    def all(self) -> list[tuple[str, str | None, int]]:
        """Every deletion that is known, as (fqn, run or None, T)."""
        runs: list[tuple[str, str | None, int]] = [(*key, t) for key, t in self._runs.items()]
        return runs + [(fqn, None, t) for fqn, t in self._pipelines.items()]

    def unreadable(self) -> dict[str, tuple[str, str | None, int]]:
        """What each record that cannot be read may delete, by its key: everything of its owner.

        Raises its `Damaged` if nobody knows the owner.
        """
        found = {}
        for key, error in self._stored.unreadable.items():
            owner = self._owners.get(key)
            if owner is None:
                raise error
            found[key] = (*owner, ALL_LINES)
        return found

    def hiding(self) -> list[tuple[str, str | None, int]]:
        """Every deletion, and what may be deleted. Raises as `unreadable`."""
        return [*self.all(), *self.unreadable().values()]

    async def load(self) -> None:
        """Reads what the store knows. Raises `StoreUnavailable`."""
        await self._note_below(keys.DELETED)

    async def refresh(self, key: RunKey) -> None:
        """Reads what the store knows of one run. Raises `StoreUnavailable`, `Damaged`."""
        of_run, of_pipeline = keys.deletions_of(key), keys.deleted_pipeline(key.fqn)
        await self._note_below(of_run)
        pipeline = await self._stored.read(self._store, of_pipeline)
        if pipeline is not None:
            self._note(pipeline)
        for name, error in self._stored.unreadable.items():
            if name == of_pipeline or name.startswith(of_run):
                raise error

    async def _note_below(self, prefix: str) -> None:
        async for one in self._stored.each(self._store, prefix):
            self._note(one.deletion)
        unread = self._stored.unreadable
        self._owners = {key: owner for key, owner in self._owners.items() if key in unread}
        for key in [key for key in unread if self._owners.get(key) is None]:
            self._owners[key] = await owner_of(self._store, key)

    def _note(self, deletion: Deletion) -> None:
        self.note(deletion.fqn, deletion.run, deletion.t)

    async def record(self, deletion: Deletion) -> None:
        """Makes sure that the store's entry is at least `deletion.t`.

        Raises `StoreUnavailable`, `OutcomeUnknown`, `Damaged`.
        """

        async def change(found: Deletion | None) -> Deletion | None:
            return None if found is not None and found.t >= deletion.t else deletion

        await swap(Document(self._store, deletion.key, _decode_or_none, _encode), change)


def _decode_or_none(body: bytes) -> Deletion | None:
    """None is a damaged record. The new one takes its place, as its T is above now."""
    try:
        return decode_deletion(body)
    except UnsupportedVersion:
        raise
    except Damaged as error:
        return undo_flip("", body, error)


def _encode(deletion: Deletion | None) -> bytes:
    assert deletion is not None
    return encode_deletion(deletion)


class TakenBack:
    """Lines that this node acknowledged after a deletion of which it had not heard."""

    def __init__(self, pin: Callable[[], Pin]) -> None:
        self._pin = pin
        self.lines = 0

    def heard(self, fqn: str, run: str | None, t: int) -> None:
        """Counts the lines in the journal that a deletion takes although they came after it.

        Their ids tell: those of the minutes by which its T is ahead of the deletion.
        """
        moment_ms = moment_of(t)
        if moment_ms is None or ulids.time_ms(t) - moment_ms <= 2 * MOST_MS:
            return  # all nodes answered: what is deleted was known to the deletion
        since = ulids.highest_at(moment_ms)
        with self._pin() as pin:
            batches = pin.batches() if run is None else pin.batches(run=RunKey(fqn, run))
            rows = batches.rows
            of_it = [n for n, key in enumerate(batches.runs) if key.fqn == fqn]
            later = above(rows, since) & ~above(rows, t) & np.isin(rows["run"], of_it)
            lines = int(rows["records"][later].sum())
        if lines:
            self.lines += lines
            log.warning(
                "a deletion at another node, of which this one hears late, takes back %d lines of"
                " %s that this one had acknowledged meanwhile",
                lines,
                f"the pipeline {fqn!r}" if run is None else f"the run {run!r} of {fqn!r}",
            )
