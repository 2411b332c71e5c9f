"""The loop's handler of errors that nobody awaits: logs all, but for one that is told elsewhere.

aiohttp writes a request in a task of its own. If the connection was lost just before, both the
request, which its caller hears of, and that task fail; the task's error is awaited by nobody.
"""

from __future__ import annotations

import asyncio
from typing import Any

import aiohttp


def log_but_lost_writes(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Logs as the loop does by itself, without the second telling of a lost connection."""
    written_by = context.get("future")
    error = context.get("exception")
    if isinstance(error, aiohttp.ClientConnectionResetError) and isinstance(
        written_by, asyncio.Task
    ):
        return
    loop.default_exception_handler(context)
