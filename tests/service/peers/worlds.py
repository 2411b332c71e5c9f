"""Clusters whose nodes have a way to each other."""

from __future__ import annotations

from tests.service.cluster import QUICK, Cluster
from tests.service.simulated_network import Switchboard
from tests.settings import settings_with

PATIENT = settings_with(QUICK, runs={"close_wait_seconds": 120.0})
LAZY = settings_with(
    PATIENT,
    flush={"segment_seconds": 3600.0, "segment_bytes": 1 << 30},
    runs={"partial_flush_interval_minutes": 60.0, "early_flush_watermark_bytes": 1 << 30},
)
"""Nothing leaves the journals."""


def cluster(seed: int, *, lazy: bool = False) -> tuple[Cluster, Switchboard]:
    """A cluster, and what connects its nodes: the n-th that is started is at `{name}-{n}`."""
    made, board = Cluster(seed, LAZY if lazy else PATIENT), Switchboard(seed)
    made.switchboard = board
    return made, board
