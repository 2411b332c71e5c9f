"""The schema of the HTTP API: FastAPI's, the two raw routes, and problems as errors.

FastAPI does not know the raw routes, append and close. The module also writes openapi.yaml, always
the same text for the same app:

    python -m service.http.openapi > openapi.yaml
"""

from __future__ import annotations

import sys
from copy import deepcopy
from typing import Any, Final

import yaml
from fastapi import FastAPI

from service.http.attributes import FIELD, MOST_ATTRIBUTES, MOST_BYTES, TEXT_AND_ATTRIBUTES
from service.http.rights import Need, need_of
from service.http.targets import BASE


def _path_parameter(name: str, description: str) -> dict[str, Any]:
    return {
        "name": name,
        "in": "path",
        "required": True,
        "description": description,
        "schema": {"type": "string"},
    }


_NAMES: Final = [
    _path_parameter("fqn", "The pipeline's fully qualified name; a `/` in it may stay unquoted."),
    _path_parameter("runId", "The run: the last segment before the verb."),
]
_PROBLEMS: Final = ("400", "404", "408", "409", "413", "414", "415", "431", "503", "507")
_PROBLEM: Final = {"$ref": "#/components/responses/Problem"}
_OBJECT: Final = {
    "type": "object",
    "properties": {
        "logs": {"type": "string", "description": "Lines. Missing or empty: nothing is stored."},
        "connectorId": {"type": "string", "description": "Who sends, kept with each record."},
        "compressed": {"type": "boolean", "description": "`logs` is base64 of gzip of UTF-8."},
        "timestamp": {"type": "integer", "description": "Accepted and not used."},
        "lineCount": {"type": "integer", "description": "Accepted and not used."},
    },
}
_RECORDS: Final = (
    'One object per line: {"message", "ts", "level", "attributes"}. Each is one record, '
    "also with newlines in its message."
)
_APPENDED: Final = {
    "type": "object",
    "required": ["batch", "lines", "duplicate", "durability", "last"],
    "properties": {
        "batch": {"type": ["string", "null"], "description": "ULID of the batch."},
        "lines": {"type": "integer", "description": "Records stored."},
        "duplicate": {"type": "boolean", "description": "It was known: nothing was stored again."},
        "durability": {"type": "string"},
        "last": {"type": ["string", "null"], "description": "ULID of the last record."},
        "replaced": {
            "type": "integer",
            "description": "Characters that were not UTF-8 and became U+FFFD; absent without any.",
        },
        "unknownLevels": {
            "type": "array",
            "items": {"type": "string"},
            "description": "Up to 10 levels of records that are none of the service's; absent"
            " without any. Each record keeps its own as the attribute `level`.",
        },
        "silent": {
            "type": "array",
            "items": {"type": "string"},
            "description": "Nodes that this one does not hear; absent without any. A deletion of"
            " the run at such a node may take the batch back.",
        },
    },
}


def _header(name: str, description: str, **schema: Any) -> dict[str, Any]:
    return {
        "name": name,
        "in": "header",
        "required": False,
        "description": description,
        "schema": {"type": "string", **schema},
    }


APPEND: Final[dict[str, Any]] = {
    "tags": ["runs"],
    "summary": "Append lines to a run",
    "operationId": "append",
    "description": (
        "Stores a batch of lines once, and answers when it is as safe as `Tailrace-Durability` "
        "asks. The reply sets cookies that carry the run's last ULID; a client that returns them "
        "gets its batches in order over nodes with different clocks."
    ),
    "parameters": [
        *_NAMES,
        _header(
            "Tailrace-Batch",
            "The batch's ULID (low 25 bits zero): sent again, it is stored once.",
            minLength=26,
            maxLength=26,
        ),
        _header(
            "Tailrace-Durability",
            "fast: written; durable: synced; bulk: in the object store.",
            enum=["fast", "durable", "bulk"],
            default="durable",
        ),
        _header(
            FIELD,
            "Attributes that each line has: a JSON object in ASCII of at most "
            f"{MOST_ATTRIBUTES} attributes. Only for text/plain. With the Content-Type "
            f"`{TEXT_AND_ATTRIBUTES.decode()}` a service that does not know the header, "
            "or does not get it, answers 415.",
            maxLength=MOST_BYTES,
        ),
        _header("Content-Encoding", "Of the whole body.", enum=["gzip", "zstd", "identity"]),
    ],
    "requestBody": {
        "required": True,
        "content": {
            "application/json": {"schema": {"oneOf": [{"type": "string"}, _OBJECT]}},
            "text/plain": {"schema": {"type": "string", "description": "Raw lines."}},
            "application/x-ndjson": {"schema": {"type": "string", "description": _RECORDS}},
        },
    },
    "responses": {
        "200": {
            "description": "Stored, or known already, or nothing to store.",
            "headers": {"Tailrace-Last": {"schema": {"type": "string"}}},
            "content": {"application/json": {"schema": _APPENDED}},
        },
        **dict.fromkeys(_PROBLEMS, _PROBLEM),
    },
}

