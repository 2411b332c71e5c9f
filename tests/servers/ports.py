"""Ports for the servers that tests start.

Several processes of tests choose at once, and time passes until a server listens. So ports
are taken from below those that kernels hand out by themselves (from 32768 on Linux, from
49152 elsewhere): neither a connection nor whoever binds port 0 gets one in between.
"""

from __future__ import annotations

import socket
from random import SystemRandom

_FIRST, _END = 10_000, 32_768
_TRIES = 1000


def free_port() -> int:
    """A port of 127.0.0.1 at which nobody listens."""
    dice = SystemRandom()
    for _ in range(_TRIES):
        port = dice.randrange(_FIRST, _END)
        with socket.socket() as probe:
            # As servers do, or what closed a moment ago would look taken.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        return port
    raise OSError(f"no free port among {_TRIES}")
