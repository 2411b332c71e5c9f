"""How far the appenders are, from what is stored: no process needs to be asked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from coordination.pipelines.admin import PipelinesAdmin, damaged_part
from logstore.errors import Damaged, NotFound
from pipelines.world import World


async def rows(world: World, names: Sequence[str]) -> list[dict[str, Any]]:
    """A row for each part of each appender of these pipelines. Raises `StoreUnavailable`.

    A pipeline that never ran has none. One that cannot be read has a row that says why.
    """
    admin = admin_of(world)
    found: list[dict[str, Any]] = []
    for name in names:
        try:
            found += [one.spelled() for one in (await admin.show(name)).parts]
        except NotFound:
            continue
        except Damaged as error:
            found.append(damaged_part(name, str(error)).spelled())
    return found


def admin_of(world: World) -> PipelinesAdmin:
    """The administration of the world's pipelines."""
    prefix = world.settings.source_coordination.prefix
    return PipelinesAdmin(world.store, world.partitions, world.clock, world.fresh_id, prefix=prefix)
