"""What the loop logs of errors that nobody awaits."""

from __future__ import annotations

import asyncio
import gc

import aiohttp
import pytest

from service.runtime.process import log_but_lost_writes


async def failed(error: Exception) -> None:
    """A task that fails, and that nobody awaits."""

    async def work() -> None:
        raise error

    task = asyncio.create_task(work())
    await asyncio.wait([task])
    del task
    gc.collect()


async def test_all_but_the_write_of_a_request_whose_connection_was_lost(
    caplog: pytest.LogCaptureFixture,
) -> None:
    asyncio.get_running_loop().set_exception_handler(log_but_lost_writes)
    await failed(aiohttp.ClientConnectionResetError("Cannot write to closing transport"))
    assert caplog.text == ""
    await failed(RuntimeError("a fault"))
    assert "never retrieved" in caplog.text
    assert "a fault" in caplog.text
