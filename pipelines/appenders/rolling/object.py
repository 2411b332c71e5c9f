"""Rolling objects: events as lines in objects of a store, each event exactly once.

    {path} as log.000001.txt, log.000002.txt …     below `store`, or below
                                                   `pipelines/{pipeline}/{appender}/` of our own

Lines are collected, and go to the store when `buffer_size` is reached and at each checkpoint: the
open object of a path is put together by the store from itself and what is new. One that is larger
than `max_object_size`, or began `max_object_age` ago, gets no more, and the next number begins.
Objects are compressed piece by piece, which gzip and zstd read as one.

What is done between two checkpoints is noted before (`undo_objects`), so a start after a crash
finds the objects as the last checkpoint had them. The lease is asked before each write, and each
write has a condition on what was there. Only a process that hangs between these two for longer
than the lease, on an object that nobody has written since, leaves lines there that come again.
"""

from __future__ import annotations

import gzip
import logging
import os
import re
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Final, Literal, Self

import pyarrow as pa
import zstandard
from pydantic import AfterValidator, Field, model_validator

from logstore.clock import Clock
from logstore.errors import InvalidName, NotFound, OutcomeUnknown, PreconditionFailed, Unavailable
from logstore.names import encode
from logstore.objects.keypath import MAX_KEY_BYTES, check_key
from logstore.objects.s3.settings import S3Settings
from logstore.objects.settings import StoreSettings
from logstore.objects.store import ObjectInfo, Part
from logstore.patterns import LinearRegex
from pipelines.appenders.contract import AppenderFailed, Context, State
from pipelines.appenders.rolling.generations import Generations
from pipelines.appenders.rolling.objects import Objects
from pipelines.appenders.rolling.old_objects import old_objects
from pipelines.appenders.rolling.paths import PathTemplate, encoded, template_in, writable
from pipelines.appenders.rolling.undo_objects import UndoObjects
from pipelines.definition.section import Bytes, BytesOrZero, Seconds, Section, key
from pipelines.deletions import Deleted
from pipelines.layouts import Layout, default_layout

log = logging.getLogger("tailrace.pipelines")

_MIB: Final = 1 << 20
_MOST_OPEN: Final = 200
_SWEEP_SECONDS: Final = 600.0
_SUFFIXES: Final = {"gzip": ".gz", "zstd": ".zst", "none": ""}
Open = Callable[[StoreSettings, Clock], Objects]


def _template(path: str) -> str:
    PathTemplate(path)
    return path


class RollingObjectSettings(Section):
    """Where the objects are, and when another one begins."""

    store: str = key("", "a folder or s3://bucket/prefix; empty: Tailrace's own store")
    s3: Annotated[S3Settings | None, Field(repr=False)] = key(
        None, "how `store` is reached: the keys of the section `s3` of the settings"
    )
    path: Annotated[str, AfterValidator(_template)] = key(
        "logs/{service}/{date}/{fqn}/log.txt", "the object of an event, before it is numbered"
    )
    layout: Layout = key(default_layout(), "how an event becomes a line")
    compress: Literal["none", "gzip", "zstd"] = key("none", "of objects")
    max_object_size: Bytes = key(128 * _MIB, "a larger object gets no more lines")
    max_object_age: Seconds = key(6 * 3600.0, "an object that is older gets no more lines")
    buffer_size: Bytes = key(16 * _MIB, "lines that wait for the next checkpoint")
    keep_objects: int = key(0, "so many objects of each path are kept; 0: all", ge=0)
    keep_bytes: BytesOrZero = key(0, "objects of each path up to so many bytes are kept; 0: all")
    keep_for: Seconds = key(0.0, "an object is removed when it was written so long ago; 0: never")
    on_delete: Literal["keep", "remove"] = key(
        "keep", "what becomes of the objects of a run that is deleted"
    )

    @property
    def output(self) -> str:
        """The template of all objects; empty: below the name of the appender."""
        if not self.store:
            return ""
        store = self.store if "://" in self.store else os.path.abspath(self.store)
        return f"{store.rstrip('/')}/{self.path}"

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.on_delete == "remove" and PathTemplate(self.path).run_folders is None:
            raise ValueError("on_delete: remove needs {fqn} and {run} as folders in the path")
        if 0 < self.keep_for < self.max_object_age:
            raise ValueError("keep_for is shorter than max_object_age: it is open for so long")
        if self.s3 is not None and not self.store.startswith("s3://"):
            raise ValueError("s3 is for a store s3://bucket/prefix")
        return self


