"""A step of a start that is tried until the store allows it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from logstore.clock import Clock
from logstore.errors import OutcomeUnknown, Unavailable, with_hint
from service.runtime.problem import Problem

_RETRY_SECONDS = 1.0


async def insist(
    step: Callable[[], Awaitable[None]], clock: Clock, told: Callable[[str | None], None], what: str
) -> None:
    """Returns when `step` was possible; `told` hears the reason why not, and None at the end."""
    while True:
        try:
            await step()
        except (Unavailable, OutcomeUnknown) as error:
            told(Problem(what, f"{what}: {with_hint(error)}"))
            await clock.sleep(_RETRY_SECONDS)
        else:
            told(None)
            return
