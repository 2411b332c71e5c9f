"""Nodes as real processes, on one store."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TypeAlias

from tests.e2e.service_process import ServiceProcess

Nodes: TypeAlias = tuple[ServiceProcess, ServiceProcess]


@contextmanager
def running(*nodes: ServiceProcess) -> Iterator[None]:
    """They are started, and those that still run are killed in the end."""
    try:
        for node in nodes:
            node.start()
        yield
    finally:
        for node in nodes:
            with suppress(AssertionError):
                node.kill()
