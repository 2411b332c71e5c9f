"""One pass of the compactor over a backlog, with a Spark that is warm or about to be."""

from __future__ import annotations

import asyncio
import shutil
import time
from typing import Any

from benchmarks.backlog import Backlog, store_at
from compactor.context import Compactor
from compactor.ingest import ingest_all
from compactor.placement import FolderPlacement
from compactor.report import PassReport
from compactor.settings import Compaction
from compactor.spark.session import Session
from tailrace.logstore import keys
from tailrace.logstore.clock import SystemClock, system_entropy
from tailrace.logstore.filesystem import Disk
from tailrace.logstore.table.table import Table

_EXECUTION = "OnHeapExecutionMemory"
_HEAP = "JVMHeapMemory"


def fresh_table(backlog: Backlog) -> None:
    """Forgets what an earlier pass wrote."""
    shutil.rmtree(backlog.folder / "store" / keys.TABLE, ignore_errors=True)


def ingest(backlog: Backlog, session: Session) -> tuple[float, PassReport]:
    """Seconds that it took to take the whole backlog into a new table, and what was done."""
    fresh_table(backlog)
    store = store_at(backlog.folder)
    table = Table(store.uri(keys.TABLE))
    compactor = Compactor(
        store,
        table,
        FolderPlacement(Disk(), table.uri),
        SystemClock(),
        system_entropy(),
        Compaction(),
        session,
        lambda _step: None,
    )
    report = PassReport()
    start = time.monotonic()
    asyncio.run(ingest_all(compactor, report))
    return time.monotonic() - start, report


def executor_memory(session: Session) -> str:
    """The most that an executor held since its start, as Spark itself says."""
    context: Any = session.get().sparkContext
    found = context._jsc.sc().statusStore().executorList(True)
    peaks = [found.apply(i).peakMemoryMetrics() for i in range(found.size())]
    values = [peak.get() for peak in peaks if peak.isDefined()]
    heap, execution = (
        max((metrics.getMetricValue(name) for metrics in values), default=0)
        for name in (_HEAP, _EXECUTION)
    )
    return f"heap {heap / 1e6:.0f} MB, of it sorts and shuffles {execution / 1e6:.0f} MB"
