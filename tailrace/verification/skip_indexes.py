"""Skip indexes of table files: each is what its file makes of it.

One that is damaged costs speed alone, since searches read its file whole. One that is whole and
wrong would hide lines from them, so each is made anew and compared.
"""

from __future__ import annotations

from collections.abc import Iterable

from compactor.maintenance.skip_index import build
from logstore import keys
from logstore.errors import Damaged, NotFound, UnsupportedVersion
from logstore.objects.store import ObjectStore
from logstore.table.skip_index import parse
from logstore.table.snapshot import TableFile
from tailrace.verification.fault import Findings

_ADVICE = "remove it, the compactor makes another"


async def check_skip_indexes(
    store: ObjectStore, findings: Findings, files: Iterable[TableFile]
) -> None:
    """Compares the indexes that there are of files that read. Raises `StoreUnavailable`."""
    for file in files:
        key = keys.skip_index(file.path)
        try:
            body = (await store.get(key))[1]
            made = await build(store, file)
        except (NotFound, Damaged):
            continue  # an index is optional; what is wrong with a file is said where it is read
        findings.count("skip indexes")
        try:
            parse(body, size=file.size)
        except UnsupportedVersion:
            findings.note(f"{key} is of a newer version, and was not compared")
        except Damaged as error:
            findings.add("skip-index-damaged", key, f"{error}: {_ADVICE}", lines=file.rows)
        else:
            if body != made:
                findings.add(
                    "skip-index-wrong", key, f"not of its file: {_ADVICE}", lines=file.rows
                )
