"""Where blocking work runs: a thread in the service, in place in a simulation."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol, TypeVar

T = TypeVar("T")


class Offload(Protocol):
    """Runs a blocking call and gives its result."""

    async def __call__(self, work: Callable[[], T]) -> T:
        """Raises what `work` raises."""
        ...


async def in_thread(work: Callable[[], T]) -> T:
    """Off the event loop."""
    return await asyncio.to_thread(work)


async def in_place(work: Callable[[], T]) -> T:
    """On the event loop: for simulations, where order must repeat."""
    return work()
