"""The newest version of the table, followed by its log, so that an unchanged table costs little.

    look      is the known version still the newest?  (three stats, or one listing)
    apply     the commits after it, one after the other
    open      by delta-rs, where that is impossible: at first, after a gap in the log, after
              a change of shape, after the known commit was replaced or removed

A version that is returned is at least as new as the moment of the request, since the look
begins after that moment. `FollowedTable` remembers the attributes of a commit's file from *before*
its bytes were read, so a file that replaces it is always noticed. A table whose log only delta-rs
can read is opened each time.

`Changes` reads the actions of our own commits and of other writers of plain tables: `add`, `remove`
and `txn`. A commit that changes the table's shape, or is not whole, is not applied: the table is
then opened again, where delta-rs and `schema.py` check it.

All calls block on the store, and may come from several threads.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import date
from threading import Lock
from typing import Any, Final, Protocol

import orjson

from tailrace.logstore.errors import StoreUnavailable
from tailrace.logstore.segments.file_format import CARRIED
from tailrace.logstore.table.log import ListedLog, Look
from tailrace.logstore.table.schema import ACTIONS, application
from tailrace.logstore.table.snapshot import (
    EMPTY,
    FileIndex,
    TableFile,
    TableSnapshot,
    bounds_of_time,
    hour_number,
)
from tailrace.logstore.table.table import Table

_SHAPE: Final = ("protocol", "metaData")


class NotReplayable(Exception):
    """The commit cannot be read here; the table has to be opened again."""


@dataclass
class Changes:
    """The combined changes of consecutive commits."""

    uri: str
    added: dict[str, TableFile] = field(default_factory=dict)
    removed: dict[str, int | None] = field(default_factory=dict)
    """Paths with their hours since the epoch; None is unknown."""
    transactions: dict[str, int] = field(default_factory=dict)

    def take(self, actions: Iterable[Mapping[str, Any]]) -> None:
        """Adds the next commit. Raises `NotReplayable`."""
        known = list(actions)
        _check_whole(known)
        try:
            for action in known:
                self._take(action)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise NotReplayable(f"an action is not as expected: {error!r}") from error

    def _take(self, action: Mapping[str, Any]) -> None:
        if any(kind in action for kind in _SHAPE):
            raise NotReplayable("the table's shape changes")
        if said := action.get("txn"):
            self.transactions[said["appId"]] = said["version"]
        if gone := action.get("remove"):
            path = gone["path"]
            self.added.pop(path, None)
            self.removed[path] = _hour(gone.get("partitionValues"))
        if come := action.get("add"):
            file = _file(self.uri, come)
            self.removed.pop(file.path, None)
            self.added[file.path] = file


def _check_whole(actions: list[Mapping[str, Any]]) -> None:
    """Checks that an entry was not cut off: those of ours have their number of actions."""
    if not actions:
        raise NotReplayable("a commit is empty")
    infos = [action["commitInfo"] for action in actions if action.get("commitInfo")]
    expected = [info[ACTIONS] for info in infos if ACTIONS in info]
    if expected and expected != [str(len(actions) - len(infos))]:
        raise NotReplayable("a commit was cut off")


def _file(uri: str, add: Mapping[str, Any]) -> TableFile:
    if add.get("deletionVector"):
        raise NotReplayable("a file has rows that are deleted beside it")
    path = add["path"]
    stats = orjson.loads(add.get("stats") or "{}")
    lows, highs = stats.get("minValues") or {}, stats.get("maxValues") or {}

    def bounds(name: str) -> tuple[str, str] | None:
        low, high = lows.get(name), highs.get(name)
        return None if low is None or high is None else (str(low), str(high))

    values = add["partitionValues"]
    return TableFile(
        path=path,
        uri=f"{uri}/{path}",
        size=int(add["size"]),
        rows=int(stats.get("numRecords") or 0),
        date=date.fromisoformat(values["date"]),
        hour=int(values["hour"]),
        ulids=bounds("ulid"),
        fqns=bounds("fqn"),
        runs=bounds("run_id"),
        counted=(stats.get("nullCount") or {}).get(CARRIED) is not None,
        times=bounds_of_time(lows.get("ts"), highs.get("ts")),
    )


def _hour(values: Mapping[str, Any] | None) -> int | None:
    """The hour of a removed file; the protocol lets the writer omit it."""
    if not values:
        return None
    return hour_number(date.fromisoformat(values["date"]), int(values["hour"]))


_MOST_COMMITS: Final = 100  # that are applied one by one; a checkpoint is quicker for more
_TRIES: Final = 3


class _Marks(Protocol):
    def mark(self, node: str) -> int:
        """The last sequence of the node's segments that is in."""
        ...


