"""Declarations of metrics: name, kind, help, labels, and where the value is read.

The hot path adds to plain integers on its own objects; `read` looks at them when somebody
scrapes, so a metric costs nothing in between. Counters are declared without the `_total`
that the text format adds. A metric that was renamed keeps its old name as its `alias`, which is
exported with the same samples until the next version.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

from service.query_node import QueryNode
from service.queue.counters import QueueCounters
from service.runtime.counters import Distribution, HttpCounters, StoreCounters, SyncCounters
from service.runtime.state_watch import StateWatch

if TYPE_CHECKING:
    from coordination.coordinator.work_queue import WorkQueue
    from service.compaction import CompactionChild
    from service.metrics.compaction import CompactorFile
    from service.node import Node
    from service.query.engine import QueryEngine


class TakesNothing(Exception):
    """The node only reads: it has no numbers of what it takes."""


@dataclass(frozen=True, slots=True)
class Sources:
    """The objects whose numbers are shown."""

    node: Node | QueryNode
    query: QueryEngine
    http: HttpCounters = field(default_factory=HttpCounters)
    store: StoreCounters = field(default_factory=StoreCounters)
    fsync: SyncCounters = field(default_factory=SyncCounters)
    state: StateWatch = field(default_factory=StateWatch)
    queue: QueueCounters = field(default_factory=QueueCounters)
    work: Sequence[WorkQueue] = ()
    """What coordinators of this process work on."""
    compaction: CompactionChild | None = None
    compactor_file: CompactorFile | None = None

    @property
    def writer(self) -> Node:
        """The node, for numbers of what it takes. Raises `TakesNothing` of one that only reads."""
        if isinstance(self.node, QueryNode):
            raise TakesNothing
        return self.node

    @property
    def now(self) -> float:
        """Monotonic seconds of the node's clock."""
        return self.node.seams.clock.monotonic()


Kind: TypeAlias = Literal["counter", "gauge", "histogram"]
Value: TypeAlias = float | Distribution
Reading: TypeAlias = (
    Value
    | Mapping[str, Value]
    | Mapping[tuple[str, str], Value]
    | Mapping[tuple[str, str, str], Value]
)
Read: TypeAlias = Callable[[Sources], Reading]


class Declared(NamedTuple):
    """One metric. `read` gives a value, or values by the values of its `labels`."""

    name: str
    kind: Kind
    help: str
    read: Read
    labels: tuple[str, ...] = ()
    alias: str = ""

    def under_alias(self) -> Declared:
        """The same metric under its old name."""
        text = f"Alias of `{self.name}`, until the next version."
        return self._replace(name=self.alias, help=text, alias="")


def counter(name: str, text: str, read: Read, *labels: str, alias: str = "") -> Declared:
    """A counter of this service; `alias` is its name in the version before."""
    return Declared(
        f"tailrace_{name}", "counter", text, read, labels, alias and f"tailrace_{alias}"
    )


def gauge(name: str, text: str, read: Read, *labels: str, alias: str = "") -> Declared:
    """A gauge of this service; `alias` is its name in the version before."""
    return Declared(f"tailrace_{name}", "gauge", text, read, labels, alias and f"tailrace_{alias}")


def histogram(name: str, text: str, read: Read, *labels: str) -> Declared:
    """A histogram of this service."""
    return Declared(f"tailrace_{name}", "histogram", text, read, labels)
