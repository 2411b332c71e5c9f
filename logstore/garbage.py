"""Python's cyclic garbage collector, kept from what is being loaded and stays.

A start makes several hundred thousand objects: modules, classes, functions. The collector would
look at all of them time and again while they are made.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def collection_paused() -> Iterator[None]:
    """Nothing is collected while the block runs, which imports modules."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
