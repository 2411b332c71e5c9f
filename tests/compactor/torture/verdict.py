"""What must be true of a store: at any time, when nothing is left to do, and after a vacuum."""

from __future__ import annotations

import re

from deltalake import DeltaTable

from compactor.upkeep.cleanup import remove_orphans
from logstore import keys
from tests.compactor.histories.model import Model, Said
from tests.compactor.lake import HOUR, Lake
from tests.compactor.torture.story import KEPT_DAYS

_LOG = re.compile(
    rf"{keys.TABLE}/_delta_log/([0-9]{{20}}(\.checkpoint)?\.(json|parquet)|_last_checkpoint)?"
)
"""What belongs to the log: versions, checkpoints, and on S3 the marker of its folder."""


def agrees(lake: Lake, model: Model) -> str | None:
    """What of the table no history explains; None if all is well."""
    said = _said(lake, model)
    if said.expired_ms > lake.clock.now_ms() - KEPT_DAYS * 24 * HOUR:
        return f"hours that ended by {said.expired_ms} are gone, and are younger than {KEPT_DAYS} d"
    try:
        model.check(lake.table(), said)
    except AssertionError as error:
        return str(error) or "a file of the table is not as it must be"
    return _missing(lake)


def is_as_demanded(lake: Lake, model: Model) -> str | None:
    """What is left to do: segments to take in or to remove, lines to take out; None if nothing."""
    said, found = _said(lake, model), lake.table()
    if dict(said.marks) != model.readable():
        return f"taken in up to {said.marks}, there are {model.readable()}"
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


def _said(lake: Lake, model: Model) -> Said:
    snapshot = lake.snapshot()
    marks = {node: snapshot.mark(node) for node in model.segments}
    return Said(marks, snapshot.purged_ms, snapshot.expired_ms)


def _missing(lake: Lake) -> str | None:
    """Files of any version, which queries may read for a day, that are gone."""
    newest = lake.snapshot()
    if newest.delta is None:
        return None
    options = dict(lake.compactor.table.options()) or None
    there = set(lake.keys(f"{keys.TABLE}/date="))
    for version in range(newest.version + 1):
        table = DeltaTable(newest.uri, version=version, storage_options=options)
        named = {f"{keys.TABLE}/{path}" for path in table.get_add_actions()["path"].to_pylist()}
        if gone := named - there:
            return f"version {version} lacks {sorted(gone)[:3]}"
    return None


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
