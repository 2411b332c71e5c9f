"""The settings of `tailrace pipelines`: the store's, and its own part of the shared file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from coordination.coordinator.limits import CoordinatorLimits
from coordination.settings import SourceCoordination
from logstore.log_storage import translate
from logstore.objects.settings import PipelineSettings, StoreSettings
from logstore.settings import load, read_file


class PipelinesSettings(StoreSettings):
    """Where the store is, and how its pipelines are run."""

    pipelines: PipelineSettings = PipelineSettings()
    source_coordination: SourceCoordination = SourceCoordination()

    @property
    def limits(self) -> CoordinatorLimits:
        """The limits of a coordinator. Whoever is silent for a lease has no share of the work."""
        limits, lease_seconds = self.source_coordination.limits, self.pipelines.lease_seconds
        silent = min(limits.worker_seconds, lease_seconds)
        return replace(limits, lease_seconds=lease_seconds, worker_seconds=silent, max_attempts=0)


def load_settings(flags: Mapping[str, Any], config: str | None) -> PipelinesSettings:
    """Settings from flags, environment and file. Raises `InvalidInput`."""
    return load(PipelinesSettings, flags=flags, file=translate(read_file(config))[0], strict=False)
