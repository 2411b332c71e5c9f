"""Checks the files of the table's log, so that a log that does not read is named by its object.

Entries have their number of actions, and a checkpoint is a Parquet file. What they say of the
table's files is compared with these files (`files.py`, `table.py`).
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from typing import Final

import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from compactor.commit.log import is_whole
from logstore import keys
from logstore.errors import NotFound
from logstore.objects.store import ObjectStore
from logstore.table.log_folder import commit_name
from logstore.table.table import LOG
from tailrace.verification.fault import Findings

_FOLDER: Final = f"{keys.TABLE}/{LOG}/"
_ENTRY: Final = re.compile(r"([0-9]{20})\.json")
_CHECKPOINT: Final = re.compile(r"([0-9]{20})\.checkpoint(\.[0-9]{10}\.[0-9]{10})?\.parquet")
_POINTER: Final = "_last_checkpoint"
_AT_ONCE: Final = 16
_ENTRY_ADVICE: Final = "Put an intact version of the object back"
_CHECKPOINT_ADVICE: Final = (
    f"{_ENTRY_ADVICE}. If every entry since the checkpoint before is there, remove it instead, and"
    " `_last_checkpoint` with it: readers then take the entries. On a local store the compactor"
    " does so with a checkpoint that does not read"
)


async def check_table_log(store: ObjectStore, findings: Findings) -> bool:
    """Reports each file that does not read, or is gone between others; whether there is one.

    Raises `StoreUnavailable`.
    """
    turns = asyncio.Semaphore(_AT_ONCE)

    async def look(key: str) -> bool:
        async with turns:
            try:
                body = (await store.get(key))[1]
            except NotFound:
                return False  # cleaned away since it was listed
            found = await asyncio.to_thread(_fault, key.rpartition("/")[2], body)
        findings.count("files of the table's log")
        if found:
            findings.add("table-log-damaged", key, found)
        return bool(found)

    every = [info.key async for info in store.list(_FOLDER)]
    damaged = await asyncio.gather(*(look(key) for key in every))
    names = [key.rpartition("/")[2] for key in every]
    gone = {commit_name(number): "later entries are there" for number in _missing(names)}
    named = await _named_checkpoint(store)
    if named is not None and not any(name.startswith(named) for name in names):
        gone[f"{named}.parquet"] = f"`{_POINTER}` names it"
    for name, why in gone.items():
        advice = _ENTRY_ADVICE if _ENTRY.fullmatch(name) else _CHECKPOINT_ADVICE
        findings.add("table-log-damaged", f"{_FOLDER}{name}", f"it is gone, and {why}. {advice}")
    return any(damaged) or bool(gone)


async def blame_checkpoint(store: ObjectStore, findings: Findings, error: Exception) -> bool:
    """Reports the newest checkpoint of a log that does not read, though each of its files does.

    False if the log has none. Raises `StoreUnavailable`.
    """
    names = [info.key.removeprefix(_FOLDER) async for info in store.list(_FOLDER)]
    newest = max([name for name in names if _CHECKPOINT.fullmatch(name)], default=None)
    if newest is not None:
        detail = f"the table does not read with it: {error}. {_CHECKPOINT_ADVICE}"
        findings.add("table-log-damaged", f"{_FOLDER}{newest}", detail)
    return newest is not None


async def _named_checkpoint(store: ObjectStore) -> str | None:
    """How the name of the checkpoint begins that readers look for first."""
    try:
        body = (await store.get(f"{_FOLDER}{_POINTER}"))[1]
        return f"{int(orjson.loads(body)['version']):020}.checkpoint"
    except (NotFound, ValueError, TypeError, KeyError):
        return None  # they list the log instead


def _missing(names: Sequence[str]) -> list[int]:
    """Versions without an entry since the last checkpoint, or the first entry."""
    entries = {int(found[1]) for name in names if (found := _ENTRY.fullmatch(name))}
    checkpoints = [int(found[1]) for name in names if (found := _CHECKPOINT.fullmatch(name))]
    first = max(checkpoints, default=min(entries, default=0))
    return [number for number in range(first + 1, max(entries, default=0)) if number not in entries]


def _fault(name: str, body: bytes) -> str:
    if _ENTRY.fullmatch(name) and not is_whole(body):
        return f"it has not the actions that were committed. {_ENTRY_ADVICE}"
    if _CHECKPOINT.fullmatch(name):
        try:
            pq.read_table(pa.BufferReader(body)).validate(full=True)
        except (OSError, ValueError, pa.ArrowException) as error:
            return f"the checkpoint does not read: {error}. {_CHECKPOINT_ADVICE}"
    return ""
