"""A power cut at any call of a pass: what counted as committed is there, each line once.

The bytes of Spark's files, of delta-rs's log and of its checkpoints are on the disk when we
have synced them, and not before (`tests/simulation/shadowed_disk.py`).
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from compactor.placement import SETTLED_MS, FolderPlacement, is_whole
from compactor.report import PassReport
from compactor.runner import once
from compactor.settings import Compaction
from tailrace.logstore import keys
from tailrace.logstore.clock import system_entropy
from tailrace.logstore.errors import Damaged, StoreUnavailable
from tailrace.logstore.objects.local import LocalStore, inline
from tests.compactor.lake import HOUR, NOON, Batch, Lake, batch
from tests.compactor.plain_engine import PlainEngine
from tests.seeds import seeds
from tests.simulation.shadowed_disk import ShadowedDisk

LIMITS = Compaction(settle_seconds=0, purge_seconds=0, file_bytes=10**6)
SEEDS = seeds(1)
READS = {"open", "pread", "scan", "stat", "lock"}


@dataclass
class OnShadow(Lake):
    """A lake whose disk is shadowed."""

    disk: ShadowedDisk = field(init=False)

    def __post_init__(self) -> None:
        self.disk = ShadowedDisk(Path(self.settings.store_folder))
        self.session = PlainEngine()
        self.limits = LIMITS
        self.store = LocalStore(
            self.settings.store_folder, self.disk, self.clock, system_entropy(), run=inline
        )

    def run_pass(self) -> None:
        made = self.compactor
        placement = FolderPlacement(self.disk, made.table.uri)
        object.__setattr__(made, "placement", placement)
        self.run(once(made, PassReport()))


def after_power_cut(data: Path, taken: Sequence[Batch], mark: int, last: int) -> None:
    """The next pass finds all that was committed, without its segments, and ingests the rest."""
    lake = Lake(data, limits=LIMITS, session=PlainEngine())
    lake.clock.shift_ms = 2 * SETTLED_MS
    gone = [keys.segment("a", seq) for seq in range(1, mark + 1)]
    lake.run(lake.store.delete(gone))
    report = lake.compact()
    assert [a for a in report.alarms if "not complete" not in a] == []
    assert lake.snapshot().mark("a") == last
    lake.holds(taken)


@pytest.mark.in_turn(4)
def test_at_every_call_of_a_few_passes(tmp_path: Path) -> None:
    """Ingest into two hours, an hour that is written anew, a purge that finds nothing."""
    lake = OnShadow(tmp_path / "data")
    committed = 0
    cuts: list[tuple[Path, int]] = []

    def reached(step: str) -> None:
        nonlocal committed
        if step == "committed":
            committed = lake.snapshot().mark("a")

    def look(number: int) -> None:
        if lake.disk.shadow.calls[-1].split()[0] in READS:
            return  # the disk is as it was
        for seed in SEEDS:
            copy = tmp_path / f"cut-{number}-{seed}"
            lake.disk.left(seed + number, copy / "store")
            cuts.append((copy, committed))

    lake.reached = reached
    for number in range(2):
        lake.put("a", [batch("f", "r", NOON + number, 3), batch("f", "r", NOON + HOUR + number, 3)])
        lake.disk.cut_points(look)
        lake.run_pass()
        lake.disk.cut_points(None)
        for copy, mark in cuts:
            after_power_cut(copy, lake.taken, mark, number + 1)
            shutil.rmtree(copy)
        assert len(cuts) > 10 * len(SEEDS)
        cuts.clear()
    assert committed == 2


def test_what_another_driver_committed_and_did_not_settle_is_settled_with_the_next(
    tmp_path: Path,
) -> None:
    lake = OnShadow(tmp_path / "data")
    table = lake.compactor.table
    lake.put("a", [batch("f", "r", NOON, 3)])

    class Killed(Exception):
        pass

    class Unsettled(FolderPlacement):
        async def settle(self, version: int) -> None:
            if version > 0:
                raise Killed

    made = lake.compactor
    object.__setattr__(made, "placement", Unsettled(lake.disk, table.uri))
    with pytest.raises(Killed):
        lake.run(once(made, PassReport()))
    lake.put("a", [batch("f", "r", NOON + 1, 3)])
    lake.run_pass()
    for seed in seeds(20):
        copy = tmp_path / f"cut-{seed}"
        lake.disk.left(seed, copy / "store")
        after_power_cut(copy, lake.taken, 2, 2)


@pytest.mark.in_turn(4, "half a checkpoint")
def test_a_checkpoint_of_which_half_is_there(tmp_path: Path) -> None:
    """Twenty commits make one; the next is on the disk, what the checkpoint says is not."""
    lake = OnShadow(tmp_path / "data")
    for number in range(22):
        lake.put("a", [batch("f", "r", NOON + number, 1)])
        lake.run_pass()
    log = Path(lake.compactor.table.uri) / "_delta_log"
    (checkpoint,) = log.glob("*.checkpoint.parquet")
    whole = checkpoint.read_bytes()
    for body in (
        b"",
        bytes(len(whole)),
        whole[: len(whole) // 2],
        whole[:4] + bytes(len(whole) - 4),
    ):
        copy = tmp_path / "copy"
        shutil.copytree(lake.data, copy)
        torn = copy / checkpoint.relative_to(lake.data)
        torn.write_bytes(body)
        after_power_cut(copy, lake.taken, 22, 22)
        assert torn.with_name(f"{torn.name}.torn").read_bytes() == body
        shutil.rmtree(copy)
    for seed in seeds(10):  # the real one: what was settled is settled
        lake.disk.left(seed, tmp_path / f"cut-{seed}" / "store")
        after_power_cut(tmp_path / f"cut-{seed}", lake.taken, 22, 22)
        assert not list((tmp_path / f"cut-{seed}").rglob("*.torn"))


def with_entries(lake: Lake, count: int) -> list[Path]:
    lake.session, lake.limits = PlainEngine(), LIMITS
    for number in range(count):
        lake.put("a", [batch("f", "r", NOON + number, 3), batch("f", "s", NOON + number, 3)])
        lake.compact()
    return sorted((Path(lake.compactor.table.uri) / "_delta_log").glob("*.json"))


@pytest.mark.parametrize("lines", [0, 1, 2])
def test_an_entry_that_ends_between_two_lines_is_known(lake: Lake, lines: int) -> None:
    """Read as it stands it might move the mark and bring no file."""
    newest = with_entries(lake, 2)[-1]
    body = b"".join(newest.read_bytes().splitlines(keepends=True)[:lines])
    newest.write_bytes(body)
    assert not is_whole(body)
    with pytest.raises(StoreUnavailable, match="checked again when it is older"):
        lake.compact()
    lake.clock.shift_ms = 2 * SETTLED_MS
    (alarm,) = lake.compact().alarms
    assert f"it is renamed to {newest.name}.torn" in alarm
    lake.holds(lake.taken)
    assert lake.compact().alarms == []


def test_damage_below_a_whole_entry_is_left_to_a_person(lake: Lake) -> None:
    entries = with_entries(lake, 3)
    entries[-2].write_bytes(b"")
    lake.clock.shift_ms = 2 * SETTLED_MS
    with pytest.raises(Damaged, match=r"entry 2 of the table's log is damaged"):
        lake.compact()
    assert entries[-2].read_bytes() == b""
    assert entries[-1].exists()
