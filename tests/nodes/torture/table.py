"""The table of the bucket after a compaction by Spark, read as any engine reads it."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder

from tailrace.logstore.batch import RunKey
from tailrace.logstore.objects.s3.credentials import Credentials
from tailrace.logstore.table.table import open_table, storage_options
from tests.e2e.torture_store import TorturedStore
from tests.servers.jars import jars_folder, why_no_jars
from tests.servers.quick_java import QUICK

_COLUMNS: Final = "fqn, run_id, ulid, message"


@dataclass
class Table:
    """The rows of a table, and what went wrong when it was made, in sentences."""

    rows: dict[RunKey, list[str]] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)

    def lines(self, key: RunKey) -> list[str]:
        """The lines of a run, by ULID."""
        return self.rows.get(key, [])


async def compacted(folder: Path, store: TorturedStore) -> Table:
    """What the table has after a pass of the real compactor, which works in `folder`."""
    done = await asyncio.to_thread(_compact, folder, store)
    if done.returncode != 0:
        return Table(faults=[f"the compactor ended with {done.returncode}: {done.stderr[-2000:]}"])
    return await asyncio.to_thread(_read, store)


def _compact(folder: Path, store: TorturedStore) -> subprocess.CompletedProcess[str]:
    reason = why_no_jars()
    assert reason is None, reason
    jars = {"TAILRACE_COMPACTION__JARS": str(jars_folder())}
    return subprocess.run(
        [sys.executable, "-m", "tailrace", "compact", "--data", str(folder)],
        env={**os.environ, **QUICK, **jars, **store.settings},
        capture_output=True,
        text=True,
        check=False,
    )


def _read(store: TorturedStore) -> Table:
    assert store.bucket is not None
    settings = store.bucket.settings
    options = storage_options(settings.s3, Credentials(settings.s3))
    delta = DeltaTable(open_table(settings).uri, storage_options=options)
    found: Any = (
        QueryBuilder().register("t", delta).execute(f"SELECT {_COLUMNS} FROM t ORDER BY ulid")
    )
    rows: dict[RunKey, list[str]] = {}
    for row in pa.table(found.read_all()).to_pylist():
        rows.setdefault(RunKey(row["fqn"], row["run_id"]), []).append(row["message"])
    return Table(rows)
