"""What `openapi.yaml` says of `GET /query`."""

from __future__ import annotations

from typing import Any, Final

from logstore.segments.schema import LEVELS

_TIME: Final = "RFC 3339, epoch seconds or milliseconds, `now-1h`, or a ULID; inclusive"
_PARAMETERS: Final[dict[str, tuple[str, dict[str, Any]]]] = {
    "q": ("Text that the message holds; case counts.", {"type": "string"}),
    "regex": ("`q` is one regular expression (RE2).", {"type": "boolean", "default": False}),
    "from": (f"Lowest time of the ULID: {_TIME}.", {"type": "string", "default": "now-1h"}),
    "to": (f"Highest time of the ULID: {_TIME}. Without it, no bound.", {"type": "string"}),
    "fqn": ("Only this pipeline.", {"type": "string"}),
    "run": ("Only runs of this id.", {"type": "string"}),
    "level": (
        f"Only these levels, separated by commas: {', '.join(LEVELS)}.",
        {"type": "string"},
    ),
    "limit": (
        "At most so many records; without it, all.",
        {"type": "integer", "minimum": 1},
    ),
    "order": (
        "Order of ULIDs: newest first, or oldest first.",
        {"type": "string", "enum": ["asc", "desc"], "default": "desc"},
    ),
    "after": ("Go on behind this cursor (`next` of the stats).", {"type": "string"}),
    "format": (
        "Format of the result; without it, by `Accept`.",
        {"type": "string", "enum": ["ndjson", "text", "parquet"], "default": "ndjson"},
    ),
    "stats_only": (
        "Only the stats: how much was searched, how many records match.",
        {"type": "boolean", "default": False},
    ),
}
_RESULT: Final = {
    "application/x-ndjson": {"schema": {"type": "string"}},
    "text/plain": {"schema": {"type": "string"}},
    "application/vnd.apache.parquet": {"schema": {"type": "string", "format": "binary"}},
}
_DESCRIPTION: Final = (
    "Each record once, in ULID order, streamed: hot lines, segments and the table. The last "
    'ndjson record is `{"stats": {…}}` and says whether the result is complete and where the '
    "next page begins; a result without it is partial. HEAD gives the stats as headers."
)

OPENAPI: Final[dict[str, Any]] = {
    "description": _DESCRIPTION,
    "parameters": [
        {"name": name, "in": "query", "required": False, "description": text, "schema": schema}
        for name, (text, schema) in _PARAMETERS.items()
    ],
    "responses": {
        "200": {"description": "What was found.", "content": _RESULT},
        "206": {"description": "What was found; something could not be read.", "content": _RESULT},
        "400": {"description": "A parameter is wrong; the problem names its field."},
        "422": {"description": "The search needs more time or memory than its limit."},
        "503": {"description": "Too many searches, or the store does not answer."},
    },
}
