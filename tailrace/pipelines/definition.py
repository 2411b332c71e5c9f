"""Pipelines from their YAML files: one file to frozen models, and a folder of such files.

    name: audit
    filter: {fqn: "sales.*", level: INFO}
    appenders:
      - type: rolling_file
        name: files
        dir: /var/log/runs
        path: "{service}/{fqn}/{date}.log"
        layout: {type: pattern, pattern: "%d{ISO8601} %-5level [%run] %msg%n"}

An appender's keys are `type`, `name` and `filter`, and those of its kind. A file that is wrong
raises `InvalidInput` that names the key.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final, Self, cast

import yaml
from pydantic import ValidationError, field_validator, model_validator

from tailrace.logstore.errors import InvalidInput
from tailrace.logstore.objects.config import PipelineDefaults
from tailrace.logstore.settings import shown
from tailrace.pipelines.appenders.contract import (
    AppenderKind,
    PipelineAppender,
    Shelf,
    State,
    WrapperKind,
)
from tailrace.pipelines.appenders.registry import AppenderRegistry
from tailrace.pipelines.appenders.rolling.file import RollingFile
from tailrace.pipelines.appenders.rolling.object import RollingObject, RollingObjectSettings
from tailrace.pipelines.appenders.rolling.rolled import RollingFileSettings
from tailrace.pipelines.layouts import Json
from tailrace.pipelines.section import Bytes, BytesOrZero, Section, parsed, setting
from tailrace.pipelines.selection import Selection

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
_OWN: Final = ("type", "name", "filter")
_INNER: Final = "to"
_LETTERS_BYTES: Final = 8 << 20
_SECRET: Final = re.compile(r"\.(?:url|headers)\b")
"""Keys of appenders that hold tokens."""
_HINT: Final = "The keys are listed in docs/use/pipelines.md."
_PLUGIN: Final = "The appender belongs to a plugin: report this to its author."
_DEFAULTS: Final = PipelineDefaults()


def _checked_name(value: str) -> str:
    if not _NAME.fullmatch(value):
        raise ValueError("must have at most 64 letters, digits, - and _, and not begin with - or _")
    return value


class AppenderPart(Section):
    """The common keys of every kind of appender."""

    type: str = setting(..., "type of the appender")
    name: str = setting(..., "unique within the pipeline; names its checkpoint")
    filter: Selection = setting(Selection(), "which records of the pipeline it gets")

    _name = field_validator("name")(_checked_name)


class PipelineDefinition(PipelineDefaults):
    """One pipeline, without its appenders."""

    name: str = setting(..., "unique; names its checkpoints and its consumer group")
    description: str = setting("", "for people")
    filter: Selection = setting(Selection(), "which records it gets")
    auto_buffer_ratio: float | None = setting(
        None, "its share of the memory for events; null: that of the process", gt=0, lt=1
    )
    prefetch_bytes: BytesOrZero | None = setting(
        None, "bytes that are fetched ahead for it; null: a share of `pipelines.prefetch_bytes`"
    )
    segments_max_bytes: Bytes | None = setting(
        None, "bytes of segments to keep for it alone; null: `segments.max_bytes`"
    )

    _name = field_validator("name")(_checked_name)

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.auto_buffer_ratio and self.buffer_size_bytes:
            raise ValueError("give buffer_size_bytes or auto_buffer_ratio, not both")
        if self.error_threshold and not self.dead_letter_dir:
            raise ValueError("error_threshold needs a dead_letter_dir for the appender's events")
        return self


@dataclass(frozen=True, slots=True)
class AppenderConfig:
    """One appender of a pipeline: its common part, and how to make one."""

    part: AppenderPart
    kind: AppenderKind | WrapperKind
    settings: Section
    inner: AppenderConfig | None = None
    """What a wrapper gives its events on to."""

    @property
    def name(self) -> str:
        """Its name within the pipeline."""
        return self.part.name

    @property
    def innermost(self) -> AppenderConfig:
        """The appender that writes, inside all wrappers."""
        return self if self.inner is None else self.inner.innermost

    def make(self) -> PipelineAppender:
        """An appender that is not started."""
        if self.inner is None:
            return cast(AppenderKind, self.kind)(self.settings)
        return cast(WrapperKind, self.kind)(self.settings, self.inner.make)

    def make_dead_letter(self, pipeline: PipelineDefinition) -> PipelineAppender:
        """Makes the appender that takes its events while it is disabled: a file of JSON a part."""
        return self._masked(lambda: self.make_shelf(pipeline))

    def make_shelf(self, pipeline: PipelineDefinition) -> Shelf:
        """Makes the place of its dead letters: that file, or objects if no folder is set."""
        if not pipeline.dead_letter_dir:
            return RollingObject(
                RollingObjectSettings(
                    path="{part}.json", layout=Json(), max_object_size=_LETTERS_BYTES
                )
            )
        name = f"{pipeline.name}.{self.name}.{{part}}.json"
        return RollingFile(
            RollingFileSettings(
                dir=pipeline.dead_letter_dir, path=name, layout=Json(), max_file_size=_LETTERS_BYTES
            )
        )

    def _masked(self, make: Callable[[], PipelineAppender]) -> PipelineAppender:
        """The dead-letter file behind those wrappers that stand before it too."""
        if self.inner is None:
            return make()
        inner = self.inner
        if not getattr(self.kind, "dead_letters_too", False):
            return inner._masked(make)
        return cast(WrapperKind, self.kind)(self.settings, lambda: inner._masked(make))


def state_of_letters(pipeline: PipelineDefinition, state: State | None) -> State | None:
    """The state of the dead letters, if they are where the pipeline keeps them now."""
    mark = "undo" if pipeline.dead_letter_dir else "number"
    return state if state is not None and mark in state else None


@dataclass(frozen=True, slots=True)
class PipelineConfig:
    """A pipeline as its file says."""

    settings: PipelineDefinition
    appenders: tuple[AppenderConfig, ...]
    path: str = ""

    @property
    def name(self) -> str:
        """Its name."""
        return self.settings.name

    def try_out(self) -> None:
        """Makes each appender, without starting it. Raises `InvalidInput` for one that cannot."""
        for one in self.appenders:
            try:
                one.make()
            except Exception as error:  # a plugin may raise anything
                said = f"the appender {one.name} of {self.name} cannot be made: {_said(error)}"
                raise InvalidInput(f"{self.path}: {said}", hint=_PLUGIN) from error


class Writers:
    """Tracks which appender writes which files: no two may write the same.

    Each goes back to its own checkpoint, and would cut off the lines of the other. `output` of the
    settings of a type of appender names the output; empty: no other appender writes it.
    """

    def __init__(self) -> None:
        self._names: dict[str, str] = {}

    def add(self, pipeline: PipelineConfig) -> None:
        """Raises `InvalidInput` if one of its appenders writes what another one does."""
        new: dict[str, str] = {}
        for one in pipeline.appenders:
            output = getattr(one.innermost.settings, "output", "")
            name = f"{pipeline.name}/{one.name}"
            other = self._names.get(output) or new.setdefault(output, name)
            if output and other != name:
                raise InvalidInput(
                    f"{other} and {name} both write {output}",
                    field="appenders",
                    hint="Each file has one writer: give one of them another path.",
                )
        self._names.update(new)


def read(
    path: str, registry: AppenderRegistry, defaults: PipelineDefaults = _DEFAULTS
) -> PipelineConfig:
    """The pipeline in a file. Raises `InvalidInput` that names file and key."""
    try:
        with open(path, encoding="utf-8") as file:
            content = parsed(file.read(), os.environ)
    except OSError as error:
        raise InvalidInput(f"{path} cannot be read: {error.strerror}") from None
    except InvalidInput as error:
        raise InvalidInput(f"{path}: {error}", field=error.field, hint=error.hint) from None
    except (ValueError, RecursionError, yaml.YAMLError) as error:
        raise InvalidInput(f"{path} cannot be read: {error}", hint=_HINT) from None
    try:
        return parse(content, registry, path, defaults)
    except InvalidInput as error:
        raise InvalidInput(f"{path}: {error}", field=error.field, hint=error.hint) from None
    except Exception as error:  # the settings of a plugin may
        raise InvalidInput(f"{path} cannot be used: {_said(error)}", hint=_PLUGIN) from error


def parse(
    content: Any, registry: AppenderRegistry, path: str = "", defaults: PipelineDefaults = _DEFAULTS
) -> PipelineConfig:
    """The pipeline that a file's content is. Raises `InvalidInput` that names all wrong keys."""
    if not isinstance(content, Mapping):
        raise InvalidInput("a pipeline's file must hold keys and values", hint=_HINT)
    given = content.get("appenders")
    if not isinstance(given, Sequence) or isinstance(given, str) or not given:
        raise InvalidInput(
            "appenders must list at least one appender", field="appenders", hint=_HINT
        )
    rest = {name: value for name, value in content.items() if name != "appenders"}
    wrong: list[InvalidInput] = []
    with _noted(wrong):
        settings = _made(PipelineDefinition, {**_left_of(defaults, rest), **rest}, "")
    appenders: tuple[AppenderConfig, ...] = ()
    for number, one in enumerate(given):
        with _noted(wrong):
            appenders += (_appender(one, registry, f"appenders.{number}."),)
    if wrong:
        raise _all_of(wrong)
    names = [one.name for one in appenders]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise InvalidInput(f"two appenders are called {twice[0]!r}", field="appenders", hint=_HINT)
    made = PipelineConfig(settings, appenders, path)
    Writers().add(made)
    return made


