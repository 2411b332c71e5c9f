"""Reads what a commit of the table's log changes, without delta-rs.

It reads the actions of our own commits and of other writers of plain tables: `add`, `remove`
and `txn`. A commit that changes the table's shape, or is not whole, is not read here:
the table then has to be opened again, where delta-rs and `shape.py` check it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import date
from typing import Any, Final

import orjson

from logstore.table.file_index import hour_number
from logstore.table.schema import ACTIONS
from logstore.table.snapshot import TableFile

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
    )


def _hour(values: Mapping[str, Any] | None) -> int | None:
    """The hour of a removed file; the protocol lets the writer omit it."""
    if not values:
        return None
    return hour_number(date.fromisoformat(values["date"]), int(values["hour"]))
