"""Which scope each route wants, and for which pipelines.

A route that is not named here wants `admin` for all pipelines, so a new one is closed until
somebody decides. Routes between nodes compare a secret of their own, or ask for the scope `node`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final

from service.http.targets import BASE, ROOT


class Pipelines(Enum):
    """The pipelines for which the scope is wanted, in words."""

    NAMED = "the pipeline in the path"
    SOME = "any pipeline; all others are left out"
    EVERY = "all pipelines"


@dataclass(frozen=True, slots=True)
class Need:
    """One of the scopes, for some pipelines. `audited` calls are in the audit log."""

    scopes: tuple[str, ...]
    pipelines: Pipelines
    audited: bool = False


PUBLIC: Final = None
"""Routes for everybody: whether the node works, its version, pages without any line in them."""

INGEST: Final = Need(("ingest",), Pipelines.NAMED)
_READ: Final = Need(("read",), Pipelines.NAMED)
_ASK: Final = Need(("read", "ingest"), Pipelines.NAMED)
_SEARCH: Final = Need(("read",), Pipelines.SOME)
_CONSUME: Final = Need(("consume",), Pipelines.EVERY)
_CONTENTS: Final = Need(("consume",), Pipelines.SOME)
NODE: Final = Need(("node",), Pipelines.EVERY)
_GROUPS: Final = Need(("consume", "admin"), Pipelines.EVERY)
_METRICS: Final = Need(("metrics", "admin"), Pipelines.EVERY)
_DELETE: Final = Need(("admin",), Pipelines.NAMED, audited=True)
ADMIN: Final = Need(("admin",), Pipelines.EVERY, audited=True)
_LOOK: Final = Need(("admin",), Pipelines.EVERY)

_PEERS: Final = "/internal/"
_STATUS: Final = ROOT + "/{fqn}/pipelineStatus"
_TABLE: Final[dict[str, dict[str, Need | None]]] = {
    BASE: {"GET": _SEARCH},
    _STATUS: {"PUT": INGEST, "GET": _READ},
    _STATUS + "/{runId}": {"GET": _ASK},
    "/api/v1/system/version": {"GET": PUBLIC},
    "/health/live": {"GET": PUBLIC},
    "/health/ready": {"GET": PUBLIC},
    "/": {"GET": PUBLIC},
    "/page/{name}": {"GET": PUBLIC},
    "/openapi.json": {"GET": PUBLIC},
    "/docs": {"GET": PUBLIC},
    "/docs/start.js": {"GET": PUBLIC},
    "/docs/{name}": {"GET": PUBLIC},
    "/metrics": {"GET": _METRICS},
    "/segments": {"GET": _CONSUME},
    "/segments/deletions": {"GET": _CONTENTS},
    "/segments/next": {"GET": _CONSUME, "POST": _CONSUME},
    "/segments/groups": {"GET": _GROUPS},
    "/segments/groups/{group}": {"GET": _GROUPS},
    "/segments/{id}": {"GET": _CONTENTS},
    "/deletions": {"GET": _LOOK},
    "/leases": {"GET": _LOOK},
    "/leases/one": {"GET": _LOOK},
}
_BELOW: Final[tuple[tuple[str, dict[str, Need | None]], ...]] = (
    (BASE + "/{fqn}", {"GET": _READ, "POST": INGEST, "DELETE": _DELETE}),
    (ROOT + "/progress/{fqn}/", {"GET": _READ, "PUT": INGEST}),
    (ROOT + "/unfinished/{fqn}/", {"GET": _READ, "PUT": INGEST}),
    (ROOT + "/metrics/{fqn}/", {"GET": _READ, "POST": INGEST}),
    ("/segments/{id}/", {"POST": _CONSUME}),
    ("/query", {"GET": _SEARCH, "POST": _SEARCH}),
    ("/pipelines", {"GET": _LOOK}),
)


def need_of(path: str, method: str) -> Need | None:
    """What the route with this pattern of its path wants; HEAD is GET."""
    method = "GET" if method == "HEAD" else method
    known = _TABLE.get(path)
    if known is not None:
        return known.get(method, ADMIN)
    if path.startswith(_PEERS):
        return PUBLIC
    for prefix, needs in _BELOW:
        if path.startswith(prefix):
            return needs.get(method, ADMIN)
    return ADMIN
