"""Deletions and retention: up to which ULID lines of a run or pipeline are deleted, and when.

`coordination/deleted/{fqn}/{run}~{t}` and `coordination/deleted/{fqn}/.pipeline`, a JSON object:
`fqn`, `run` (null for the whole pipeline), `t` (ULID text: ULIDs at or below it are deleted) and
`version` (a fresh ULID in every write).

A run that is deleted again gets another record, and the highest counts. A program that removes a
record that is not needed any more can therefore never remove a later one. The record of a pipeline
is never removed; its `t` only ever rises.

T also says when the deletion was made: below its milliseconds are 32 ones, then the moment as 48
bits of milliseconds since the epoch, by the store's clock (`horizon_above`). In T of earlier
versions, all these bits are ones, or T is the id of a line.

A store may hold one record for each run that expired in some weeks. The key of a run's record
contains the whole record (`deletion_at`), so these are listed and not read. Other records are read
again only if they changed.

A record that cannot be read harms its owner alone: `owner_of` says whose lines it may delete.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Annotated, Any, Final, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, field_validator

from tailrace.logstore import keys
from tailrace.logstore import ulid as ulids
from tailrace.logstore.batch import RunKey
from tailrace.logstore.errors import Damaged, InvalidInput, NotFound, UnsupportedVersion
from tailrace.logstore.keys import decode, encode
from tailrace.logstore.objects.store import ObjectInfo, ObjectStore
from tailrace.logstore.patterns import TextTest, wildcard_test
from tailrace.logstore.runs.manifest import decode_manifest
from tailrace.logstore.state import advice, decode_checked, encode_checked, without_flip

FORMAT: Final = 1
"""The newest format that this program reads; a record that says none has it."""
ALL_LINES: Final = ulids.highest_at(ulids.MAX_TIME_MS)
"""The T that no line is above."""
_ULID: Final = 26
_MOMENT_BITS: Final = 48
_MARK: Final = (1 << ulids.RANDOM_BITS - _MOMENT_BITS) - 1


def horizon_above(known: int, moment_ms: int) -> int:
    """T of a deletion made at `moment_ms`: the lowest one at or above `known`."""
    time = ulids.time_ms(known)
    below = _MARK << _MOMENT_BITS | min(max(moment_ms, 0), ulids.MAX_TIME_MS - 1)
    t = time << ulids.RANDOM_BITS | below
    return t if t >= known else t + (1 << ulids.RANDOM_BITS)


def moment_of(t: int) -> int | None:
    """Returns the time of a deletion by the store's clock; None if its T does not contain it."""
    below = t & (1 << ulids.RANDOM_BITS) - 1
    moment_ms = below & ulids.MAX_TIME_MS
    marked = below >> _MOMENT_BITS == _MARK and moment_ms < ulids.MAX_TIME_MS
    return moment_ms if marked else None


@dataclass(frozen=True, slots=True)
class Deletion:
    """Deletes all ULIDs up to `t` of the run or, without `run`, of the pipeline."""

    fqn: str
    run: str | None
    t: int
    version: str = ""

    @property
    def key(self) -> str:
        """The key of the deletion in the store."""
        if self.run is None:
            return keys.deleted_pipeline(self.fqn)
        return keys.deleted_run(RunKey(self.fqn, self.run), ulids.encode(self.t))


def deletion_at(key: str) -> Deletion | None:
    """The deletion that a key contains; this is so for most deletions of runs.

    Returns None where the record must be read: for a pipeline, for names so long that they are
    cut, and for records of earlier versions, which lack `~{t}`.
    """
    names, _, t = key.removeprefix(keys.DELETED).rpartition("~")
    folder, _, name = names.partition("/")
    fqn, run = decode(folder), decode(name)
    if not fqn or not run:
        return None
    try:
        found = Deletion(fqn, run, ulids.decode(t))
    except InvalidInput:
        return None
    return found if found.key == key else None


def encode_deletion(deletion: Deletion) -> bytes:
    """The bytes of a deletion."""
    return encode_checked(
        {
            "fqn": deletion.fqn,
            "run": deletion.run,
            "t": ulids.encode(deletion.t),
            "version": deletion.version,
        }
    )


def decode_deletion(body: bytes) -> Deletion:
    """The deletion that `body` holds. Raises `Damaged`, `UnsupportedVersion`."""
    try:
        value = decode_checked(body)
        if value.get("format", FORMAT) > FORMAT:
            raise UnsupportedVersion(f"a deletion of format {value['format']}")
        return Deletion(value["fqn"], value["run"], ulids.decode(value["t"]), value["version"])
    except (ValueError, TypeError, KeyError, AttributeError, InvalidInput) as error:
        raise Damaged(f"not a deletion: {error}") from error