def _left_of(defaults: PipelineDefaults, rest: Mapping[Any, Any]) -> dict[str, Any]:
    """The defaults of what a file leaves open: with a ratio it has said how large its buffer is."""
    ratio = rest.get("auto_buffer_ratio") is not None
    return defaults.model_dump(exclude={"buffer_size_bytes"} if ratio else None)


def _appender(content: Any, registry: AppenderRegistry, where: str) -> AppenderConfig:
    if not isinstance(content, Mapping):
        raise InvalidInput(f"{where[:-1]} must be keys and values", field=where[:-1], hint=_HINT)
    part = _made(AppenderPart, {name: content[name] for name in _OWN if name in content}, where)
    kind = registry.kind(part.type)
    rest = {name: value for name, value in content.items() if name not in _OWN}
    inner = _inner(rest, registry, part.name, where) if isinstance(kind, WrapperKind) else None
    return AppenderConfig(part, kind, _made(kind.settings, rest, where), inner)


def _inner(
    rest: dict[str, Any], registry: AppenderRegistry, name: str, where: str
) -> AppenderConfig:
    """What a wrapper gives its events on to: an appender under `to`, without a name of its own."""
    content = rest.pop(_INNER, None)
    where = f"{where}{_INNER}."
    if not isinstance(content, Mapping):
        raise InvalidInput(
            f"{where[:-1]} must be the appender that is wrapped", field=where[:-1], hint=_HINT
        )
    for other, instead in (("name", "its wrapper has it"), ("filter", "put it at the wrapper")):
        if other in content:
            raise InvalidInput(f"{where}{other} is not allowed: {instead}", field=f"{where}{other}")
    return _appender({**content, "name": name}, registry, where)


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


