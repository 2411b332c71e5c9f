"""`GET /docs`: the routes as a page, made by Swagger UI from `/openapi.json`.

Everything that the page loads comes from this service: Swagger UI's files out of the package
`fastapi-swagger`, of which no code is imported. The page's policy lets the browser load,
run and ask nothing else, and show it in no other page's frame.
"""

from __future__ import annotations

import importlib.util
import os
from typing import Final

from fastapi import APIRouter
from starlette.responses import FileResponse, HTMLResponse, Response

from logstore.errors import NotFound, Unavailable

_PACKAGE: Final = "fastapi_swagger"
_FILES: Final = {
    "swagger-ui.css": "text/css",
    "swagger-ui-bundle.js": "text/javascript",
    "favicon-32x32.png": "image/png",
}
_PAGE: Final = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Tailrace: routes</title>
<link rel="icon" href="docs/favicon-32x32.png">
<link rel="stylesheet" href="docs/swagger-ui.css">
</head>
<body>
<div id="swagger-ui"></div>
<script src="docs/swagger-ui-bundle.js"></script>
<script src="docs/start.js"></script>
</body>
</html>
"""
_START: Final = """SwaggerUIBundle({
  url: "openapi.json",
  dom_id: "#swagger-ui",
  deepLinking: true,
  validatorUrl: null,
});
"""
# Swagger UI draws its icons from `data:` addresses and sets `style` on elements.
POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; style-src-attr 'unsafe-inline'; "
    "img-src 'self' data:; connect-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'"
)
_HEADERS: Final = {"content-security-policy": POLICY}


def docs_routes() -> APIRouter:
    """The routes of the page and its files, which are not in the schema."""
    router = APIRouter(include_in_schema=False)

    @router.get("/docs")
    async def page() -> Response:
        return HTMLResponse(_PAGE, headers=_HEADERS)

    @router.get("/docs/start.js")
    async def start() -> Response:
        return Response(_START, media_type="text/javascript", headers=_HEADERS)

    @router.get("/docs/{name}")
    async def file(name: str) -> Response:
        kind = _FILES.get(name)
        if kind is None:
            raise NotFound(f"the page has no file {name[:100]!r}", hint="See /docs.")
        return FileResponse(os.path.join(_folder(), name), media_type=kind, headers=_HEADERS)

    return router


def _folder() -> str:
    """The folder of Swagger UI's files. Raises `Unavailable` if it is not installed."""
    found = importlib.util.find_spec(_PACKAGE)
    if found is None or found.origin is None:
        raise Unavailable(
            "the page needs the package fastapi-swagger",
            hint="`make setup` installs it; openapi.yaml says the same as the page.",
        )
    return os.path.join(os.path.dirname(found.origin), "resources")
