"""Nodes in the register and nodes that were let go: `tailrace leases nodes`, `forget-node`.

Both work on the store itself: a node that does not return is let go also when no service is left.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from coordination.named.leases import NamedLeases
from coordination.named.record import text_lease
from logstore import ulid as ulids
from service.peers.forgotten import Forgotten, all_forgotten, entries, forget
from service.peers.register import Entry
from tailrace.lease_admin.desks import Opened, open_leases

Row: TypeAlias = Mapping[str, Any]


async def nodes(*, data: str | None, config: str | None) -> list[Row]:
    """The register, then the nodes that were let go. Raises as `open_leases`.

    A node that was let go is `unreadable` if its record is damaged or of a newer version.
    """
    async with open_leases(data=data, config=config) as opened:
        leases = _leases(opened)
        there = (await entries(opened.store)).values()
        rows = [
            {
                "node": entry.node,
                "state": await _state(leases, entry),
                "url": entry.url,
                "seen_ms": entry.renewed_ms,
            }
            for entry in sorted(there, key=lambda e: (e.node, e.instance))
        ]
        forgotten, unreadable = await all_forgotten(opened.store)
        rows += [{"node": node, "state": "unreadable"} for node in unreadable]
        return rows + [spelled(one) for one in forgotten]


async def _state(leases: NamedLeases, entry: Entry) -> str:
    """A reader holds no lease; its entry goes by itself after its death."""
    if not entry.holds:
        return "reader"
    return "live" if await _holder(leases, entry.node) == entry.node else "silent"


async def forget_node(node: str, *, data: str | None, config: str | None) -> Row:
    """Lets a node go, and says what may be lost. Raises as `service.peers.forgotten.forget`."""
    async with open_leases(data=data, config=config) as opened:
        leases = _leases(opened)

        async def held_by(name: str) -> str | None:
            return await _holder(leases, name)

        def fresh_id() -> str:
            return ulids.fresh_text(opened.clock, opened.entropy)

        made = await forget(
            opened.store,
            node,
            held_by=held_by,
            prefix=opened.prefix,
            now_ms=opened.clock.now_ms(),
            fresh_id=fresh_id,
        )
        return spelled(made)


def spelled(one: Forgotten) -> dict[str, Any]:
    """A node that was let go, for programs."""
    return {
        "node": one.node,
        "state": "forgotten" if one.returned_ms is None else "returned",
        "seen_ms": one.seen_ms,
        "forgotten_ms": one.forgotten_ms,
        "returned_ms": one.returned_ms,
        "stored_seq": one.stored_seq,
        "stored_pos": one.stored_pos,
        "runs": [{"fqn": key.fqn, "run": key.run} for key in one.runs],
    }


def told(rows: Sequence[Row]) -> str:
    """Nodes for people: a line each, and below one that was let go what may be lost."""
    lines = []
    for row in rows:
        lines.append(f"{row['state']:<10}  {row['node']}  {row.get('url', '')}".rstrip())
        if row["state"] == "unreadable":
            lines.append("    was let go; its record cannot be read: see `tailrace verify`")
        if row["state"] == "forgotten":
            lines.append(
                f"    may be lost: lines from position {row['stored_pos']} on, taken after segment"
                f" {row['stored_seq']} (fast and durable ones; bulk ones are stored)"
            )
            lines += [f"    of the run {run['fqn']}/{run['run']}" for run in row["runs"]]
    return "\n".join(lines) or "no node is in the register, and none was let go"


def _leases(opened: Opened) -> NamedLeases:
    return NamedLeases(opened.store, opened.clock, opened.entropy, opened.time, node="operator")


async def _holder(leases: NamedLeases, node: str) -> str | None:
    return await leases.held_by(text_lease(node))
