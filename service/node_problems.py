"""What is wrong with a node, as sentences for `/health/ready` and the log."""

from __future__ import annotations

from typing import TYPE_CHECKING

from service.runtime.problem import Problem

if TYPE_CHECKING:
    from service.node import Node


def problems_of(node: Node, waiting: str | None) -> list[str]:
    """The problems of all parts, and what a start is `waiting` for."""
    found = [] if waiting is None else [waiting]
    if node.clock_skew.problem is not None:
        found.append(node.clock_skew.problem)
    if node.shipper.last_error is not None:
        wait = "segments wait in the journal"
        found.append(Problem(wait, f"{wait}: {node.shipper.last_error}"))
    identity = node.identity
    found += [
        f"{missing.sentence()}. {missing.advice(identity.node)}"
        for missing in identity.missing
        if missing.lost != 0
    ]
    found += node.shipper.ongoing.problems()
    found += [*node.journal.problems(), *node.recovered.problems(), *node.run_logs.problems()]
    return [*found, *node.marks.problems(), *node.members.problems(), *node.seams.problems()]
