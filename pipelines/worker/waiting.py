"""Waiting that a stop ends."""

from __future__ import annotations

import asyncio

from logstore.clock import Clock


async def wait_or_stop(clock: Clock, seconds: float, stopping: asyncio.Event) -> None:
    """Returns after `seconds`, or once `stopping` is set."""
    stopped = asyncio.ensure_future(stopping.wait())
    sleeping = asyncio.ensure_future(clock.sleep(seconds))
    try:
        await asyncio.wait({stopped, sleeping}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        stopped.cancel()
        sleeping.cancel()
