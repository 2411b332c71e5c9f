"""What a node with a role leaves to others (`server.role`).

A node that only reads refuses what changes a run, and one that only ingests refuses searches: 503,
which clients with several targets take to the next one.
"""

from __future__ import annotations

from typing import Final, Literal, TypeAlias

from service.http.errors import HttpError
from service.http.targets import ROOT

Role: TypeAlias = Literal["all", "ingest", "query"]
_READS: Final = ("GET", "HEAD", "OPTIONS")


def refusal(role: Role, method: str, path: str) -> HttpError | None:
    """The error for a request that is another role's."""
    if role == "query" and method not in _READS and path.startswith(ROOT):
        return _other("this node only reads", "all or ingest")
    if role == "ingest" and (path == "/query" or path.startswith("/query/")):
        return _other("this node makes no searches", "all or query")
    return None


def _other(why: str, roles: str) -> HttpError:
    return HttpError(
        503,
        f"{why} (server.role)",
        headers=[("retry-after", "1")],
        hint=f"Send it to a node whose role is {roles}.",
        kind="other-role",
    )
