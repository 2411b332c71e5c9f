"""Which runs have failed, and which are silent although nobody says that they have ended.

A run is watched from its first event on. Once it has been quiet for some seconds its status and
its manifest are read: a status that is terminal, or a closed run, ends the watch.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import orjson

from logstore import keys
from logstore import ulid as ulids
from logstore.batch import RunKey
from logstore.errors import NotFound
from logstore.runs.manifest import decode_manifest
from logstore.runs.report import decode_report
from pipelines.appenders.rolling.objects import Objects
from pipelines.deletions import Deleted, generation

_TERMINAL: Final = frozenset({"success", "failed", "partialSuccess", "stopped"})
_MOST_RUNS: Final = 1000
_MOST_BYTES: Final = 128 * 1024
_QUIET_SECONDS: Final = 10.0


@dataclass(slots=True)
class _Watched:
    """`heard` and `looked` are epoch seconds: of the last event, and when it was looked at."""

    ulid: str
    heard: float
    looked: float = 0.0
    silent: bool = False


class RunWatch:
    """The runs that are watched: at most 1,000, and as many as a checkpoint holds.

    Of more, those that are quiet for longest are let go.
    """

    def __init__(self) -> None:
        self._runs: OrderedDict[RunKey, _Watched] = OrderedDict()

    def heard(self, last: Iterable[tuple[str, str, str]], now: float) -> None:
        """Runs had events: pipeline, run, and the ULID of the last one."""
        for fqn, run, newest in last:
            self._runs.pop(RunKey(fqn, run), None)
            self._runs[RunKey(fqn, run)] = _Watched(newest, now)
        while len(self._runs) > _MOST_RUNS:
            self._runs.popitem(last=False)

    def forget(self, deleted: Deleted) -> None:
        """Those of which nothing is left are not watched."""
        for key, one in list(self._runs.items()):
            if ulids.decode(one.ulid) <= generation(deleted, *key):
                del self._runs[key]

    def changes(
        self, objects: Objects, now: float, silent_after: float | None
    ) -> Iterator[tuple[str, RunKey, str]]:
        """`failed` or `silent`, the run, and the ULID of its last event. Raises as the store."""
        for key, one in list(self._runs.items()):
            quiet = now - one.heard
            if quiet < _QUIET_SECONDS or now - one.looked < _QUIET_SECONDS:
                continue
            one.looked = now
            state = _state_of(objects, key)
            if state is not None:
                del self._runs[key]
                if state == "failed":
                    yield "failed", key, one.ulid
            elif silent_after is not None and quiet >= silent_after and not one.silent:
                one.silent = True
                yield "silent", key, one.ulid

    def state(self) -> list[list[Any]]:
        """What `restore` takes; JSON of bounded size. The runs that do not fit are let go."""
        found: list[list[Any]] = []
        size = 0
        for key in reversed(list(self._runs)):
            one = self._runs[key]
            run = [*key, one.ulid, one.heard, one.silent]
            size += len(orjson.dumps(run))
            if size > _MOST_BYTES:
                del self._runs[key]
            else:
                found.append(run)
        return found[::-1]

    def restore(self, state: Iterable[Any]) -> None:
        """As it was."""
        for fqn, run, newest, heard, silent in state:
            watched = _Watched(str(newest), float(heard), silent=bool(silent))
            self._runs[RunKey(str(fqn), str(run))] = watched


def _state_of(objects: Objects, key: RunKey) -> str | None:
    """The terminal status of a run, or `closed`; None: it may go on."""
    said = _read(objects, keys.run_report(keys.STATUS, key))
    if said is not None:
        state = decode_report(said).said.state
        if state in _TERMINAL:
            return state
    manifest = _read(objects, keys.run_manifest(key))
    if manifest is not None and decode_manifest(manifest).state == "closed":
        return "closed"
    return None


def _read(objects: Objects, name: str) -> bytes | None:
    try:
        return objects.call(lambda store: store.get(name))[1]
    except NotFound:
        return None
