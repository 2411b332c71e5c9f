"""Rolling objects: events as lines in objects of a store, each event exactly once.

    {path} as log.000001.txt, log.000002.txt …     below `store`, or below
                                                   `pipelines/{pipeline}/{appender}/` of our own

Lines are collected, and go to the store when `buffer_size` is reached and at each checkpoint: the
store composes the open object of a path from itself and the new lines. An object that is larger
than `max_object_size`, or began `max_object_age` ago, gets no more lines, and the next number
begins. Objects are compressed piece by piece, which gzip and zstd read as one.

Changes between two checkpoints are noted before they are made (`UndoObjects`), so a start after a
crash restores the objects of the last checkpoint. The lease is asked before each write, and each
write has a condition on the stored object. Only a process that hangs between these two for longer
than the lease, on an object that nobody has written since, leaves lines that are written twice.
"""

from __future__ import annotations

import asyncio
import gzip
import logging
import os
import re
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Collection,
    Iterable,
    Mapping,
    Sequence,
)
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Final, Literal, Self, TypeVar

import pyarrow as pa
import zstandard
from pydantic import AfterValidator, Field, model_validator

from tailrace.logstore.cache import BoundedCache
from tailrace.logstore.clock import Clock, SystemClock, system_entropy
from tailrace.logstore.errors import (
    InvalidName,
    NotFound,
    OutcomeUnknown,
    PreconditionFailed,
    Unavailable,
)
from tailrace.logstore.filesystem import Disk
from tailrace.logstore.keys import encode
from tailrace.logstore.objects.config import StoreSettings, open_store
from tailrace.logstore.objects.local_files import MAX_KEY_BYTES, check_key
from tailrace.logstore.objects.s3.settings import S3Settings
from tailrace.logstore.objects.store import ObjectInfo, ObjectPart, ObjectStore
from tailrace.logstore.patterns import LinearRegex
from tailrace.logstore.state import decode_checked, encode_checked
from tailrace.logstore.ulid import fresh_text
from tailrace.pipelines.appenders.contract import AppenderContext, AppenderFailed, State
from tailrace.pipelines.appenders.rolling.file import hint_to_begin, older_checkpoint
from tailrace.pipelines.appenders.rolling.paths import PathTemplate, encoded, template_in, writable
from tailrace.pipelines.appenders.rolling.rolled import Generations
from tailrace.pipelines.events import Deleted
from tailrace.pipelines.layouts import Layout, default_layout
from tailrace.pipelines.section import Bytes, BytesOrZero, Seconds, Section, setting

# An object store for appenders, which make blocking calls in a thread of their own.


T = TypeVar("T")


class Objects:
    """A store that is open until `close`; all calls come from one thread."""

    def __init__(self, settings: StoreSettings, clock: Clock) -> None:
        self._runner = asyncio.Runner()
        self._open = AsyncExitStack()
        self._store = self._runner.run(self._opened(settings, clock))

    def call(self, call: Callable[[ObjectStore], Awaitable[T]]) -> T:
        """The result of a call of the store. Raises its exceptions."""

        async def run() -> T:
            return await call(self._store)

        return self._runner.run(run())

    def list(self, prefix: str) -> list[ObjectInfo]:
        """The objects whose keys have the prefix."""

        async def all_of(found: AsyncIterator[ObjectInfo]) -> list[ObjectInfo]:
            return [one async for one in found]

        return self.call(lambda store: all_of(store.list(prefix)))

    def close(self) -> None:
        """Closes the store's connections."""
        try:
            self._runner.run(self._open.aclose())
        finally:
            self._runner.close()

    async def _opened(self, settings: StoreSettings, clock: Clock) -> ObjectStore:
        store = open_store(settings, clock, system_entropy(), Disk(private=True))
        return await self._open.enter_async_context(store)


# Retention: objects of a rolling object that are too old, too many or too large together.
#
# An object belongs to the appender if its name can come from its path. The object with the highest
# number of a path is kept whatever their count and bytes are, since it may be open in another part.


_NUMBERED: Final = re.compile(r"(.+)\.([0-9]{6,})(\.[^./]*?)??(?:\.gz|\.zst)?")


def old_objects(
    objects: Iterable[ObjectInfo],
    template: PathTemplate,
    *,
    prefix: str,
    now_ms: int,
    keep_objects: int,
    keep_bytes: int,
    keep_for: float,
    opened: Collection[str],
) -> list[str]:
    """The keys below `prefix` that are to be removed; none of `opened`.

    `keep_for` is in seconds; 0 of a limit: it is not looked at.
    """
    fixed = re.split(r"\{[^{}]*\}", template.template)
    ours = LinearRegex("[^/]+".join(map(re.escape, fixed)))
    by_path: dict[str, list[tuple[int, ObjectInfo]]] = {}
    for one in objects:
        match = _NUMBERED.fullmatch(one.key[len(prefix) :])
        if match is not None and ours.fullmatch(match[1] + (match[3] or "")):
            found = by_path.setdefault(match[1] + (match[3] or ""), [])
            found.append((int(match[2]), one))
    gone: list[str] = []
    for numbered in by_path.values():
        count = total = 0
        for place, (_, one) in enumerate(sorted(numbered, key=lambda n: n[0], reverse=True)):
            if one.key in opened:
                continue
            too_old = keep_for and now_ms - one.modified_ms > keep_for * 1000
            count, total = count + 1, total + one.size
            too_many = keep_objects and count > keep_objects
            too_large = keep_bytes and total > keep_bytes
            if too_old or (place and (too_many or too_large)):
                gone.append(one.key)
    return gone


