"""openapi.yaml is the app's schema, and names every route."""

from __future__ import annotations

from pathlib import Path

from fastapi.routing import APIRoute

from service.http.app import documented
from service.http.openapi import complete, render

ROOT = Path(__file__).parents[3]


def test_the_file_is_what_the_app_says() -> None:
    text = (ROOT / "openapi.yaml").read_text()
    assert text == render(complete(documented())), "run `make openapi`"


def test_every_route_is_described() -> None:
    app = documented()
    paths = complete(app)["paths"]
    for route in app.routes:
        if isinstance(route, APIRoute) and route.include_in_schema:
            assert {method.lower() for method in route.methods or ()} <= set(paths[route.path])
    for operations in paths.values():
        for operation in operations.values():
            assert operation["summary"]
            assert "default" in operation["responses"]
