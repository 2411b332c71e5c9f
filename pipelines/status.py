"""How far the appenders are, from what is stored: no process needs to be asked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from coordination.lease import identity_of
from coordination.partitions.partition import Partition
from coordination.pipelines.checkpoint import Checkpoint, decode
from coordination.pipelines.control import Control, read_control
from pipelines.process import NAME
from pipelines.source import SegmentSource
from pipelines.world import World

_COUNTS = ("events", "late", "forced", "copies", "dead", "again", "lost")


async def rows(world: World, names: Sequence[str]) -> list[dict[str, Any]]:
    """A row for each part of each appender of these pipelines. Raises `StoreUnavailable`."""
    source = SegmentSource(world.store, world.clock)
    await source.refresh()
    prefix = world.settings.source_coordination.prefix
    base = NAME if prefix is None else f"{prefix}|{NAME}"
    found: list[dict[str, Any]] = []
    for name in names:
        control = await read_control(world.store, name)
        after: str | None = None
        while True:
            page = await world.partitions.page(f"{base}|{name}", after=after)
            found += [_row(control, one, source) for one in page.partitions]
            if page.after is None:
                break
            after = page.after
    return found


def _row(control: Control, partition: Partition, source: SegmentSource) -> dict[str, Any]:
    appender, _, part = partition.key.partition("/")
    checkpoint = decode(partition.progress)
    counts = {name: checkpoint.counts.get(name, 0) for name in _COUNTS}
    return {
        "pipeline": control.pipeline,
        "appender": appender,
        "part": part,
        "state": _state(control, appender),
        "owner": None if partition.owner is None else identity_of(partition.owner),
        "segments_behind": _behind(checkpoint, source),
        "replay": checkpoint.replayed if checkpoint.replay is not None else None,
        **counts,
    }


def _state(control: Control, appender: str) -> str:
    if appender in control.disabled:
        return f"disabled: {control.disabled[appender].reason}"
    return "paused" if control.paused else "running"


def _behind(checkpoint: Checkpoint, source: SegmentSource) -> int:
    """Segments that it has not read, of all nodes."""
    behind = 0
    for name, node in source.nodes.items():
        reading = checkpoint.nodes.get(name)
        behind += sum(seq >= (1 if reading is None else reading.next) for seq in node.sizes)
    return behind