def names_in(key: str) -> tuple[str | None, str | None]:
    """The pipeline and the run in a record's key; None where the key has a hash, or no run."""
    folder, _, name = key.removeprefix(keys.DELETED).partition("/")
    run, mark, t = name.rpartition("~")
    if not (mark and len(t) == _ULID):
        run = name  # of an earlier version
    return decode(folder), None if name == ".pipeline" else decode(run)


async def owner_of(store: ObjectStore, key: str) -> tuple[str, str | None] | None:
    """Returns the run or pipeline whose lines a record may delete at most, without reading it.

    None: the key has a hash, and no manifest has the name. Raises `StoreUnavailable`.
    """
    fqn, run = names_in(key)
    if fqn is not None:
        return fqn, run
    folder = key.removeprefix(keys.DELETED).partition("/")[0]
    async for info in store.list(f"{keys.RUNS}{folder}/"):
        try:
            named = decode_manifest((await store.get(info.key))[1]).key.fqn
        except (Damaged, NotFound):
            continue
        return (named, run) if encode(named) == folder else None
    return None


def undo_flip(_key: str, body: bytes, error: Damaged) -> Deletion | None:
    """The record before one of its bits changed; None if no single bit explains the damage."""
    if isinstance(error, UnsupportedVersion):
        return None
    before = without_flip(body, decode_deletion)
    return None if before is None else decode_deletion(before)


_AT_ONCE: Final = 16


@dataclass(frozen=True, slots=True)
class StoredDeletion:
    """A deletion, its key, and when it was stored by the store's clock, perhaps in seconds."""

    deletion: Deletion
    modified_ms: int
    key: str


def _raise(_key: str, _body: bytes, error: Damaged) -> Deletion:
    raise error


@dataclass(frozen=True, slots=True)
class StoredDeletions:
    """The deletions of one store, for a caller that reads them repeatedly.

    `damaged` gives what a damaged record counts as, from its key and bytes, or raises the error.
    With None the record is left out, and is one of the `unreadable` by key until it reads again.
    """

    damaged: Callable[[str, bytes, Damaged], Deletion | None] = _raise
    unreadable: dict[str, Damaged] = field(default_factory=dict)
    unreadable_ms: dict[str, int] = field(default_factory=dict)
    """When each of these was stored, by the store's clock."""
    _read: dict[str, tuple[str, Deletion]] = field(default_factory=dict)

    async def each(
        self, store: ObjectStore, prefix: str = keys.DELETED
    ) -> AsyncIterator[StoredDeletion]:
        """Yields the deletions whose keys have the prefix; those that had to be read come last.

        Raises `StoreUnavailable`, `Damaged`.
        """
        others: list[ObjectInfo] = []
        async for info in store.list(prefix):
            said = deletion_at(info.key)
            if said is None:
                others.append(info)
            else:
                yield StoredDeletion(said, info.modified_ms, info.key)
        await self._read_changed(store, others)
        listed = {info.key for info in others}
        known = {*self._read, *self.unreadable}
        for gone in [key for key in known if key.startswith(prefix) and key not in listed]:
            self._forget(gone)
        for info in others:
            if info.key in self.unreadable:
                self.unreadable_ms[info.key] = info.modified_ms
            elif info.key in self._read:
                yield StoredDeletion(self._read[info.key][1], info.modified_ms, info.key)

    async def all(self, store: ObjectStore) -> list[StoredDeletion]:
        """Every present deletion, in the order of keys. Raises as `each`."""
        found = [one async for one in self.each(store)]
        return sorted(found, key=lambda one: one.key)

    async def above(self, store: ObjectStore, low: int) -> list[Deletion]:
        """The deletions of ULIDs at or above `low`. Raises as `each`."""
        return [one.deletion for one in await self.all(store) if one.deletion.t >= low]

    async def _read_changed(self, store: ObjectStore, infos: Sequence[ObjectInfo]) -> None:
        known = {key: etag for key, (etag, _) in self._read.items()}
        changed = [info.key for info in infos if known.get(info.key) != info.etag]
        for start in range(0, len(changed), _AT_ONCE):
            some = changed[start : start + _AT_ONCE]
            await asyncio.gather(*(self.read(store, key) for key in some))

    async def read(self, store: ObjectStore, key: str) -> Deletion | None:
        """Reads one record; None if it is gone or unreadable. Raises as `each`."""
        try:
            found, body = await store.get(key)
        except NotFound:  # it is done everywhere, and somebody removed it
            self._forget(key)
            return None
        deletion = self._decoded(key, body)
        if deletion is not None:
            self._forget(key)
            self._read[key] = (found.etag, deletion)
        return deletion

    def _decoded(self, key: str, body: bytes) -> Deletion | None:
        try:
            return decode_deletion(body)
        except Damaged as error:
            newer = isinstance(error, UnsupportedVersion)
            named = type(error)(f"{key}: {error}", hint=None if newer else advice(key))
            deletion = self.damaged(key, body, named)
            if deletion is None:
                self._read.pop(key, None)
                self.unreadable[key] = named
            return deletion

    def _forget(self, key: str) -> None:
        self._read.pop(key, None)
        self.unreadable.pop(key, None)
        self.unreadable_ms.pop(key, None)