def _made(cls: type[Any], content: Mapping[Any, Any], where: str) -> Any:
    for name in content:
        if not isinstance(name, str):
            field = f"{where}{name}"
            raise InvalidInput(f"the key {field} must be text", field=field, hint=_HINT)
    try:
        return cls(**content)
    except ValidationError as error:
        each = {one["loc"][:1]: one for one in reversed(error.errors())}  # the first of each key
        raise _all_of([_wrong(one, where) for one in reversed(each.values())]) from None


def _wrong(error: Mapping[str, Any], where: str) -> InvalidInput:
    field = where + ".".join(str(part) for part in error["loc"])
    if error["type"] == "extra_forbidden":
        return InvalidInput(f"unknown key {field}", field=field, hint=_HINT)
    if error["type"] == "missing":
        return InvalidInput(f"{field} is missing", field=field, hint=_HINT)
    message = error["msg"].removeprefix("Value error, ")
    if not error["loc"]:
        return InvalidInput(message, field=where[:-1], hint=_HINT)
    seen = "" if _SECRET.search(field) else shown(field, error["input"])
    text = f"{field}: {message[:1].lower()}{message[1:]}{seen}"
    return InvalidInput(text, field=field, hint=_HINT)


@contextmanager
def _noted(wrong: list[InvalidInput]) -> Iterator[None]:
    """What is wrong within is put into the list."""
    try:
        yield
    except InvalidInput as error:
        wrong.append(error)


