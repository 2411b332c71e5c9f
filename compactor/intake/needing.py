"""Which segments have to be compared with files of the table that are gone."""

from __future__ import annotations

from collections.abc import Sequence

from compactor.intake.reach import Reach
from compactor.intake.room import Room
from compactor.intake.span import Coverage
from compactor.intake.verify import Verified, verify
from logstore.objects.store import ObjectStore
from logstore.table.snapshot import TableFile


async def needing(
    store: ObjectStore, whole: Sequence[Verified], gone: Sequence[TableFile]
) -> list[tuple[Verified, TableFile]]:
    """The first segment of each node that may hold copies of lines of such a file, and the file.

    `whole` has each node's segments in sequence. They are read once more, one by one: what a
    batch has of which run is known of all of it only. If none may, of a batch of so many runs
    that they were not told apart, it is those of the file's time. Raises `StoreUnavailable`.
    """
    near: dict[str, tuple[Verified, TableFile]] = {}
    found: dict[str, tuple[Verified, TableFile]] = {}
    for verified in whole:
        node = verified.segment.node
        if node in found or not verified.spans:
            continue
        covered = Coverage(verified.spans)
        met = [file for file in gone if covered.meets(file.ulids)]
        if met:
            near.setdefault(node, (verified, met[0]))
            again = await verify(store, [verified.segment], Room(1))
            reach = Reach(verified.spans, again.shares)
            for file in filter(reach.meets, met):
                found.setdefault(node, (verified, file))
    return list((found or near).values())
