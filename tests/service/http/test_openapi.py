"""openapi.yaml is the app's schema, and names every route."""

from __future__ import annotations

from pathlib import Path

from service.http.app import HttpApi, all_routers, complete, documented, render
from service.http.errors import api_routes
from tests.service.http.memory_node import MemoryNode

ROOT = Path(__file__).parents[3]


def test_the_file_is_what_the_app_says() -> None:
    text = (ROOT / "openapi.yaml").read_text()
    assert text == render(complete(documented())), "run `make openapi`"


async def test_every_route_is_described() -> None:
    app = documented()
    paths = complete(app)["paths"]
    known = api_routes(all_routers(MemoryNode(), HttpApi()))
    routes = [route for route in known if route.include_in_schema]
    assert len(routes) > 15
    for route in routes:
        assert {method.lower() for method in route.methods or ()} <= set(paths[route.path])
    for operations in paths.values():
        for operation in operations.values():
            assert operation["summary"]
            assert "default" in operation["responses"]


def test_it_is_the_same_however_often_it_is_asked_for() -> None:
    app = documented()
    assert render(app.openapi()) == render(app.openapi()) == render(documented().openapi())
