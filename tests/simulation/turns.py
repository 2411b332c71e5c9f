"""A loop that goes on: what tests of tasks wait for instead of a time of the clock."""

from __future__ import annotations

import asyncio


async def turns(count: int = 100) -> None:
    """Tasks that wait for nothing but their turn get on as far as they can.

    However slow or fast the machine is: a sleep of some milliseconds is one turn of the loop
    where the process stood still for so long.
    """
    for _ in range(count):
        await asyncio.sleep(0)