# An undo log: takes objects back to a checkpoint, whatever changed since.
#
#   {prefix}{number}-{ULID}.json    the changes about to be made since checkpoint `number`: an
#                                   object {"objects": {key: size}}, where size 0 is a missing one
#
#   {prefix without its /}.saved.json   the newest checkpoint that is known to be saved:
#                                   {"saved": number}. A start with an older one is refused
#
# A note is in the store before its change is made. A start undoes all notes from the saved number
# on, the newest first: an object that did not exist is deleted, one that grew is composed from its
# beginning. Undoing may break off and begin again.


class UndoObjects:
    """The notes of one writer of objects. Calls raise as the store."""

    def __init__(self, objects: Objects, prefix: str) -> None:
        self._objects = objects
        self._prefix = prefix
        self._mark = f"{prefix.removesuffix('/')}.saved.json"
        self._grew = False  # since it was saved last
        self._noted: set[str] = set()
        self._number = 0

    def start(self, number: int) -> None:
        """Takes the objects back to the checkpoint that saved `number`; 0: there was none.

        Raises `AppenderFailed` if a later one was saved for them.
        """
        newest = self._newest_saved()
        if newest > number:
            raise AppenderFailed(older_checkpoint(number, newest), hint=hint_to_begin(self._mark))
        notes = self._notes()
        for name, one in reversed(notes):
            if one >= number:
                self._undo(name)
        self._number = max([number, *[one for _, one in notes]]) + 1
        self._remove([name for name, _ in notes])

    def note(self, sizes: Mapping[str, int]) -> None:
        """Writes down how large objects are before they grow, once after each checkpoint."""
        new = {key: size for key, size in sizes.items() if key not in self._noted}
        if not new:
            return
        ulid = fresh_text(SystemClock(), system_entropy())
        body = encode_checked({"objects": new})
        name = f"{self._prefix}{self._number:012d}-{ulid}.json"
        self._objects.call(lambda store: store.put(name, body, if_absent=True))
        self._noted.update(new)

    def prepare(self) -> int:
        """The number that is to be saved. All objects are written already."""
        self._number += 1
        self._grew = self._grew or bool(self._noted)
        self._noted = set()
        return self._number

    def saved(self) -> None:
        """The number of the last `prepare` is saved: older notes are no longer needed."""
        if self._grew:
            mark = encode_checked({"saved": self._number})
            self._objects.call(lambda store: store.put(self._mark, mark))
            self._grew = False
        self._remove([name for name, one in self._notes() if one < self._number])

    def _newest_saved(self) -> int:
        """The newest checkpoint that is known to be saved, or 0."""
        try:
            body = self._objects.call(lambda store: store.get(self._mark))[1]
        except NotFound:
            return 0
        return int(decode_checked(body)["saved"])

    def _notes(self) -> list[tuple[str, int]]:
        """The notes with their numbers, oldest first."""
        names = [one.key for one in self._objects.list(self._prefix)]
        return [(name, int(name[len(self._prefix) :].partition("-")[0])) for name in names]

    def _undo(self, name: str) -> None:
        body = self._objects.call(lambda store: store.get(name))[1]
        for key, size in decode_checked(body)["objects"].items():
            if size == 0:
                self._objects.call(lambda store, key=key: store.delete([key]))  # type: ignore[misc]
            else:
                self.cut(key, int(size))

    def cut(self, key: str, size: int) -> None:
        """Takes one object back to its beginning, if it is longer."""
        try:
            found = self._objects.call(lambda store: store.head(key))
        except NotFound:
            return
        if found.size > size:
            part, etag = ObjectPart(key, 0, size), found.etag
            self._objects.call(lambda store: store.compose(key, [part], if_match=etag))

    def _remove(self, names: list[str]) -> None:
        if names:
            self._objects.call(lambda store: store.delete(names))


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

    store: str = setting("", "a folder or s3://bucket/prefix; empty: Tailrace's own store")
    s3: Annotated[S3Settings | None, Field(repr=False)] = setting(
        None, "access to `store`, with the keys of the section `s3` of the settings"
    )
    path: Annotated[str, AfterValidator(_template)] = setting(
        "logs/{service}/{date}/{fqn}/log.txt", "object of an event, without its number"
    )
    layout: Layout = setting(default_layout(), "how an event becomes a line")
    compress: Literal["none", "gzip", "zstd"] = setting("none", "compression of objects")
    max_object_size: Bytes = setting(128 * _MIB, "a larger object gets no more lines")
    max_object_age: Seconds = setting(6 * 3600.0, "an object that is older gets no more lines")
    buffer_size: Bytes = setting(16 * _MIB, "lines that wait for the next checkpoint")
    keep_objects: int = setting(0, "number of objects to keep of each path; 0: all", ge=0)
    keep_bytes: BytesOrZero = setting(0, "bytes of objects to keep of each path; 0: all")
    keep_for: Seconds = setting(
        0.0, "an object is removed this long after its last write; 0: never"
    )
    on_delete: Literal["keep", "remove"] = setting(
        "keep", "whether objects of a deleted run are kept or removed"
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
            raise ValueError(
                "keep_for is shorter than max_object_age, for which an object stays open"
            )
        if self.s3 is not None and not self.store.startswith("s3://"):
            raise ValueError("s3 applies only to a store s3://bucket/prefix")
        return self


@dataclass(slots=True)
class _OpenObject:
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
        self._context: AppenderContext | None = None
        self._objects: Objects | None = None
        self._undo: UndoObjects | None = None
        self._prefix = ""
        self._open: BoundedCache[str, _OpenObject] = BoundedCache()
        self._generations = Generations(self._template)
        self._waiting = 0
        self._swept = float("-inf")

    def start(self, context: AppenderContext, state: State | None) -> None:
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
        self._open.shrink(_MOST_OPEN)
        found = {path: [one.number, one.size, one.began] for path, one in self._open.items()}
        state: State = {"number": number, "open": found}
        return {**state, "generations": self._generations.known} if self._generations else state

    def saved(self) -> None:
        self._safely(self._started()[2].saved)
        if self._sweep_is_due:
            self._safely(self._sweep)

    def flush(self) -> bool:
        """Ends objects that are old; lines that wait for them go to the next one.

        Old objects are removed after a checkpoint, since no start may go back to them.
        """
        now = self._now
        old = [
            path
            for path, one in self._open.items()
            if now - one.began >= self._settings.max_object_age and not one.lines
        ]
        for path in old:
            self._open.pop(path)
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
            one = self._open.pop(path)
            self._waiting -= sum(len(data) for data in one.lines) if one is not None else 0
        keys = [one.key for one in objects.list(self._prefix)]
        gone = [name for name in keys if is_deleted(name[len(self._prefix) :])]
        if gone:
            self._safely(lambda: objects.call(lambda store: store.delete(gone)))
            log.info("%s: removed objects of deleted runs: %d", self._name, len(gone))

    def stop(self) -> None:
        if self._objects is not None:
            self._objects.close()
            self._objects = None

    # --- written lines, as dead letters are sent again --------------------------------------

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
        """Removes objects that are not kept, but none that the saved checkpoint continues."""
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
            log.info("%s: removed old objects: %d", self._name, len(gone))

    # --- existing objects --------------------------------------------------------------------

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

    def _started(self) -> tuple[AppenderContext, Objects, UndoObjects]:
        if self._context is None or self._objects is None or self._undo is None:
            raise AppenderFailed("the appender was not started")
        return self._context, self._objects, self._undo

    def _place(self, context: AppenderContext) -> StoreSettings:
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
                log.warning("%s: %s is gone; a new object begins", self._name, path)
                continue
            if found.size > size:  # somebody whose lease was over has written it
                undo.cut(self._key(path, number), int(size))
                found = objects.call(lambda store, p=path, n=number: store.head(self._key(p, n)))  # type: ignore[misc]
            if found.size == size:
                known = _OpenObject(int(number), float(began), int(size), found.etag)
                self._open.put(path, known)

    def _key(self, path: str, number: int) -> str:
        stem, ending = os.path.splitext(path)
        suffix = _SUFFIXES[self._settings.compress]
        return f"{self._prefix}{stem}.{number:06d}{ending}{suffix}"

    def _object(self, path: str) -> _OpenObject:
        """The open object of a path; a new one has the next number."""
        one = self._open.get(path)
        if one is None or (one.size >= self._settings.max_object_size and not one.lines):
            number = self._last(path) + 1 if one is None else one.number + 1
            one = _OpenObject(number, self._now)
            self._open.put(path, one)
        return one

    def _begin_others(self, paths: Sequence[str]) -> None:
        """The open objects of these get no more lines; those that wait are in the store."""
        if any(one.lines for path in paths if (one := self._open.peek(path)) is not None):
            self._safely(self._write)
        for path in paths:
            if (one := self._open.peek(path)) is not None:
                self._open.put(path, _OpenObject(one.number + 1, self._now))

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

    def _put(self, name: str, one: _OpenObject) -> ObjectInfo:
        objects, body, etag = self._started()[1], self._packed(b"".join(one.lines)), one.etag
        if etag is None:
            return objects.call(lambda store: store.put(name, body, if_absent=True))
        parts: list[ObjectPart | bytes] = [ObjectPart(name, 0, one.size), body]
        return objects.call(lambda store: store.compose(name, parts, if_match=etag))

    def _packed(self, data: bytes) -> bytes:
        if self._settings.compress == "gzip":
            return gzip.compress(data, 6, mtime=0)
        if self._settings.compress == "zstd":
            return zstandard.ZstdCompressor(level=3).compress(data)
        return data
