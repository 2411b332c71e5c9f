"""kill -9 of compactors with a real Spark: `make torture OF=compactor`.

First a pass is killed at each of its steps, then passes at random moments: the driver, its
JVM, all of it, or an executor of a local cluster; then two that were submitted together, one of
which is killed. After each every version of the table must have each record at most once and none
that no segment brought; in the end each once, deleted ones gone, and after a vacuum nothing is
there that no version names.

Before that come passes that meet others at the steps where it matters (`meetings.py`). `--prove`
breaks a copy of the code in one way after another: the meeting that is about it must see it.

With `--store minio` on a real S3 server, with `--store faults` through a proxy that misbehaves.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tests.compactor.lake import HOUR, Lake, lake_in
from tests.compactor.plain_engine import PlainEngine
from tests.compactor.torture.checker import vacuumed
from tests.compactor.torture.meetings import MEETINGS, Meetings
from tests.compactor.torture.mutations import MUTATIONS
from tests.compactor.torture.processes import Place, Victim, Way
from tests.compactor.torture.simulation import KEPT_DAYS
from tests.compactor.torture.torture import STEPS, Torture
from tests.e2e.torture_store import KINDS, TorturedStore, tortured_store
from tests.proving import prove
from tests.servers.jars import jars_folder, why_no_jars
from tests.servers.quick_java import QUICK

SETTINGS = {
    "TAILRACE_RUNS__EXPIRATION_DAYS": f"{KEPT_DAYS}",
    "TAILRACE_QUEUE__EVICT_AFTER_HOURS": "0.000001",
    "TAILRACE_SOURCE_COORDINATION__WORKER_SECONDS": "10",
    "TAILRACE_COMPACTION__AWAY_DAYS": "0",
    "TAILRACE_COMPACTION__BATCH_BYTES": "20000",
    "TAILRACE_COMPACTION__DRIVER_MEMORY": "1g",
    "TAILRACE_COMPACTION__FILE_BYTES": "10000",
    "TAILRACE_COMPACTION__GRACE_SECONDS": "0",
    "TAILRACE_COMPACTION__LEASE_SECONDS": "15",
    "TAILRACE_COMPACTION__PURGE_SECONDS": "0",
    "TAILRACE_COMPACTION__SETTLE_SECONDS": "0",
}
"""So that every chapter of the scenario has work for every step, and leases soon run out."""


PARTS = ["meetings", "steps", "moments", "pairs"]
PROVING = ["-m", "tests.compactor.torture", "--parts", "meetings", "--lines", "30"]


@contextmanager
def lake_on(store: TorturedStore, folder: Path) -> Iterator[Lake]:
    """What the tests see of the store, without the faults."""
    data = folder / "data"
    data.mkdir(parents=True)
    if store.bucket is None:
        yield Lake(data)
    else:
        with lake_in(store.bucket, data) as lake:
            yield lake


def place_of(store: TorturedStore, folder: Path) -> Place:
    """Where its compactors work. Raises `RuntimeError` where Spark cannot have its jars."""
    if store.bucket is None:
        return Place(folder / "data", folder / "passes", SETTINGS)
    if reason := why_no_jars():
        raise RuntimeError(f"no jars for Spark on S3 here: {reason}")
    known = {"TAILRACE_COMPACTION__JARS": str(jars_folder())}
    jars = ",".join(str(path) for path in sorted(jars_folder().iterdir()))
    return Place(folder / "data", folder / "passes", SETTINGS | store.settings | known, jars)


def torment(torture: Torture, parts: list[str], kills: int, meetings: list[str]) -> None:
    """All of it, or the parts that are named."""
    dice = torture.dice
    torture.simulation.write()
    if "meetings" in parts:
        Meetings(torture).have(meetings)
        if parts == ["meetings"]:
            torture.settle(lambda: torture.lake.compact())
            return
    if "steps" in parts:
        for step in STEPS:
            torture.kill_at(step, dice.choice((Way.JOB, Way.SUBMIT, Way.TAILRACE)))
        torture.simulation.write(wide=True)
    torture.undisturbed()
    if "moments" in parts:
        for _ in range(kills):
            victim = dice.choice(list(Victim))
            some = [Way.CLUSTER] if victim is Victim.EXECUTOR else list(Way)
            torture.kill_after(victim, dice.choice(some))
    if "pairs" in parts:
        for _ in range(max(kills // 2, 1)):
            torture.two_at_once((Way.SUBMIT, Way.SUBMIT))
    torture.settle()


def main() -> int:
    """0 if nothing was lost, doubled, left over or unexplained."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--kills", type=int, default=20, help="at random moments")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
    parser.add_argument("--store", choices=KINDS, default="local")
    parser.add_argument("--lines", type=int, default=300, help="of a batch")
    parser.add_argument("--parts", nargs="+", default=PARTS, choices=PARTS)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--plain", action="store_true", help="no Spark in the meetings")
    parser.add_argument("--meetings", nargs="+", default=MEETINGS, choices=MEETINGS)
    parser.add_argument(
        "--prove",
        nargs="?",
        const="",
        metavar="WORDS",
        help="put faults into the code, those with WORDS in their names, and see each",
    )
    arguments = parser.parse_args()
    if arguments.prove is not None:
        mutations = [mutation for mutation in MUTATIONS if arguments.prove in mutation.name]
        unseen = prove(mutations, PROVING, timeout_seconds=1800)
        print(f"{len(mutations)} faults, {len(unseen)} not seen")
        return 1 if unseen else 0
    print(f"seed {arguments.seed}", flush=True)  # also of a run that does not come to its end
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    os.environ.update(QUICK)
    began = time.monotonic()
    with ExitStack() as stack:
        folder = arguments.folder or Path(
            stack.enter_context(tempfile.TemporaryDirectory(prefix="tailrace-torture-"))
        )
        store = stack.enter_context(tortured_store(arguments.store, arguments.seed))
        lake = stack.enter_context(lake_on(store, folder))
        place = place_of(store, folder)
        dice, unreliable = random.Random(arguments.seed), store.schedule is not None
        torture = Torture(lake, place, dice, arguments.lines, unreliable)
        stack.callback(torture.end)
        if arguments.plain:
            lake.session = PlainEngine()
        stack.callback(lake.session.stop)
        try:
            torment(torture, arguments.parts, arguments.kills, arguments.meetings)
            store.swept = lake.run(lake.store.sweep(lake.clock.now_ms() + 24 * HOUR))
            torture.faults += filter(None, [vacuumed(lake)])
        finally:
            counts = ", ".join(f"{count} {what}" for what, count in torture.told.items())
            print(
                f"{arguments.store}, seed {arguments.seed}: {counts}; {len(lake.table())} lines in"
                f" version {lake.snapshot().version}, {time.monotonic() - began:.0f} s,"
                f" {len(torture.faults)} faults"
            )
            print(store.told(), *torture.faults[:20], sep="\n", flush=True)
    return 1 if torture.faults else 0


if __name__ == "__main__":
    sys.exit(main())
