"""The compactor's settings: those of the store, and its own part of the shared file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

from pydantic import ConfigDict

from tailrace.coordination.settings import SourceCoordination
from tailrace.logstore.objects.config import (
    CompactionSettings,
    QueueRetention,
    SegmentRetention,
    StoreSettings,
)
from tailrace.logstore.openmetadata_settings import translate
from tailrace.logstore.runs.deletions import RunRetention
from tailrace.logstore.settings import load, read_file

Compaction: TypeAlias = CompactionSettings
"""Nobody has keys of their own in this section, so one that is not known is refused."""


class QueueSection(QueueRetention):
    """The service has keys of its own in this section."""

    model_config = ConfigDict(frozen=True, extra="ignore")


class RunsSection(RunRetention):
    """The service has keys of its own in this section."""

    model_config = ConfigDict(frozen=True, extra="ignore")


class CompactorSettings(StoreSettings):
    """Where the store is, and how it is compacted."""

    compaction: Compaction = Compaction()
    queue: QueueSection = QueueSection()
    runs: RunsSection = RunsSection()
    segments: SegmentRetention = SegmentRetention()
    source_coordination: SourceCoordination = SourceCoordination()


def load_settings(flags: Mapping[str, Any], config: str | None) -> CompactorSettings:
    """Settings from flags, environment and file. Raises `InvalidInput`."""
    return load(CompactorSettings, flags=flags, file=translate(read_file(config))[0], strict=False)
