"""Lines of containers: Docker's JSON, and CRI as CRI-O and containerd write it.

    {"log":"text\\n","stream":"stdout","time":"2024-03-30T08:31:20.545192187Z"}
    2024-04-13T07:59:37.505201169-05:00 stdout F text

The time becomes the record's, the stream the attribute `log.iostream`. Both cut long lines: CRI
marks all parts but the last with `P`, and Docker's have no newline at their end. They are joined
again, those of the two streams apart.
"""

from __future__ import annotations

import re
from datetime import datetime
from functools import lru_cache
from typing import Any, Final

import orjson

from tailrace.forwarder.config.source import Container
from tailrace.forwarder.entries.entry import Entry, Output
from tailrace.forwarder.entries.splitting import last_begin

STREAM = "log.iostream"
_PARTIAL = "\0partial"
"""An attribute of a part that goes on, until it is joined."""
_STREAMS: Final = ("stdout", "stderr")
_POD = re.compile(
    r".*/(?P<namespace>[^_/]+)_(?P<pod>[^_/]+)_(?P<uid>[a-f0-9-]+)/(?P<container>[^/]+)"
    r"/(?P<restart>\d+)\.log[^/]*"
)
_NAMES = {
    "namespace": "k8s.namespace.name",
    "pod": "k8s.pod.name",
    "uid": "k8s.pod.uid",
    "container": "k8s.container.name",
    "restart": "k8s.container.restart_count",
}
_TIME = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?(Z|[+-]\d\d:\d\d)")


class Parser:
    """Parses the lines of the file at `path`; it says whether it could."""

    def __init__(self, operator: Container, path: str) -> None:
        self._docker = operator.format not in ("crio", "containerd")
        self._cri = operator.format != "docker"
        self._resource = pod_of(path) if operator.add_metadata_from_filepath else {}

    def __call__(self, entry: Entry) -> bool:
        entry.resource = self._resource
        line = entry.body
        if not isinstance(line, str):
            return False
        if self._docker and line[:1] == "{":
            return _docker(entry, line)
        return self._cri and _cri(entry, line)


def pod_of(path: str) -> dict[str, Any]:
    """The attributes that the path of a pod's log has, or none."""
    found = _POD.fullmatch(path)
    return {} if found is None else {_NAMES[name]: found[name] for name in _NAMES}


def _cri(entry: Entry, line: str) -> bool:
    parts = line.split(" ", 3)
    if len(parts) < 3 or parts[1] not in _STREAMS:
        return False
    moment = _moment(parts[0])
    if moment is None:
        return False
    entry.ts = moment
    entry.body = parts[3] if len(parts) == 4 else ""
    entry.attributes[STREAM] = parts[1]
    if parts[2][:1] == "P":
        entry.attributes[_PARTIAL] = True
    return True


def _docker(entry: Entry, line: str) -> bool:
    try:
        value = orjson.loads(line)
    except (orjson.JSONDecodeError, UnicodeEncodeError):
        return False
    if not isinstance(value, dict):
        return False
    log, stream, time = value.pop("log", None), value.pop("stream", None), value.pop("time", None)
    moment = _moment(time) if isinstance(time, str) else None
    if not isinstance(log, str) or stream not in _STREAMS or moment is None:
        return False
    entry.ts = moment
    entry.attributes.update(value, **{STREAM: stream})
    if log.endswith("\n"):
        log = log[:-1]
    else:
        entry.attributes[_PARTIAL] = True
    entry.body = log
    return True


def _moment(text: str) -> int | None:
    if text[19:20] == "." and text[-1] == "Z":  # as nearly all are
        second, fraction = second_of(text[:19] + "Z"), text[20:-1]
        if second is None or not fraction.isdecimal():
            return None
        return second + int(fraction[:6].ljust(6, "0"))
    found = _TIME.fullmatch(text)
    if found is None:
        return None
    second = second_of(found[1] + found[3])
    fraction = found[2]
    if second is None:
        return None
    return second if fraction is None else second + int(fraction[:6].ljust(6, "0"))


@lru_cache(maxsize=256)
def second_of(text: str) -> int | None:
    """Microseconds; lines that follow one another are of the same second."""
    try:
        return int(datetime.fromisoformat(text).timestamp()) * 1_000_000
    except ValueError:
        return None


class ContainerLines:
    """Joins the parts of lines that the container's runtime had cut.

    With `last_states`, overwritten text takes no room.
    """

    def __init__(self, most: int, *, last_states: bool) -> None:
        self._most = most
        self._last_states = last_states
        self._held: dict[str, tuple[Entry, list[str], int]] = {}

    def feed(self, entry: Entry, out: Output) -> None:
        goes_on = entry.attributes.pop(_PARTIAL, False)
        stream = entry.attributes.get(STREAM, "")
        held = self._held.get(stream) if self._held else None
        if held is None and not goes_on:
            out(entry)
            return
        if held is None:
            self._held[stream] = (entry, [entry.body], len(entry.body))
            return
        first, texts, size = held
        texts.append(entry.body)
        size += len(entry.body)
        if self._last_states and "\r" in entry.body:
            text = "".join(texts)
            texts = [text[last_begin(text, 0, len(text)) :]]
            size = len(texts[0])
        first.last, first.size = entry.last, first.size + entry.size
        first.failed |= entry.failed
        if goes_on and not (self._most and size >= self._most):
            self._held[stream] = (first, texts, size)
            return
        del self._held[stream]
        first.body = "".join(texts)
        out(first)

    def flush(self, out: Output) -> None:
        for first, texts, _ in sorted(self._held.values(), key=lambda held: held[0].first):
            first.body = "".join(texts)
            out(first)
        self._held.clear()

    def settles(self, unit: int) -> bool:  # noqa: ARG002 - what it holds goes on
        return not self._held

    def oldest(self) -> int | None:
        return min((held[0].first for held in self._held.values()), default=None)
