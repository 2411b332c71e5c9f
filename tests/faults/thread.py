"""A proxy beside tests that block, or whose time is not the machine's."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from tests.faults.proxy import FaultProxy
from tests.faults.schedule import Schedule


@contextmanager
def fault_proxy(upstream: str, schedule: Schedule) -> Iterator[str]:
    """Its address; it serves from a thread of its own until the context ends."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="fault-proxy", daemon=True)
    thread.start()
    proxy = FaultProxy(upstream, schedule)
    try:
        asyncio.run_coroutine_threadsafe(proxy.__aenter__(), loop).result(10)
        try:
            yield proxy.url
        finally:
            asyncio.run_coroutine_threadsafe(proxy.__aexit__(None, None, None), loop).result(10)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)
        loop.close()
