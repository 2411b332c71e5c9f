"""`GET /deletions`: how far the erasure of deleted lines is, the newest deletion first."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Literal

from fastapi import APIRouter, Query
from pydantic import BaseModel

from logstore.errors import InvalidCursor
from service.erasure import DeletionState, Erasure
from service.http.segment_bodies import rfc3339

_LIST, _MAX_LIST = 20, 200


class DeletionRow(BaseModel):
    """A deletion of a run, or of a pipeline's runs if `run` is null; expired runs are deleted too.

    `deleted`: no reader of Tailrace shows its lines. `purged`: nor has the table any. `erased`: no
    place of the store, and no node's disk, has them. `left` are places that may still have some.
    """

    fqn: str
    run: str | None
    at: str
    state: Literal["deleted", "purged", "erased"]
    left: list[str]


class DeletionList(BaseModel):
    """Some deletions; `after` continues, null at the end."""

    deletions: list[DeletionRow]
    after: str | None


def deletion_routes(erasure: Callable[[], Erasure]) -> APIRouter:
    """The route that says how far deletions are."""
    router = APIRouter(tags=["operation"])

    @router.get(
        "/deletions",
        summary="Deletions, and where their lines may still be",
        response_model=DeletionList,
    )
    async def deletions(
        fqn: Annotated[str | None, Query(description="Those of this pipeline alone.")] = None,
        limit: Annotated[int, Query(ge=1, le=_MAX_LIST)] = _LIST,
        after: Annotated[str | None, Query(description="`after` of the page before.")] = None,
    ) -> DeletionList:
        looks = erasure()
        found = [one for one in await looks.deletions() if fqn in (None, one.deletion.fqn)]
        start = 0
        if after is not None:
            keys = [one.key for one in found]
            if after not in keys:
                raise InvalidCursor(
                    "`after` names no deletion that there is",
                    field="after",
                    hint="Begin again without it.",
                )
            start = keys.index(after) + 1
        page = found[start : start + limit]
        more = start + limit < len(found)
        return DeletionList(
            deletions=[_row(one) for one in await looks.states(page)],
            after=page[-1].key if more else None,
        )

    return router


def _row(one: DeletionState) -> DeletionRow:
    deletion = one.stored.deletion
    return DeletionRow(
        fqn=deletion.fqn,
        run=deletion.run,
        at=rfc3339(one.stored.modified_ms),
        state=one.state,
        left=list(one.left),
    )
