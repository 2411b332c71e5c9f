"""The settings of `tailrace pipelines`: the store's, and its own part of the shared file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from coordination.settings import SourceCoordination
from logstore.log_storage import translate
from logstore.objects.settings import PipelineSettings, StoreSettings
from logstore.settings import load, read_file


class PipelinesSettings(StoreSettings):
    """Where the store is, and how its pipelines are run."""

    pipelines: PipelineSettings = PipelineSettings()
    source_coordination: SourceCoordination = SourceCoordination()


def load_settings(flags: Mapping[str, Any], config: str | None) -> PipelinesSettings:
    """Settings from flags, environment and file. Raises `InvalidInput`."""
    return load(PipelinesSettings, flags=flags, file=translate(read_file(config))[0], strict=False)
