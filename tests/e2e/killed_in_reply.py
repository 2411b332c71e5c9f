"""Tailrace that is killed amid a reply: `python -m tests.e2e.killed_in_reply VERB …`.

While the file that `KILLED_IN_REPLY` names exists, the process removes it as it begins to answer a
POST, and is gone by kill -9 a moment after the reply's head was handed to uvicorn, before its body
is. The program is the real one.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path
from typing import Any

from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from tailrace.cli.main import main

ARMED = "KILLED_IN_REPLY"
# Longer than a loop that has nothing else to do needs to write what it was given.
_MOMENT_SECONDS = 0.2


def die_in_reply(armed: Path) -> None:
    """From here on this process ends as said."""
    send = RequestResponseCycle.send

    async def sent(cycle: RequestResponseCycle, message: Any) -> None:
        begins = message["type"] == "http.response.start" and cycle.scope["method"] == "POST"
        await send(cycle, message)
        if begins and armed.exists():
            armed.unlink()
            await asyncio.sleep(_MOMENT_SECONDS)
            os.kill(os.getpid(), signal.SIGKILL)

    RequestResponseCycle.send = sent  # type: ignore[method-assign, assignment]


if __name__ == "__main__":
    die_in_reply(Path(os.environ[ARMED]))
    sys.exit(main())
