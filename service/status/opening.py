"""A node's reports, made from the node: it has its parts only once it is started."""

from __future__ import annotations

from typing import Protocol

from logstore.batch import RunKey
from service.parts import Seams
from service.status.expiry import Expiry
from service.status.reports import Reports
from service.status.status import RunStatus, StatusLimits
from service.tail import Tail
from service.text.text import Text


class Owner(Protocol):
    """What is asked of the node, late: a node that starts anew has new ones."""

    @property
    def text(self) -> Text: ...
    @property
    def tail(self) -> Tail: ...


def open_status(owner: Owner, seams: Seams, limits: StatusLimits) -> RunStatus:
    """The reports of what `owner` stands on."""

    def horizon(key: RunKey) -> int:
        return owner.text.deletions.horizon(key)

    async def exists(key: RunKey) -> bool:
        return await owner.text.exists(key)

    reports = Reports(seams.store, seams.clock, seams.entropy, horizon=horizon)
    return RunStatus(
        reports,
        seams.clock,
        limits,
        tail=lambda: owner.tail,
        expiry=Expiry(seams.store, seams.clock, exists),
    )