@dataclass(slots=True)
class _Open:
    """The object of a path that grows; `etag` None: it is to be made."""

    number: int
    began: float
    size: int = 0
    etag: str | None = None
    lines: list[bytes] = field(default_factory=list)


class RollingObject:
    """Writes events to objects."""

    settings: ClassVar[type[Section]] = RollingObjectSettings

    def __init__(self, settings: RollingObjectSettings, open_objects: Open = Objects) -> None:
        self._settings = settings
        self._template = PathTemplate(settings.path)
        self._open_objects = open_objects
        self._context: Context | None = None
        self._objects: Objects | None = None
        self._undo: UndoObjects | None = None
        self._prefix = ""
        self._open: OrderedDict[str, _Open] = OrderedDict()
        self._generations = Generations(self._template)
        self._waiting = 0
        self._swept = float("-inf")

    def start(self, context: Context, state: State | None) -> None:
        self._template = template_in(context, self._settings.path)
        self._context = context
        self._prefix = "" if self._settings.store else f"pipelines/{context.pipeline}/"
        self._prefix += "" if self._settings.store else f"{encode(context.appender)}/"
        self._objects = self._open_objects(self._place(context), context.clock)
        self._undo = UndoObjects(self._objects, f"{self._prefix}.tailrace/{context.name}/")
        self._generations = Generations(self._template, (state or {}).get("generations", ()))
        self._safely(lambda: self._go_back(state or {}))

    def append(self, events: pa.Table) -> None:
        context = self._started()[0]
        lines = self._settings.layout.lines(events)
        found = self._template.groups(events, context.part, context.generation)
        groups = writable(events, list(found), self._refused, context.refuse)
        self._begin_others(self._generations.begin(events, groups, context.deletions()))
        for path, rows in groups:
            one = self._object(path)
            data = "".join(lines.take(pa.array(rows)).to_pylist()).encode()
            one.lines.append(data)
            self._waiting += len(data)
        if self._waiting > self._settings.buffer_size:
            self._safely(self._write)

    def sync(self) -> State:
        self._safely(self._write)
        _, _, undo = self._started()
        number = undo.prepare()
        while len(self._open) > _MOST_OPEN:
            self._open.popitem(last=False)
        found = {path: [one.number, one.size, one.began] for path, one in self._open.items()}
        state: State = {"number": number, "open": found}
        return {**state, "generations": self._generations.known} if self._generations else state

    def saved(self) -> None:
        self._safely(self._started()[2].saved)
        if self._sweep_is_due:
            self._safely(self._sweep)

    def flush(self) -> bool:
        """Ends objects that are old; what waits for them goes to the next one.

        Old ones are removed behind a checkpoint, for none may go back to them.
        """
        now = self._now
        old = [
            path
            for path, one in self._open.items()
            if now - one.began >= self._settings.max_object_age and not one.lines
        ]
        for path in old:
            del self._open[path]
        return bool(old) or self._sweep_is_due

    def deleted(self, deleted: Deleted) -> None:
        """Removes the objects of deleted runs, if the settings say so."""
        folders = self._template.run_folders
        if self._settings.on_delete == "keep" or folders is None or not deleted:
            return
        names, objects = encoded(deleted), self._started()[1]
        depth = self.depth

        def is_deleted(name: str) -> bool:
            return name.count("/") == depth and folders.is_deleted(name, names)

        for path in [path for path in self._open if is_deleted(path)]:
            self._waiting -= sum(len(data) for data in self._open.pop(path).lines)
        keys = [one.key for one in objects.list(self._prefix)]
        gone = [name for name in keys if is_deleted(name[len(self._prefix) :])]
        if gone:
            self._safely(lambda: objects.call(lambda store: store.delete(gone)))
            log.info("%s: objects of deleted runs are removed: %d", self._name, len(gone))

    def stop(self) -> None:
        if self._objects is not None:
            self._objects.close()
            self._objects = None

    # --- what was written, as dead letters are sent again -----------------------------------

    def end(self) -> None:
        self._safely(self._write)
        self._open.clear()

    def ended(self) -> list[str]:
        form = LinearRegex(r".*\.[0-9]{6,}\.[^./]*(?:\.gz|\.zst)?")
        growing = {self._key(path, one.number) for path, one in self._open.items()}
        depth, skipped = self.depth, len(self._prefix)
        names = [one.key for one in self._started()[1].list(self._prefix)]
        there = [name for name in names if name[skipped:].count("/") == depth]
        return [name for name in there if name not in growing and form.fullmatch(name[skipped:])]

    def read(self, name: str) -> bytes:
        body: bytes = self._started()[1].call(lambda store: store.get(name))[1]
        return body

    def remove(self, names: Sequence[str]) -> None:
        self._safely(lambda: self._started()[1].call(lambda store: store.delete(list(names))))

    # --- how long objects are kept -----------------------------------------------------------

    @property
    def _sweep_is_due(self) -> bool:
        keeps = self._settings.keep_objects or self._settings.keep_bytes or self._settings.keep_for
        return bool(keeps) and self._now - self._swept >= _SWEEP_SECONDS

    def _sweep(self) -> None:
        """Removes what is not kept, but nothing that the saved checkpoint goes on with."""
        context, objects, _ = self._started()
        self._swept = self._now
        fixed = self._template.template.partition("{")[0].rpartition("/")[0]
        gone = old_objects(
            objects.list(self._prefix + fixed),
            self._template,
            prefix=self._prefix,
            now_ms=context.clock.now_ms(),
            keep_objects=self._settings.keep_objects,
            keep_bytes=self._settings.keep_bytes,
            keep_for=self._settings.keep_for,
            opened={self._key(path, one.number) for path, one in self._open.items()},
        )
        if gone and context.holds():
            objects.call(lambda store: store.delete(gone))
            log.info("%s: old objects are removed: %d", self._name, len(gone))

    # --- what is there -----------------------------------------------------------------------

    @property
    def depth(self) -> int:
        """How many folders a path has."""
        return self._settings.path.count("/")

    @property
    def _name(self) -> str:
        return "" if self._context is None else self._context.name

    @property
    def _now(self) -> float:
        return self._started()[0].clock.now_ms() / 1000

    def _started(self) -> tuple[Context, Objects, UndoObjects]:
        if self._context is None or self._objects is None or self._undo is None:
            raise AppenderFailed("the appender was not started")
        return self._context, self._objects, self._undo

    def _place(self, context: Context) -> StoreSettings:
        if self._settings.store:
            s3 = self._settings.s3 or S3Settings()
            return StoreSettings(store=self._settings.store, s3=s3)
        if context.store is None:
            raise AppenderFailed("there is no store", hint="Name one in the key store.")
        return context.store

    def _go_back(self, state: State) -> None:
        """The objects as the state has them."""
        _, objects, undo = self._started()
        undo.start(int(state.get("number", 0)))
        for path, (number, size, began) in state.get("open", {}).items():
            try:
                found = objects.call(lambda store, p=path, n=number: store.head(self._key(p, n)))  # type: ignore[misc]
            except NotFound:
                log.warning("%s: %s is gone, and another one begins", self._name, path)
                continue
            if found.size > size:  # somebody whose lease was over has written it
                undo.cut(self._key(path, number), int(size))
                found = objects.call(lambda store, p=path, n=number: store.head(self._key(p, n)))  # type: ignore[misc]
            if found.size == size:
                self._open[path] = _Open(int(number), float(began), int(size), found.etag)

    def _key(self, path: str, number: int) -> str:
        stem, ending = os.path.splitext(path)
        suffix = _SUFFIXES[self._settings.compress]
        return f"{self._prefix}{stem}.{number:06d}{ending}{suffix}"

    def _object(self, path: str) -> _Open:
        """The open object of a path; a new one has the next number."""
        one = self._open.get(path)
        if one is None or (one.size >= self._settings.max_object_size and not one.lines):
            number = self._last(path) + 1 if one is None else one.number + 1
            one = self._open[path] = _Open(number, self._now)
        self._open.move_to_end(path)
        return one

    def _begin_others(self, paths: Sequence[str]) -> None:
        """The open objects of these get no more lines; those that wait are in the store."""
        there = [path for path in paths if path in self._open]
        if any(self._open[path].lines for path in there):
            self._safely(self._write)
        for path in there:
            self._open[path] = _Open(self._open[path].number + 1, self._now)

    def _last(self, path: str) -> int:
        """The highest number of a path that is in the store, or 0."""
        stem, ending = os.path.splitext(path)
        form = LinearRegex(rf"\.([0-9]{{6,}}){re.escape(ending)}(?:\.gz|\.zst)?")
        whole = f"{self._prefix}{stem}"
        listed = self._started()[1].list(f"{whole}.")
        found = [form.fullmatch(one.key[len(whole) :]) for one in listed]
        return max([int(one[1] or 0) for one in found if one is not None], default=0)

    # --- writing -----------------------------------------------------------------------------

    def _refused(self, path: str) -> str:
        """Why no object can have this path; empty: one can."""
        name = self._key(path, 1)
        place = self._settings.store.partition("://")[2].partition("/")[2]
        try:
            check_key(name)
        except InvalidName as error:
            return str(error)
        size = len(f"{place}/{name}".encode())
        if place and size > MAX_KEY_BYTES:
            return f"a key has at most {MAX_KEY_BYTES} bytes with the prefix of its store"
        return ""

    def _safely(self, call: Callable[[], object]) -> None:
        """Raises `AppenderFailed` for what the store refuses."""
        try:
            call()
        except PreconditionFailed as error:
            raise AppenderFailed(f"another process writes these objects: {error}") from error
        except (Unavailable, OutcomeUnknown) as error:
            raise AppenderFailed(f"the store of the objects does not answer: {error}") from error

    def _write(self) -> None:
        """All lines that wait are in the store when this returns."""
        context, _, undo = self._started()
        todo = {path: one for path, one in self._open.items() if one.lines}
        if not context.holds():
            raise AppenderFailed(f"the lease of {context.name} is over")
        undo.note({self._key(path, one.number): one.size for path, one in todo.items()})
        for path, one in todo.items():
            if not context.holds():
                raise AppenderFailed(f"the lease of {context.name} is over")
            found = self._put(self._key(path, one.number), one)
            one.size, one.etag, one.lines = found.size, found.etag, []
        self._waiting = 0

    def _put(self, name: str, one: _Open) -> ObjectInfo:
        objects, body, etag = self._started()[1], self._packed(b"".join(one.lines)), one.etag
        if etag is None:
            return objects.call(lambda store: store.put(name, body, if_absent=True))
        parts: list[Part | bytes] = [Part(name, 0, one.size), body]
        return objects.call(lambda store: store.compose(name, parts, if_match=etag))

    def _packed(self, data: bytes) -> bytes:
        if self._settings.compress == "gzip":
            return gzip.compress(data, 6, mtime=0)
        if self._settings.compress == "zstd":
            return zstandard.ZstdCompressor(level=3).compress(data)
        return data
