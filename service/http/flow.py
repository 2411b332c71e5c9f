"""When a connection reads on: uvicorn's flow control, made strict about waiting requests."""

from __future__ import annotations

from collections import deque
from typing import Any

from uvicorn.protocols.http.flow_control import FlowControl


class Flow(FlowControl):
    """Reads on only when no request waits for its turn, so that pipelined input is bounded."""

    def __init__(self, transport: Any, waiting: deque[Any]) -> None:
        super().__init__(transport)
        self._waiting = waiting

    def resume_reading(self) -> None:
        """Resumes as uvicorn does, for a request that waits for its body or the disconnection."""
        if not self._waiting:
            super().resume_reading()
