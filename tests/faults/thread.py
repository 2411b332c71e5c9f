"""A proxy beside tests that block, or whose time is not the machine's."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from typing import Any

from tests.faults.proxy import FaultProxy
from tests.faults.schedule import Schedule

_PATIENCE_SECONDS = 120.0


@contextmanager
def fault_proxy(upstream: str, schedule: Schedule) -> Iterator[str]:
    """Its address; it serves from a thread of its own until the context ends."""
    loop = asyncio.new_event_loop()

    def there(work: Coroutine[Any, Any, object]) -> None:
        asyncio.run_coroutine_threadsafe(work, loop).result(_PATIENCE_SECONDS)

    thread = threading.Thread(target=loop.run_forever, name="fault-proxy", daemon=True)
    thread.start()
    proxy = FaultProxy(upstream, schedule)
    try:
        there(proxy.__aenter__())
        try:
            yield proxy.url
        finally:
            there(proxy.__aexit__(None, None, None))
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(_PATIENCE_SECONDS)
        loop.close()