async def deletions_above(store: ObjectStore, low: int) -> Sequence[Deletion]:
    """Deletions of ULIDs at or above `low`. Raises `StoreUnavailable`, `Damaged`."""
    return await StoredDeletions().above(store, low)


# The retention of runs: one time, and other times for some pipelines.
#
# The service removes a run when its last line is older than that. It also records a deletion, which
# removes the run's lines from the table as well. The table's own retention works in whole hours and
# does not depend on pipelines, so by default it is the longest of these times.
#
# The age of a line follows from its ULID. A line that arrives late makes its run no younger than
# the line itself is, so runs and hours of the table count alike.
#
# All times are in days. A setting may use hours, as `36h`.


_TIME: Final = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([dh])\s*")
_DAY_MS: Final = 86_400_000


def _days(value: object) -> object:
    """`12h` and `30d` are times; all else is left to pydantic to refuse."""
    found = _TIME.fullmatch(value) if isinstance(value, str) else None
    return float(found[1]) / (24 if found[2] == "h" else 1) if found else value


Days = Annotated[float, BeforeValidator(_days), Field(ge=0)]
"""A time in days; in settings also in hours, as `12h`."""


def time_text(days: float) -> str:
    """The time as a setting says it: `30`, or `12h` where it is no whole number of days."""
    return f"{days:g}" if days == int(days) else f"{days * 24:g}h"


class RunRetention(BaseModel):
    """The part of the section `runs` that service and compactor share."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    expiration_days: Days = Field(
        default=30,
        description="Runs are removed when their last line is this many days old, or hours, as "
        "`12h`; 0: never",
    )
    expiration_days_of: dict[str, Days] = Field(
        default={},
        description="Exceptions for pipelines whose name matches a pattern (`*`, `?`, `[a-z]`),"
        ' such as `{"audit.*": 365, "scratch.*": 1}`; the first match counts',
    )

    @field_validator("expiration_days_of")
    @classmethod
    def _patterns(cls, value: dict[str, float]) -> dict[str, float]:
        for name in value:
            try:
                wildcard_test(name)
            except ValueError as error:
                raise ValueError(f"{name[:80]!r} {error}") from None
        return value

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """A copy with other values. It does not have the tests of the patterns of before."""
        copied = super().model_copy(update=update, deep=deep)
        copied.__dict__.pop("_tests", None)
        return copied

    def days_of(self, fqn: str) -> float:
        """Days for which the pipeline's runs are kept; 0 for ever."""
        matching = (days for test, days in self._tests if test(fqn))
        return next(matching, self.expiration_days)

    @cached_property
    def _tests(self) -> Sequence[tuple[TextTest, float]]:
        return [(wildcard_test(name), days) for name, days in self.expiration_days_of.items()]

    def expires(self, fqn: str, last_ms: int, now_ms: int) -> bool:
        """Whether a run of the pipeline is removed now; `last_ms` is the time of its last line."""
        days = self.days_of(fqn)
        return days > 0 and now_ms - last_ms > days * _DAY_MS

    @property
    def longest_days(self) -> float:
        """Days after which no run of any pipeline is kept; 0 if some are kept for ever."""
        return max(self._all()) if all(self._all()) else 0

    @property
    def shortest_days(self) -> float:
        """Days for which the runs of every pipeline are kept; 0 for ever."""
        return min((days for days in self._all() if days), default=0)

    def remembered_days(self, table_days: float | None, away_days: float) -> float:
        """The age up to which a line's deletion is remembered for certain; 0 for ever.

        `table_days` is the table's own retention, None for that of the runs; a node may be away for
        `away_days`, and bring lines that would be as old as that beyond the retention.
        """
        runs = self.longest_days
        table = runs if table_days is None else table_days
        return max(runs, table) + away_days if runs and table else 0

    def _all(self) -> list[float]:
        return [self.expiration_days, *self.expiration_days_of.values()]


FOR_EVER: Final = RunRetention(expiration_days=0)
