"""Who reads the table: any version that was the newest within a day, and all that it names."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import pyarrow.parquet as pq

from tailrace.logstore.table.snapshot import TableFile, TableSnapshot
from tests.compactor.histories.dated import HOUR_MS, MovedClock
from tests.compactor.histories.lossy import Versions
from tests.compactor.histories.model import Model, Said, end_of_hour
from tests.compactor.lake import Record

PINNED_MS: Final = 24 * HOUR_MS


@dataclass
class Readers:
    """Looks whether versions are as the model says. Files never change, so each is read once."""

    versions: Versions
    model: Model
    clock: MovedClock
    _checked: int = -1
    _pins: list[tuple[int, TableSnapshot, list[Record]]] = field(default_factory=list)
    _contents: dict[str, list[Record]] = field(default_factory=dict)

    def pin(self) -> None:
        """A query begins, and reads what it pinned for as long as it may."""
        snapshot = self.versions.newest()
        self._pins.append((self.clock.ms, snapshot, self.read(snapshot)))

    def check(self) -> None:
        """Raises `AssertionError` for what anybody might read that is not as the model says."""
        newest = self.versions.newest()
        self.versions.note(self.clock.ms)
        for version in range(max(self._checked + 1, self._oldest()), newest.version):
            self._check_version(self.versions.at(version))
        self._check_version(newest)
        self._checked = newest.version
        self._pins = [pin for pin in self._pins if self.clock.ms - pin[0] < PINNED_MS]
        for _, pinned, found in self._pins:
            assert self.read(pinned) == found

    def needed(self) -> set[str]:
        """Files of versions that some reader may have."""
        versions = range(self._oldest(), self.versions.number() + 1)
        return {file.path for version in versions for file in self.versions.at(version).files}

    def said(self, snapshot: TableSnapshot) -> Said:
        """What the version says of itself."""
        marks = {node: snapshot.mark(node) for node in self.model.segments}
        return Said(marks, snapshot.purged_ms, snapshot.expired_ms)

    def read(self, snapshot: TableSnapshot) -> list[Record]:
        """All of the version, after looking that each of its files is as it must be."""
        found: list[Record] = []
        for file in snapshot.files:
            assert Path(file.uri).exists(), f"version {snapshot.version} lacks {file.path}"
            if file.path not in self._contents:
                self._contents[file.path] = _content(file)
            found += self._contents[file.path]
        return found

    def _oldest(self) -> int:
        return max(bisect_right(self.versions.made, self.clock.ms - PINNED_MS) - 1, 0)

    def _check_version(self, snapshot: TableSnapshot) -> None:
        self.model.check(self.read(snapshot), self.said(snapshot))


def _content(file: TableFile) -> list[Record]:
    rows = pq.ParquetFile(file.uri).read(["fqn", "run_id", "ulid", "message"]).to_pylist()
    found = [(row["fqn"], row["run_id"], row["ulid"], row["message"]) for row in rows]
    assert [record[:3] for record in found] == sorted(record[:3] for record in found)
    assert file.rows == len(found) > 0
    ids = [record[2] for record in found]
    assert file.ulids == (min(ids), max(ids))
    assert {end_of_hour(record) for record in found} == {file.end_ms}
    return found
