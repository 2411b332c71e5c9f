"""The reference of the forwarder's configuration, made from its models.

`OPENTELEMETRY` are the keys of OpenTelemetry's `file_log` receiver and operators (v0.156). A key of
ours with one of these names means the same there unless its `otel` says how it differs.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final

from pydantic import BaseModel, TypeAdapter
from pydantic.fields import FieldInfo

from tailrace.forwarder.config import source
from tailrace.forwarder.config.source import (
    FileSource,
    Forwarder,
    Header,
    MetricsEndpoint,
    Multiline,
    OrderingCriteria,
    RetryTimes,
    SortBy,
)

_KEYS = """
acquire_fs_lock add_metadata_from_filepath ascending attributes combine_field combine_with
compression delete_after_read enabled encoding exclude exclude_older_than file_cache_advise
fingerprint_size force_flush_period format group_by header id if include include_file_name
include_file_name_resolved include_file_owner_group_name include_file_owner_name
include_file_path include_file_path_resolved include_file_permissions include_file_record_number
include_file_record_offset initial_buffer_size initial_interval is_first_entry is_last_entry
layout layout_type line_end_pattern line_start_pattern location mapping max_batch_size
max_batches max_concurrent_files max_elapsed_time max_interval max_log_size
max_log_size_behavior max_sources max_unmatched_batch_size metadata_operators multiline
omit_pattern on_error on_truncate operators ordering_criteria overwrite_text overwrite_with
parse_from parse_to pattern poll_interval polls_to_archive preserve_leading_whitespaces
preserve_trailing_whitespaces preset regex regex_key resource retry_on_failure severity sort_by
sort_type source_identifier start_at storage time_zone_locations timestamp top_n type
"""
OPENTELEMETRY: Final = frozenset(_KEYS.split())
SECTIONS: Final[tuple[tuple[str, str, type[BaseModel]], ...]] = (
    ("At the top", "", Forwarder),
    ("Sources", "", FileSource),
    ("ordering_criteria", "ordering_criteria.", OrderingCriteria),
    ("ordering_criteria.sort_by", "ordering_criteria.sort_by[].", SortBy),
    ("multiline", "multiline.", Multiline),
    ("header", "header.", Header),
    ("metrics", "metrics.", MetricsEndpoint),
    ("retry_on_failure", "retry_on_failure.", RetryTimes),
    ("Operator container", "", source.Container),
    ("Operator json_parser", "", source.JsonParser),
    ("Operator regex_parser", "", source.RegexParser),
    ("Operator recombine", "", source.Recombine),
    ("Operator severity_parser, and severity of parsers", "", source.SeverityParser),
    ("Operator move", "", source.Move),
    ("Operator time_parser, and timestamp of parsers", "", source.TimeParser),
)
_NOT_KEYS = {"name", "sources", "type"}
HEADER: Final = "key | default | what it does | OpenTelemetry"


def rows(prefix: str, model: type[BaseModel]) -> Iterator[tuple[str, ...]]:
    """The rows of one section."""
    for name, field in model.model_fields.items():
        key = field.alias or name
        if key not in _NOT_KEYS:
            yield f"`{prefix}{key}`", _default(field), str(field.description), _differs(key, field)


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    value = TypeAdapter[Any](field.rebuild_annotation()).dump_python(field.default, mode="json")
    if value in (None, "", [], {}) or isinstance(value, dict):
        return ""
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


def _differs(key: str, field: FieldInfo) -> str:
    extra = field.json_schema_extra
    said = str(extra.get("otel") or "") if isinstance(extra, dict) else ""
    if key not in OPENTELEMETRY:
        return f"no such key{': ' + said if said else ''}"
    return re.sub(r"\s+", " ", said) or "the same"
