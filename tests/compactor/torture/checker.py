"""What must be true of a store: at any time, when nothing is left to do, and after a vacuum."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from deltalake import DeltaTable

from compactor.cleanup import remove_orphans
from tailrace.logstore import keys
from tailrace.logstore.table.snapshot import EMPTY, TableFile, TableSnapshot
from tests.compactor.histories.model import Model, Said
from tests.compactor.lake import HOUR, Lake, Record
from tests.compactor.torture.simulation import KEPT_DAYS

_LOG = re.compile(
    rf"{keys.TABLE}/_delta_log/([0-9]{{20}}(\.checkpoint)?\.(json|parquet)|_last_checkpoint)?"
)
"""What belongs to the log: versions, checkpoints, and on S3 the marker of its folder."""


@dataclass
class Checker:
    """Looks at every version that somebody could read: each once, by what was known by then.

    Versions and files never change, so of older ones nothing is read twice. The newest is read
    anew each time.
    """

    lake: Lake
    model: Model
    _judged: int = EMPTY
    _named: dict[str, int] = field(default_factory=dict)
    _contents: dict[str, list[Record]] = field(default_factory=dict)

    def wrong(self) -> str | None:
        """What of the table no history explains; None if all is well."""
        newest = self.lake.snapshot()
        fresh = [*(self._at(v, newest) for v in range(self._judged + 1, newest.version)), newest]
        if lacking := self._lacking(fresh):
            return lacking
        for file in newest.files:
            self._contents.pop(file.path, None)
        self._judged = newest.version
        return "; ".join(filter(None, map(self._fault, fresh))) or None

    def _at(self, version: int, newest: TableSnapshot) -> TableSnapshot:
        options = dict(self.lake.compactor.table.options()) or None
        delta = DeltaTable(newest.uri, version=version, storage_options=options)
        return TableSnapshot(newest.uri, version, delta)

    def _lacking(self, fresh: Sequence[TableSnapshot]) -> str | None:
        """Files of any version, which queries may read for a day, that are gone."""
        for snapshot in fresh:
            for file in snapshot.files:
                self._named.setdefault(f"{keys.TABLE}/{file.path}", snapshot.version)
        gone = self._named.keys() - set(self.lake.keys(f"{keys.TABLE}/date="))
        if not gone:
            return None
        version = min(self._named[key] for key in gone)
        return f"version {version} lacks {sorted(k for k in gone if self._named[k] == version)[:3]}"

    def _fault(self, snapshot: TableSnapshot) -> str | None:
        said = _said(snapshot, self.model)
        if said.expired_ms > self.lake.clock.now_ms() - KEPT_DAYS * 24 * HOUR:
            return (
                f"version {snapshot.version}: hours that ended by {said.expired_ms} are gone,"
                f" and are younger than {KEPT_DAYS} d"
            )
        try:
            found = [record for file in snapshot.files for record in self._content(file)]
            self.model.check(found, said)
        except AssertionError as error:
            what = str(error) or "a file of the table is not as it must be"
            return f"version {snapshot.version}: {what}"
        return None

    def _content(self, file: TableFile) -> list[Record]:
        if file.path not in self._contents:
            self._contents[file.path] = self.lake.content(file)
        return self._contents[file.path]


def is_as_demanded(lake: Lake, model: Model) -> str | None:
    """What is left to do: segments to ingest or to remove, lines to take out; None if nothing."""
    snapshot = lake.snapshot()
    said = _said(snapshot, model)
    if dict(said.marks) != model.readable():
        return f"ingested up to {said.marks}, there are {model.readable()}"
    found = [record for file in snapshot.files for record in lake.content(file)]
    demanded = model.settled(said)
    if len(found) != len(demanded) or set(found) != demanded:
        lost, more = demanded - set(found), set(found) - demanded
        return f"{len(lost)} lines are lost, as {list(lost)[:3]}; {len(more)} too many: \
{list(more)[:3]}"
    left = lake.keys(keys.SEGMENTS)
    return f"{len(left)} segments are left, as {left[0]}" if left else None


def vacuumed(lake: Lake) -> str | None:
    """Removes what no version needs, as if a day had passed: then all that is there is needed."""
    lake.run(remove_orphans(lake.compactor, hours=0))
    lake.run(lake.store.sweep(lake.clock.now_ms() + 24 * HOUR))
    needed = {f"{keys.TABLE}/{file.path}" for file in lake.snapshot().files}
    there = {key for key in _everything(lake) if not _LOG.fullmatch(key)}
    if there != needed:
        return f"left over: {sorted(there - needed)[:5]}, missing: {sorted(needed - there)[:5]}"
    uploads = _uploads(lake)
    return f"{len(uploads)} uploads are left" if uploads else None


def _said(snapshot: TableSnapshot, model: Model) -> Said:
    marks = {node: snapshot.mark(node) for node in model.segments}
    return Said(marks, snapshot.purged_ms, snapshot.expired_ms)


def _everything(lake: Lake) -> set[str]:
    """Every key of the table as the server knows it: markers of folders, too."""
    if lake.bucket is None:
        return set(lake.keys(f"{keys.TABLE}/"))
    client, prefix = lake.bucket.client(), f"{lake.bucket.prefix}/"
    pages = client.get_paginator("list_objects_v2").paginate(
        Bucket=lake.bucket.name, Prefix=f"{prefix}{keys.TABLE}/"
    )
    found = {entry["Key"].removeprefix(prefix) for page in pages for entry in page["Contents"]}
    client.close()
    return found


def _uploads(lake: Lake) -> list[str]:
    if lake.bucket is None:
        return []
    client = lake.bucket.client()
    found = client.list_multipart_uploads(Bucket=lake.bucket.name).get("Uploads", [])
    client.close()
    return [upload["Key"] for upload in found]
