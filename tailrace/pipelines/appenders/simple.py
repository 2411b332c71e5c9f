"""`stdout` and `metrics`: lines on standard output, and counts of events in a file.

`stdout` cannot go back: after a crash the events after the last checkpoint are written again. The
counts of `metrics` are exact.
"""

from __future__ import annotations

import os
import sys
from collections import Counter
from typing import Annotated, ClassVar, Final

import orjson
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import AfterValidator, field_validator

from tailrace.pipelines.appenders.contract import AppenderContext, AppenderFailed, State
from tailrace.pipelines.events import records_of
from tailrace.pipelines.layouts import Json, Layout
from tailrace.pipelines.section import Section, Texts, setting


class StdoutSettings(Section):
    """How an event becomes a line."""

    layout: Layout = setting(Json(), "how an event becomes a line")


class Stdout:
    """Standard output."""

    settings: ClassVar[type[Section]] = StdoutSettings

    def __init__(self, settings: StdoutSettings) -> None:
        self._layout = settings.layout

    def start(self, context: AppenderContext, state: State | None) -> None:
        """Nothing is to be done."""

    def append(self, events: pa.Table) -> None:
        sys.stdout.writelines(self._layout.lines(events).to_pylist())

    def sync(self) -> State:
        sys.stdout.flush()
        return {}

    def saved(self) -> None:
        """Nothing is to be done."""

    def stop(self) -> None:
        sys.stdout.flush()


# `metrics`: counts events by level, and other labels, in a file for Prometheus.
#
# Lines that continue an event, such as those of a traceback, do not count separately.
#
#   type: metrics
#   file: /var/lib/node_exporter/textfile/tailrace_logs.prom
#   labels: [level, fqn]
#
# The counts are in the checkpoint, so they are exact: after a crash they go on from it. The file is
# written at each checkpoint; node_exporter's textfile collector reads it:
#
#   tailrace_log_events_total{pipeline="audit",appender="levels",level="ERROR",fqn="shop.load"} 3
#
# Label values beyond `max_series`, or beyond the size of a checkpoint, are counted under the values
# `other`.


_COLUMNS: Final = {"level": "level", "fqn": "fqn", "run": "run_id", "connector": "connector_id"}
_NAME: Final = "tailrace_log_events_total"
_UNFINISHED: Final = ".unfinished"
_NONE: Final = "none"
_MOST_BYTES: Final = 192 * 1024
_COUNT_BYTES: Final = 24


def _absolute(path: str) -> str:
    return os.path.abspath(path)


class MetricsSettings(Section):
    """Where the counts go, and what is counted apart."""

    file: Annotated[str, AfterValidator(_absolute)] = setting(..., "the file, replaced as a whole")
    labels: Texts = setting(("level",), "level, fqn, service, run, connector, attribute.NAME")
    max_series: int = setting(500, "maximum number of combinations of labels", ge=1, le=2000)

    @property
    def output(self) -> str:
        """The file."""
        return self.file

    @field_validator("labels")
    @classmethod
    def _known(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for name in value:
            known = name in _COLUMNS or name == "service" or name.startswith("attribute.")
            if not known:
                raise ValueError(
                    f"has {name!r}; known are {', '.join(_COLUMNS)}, service and attribute.NAME"
                )
        return value


class LevelMetrics:
    """Counts events."""

    settings: ClassVar[type[Section]] = MetricsSettings

    def __init__(self, settings: MetricsSettings) -> None:
        self._settings = settings
        self._counts: Counter[tuple[str, ...]] = Counter()
        self._size = 0
        self._context: AppenderContext | None = None

    def start(self, context: AppenderContext, state: State | None) -> None:
        if context.parts > 1 and "{part}" not in self._settings.file:
            raise AppenderFailed(
                f"{self._settings.file} is written by several parts of the pipeline",
                hint="Put {part} into the file's name, or set parts: 1.",
            )
        self._context = context
        if context.replay:
            return  # the appender has counted these
        self._counts = Counter(
            {tuple(map(str, labels)): int(n) for *labels, n in (state or {}).get("counts", ())}
        )
        self._size = sum(map(_size_of, self._counts))
        self._write()

    def append(self, events: pa.Table) -> None:
        if self._started.replay:
            return
        events = records_of(events)
        names = [f"l{n}" for n in range(len(self._settings.labels))]
        columns = [_column(events, label) for label in self._settings.labels]
        table = pa.table([*columns, events.column("ulid")], names=[*names, "ulid"])
        for row in table.group_by(names).aggregate([("ulid", "count")]).to_pylist():
            labels = tuple(row[name] or _NONE for name in names)
            self._counts[self._known(labels)] += row["ulid_count"]

    def sync(self) -> State:
        if self._started.replay:
            return {}
        self._write()
        return {"counts": [[*labels, count] for labels, count in self._counts.items()]}

    def saved(self) -> None:
        """Nothing is to be done."""

    def stop(self) -> None:
        """Nothing is to be done."""

    def _known(self, labels: tuple[str, ...]) -> tuple[str, ...]:
        """These labels if they are counted apart; else `other`."""
        if labels in self._counts:
            return labels
        size = _size_of(labels)
        full = len(self._counts) >= self._settings.max_series
        if full or self._size + size > _MOST_BYTES:
            return ("other",) * len(labels)
        self._size += size
        return labels

    @property
    def _started(self) -> AppenderContext:
        if self._context is None:
            raise AppenderFailed("the appender was not started")
        return self._context

    def _write(self) -> None:
        context = self._started
        fs = context.fs
        path = self._settings.file.replace("{part}", str(context.part))
        fixed = {"pipeline": context.pipeline, "appender": context.appender}
        lines = [f"# HELP {_NAME} Events that a log pipeline was given.\n# TYPE {_NAME} counter\n"]
        for values, count in sorted(self._counts.items()):
            labels = {**fixed, **dict(zip(self._settings.labels, values, strict=True))}
            pairs = ",".join([f'{_label(name)}="{_escaped(v)}"' for name, v in labels.items()])
            lines.append(f"{_NAME}{{{pairs}}} {count}\n")
        fs.make_folders(os.path.dirname(path))
        if fs.stat(path + _UNFINISHED) is not None:
            fs.unlink(path + _UNFINISHED)
        file = fs.open(path + _UNFINISHED, "create")
        try:
            file.write(["".join(lines).encode()])
        finally:
            file.close()
        os.chmod(path + _UNFINISHED, 0o644)  # the exporter is another user
        fs.rename(path + _UNFINISHED, path)


def _size_of(labels: tuple[str, ...]) -> int:
    """The bytes of a count in a checkpoint, at most."""
    return len(orjson.dumps(labels)) * 2 + _COUNT_BYTES


def _column(events: pa.Table, label: str) -> pa.Array:
    if label in _COLUMNS:
        return events.column(_COLUMNS[label]).combine_chunks()
    if label == "service":
        names = events.column("fqn").combine_chunks()
        return pc.list_element(pc.split_pattern(names, ".", max_splits=1), 0)
    name = label.removeprefix("attribute.")
    return pc.map_lookup(events.column("attributes").combine_chunks(), name, "last")


def _label(name: str) -> str:
    plain = name.removeprefix("attribute.")
    return "".join([one if one.isascii() and one.isalnum() else "_" for one in plain])


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
