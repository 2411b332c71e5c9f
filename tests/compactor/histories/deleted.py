"""What the service does about deletions, and what may become of their records.

A deletion is first in the run's manifest and then in its record. The service lets runs expire,
each pipeline's by its own days, removes manifests as old, and writes records again that its
manifests know of and the store does not. The compactor forgets records; none may be missing that
is still of use.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from random import Random
from typing import Any, Final

from tailrace.logstore import keys, ulid
from tailrace.logstore.batch import RunKey
from tailrace.logstore.objects.store import ObjectStore
from tailrace.logstore.runs.deletions import (
    Deletion,
    RunRetention,
    decode_deletion,
    encode_deletion,
)
from tailrace.logstore.runs.manifest import Manifest, encode_manifest
from tests.compactor.histories.dated import MovedClock
from tests.compactor.histories.model import Model

DAY_MS: Final = 24 * 3_600_000
Run = Callable[[Coroutine[Any, Any, Any]], Any]


@dataclass
class Deleting:
    """The service's part in one store. `manifests`: generation of each run, and when stored."""

    store: ObjectStore
    clock: MovedClock
    dice: Random
    model: Model
    runs: RunRetention
    run: Run
    forgotten_days: float
    """A deleted line as old as that is nowhere and comes back nowhere; 0: none ever is."""
    manifests: dict[RunKey, tuple[int, int]] = field(default_factory=dict)
    _read: dict[str, tuple[str, Deletion]] = field(default_factory=dict)

    def delete(self, fqn: str, run: str | None, t: int, between: Callable[[], None]) -> None:
        """A run or pipeline is deleted up to `t`; a bound never falls."""
        name = fqn, run
        bound = max(t, self.model.ever.get(name, 0))
        self.model.ever[name] = bound
        if run is not None:
            key = RunKey(fqn, run)
            body = encode_manifest(Manifest(key, state="deleted", generation=bound))
            self.run(self.store.put(keys.run_manifest(key), body))
            self.manifests[key] = bound, self.clock.ms
        between()
        self._record(fqn, run, bound)

    def sweep(self, sent: dict[RunKey, int]) -> None:
        """Runs expire by their last ULIDs, manifests go; lost records are written again."""
        for key, newest in sent.items():
            days = self.runs.days_of(key.fqn)
            old = ulid.time_ms(newest) < self.clock.ms - days * DAY_MS
            if days and old and self.model.ever.get((key.fqn, key.run), 0) < newest:
                self.delete(key.fqn, key.run, newest, lambda: None)
        for key, (t, stored_ms) in list(self.manifests.items()):
            if t > self._recorded(key.fqn, key.run):
                self._record(key.fqn, key.run, t)
            days = self.runs.days_of(key.fqn)
            if days and self.clock.ms - stored_ms > days * DAY_MS:
                self.run(self.store.delete([keys.run_manifest(key)]))
                del self.manifests[key]

    def check(self, purged_ms: int) -> None:
        """Raises `AssertionError` if a record is missing that is of use."""
        before, self.model.deletions = self.model.deletions, self._there()
        for key, (deletion, stored_ms) in before.items():
            if key not in self.model.deletions:
                assert self._of_no_use(deletion, stored_ms, purged_ms), deletion
                run = RunKey(deletion.fqn, deletion.run or "")
                # What the manifest says alone would be all that is left of it.
                assert self.manifests.get(run, (0, 0))[0] != deletion.t, deletion
        for key, (deletion, stored_ms) in self.model.deletions.items():
            one, first_ms = before.get(key, (deletion, stored_ms))
            assert one.t <= deletion.t <= self.model.ever[deletion.fqn, deletion.run]
            if one.t == deletion.t:  # written again: it was as good before
                self.model.deletions[key] = deletion, min(first_ms, stored_ms)

    def _of_no_use(self, deletion: Deletion, stored_ms: int, purged_ms: int) -> bool:
        if deletion.run is None or not self.forgotten_days or stored_ms > purged_ms:
            return False
        return ulid.time_ms(deletion.t) < self.clock.ms - self.forgotten_days * DAY_MS

    def _record(self, fqn: str, run: str | None, t: int) -> None:
        deletion = Deletion(fqn, run, t, ulid.fresh_text(self.clock, self.dice))
        self.run(self.store.put(deletion.key, encode_deletion(deletion)))
        self.model.again[deletion.key] = self.clock.ms
        one, first_ms = self.model.deletions.get(deletion.key, (deletion, self.clock.ms))
        self.model.deletions[deletion.key] = deletion, first_ms if one.t == t else self.clock.ms

    def _recorded(self, fqn: str, run: str | None) -> int:
        """The highest of what is recorded; 0 if nothing is."""
        every = (one for one, _ in self.model.deletions.values())
        return max((one.t for one in every if (one.fqn, one.run) == (fqn, run)), default=0)

    def _there(self) -> dict[str, tuple[Deletion, int]]:
        async def read() -> dict[str, tuple[Deletion, int]]:
            found = {}
            async for info in self.store.list(keys.DELETED):
                if self._read.get(info.key, ("",))[0] != info.etag:
                    body = (await self.store.get(info.key))[1]
                    self._read[info.key] = info.etag, decode_deletion(body)
                found[info.key] = self._read[info.key][1], info.modified_ms
            return found

        there: dict[str, tuple[Deletion, int]] = self.run(read())
        return there
