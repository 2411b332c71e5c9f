"""Sizes and pauses of run logs that no operator sets; tests make them small."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Tuning:
    """One declaration for all parts of run logs."""

    chunk_bytes: int = 8 << 20
    """A flush of more text makes several chunks."""
    watermark_seconds: float = 10.0
    """How often it is stored up to where all of the node's lines are in chunks."""
    merge_above: int = 48
    """A run with more chunks has some of them merged."""
    merge_width: int = 8
    """So many chunks become one."""
    partial_seconds: float | None = None
    """A partial text is published again after this time; None: after the interval of flushes."""
    orphan_seconds: float = 86_400.0
    """Objects that no manifest names are removed at this age."""
    takeover_seconds: float = 60.0
    """How often lost nodes are looked for."""