@dataclass(frozen=True, slots=True)
class Transactions:
    """The application transactions of the log, as marks of nodes."""

    said: Mapping[str, int]

    def mark(self, node: str) -> int:
        """The sequence of the node's last segment that is in the table."""
        return self.said.get(application(node), 0)


@dataclass(frozen=True, slots=True)
class TableVersion:
    """A version of the table for reading: its files, and the marks that belong to them."""

    number: int
    files: FileIndex
    source: _Marks

    def marks(self, nodes: Iterable[str]) -> Mapping[str, int]:
        """For each node the last sequence that is in this version, 0 if none is."""
        return {node: self.source.mark(node) for node in nodes}


@dataclass(frozen=True, slots=True)
class _FollowedVersion:
    """A version that can be followed; `look` was taken before its commit was read."""

    look: Look
    version: TableVersion
    said: Mapping[str, int]


class FollowedTable:
    """Gives the newest version of `table`."""

    def __init__(self, table: Table) -> None:
        self.table = table
        self._known: _FollowedVersion | None = None
        self._changing = Lock()

    @property
    def uri(self) -> str:
        """The address of the table."""
        return self.table.uri

    def known_mark(self, node: str) -> int:
        """The node's mark in the version that was read last, without a look; 0 if there is none."""
        known = self._known
        return 0 if known is None else known.version.source.mark(node)

    def newest(self) -> TableVersion:
        """The newest version, an empty one if there is no table.

        Raises `StoreUnavailable`, and `UnsupportedVersion` for a table of another shape.
        """
        seen = self._known
        look = None if seen is None else self._look(seen)
        if seen is not None and look == seen.look:
            return seen.version
        with self._changing:
            known = self._known
            self._known = None  # what fails below is not remembered
            if known is not None:
                if look is None or known is not seen:  # another thread was quicker
                    look = self._look(known)
                followed = known if look == known.look else self._followed(known, look)
                if followed is not None:
                    self._known = followed
                    return followed.version
            return self._opened()

    def _look(self, known: _FollowedVersion) -> Look:
        return self.table.log.folder.look(known.version.number)

    def _followed(self, known: _FollowedVersion, look: Look) -> _FollowedVersion | None:
        """The newest version, by applying the commits after the known one.

        None if that is impossible.
        """
        if look.current != known.look.current:
            return None
        log, start = self.table.log, known.version.number
        newest = _newest(log.listed(start))
        if newest == start:  # another file came or went
            return replace(known, look=look._replace(newer=False))
        if not start < newest <= start + _MOST_COMMITS:
            return None
        look, changes = log.folder.look(newest), Changes(self.uri)
        try:
            for actions in log.actions(start, newest):
                changes.take(actions)
        except (NotReplayable, StoreUnavailable):
            return None  # the opening judges it
        if look.current is None or self._look(known).current != known.look.current:
            return None  # what was read may be of a table that was recreated
        said = {**known.said, **changes.transactions}
        files = known.version.files.changed(changes.added.values(), changes.removed)
        return _known(look, newest, files, said)

    def _opened(self) -> TableVersion:
        """The newest version by delta-rs; it is remembered if it can be followed."""
        log = self.table.log
        for _ in range(_TRIES):
            listed = log.listed(0)
            newest = _newest(listed)
            look = log.folder.look(newest)
            snapshot = TableSnapshot(self.uri) if newest == EMPTY else self.table.snapshot()
            if snapshot.version == newest:
                break
        version = TableVersion(snapshot.version, FileIndex.of(snapshot.files), snapshot)
        # A folder that several machines share may show a commit before its bytes.
        whole = all(file.size for file in listed.commits.values())
        if snapshot.version != newest or look.current is None or not whole:
            return version
        said = log.transactions(newest)
        if said is None:
            return version
        self._known = _known(look, newest, version.files, said)
        return self._known.version


def _known(look: Look, number: int, files: FileIndex, said: Mapping[str, int]) -> _FollowedVersion:
    # A commit that came before the look is not in this version: the next look finds it.
    version = TableVersion(number, files, Transactions(said))
    return _FollowedVersion(look._replace(newer=False), version, said)


def _newest(listed: ListedLog) -> int:
    return max((*listed.commits, *listed.checkpoints), default=EMPTY)
