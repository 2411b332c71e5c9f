"""`notify`: posts notices to people: a line matched, a run failed, or a run is silent.

    type: notify
    url: https://hooks.example.org/services/…
    rules:
      - {name: memory, matches: {level: ERROR, contains: OutOfMemory}}
      - {name: failed, run: failed}
      - {name: silent, run: silent, after: 30m}
    group_by: [fqn]
    link: "https://logs.example.org/api/v1/services/ingestionPipelines/logs/{fqn}/{run}?at={at}"

Each notice is a JSON object:

    text      a sentence, which chat programs show
    pipeline, rule, kind (`line`, `failed`, `silent`), count
    fqn, run, at, ts, level, message    of the first event, or of the last one of the run
    link      with fqn, run and at (the ULID) put in

Repeated notices are grouped (`Notices`). A run failed if its reported status says so; it is silent
if it had no event for `after`, has no terminal status and is not closed (`RunWatch`). `notify`
cannot go back: a notice may come twice after a crash.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any, ClassVar, Final, Literal, Self
from urllib.parse import quote

import orjson
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import field_validator, model_validator

from tailrace.logstore import keys
from tailrace.logstore import ulid as ulids
from tailrace.logstore.batch import RunKey
from tailrace.logstore.cache import BoundedCache
from tailrace.logstore.errors import Damaged, NotFound, StoreUnavailable
from tailrace.logstore.runs.manifest import decode_manifest
from tailrace.logstore.runs.report import decode_report
from tailrace.pipelines.appenders.contract import AppenderContext, AppenderFailed, State
from tailrace.pipelines.appenders.http import BodyRefused, HttpTargetSettings, Poster
from tailrace.pipelines.appenders.rolling.object import Objects
from tailrace.pipelines.events import EVENTS, Deleted, generation, is_redelivered
from tailrace.pipelines.layouts import moment_text
from tailrace.pipelines.section import Seconds, Section, Texts, setting
from tailrace.pipelines.selection import Selection

# Due notices: the first of a group at once, later ones together, and never too many.
#
# A group is a rule and the values that a notice is grouped by. A group's first notice is due at
# once. Notices within `every` after it are counted, and due together when that is over. Of all
# groups together at most `most_per_hour` are due in an hour; the rest waits, and is counted.
# Waiting notices are in a checkpoint, so their number is bounded: beyond it, the groups that had
# nothing new for longest are dropped.


log = logging.getLogger(__name__)
Key = tuple[str, ...]
_HOUR: Final = 3600.0
_MOST_GROUPS: Final = 1000
_MOST_BYTES: Final = 128 * 1024


@dataclass(slots=True)
class Notice:
    """The waiting notices of a group: their number, and the first. `sent` is in epoch seconds."""

    count: int = 0
    first: dict[str, Any] | None = None
    sent: float = 0.0


class Notices:
    """The groups. Times are seconds since the epoch."""

    def __init__(self, every: float, most_per_hour: int) -> None:
        self._every = every
        self._most = most_per_hour
        self._groups: BoundedCache[Key, Notice] = BoundedCache(_MOST_GROUPS)
        self._sent: deque[float] = deque()
        self.forgotten = 0
        """Groups that were let go with what they waited with, since there were too many."""

    def add(self, key: Key, count: int, first: Mapping[str, Any]) -> None:
        """So many of a group; `first` is what is told of them."""
        notice = self._groups.get(key)
        if notice is None:
            notice = Notice()
            self.forgotten += sum(gone.count > 0 for _, gone in self._groups.put(key, notice))
        notice.count += count
        if notice.first is None:
            notice.first = dict(first)

    def due(self, now: float) -> Iterator[tuple[Key, Notice]]:
        """The notices to send now; each has to be `sent` before the next one is requested."""
        while self._sent and now - self._sent[0] >= _HOUR:
            self._sent.popleft()
        for key, notice in list(self._groups.items()):
            if len(self._sent) >= self._most:
                return
            if notice.count and now - notice.sent >= self._every:
                yield key, notice

    def sent(self, key: Key, now: float) -> None:
        """The notice of a group was sent."""
        self._sent.append(now)
        self._groups.put(key, Notice(sent=now))

    def state(self) -> dict[str, Any]:
        """The state for `restore`; JSON of bounded size. Groups that do not fit are dropped."""
        groups: list[list[Any]] = []
        size = 0
        for key, notice in reversed(list(self._groups.items())):
            group = [list(key), asdict(notice)]
            size += len(orjson.dumps(group))
            if size > _MOST_BYTES:
                self._groups.pop(key)
                self.forgotten += notice.count > 0
            else:
                groups.append(group)
        return {"groups": groups[::-1], "sent": list(self._sent)}

    def restore(self, state: Mapping[str, Any]) -> None:
        """As it was."""
        self._groups.clear()
        for key, one in state.get("groups", ()):
            self._groups.put(tuple(map(str, key)), Notice(**one))
        self._sent = deque(float(one) for one in state.get("sent", ()))


# Runs that have failed, and runs that are silent although no client reported their end.
#
# A run is watched from its first event on. Once it has been quiet for some seconds its status and
# its manifest are read: a status that is terminal, or a closed run, ends the watch.


_TERMINAL: Final = frozenset({"success", "failed", "partialSuccess", "stopped"})
_MOST_RUNS: Final = 1000
_QUIET_SECONDS: Final = 10.0


@dataclass(slots=True)
class _Watched:
    """`heard` and `looked` are epoch seconds: of the last event, and when it was looked at."""

    ulid: str
    heard: float
    looked: float = 0.0
    silent: bool = False
    unreadable: bool = False


class RunWatch:
    """The runs that are watched: at most 1,000, and as many as a checkpoint holds.

    Beyond that, those that are quiet for longest are dropped.
    """

    def __init__(self) -> None:
        self._runs: BoundedCache[RunKey, _Watched] = BoundedCache(_MOST_RUNS)

    def heard(self, last: Iterable[tuple[str, str, str]], now: float) -> None:
        """Runs had events: pipeline, run, and the ULID of the last one."""
        for fqn, run, newest in last:
            self._runs.put(RunKey(fqn, run), _Watched(newest, now))

    def forget(self, deleted: Deleted) -> None:
        """Those of which nothing is left are not watched."""
        for key, one in list(self._runs.items()):
            if ulids.decode(one.ulid) <= generation(deleted, *key):
                self._runs.pop(key)

    def changes(
        self, objects: Objects, now: float, silent_after: float | None
    ) -> Iterator[tuple[str, RunKey, str]]:
        """`failed` or `silent`, the run, and the ULID of its last event. Raises as the store.

        A run whose state does not read is neither; a warning in the log names it once.
        """
        for key, one in list(self._runs.items()):
            quiet = now - one.heard
            if quiet < _QUIET_SECONDS or now - one.looked < _QUIET_SECONDS:
                continue
            one.looked = now
            try:
                state = _state_of(objects, key)
            except Damaged as error:
                if not one.unreadable:
                    log.warning("the status of %s/%s cannot be read: %s", key.fqn, key.run, error)
                one.unreadable = True
                continue
            one.unreadable = False
            if state is not None:
                self._runs.pop(key)
                if state == "failed":
                    yield "failed", key, one.ulid
            elif silent_after is not None and quiet >= silent_after and not one.silent:
                one.silent = True
                yield "silent", key, one.ulid

    def state(self) -> list[list[Any]]:
        """The state for `restore`; JSON of bounded size. Runs that do not fit are dropped."""
        found: list[list[Any]] = []
        size = 0
        for key, one in reversed(list(self._runs.items())):
            run = [*key, one.ulid, one.heard, one.silent]
            size += len(orjson.dumps(run))
            if size > _MOST_BYTES:
                self._runs.pop(key)
            else:
                found.append(run)
        return found[::-1]

    def restore(self, state: Iterable[Any]) -> None:
        """As it was."""
        for fqn, run, newest, heard, silent in state:
            watched = _Watched(str(newest), float(heard), silent=bool(silent))
            self._runs.put(RunKey(str(fqn), str(run)), watched)


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


_GROUPS: Final = {"fqn": "fqn", "run": "run_id", "level": "level"}
_MOST_TEXT: Final = 500
_NOTICE: Final = "tailrace.notice"
_FIRST: Final = frozenset({"fqn", "run", "at", "level", "ts", "message"})
_KINDS: Final = frozenset({"line", "failed", "silent"})


class NoticeRule(Section):
    """The subject of notices: lines that match, or runs that failed or are silent."""

    name: str = setting(..., "name of the rule, which people see")
    matches: Selection | None = setting(None, "a filter: each event that it keeps is reported")
    run: Literal["failed", "silent"] | None = setting(
        None, "instead of `matches`: runs that failed, or are silent"
    )
    after: Seconds = setting(1800.0, "a run is silent after this time without an event")

    @model_validator(mode="after")
    def _is_one(self) -> Self:
        if (self.matches is None) == (self.run is None):
            raise ValueError("a rule needs either matches or run")
        return self


class NotifySettings(HttpTargetSettings):
    """The rules of notices, their target, and how often they are sent."""

    rules: tuple[NoticeRule, ...] = setting(..., "rules for notices")
    group_by: Texts = setting(("fqn",), "events with equal values of these are one notice")
    every: Seconds = setting(300.0, "pause between two notices of a group")
    most_per_hour: int = setting(60, "maximum number of notices in an hour; others wait", ge=1)
    link: str = setting("", "link in each notice, with {fqn}, {run} and {at}")

    @model_validator(mode="after")
    def _fits(self) -> Self:
        names = [rule.name for rule in self.rules]
        if not names or len(set(names)) < len(names):
            raise ValueError("rules needs at least one rule, each with a name of its own")
        unknown = sorted(set(self.group_by) - set(_GROUPS))
        if unknown:
            raise ValueError(f"group_by has {unknown[0]!r}; known are {', '.join(_GROUPS)}")
        return self

    @field_validator("link")
    @classmethod
    def _is_link(cls, value: str) -> str:
        try:
            value.format(fqn="", run="", at="")
        except (KeyError, ValueError, IndexError) as error:
            raise ValueError(f"has a field that is not fqn, run or at: {error}") from None
        return value


class Notify:
    """Posts notices."""

    settings: ClassVar[type[Section]] = NotifySettings

    def __init__(self, settings: NotifySettings) -> None:
        self._settings = settings
        self._poster = Poster(settings)
        self._notices = Notices(settings.every, settings.most_per_hour)
        self._watch = RunWatch()
        self._about_runs = {rule.run: rule for rule in settings.rules if rule.run is not None}
        self._context: AppenderContext | None = None
        self._objects: Objects | None = None

    def start(self, context: AppenderContext, state: State | None) -> None:
        self._context = context
        self._notices.restore((state or {}).get("notices", {}))
        self._watch.restore((state or {}).get("runs", ()))
        if self._about_runs:
            if context.store is None:
                raise AppenderFailed("rules about runs need the store")
            self._objects = Objects(context.store, context.clock)

    def append(self, events: pa.Table) -> None:
        if self._started.replay:
            return  # people were told
        if is_redelivered(events):
            events = self._notify_again(events)
        for rule in self._settings.rules:
            if rule.matches is not None:
                for group, count, first in self._groups(rule.matches.records_of(events)):
                    self._notices.add((rule.name, *group), count, {**first, "kind": "line"})
        if self._about_runs:
            last = events.select(["fqn", "run_id", "ulid"]).group_by(["fqn", "run_id"])
            each = last.aggregate([("ulid", "max")]).to_pylist()
            runs = [(one["fqn"], one["run_id"], one["ulid_max"]) for one in each]
            self._watch.heard(runs, self._now)

    def flush(self) -> bool:
        """Looks at runs that are quiet, and sends due notices."""
        changed = self._look_at_runs()
        for group, notice in self._notices.due(self._now):
            if not self._started.holds():
                raise AppenderFailed("the lease is over")
            headers = {"Content-Type": "application/json"}
            try:
                self._poster.post(orjson.dumps(self._body(group, notice)), headers)
            except BodyRefused as error:
                self._started.refuse(_letter(group, notice), str(error), error.detail)
            self._notices.sent(group, self._now)
            changed = True
        return changed

    def deleted(self, deleted: Deleted) -> None:
        """Watches no run that was deleted: it is not silent."""
        self._watch.forget(deleted)

    def sync(self) -> State:
        return {"notices": self._notices.state(), "runs": self._watch.state()}

    def saved(self) -> None:
        """Nothing is to be done."""

    def stop(self) -> None:
        if self._objects is not None:
            self._objects.close()
            self._objects = None

    def _notify_again(self, events: pa.Table) -> pa.Table:
        """Notices that were refused wait again; gives the events that are none."""
        rules, others = {rule.name for rule in self._settings.rules}, []
        for pairs in events.column("attributes").to_pylist():
            found = _noticed(dict(pairs or ()).get(_NOTICE))
            others.append(found is None or found[0][0] not in rules)
            if found is not None and not others[-1]:
                self._notices.add(*found)
        return events.filter(pa.array(others, pa.bool_()))

    # --- notices ---------------------------------------------------------------------------

    @property
    def _started(self) -> AppenderContext:
        if self._context is None:
            raise AppenderFailed("the appender was not started")
        return self._context

    @property
    def _now(self) -> float:
        return self._started.clock.now_ms() / 1000

    def _groups(self, events: pa.Table) -> Iterator[tuple[Key, int, dict[str, Any]]]:
        """For each group the values, how many events, and the first of them."""
        if events.num_rows == 0:
            return
        columns = [_GROUPS[name] for name in self._settings.group_by]
        numbered = events.append_column("row", pa.array(range(events.num_rows), pa.int64()))
        grouped = numbered.group_by(columns).aggregate([("row", "min"), ("row", "count")])
        for one in grouped.to_pylist():
            row = events.slice(one["row_min"], 1)
            stamp = row.column("ts").cast(pa.int64())[0].as_py()
            names = {"fqn": "fqn", "run": "run_id", "at": "ulid", "level": "level"}
            first = {name: row.column(column)[0].as_py() for name, column in names.items()}
            message = pc.utf8_slice_codeunits(row.column("message"), 0, _MOST_TEXT)[0].as_py()
            values = tuple(str(one[column]) for column in columns)
            yield values, one["row_count"], {**first, "ts": moment_text(stamp), "message": message}

    def _look_at_runs(self) -> bool:
        if self._objects is None:
            return False
        silent, changed = self._about_runs.get("silent"), False
        after = None if silent is None else silent.after
        try:
            for kind, run, last in self._watch.changes(self._objects, self._now, after):
                rule = self._about_runs.get("failed" if kind == "failed" else "silent")
                if rule is None:
                    continue
                first = {"fqn": run.fqn, "run": run.run, "at": last, "level": None}
                group = tuple(str(first[name]) for name in self._settings.group_by)
                self._notices.add((rule.name, *group), 1, {**first, "kind": kind})
                changed = True
        except StoreUnavailable as error:
            raise AppenderFailed(f"the states of runs cannot be read: {error}") from error
        return changed

    def _body(self, group: Key, notice: Notice) -> dict[str, Any]:
        first = notice.first or {}
        link = _linked(self._settings.link, first)
        body = {
            "text": _sentence(group[0], notice, link),
            "pipeline": self._started.pipeline,
            "rule": group[0],
            "count": notice.count,
            **first,
        }
        return {**body, "link": link} if link else body


def _letter(group: Key, notice: Notice) -> pa.Table:
    """A notice as an event: that of its first line, or the last one of its run."""
    first = notice.first or {}
    whole = orjson.dumps([group, notice.count, first]).decode()
    row = {
        "ulid": first["at"],
        "ts": datetime.fromisoformat(first["ts"]) if "ts" in first else _time_of(first["at"]),
        "fqn": str(first.get("fqn")),
        "run_id": str(first.get("run")),
        "level": first.get("level"),
        "message": _sentence(group[0], notice, ""),
        "attributes": [(_NOTICE, whole)],
    }
    return pa.Table.from_pylist([row], schema=EVENTS)


def _noticed(text: str | None) -> tuple[Key, int, dict[str, Any]] | None:
    """The notice in an event; None: it has none, or somebody else wrote such an attribute."""
    try:
        group, count, first = orjson.loads(text or "null")
        found = {name: str(one) for name, one in first.items() if name in _FIRST and one}
        kind = str(first["kind"])
        known = kind in _KINDS and group and found.keys() >= {"fqn", "run", "at"}
        known = known and (kind != "line" or "ts" in found)
        return (
            (tuple(map(str, group)), int(count), {"level": None, **found, "kind": kind})
            if known
            else None
        )
    except (ValueError, TypeError, KeyError, AttributeError):
        return None


def _linked(link: str, first: Mapping[str, Any]) -> str:
    names = {name: quote(str(first.get(name) or ""), safe="") for name in ("fqn", "run", "at")}
    return link.format(**names)


def _sentence(rule: str, notice: Notice, link: str) -> str:
    first = notice.first or {}
    where = f"{first.get('fqn')}/{first.get('run')}"
    said = {
        "line": f"{first.get('level') or 'line'} {_plain(str(first.get('message', '')))}",
        "failed": "the run failed",
        "silent": "the run is silent",
    }[str(first.get("kind"))]
    more = f" (and {notice.count - 1} more)" if notice.count > 1 else ""
    return f"{rule}: {where}: {said}{more}{f' {link}' if link else ''}"


def _time_of(uid: str) -> datetime:
    return datetime.fromtimestamp(ulids.time_ms(ulids.decode(uid)) / 1000, UTC)


def _plain(text: str) -> str:
    """Without control characters, on one line."""
    return "".join([one if one.isprintable() else " " for one in text])
