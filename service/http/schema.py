"""The schema of the HTTP door: FastAPI's, the two raw routes, problems as the shape of errors."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI

from service.http.append_schema import PATHS, PROBLEM

_VALIDATION = ("HTTPValidationError", "ValidationError")


def complete(app: FastAPI) -> dict[str, Any]:
    """The schema of the whole service."""
    schema = FastAPI.openapi(app)
    paths = schema["paths"]
    for path, operation in PATHS.items():
        paths.setdefault(path, {})["post"] = operation
    components = schema.setdefault("components", {})
    components.setdefault("responses", {})["Problem"] = PROBLEM
    for name in _VALIDATION:
        components.get("schemas", {}).pop(name, None)
    for operations in paths.values():
        for operation in operations.values():
            _describe_errors(operation["responses"])
    schema["paths"] = dict(sorted(paths.items()))
    return schema


def _describe_errors(responses: dict[str, Any]) -> None:
    if responses.pop("422", {}).get("description") == "Validation Error":
        responses["400"] = {"$ref": "#/components/responses/Problem"}
    responses.setdefault("default", {"$ref": "#/components/responses/Problem"})
