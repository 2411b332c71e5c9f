"""Metrics of the compactor beside the service: whether it runs, and what it reports.

The two meet in a file, `compaction.metrics_file`, which the compactor writes in the text format
of Prometheus and every scrape reads. What it says of its leases joins ours under the same
names; of all else only what is called `tailrace_compactor_…`, or as OK Log calls what its store
does, is taken over.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from typing import Final

from prometheus_client.core import Metric
from prometheus_client.parser import text_string_to_metric_families

from logstore.filesystem import FileSystem
from service.metrics.declared import Declared, Sources, counter, gauge
from service.metrics.leases import LEASES
from service.runtime.problem import Problem

THEIRS: Final = (
    "tailrace_compactor_",
    *(f"tailrace_store_{word}_" for word in ("compact", "consumed", "purged", "trashed")),
)
_SHARED: Final = {metric.name for metric in LEASES}


class CompactorFile:
    """The compactor's metrics file, at an absolute path."""

    def __init__(self, fs: FileSystem, path: str) -> None:
        self._fs = fs
        self._path = path
        self._families: Mapping[str, Metric] = {}
        self._seen: object = None
        self.unreadable = False

    def families(self) -> Mapping[str, Metric]:
        """The metrics in the file, by name; none if it is absent or cannot be read."""
        try:
            found = self._fs.stat(self._path)
            if found != self._seen:
                self._families = {} if found is None else self._read()
                self._seen = found
            self.unreadable = False
        except (OSError, ValueError, KeyError, IndexError):  # the parser's, of other text
            self._families, self._seen, self.unreadable = {}, None, True
        return self._families

    def problems(self) -> list[str]:
        """What the last pass of the compactor leaves to a person, as sentences."""
        families = self.families()
        left_out, alarms = (_value(families, name) for name in ("segments_left_out", "alarms"))
        found: list[str] = []
        if left_out:
            what = "damaged segments are left out of the table until somebody decides"
            found.append(Problem(what, f"{left_out:g} {what}: `tailrace verify` names them"))
        if alarms > left_out:
            what = f"the last compaction had {alarms:g} alarms: the compactor's log has them"
            found.append(Problem("the last compaction had alarms", what))
        return found

    def _read(self) -> dict[str, Metric]:
        with closing(self._fs.open(self._path, "read")) as file:
            text = file.pread(file.size(), 0).decode()
        families = text_string_to_metric_families(text)
        return {
            family.name: family
            for family in families
            if family.name.startswith(THEIRS) or family.name in _SHARED
        }


def _value(families: Mapping[str, Metric], name: str) -> float:
    family = families.get(f"tailrace_compactor_{name}")
    return sum(sample.value for sample in family.samples) if family else 0


def joined(ours: Iterable[Metric], theirs: Mapping[str, Metric]) -> Iterator[Metric]:
    """Our families with the file's samples of the same name added, then the file's other ones."""
    left = dict(theirs)
    for family in ours:
        same = left.pop(family.name, None)
        if same is not None and same.type == family.type:
            known = {_identity(sample) for sample in family.samples}
            family.samples += [one for one in same.samples if _identity(one) not in known]
        yield family
    yield from left.values()


def _identity(sample: tuple[object, ...]) -> tuple[object, ...]:
    name, labels = sample[:2]
    return name, tuple(sorted(labels.items())) if isinstance(labels, dict) else ()


def _running(sources: Sources) -> float:
    child = sources.compaction
    return child is not None and child.state == "running"


def _starts(sources: Sources) -> float:
    return 0 if sources.compaction is None else sources.compaction.starts


def _failures(sources: Sources) -> float:
    return 0 if sources.compaction is None else sources.compaction.failures


def _unreadable(sources: Sources) -> float:
    return sources.compactor_file is not None and sources.compactor_file.unreadable


COMPACTION: tuple[Declared, ...] = (
    gauge("compaction_running", "1 while the compactor beside this service runs.", _running),
    counter("compaction_starts", "Starts of the compactor beside this service.", _starts),
    counter(
        "compaction_failures",
        "Ends of the compactor beside this service that nobody asked for.",
        _failures,
    ),
    gauge(
        "compaction_file_unreadable",
        "1 if the compactor's metrics file exists and cannot be read, so that its"
        " metrics are missing.",
        _unreadable,
    ),
)