def _all_of(wrong: Sequence[InvalidInput]) -> InvalidInput:
    """One error that says them all."""
    hints = dict.fromkeys(one.hint for one in wrong if one.hint)
    said = "; ".join(map(str, wrong))
    return InvalidInput(said, field=wrong[0].field, hint=" ".join(hints) or None)


# A folder of pipelines' files: those that can run together, and the errors of the others.
#
# A wrong file stops no pipeline: if its pipeline runs, it goes on unchanged, and the files of
# others are loaded. Of two files that cannot run together (one name, or the same output) the one
# whose pipeline runs counts, or else the first by name.


_NONE: Final[Mapping[str, PipelineConfig]] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class PipelineFolder:
    """Pipelines, and the error of each wrong file, by its path."""

    pipelines: Sequence[PipelineConfig] = ()
    wrong: Mapping[str, InvalidInput] = field(default_factory=dict)


def read_folder(
    folder: str, registry: AppenderRegistry, defaults: PipelineDefaults = _DEFAULTS
) -> PipelineFolder:
    """Returns the pipelines of the folder's `*.yaml` files, each read by itself; see `beside`.

    Raises `InvalidInput` if the folder cannot be read.
    """
    try:
        names = sorted(os.listdir(folder))
    except OSError as error:
        raise InvalidInput(f"the folder {folder} cannot be read: {error.strerror}") from None
    found: list[PipelineConfig] = []
    wrong: dict[str, InvalidInput] = dict(registry.wrong)
    for name in names:
        if not name.endswith((".yaml", ".yml")):
            continue
        path = os.path.join(folder, name)
        try:
            found.append(read(path, registry, defaults))
        except InvalidInput as error:
            wrong[path] = error
    return PipelineFolder(found, wrong)


def names_of(folder: PipelineFolder) -> list[str]:
    """The names of all pipelines in the files, also of what this process cannot run."""
    names = {one.name for one in folder.pipelines}
    for path in folder.wrong:
        with suppress(OSError, UnicodeDecodeError, InvalidInput, yaml.YAMLError):
            with open(path, encoding="utf-8") as file:
                content = parsed(file.read(), os.environ)
            name = content.get("name") if isinstance(content, dict) else None
            names |= {name} if isinstance(name, str) else set()
    return sorted(names)


def beside(found: PipelineFolder, running: Mapping[str, PipelineConfig] = _NONE) -> PipelineFolder:
    """Returns the pipelines to run when the files have `found`, and `running` run by name."""
    wrong, chosen = dict(found.wrong), _Chosen()
    names = {one.name for one in found.pipelines}
    kept = [one for one in running.values() if one.path in wrong and one.name not in names]
    for one in sorted(
        [*found.pipelines, *kept], key=lambda one: (_newness(one, running), one.path)
    ):
        old = running.get(one.name)
        try:
            if old is not None and one != old:
                one.try_out()
            chosen.add(one)
        except InvalidInput as error:
            wrong[one.path] = error
            if old is not None:
                with suppress(InvalidInput):
                    chosen.add(old)
    return PipelineFolder([chosen.found[name] for name in sorted(chosen.found)], wrong)


def _newness(one: PipelineConfig, running: Mapping[str, PipelineConfig]) -> int:
    """0: it runs so already; 1: its file has changed; 2: it is new there."""
    old = running.get(one.name)
    if old is None or old.path != one.path:
        return 2
    return int(old != one)


class _Chosen:
    """Pipelines that can run together."""

    def __init__(self) -> None:
        self.found: dict[str, PipelineConfig] = {}
        self._writers = Writers()

    def add(self, one: PipelineConfig) -> None:
        """Raises `InvalidInput` for one that cannot run beside the others."""
        other = self.found.get(one.name)
        if other is not None:
            raise InvalidInput(
                f"{one.path} and {other.path} both are the pipeline {one.name!r}",
                hint="A pipeline's name identifies its checkpoints: give each pipeline its own.",
            )
        self._writers.add(one)
        self.found[one.name] = one
