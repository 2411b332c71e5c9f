"""Who answers goes first: what can wait gets the processor when nobody else wants it.

Encoding and compacting take more of it than answering does, and in long pieces. With
fewer cores than work the kernel would let the event loop wait for them.
"""

from __future__ import annotations

import os
from contextlib import suppress

_STEP = 10
_LOWEST = 19


def go_behind(task: int) -> None:
    """Lowers the priority of a process, which its children inherit, or of one Linux thread.

    `task` is the system's number; one that is gone is left alone.
    """
    with suppress(ProcessLookupError):
        now = os.getpriority(os.PRIO_PROCESS, task)
        os.setpriority(os.PRIO_PROCESS, task, min(now + _STEP, _LOWEST))
