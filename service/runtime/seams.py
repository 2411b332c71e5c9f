"""What a node stands on: the world outside, as parameters."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from logstore.clock import Clock, Entropy
from logstore.filesystem import FileSystem
from logstore.objects.remote import DateSample
from logstore.objects.store import ObjectStore
from logstore.syncer import Syncer
from service.runtime.threads import Offload, in_thread


@dataclass(frozen=True, slots=True)
class Seams:
    """What the node stands on; `syncer` is called inside the running loop."""

    store: ObjectStore
    fs: FileSystem
    clock: Clock
    entropy: Entropy
    syncer: Callable[[], Syncer]
    offload: Offload = in_thread
    newest_date: Callable[[], DateSample | None] | None = None
    """The store's last answer's `Date`; None for a store without a clock of its own."""
    problems: Callable[[], list[str]] = list
    """What else is not as it should be, as sentences."""