CLOSE: Final[dict[str, Any]] = {
    "tags": ["runs"],
    "summary": "Close a run",
    "operationId": "close",
    "description": "Idempotent, also for a run that never was. A later batch reopens the run.",
    "parameters": _NAMES,
    "responses": {
        "200": {
            "description": "Closed, or recorded and closing.",
            "content": {
                "application/json": {
                    "schema": {
                        "type": "object",
                        "required": ["message", "state"],
                        "properties": {
                            "message": {"type": "string"},
                            "state": {"type": "string", "enum": ["closed", "closing"]},
                        },
                    }
                }
            },
        },
        **dict.fromkeys(("400", "404", "503"), _PROBLEM),
    },
}

PATHS: Final = {BASE + "/{fqn}/{runId}": APPEND, BASE + "/{fqn}/{runId}/close": CLOSE}

PROBLEM: Final[dict[str, Any]] = {
    "description": "An error: RFC 9457, and OpenMetadata's `code` and `message`.",
    "content": {
        "application/problem+json": {
            "schema": {
                "type": "object",
                "required": [
                    "type",
                    "title",
                    "status",
                    "detail",
                    "hint",
                    "request_id",
                    "code",
                    "message",
                ],
                "properties": {
                    "type": {"type": "string", "description": "What programs act on."},
                    "title": {"type": "string"},
                    "status": {"type": "integer"},
                    "detail": {"type": "string"},
                    "hint": {"type": "string", "description": "What to do about it."},
                    "request_id": {"type": "string"},
                    "code": {"type": "integer"},
                    "message": {"type": "string"},
                    "field": {"type": "string", "description": "The part of the input at fault."},
                    "deleted_through": {
                        "type": "string",
                        "description": "`run-deleted`: ids at or below this ULID are refused.",
                    },
                    "deleted_at": {
                        "type": "string",
                        "format": "date-time",
                        "description": "`run-deleted`: when the run was deleted.",
                    },
                    "deleted_ms_ago": {
                        "type": "integer",
                        "description": "`run-deleted`: how long before this answer that was.",
                    },
                    "next_batch": {
                        "type": "string",
                        "description": "`run-deleted`: a batch id above the deletion, for the "
                        "lines that were logged after it.",
                    },
                },
            }
        }
    },
}


SECURITY: Final[dict[str, Any]] = {
    "bearer": {
        "type": "http",
        "scheme": "bearer",
        "description": "A token `trl_…` or a JWT, where the service has rules of access.",
    }
}


_VALIDATION = ("HTTPValidationError", "ValidationError")


def complete(app: FastAPI) -> dict[str, Any]:
    """The schema of the whole service."""
    schema = deepcopy(FastAPI.openapi(app))  # FastAPI keeps its own, to give it again
    paths = schema["paths"]
    for path, operation in deepcopy(PATHS).items():
        paths.setdefault(path, {})["post"] = operation
    components = schema.setdefault("components", {})
    components.setdefault("responses", {})["Problem"] = PROBLEM
    for name in _VALIDATION:
        components.get("schemas", {}).pop(name, None)
    components["securitySchemes"] = SECURITY
    for path, operations in paths.items():
        for method, operation in operations.items():
            _describe_errors(operation["responses"])
            _describe_access(operation, need_of(path, method.upper()))
    schema["paths"] = dict(sorted(paths.items()))
    return schema


def _describe_errors(responses: dict[str, Any]) -> None:
    if responses.pop("422", {}).get("description") == "Validation Error":
        responses["400"] = {"$ref": "#/components/responses/Problem"}
    responses.setdefault("default", {"$ref": "#/components/responses/Problem"})


def _describe_access(operation: dict[str, Any], need: Need | None) -> None:
    """What a caller needs, where there are rules of access; without rules, nothing."""
    if need is None:
        operation["security"] = []
        return
    operation["security"] = [{"bearer": []}, {}]
    either = " or ".join([f"`{scope}`" for scope in need.scopes])
    says = f"With rules of access: the scope {either} for {need.pipelines.value}."
    known = operation.get("description")
    operation["description"] = f"{known}\n\n{says}" if known else says


def render(schema: dict[str, Any]) -> str:
    """The schema as YAML, the same for the same schema."""
    return yaml.safe_dump(schema, sort_keys=False, allow_unicode=True, width=100)


def _main() -> None:
    from service.http.app import documented  # the app takes its schema from this module

    sys.stdout.write(render(documented().openapi()))


if __name__ == "__main__":
    _main()
