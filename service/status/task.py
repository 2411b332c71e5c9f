"""Under which key OpenMetadata's page looks for the text of a run: by the pipeline's type.

The type is what the reader says, else what the run's status says (`metadata.pipelineType`,
or the type of its source's configuration), else that of a metadata pipeline.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from logstore.runs.report import Report

DEFAULT: Final = "ingestion_task"
TASKS: Final = {
    "metadata": DEFAULT,
    "policyAgent": DEFAULT,
    "profiler": "profiler_task",
    "autoClassification": "auto_classification_task",
    "lineage": "lineage_task",
    "usage": "usage_task",
    "dbt": "dbt_task",
    "TestSuite": "test_suite_task",
    "dataInsight": "data_insight_task",
    "elasticSearchReindex": "elasticsearch_reindex_task",
    "application": "application_task",
}
# The types of source configurations, as far as they do not end in `Metadata`.
_CONFIGURED: Final = {
    "Profiler": "profiler",
    "AutoClassification": "autoClassification",
    "DatabaseLineage": "lineage",
    "DatabaseUsage": "usage",
    "DBT": "dbt",
    "TestSuite": "TestSuite",
    "MetadataToElasticSearch": "elasticSearchReindex",
    "Application": "application",
}
_PATH = ("source", "sourceConfig", "config", "type")


def task_key(asked: str | None, report: Report | None) -> str:
    """The key; a type that nobody knows is that of a metadata pipeline."""
    return TASKS.get(asked or _reported(report) or "", DEFAULT)


def _reported(report: Report | None) -> str | None:
    if report is None:
        return None
    metadata = report.value.get("metadata")
    said = metadata.get("pipelineType") if isinstance(metadata, Mapping) else None
    if isinstance(said, str):
        return said
    return _CONFIGURED.get(_at(report.value.get("config"), _PATH))


def _at(value: Any, path: tuple[str, ...]) -> str:
    for name in path:
        value = value.get(name) if isinstance(value, Mapping) else None
    return value if isinstance(value, str) else ""
