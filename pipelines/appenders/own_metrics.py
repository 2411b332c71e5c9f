"""Counters and gauges that an appender declares for itself, beside those of every appender.

    def start(self, context, state):
        self._rows = context.metrics.counter("rows_written", "Rows that the database took.")

    tailrace_pipelines_appender_rows_written_total{pipeline="audit",appender="database",part="0"} 3

They grow for as long as the process runs, also over restarts of the appender. An appender chooses
the names, at most 32, and never the labels, so nothing in a log line can make more series.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from prometheus_client.core import Metric

from logstore.errors import InvalidInput
from logstore.prometheus import Kind, family

LABELS: Final = ("pipeline", "appender", "part")
MOST: Final = 32
_PREFIX: Final = "tailrace_pipelines_appender_"
_NAME: Final = re.compile(r"[a-z][a-z0-9_]{0,59}(?<!_)(?<!_total)")


@dataclass(slots=True)
class AppenderCounter:
    """A number that grows."""

    value: float = 0.0

    def add(self, amount: float = 1.0) -> None:
        """Raises `InvalidInput` for less than nothing."""
        if not amount >= 0:
            raise InvalidInput(f"a counter cannot grow by {amount}", hint="Use a gauge.")
        self.value += amount


@dataclass(slots=True)
class AppenderGauge:
    """A number that goes up and down."""

    value: float = 0.0

    def set(self, value: float) -> None:
        """The value from now on."""
        self.value = value


@dataclass(frozen=True, slots=True)
class Names:
    """What the appenders of a process have declared: name to kind and help.

    Two appenders with one name share it: the first one's help counts.
    """

    known: dict[str, tuple[Kind, str]] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def declare(self, name: str, kind: Kind, text: str) -> None:
        """Raises `InvalidInput` if the name is of the other kind."""
        with self.lock:
            before, _ = self.known.setdefault(name, (kind, text))
        if before != kind:
            raise InvalidInput(
                f"the metric {name!r} is a {before} already, and cannot be a {kind} too",
                hint="Give one of them another name.",
            )


class AppenderMetrics:
    """The numbers of one part of an appender. `names` are those of the whole process."""

    def __init__(self, names: Names | None = None) -> None:
        self._names = names or Names()
        self._counters: dict[str, AppenderCounter] = {}
        self._gauges: dict[str, AppenderGauge] = {}

    def counter(self, name: str, text: str) -> AppenderCounter:
        """The counter of this name, the same one each time. Raises `InvalidInput`.

        A name is lower case, without `_total`, which Prometheus adds; `text` says what is counted.
        """
        self._declare(name, "counter", text)
        return self._counters.setdefault(name, AppenderCounter())

    def gauge(self, name: str, text: str) -> AppenderGauge:
        """The gauge of this name, the same one each time. Raises `InvalidInput`."""
        self._declare(name, "gauge", text)
        return self._gauges.setdefault(name, AppenderGauge())

    def values(self) -> Mapping[str, float]:
        """All present values by name; may be called by another thread."""
        counters = {name: made.value for name, made in list(self._counters.items())}
        return counters | {name: made.value for name, made in list(self._gauges.items())}

    def _declare(self, name: str, kind: Kind, text: str) -> None:
        if not _NAME.fullmatch(name):
            raise InvalidInput(
                f"{name!r} cannot be the name of a metric",
                hint="Use a-z, 0-9 and _, at most 60 of them, without _total at the end.",
            )
        there = self._counters.keys() | self._gauges.keys()
        if name not in there and len(there) >= MOST:
            raise InvalidInput(f"an appender has at most {MOST} metrics of its own")
        self._names.declare(name, kind, text)


def collect_own(names: Names, parts: Mapping[tuple[str, ...], AppenderMetrics]) -> Iterator[Metric]:
    """The samples of all parts, which are by pipeline, appender and part."""
    values = {labels: part.values() for labels, part in list(parts.items())}
    for name, (kind, text) in sorted(names.known.items()):
        reading = {labels: own[name] for labels, own in values.items() if name in own}
        yield family(_PREFIX + name, kind, text, LABELS, reading)
