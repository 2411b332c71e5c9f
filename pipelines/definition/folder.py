"""A folder of pipelines' files: those that can run beside each other, and what is wrong.

A file that is wrong stops nobody: if its pipeline runs, that goes on as it is, and the files of
others are taken over. Of two files that cannot be together (one name, or the same output) the one
whose pipeline runs counts, or else the first by name.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

import yaml

from logstore.errors import InvalidInput
from logstore.objects.settings import PipelineDefaults
from pipelines.appenders.registry import Registry
from pipelines.definition.config import PipelineConfig, Writers, read
from pipelines.definition.variables import parsed

_DEFAULTS: Final = PipelineDefaults()
_NONE: Final[Mapping[str, PipelineConfig]] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Folder:
    """Pipelines, and what is wrong with a file, by its path."""

    pipelines: Sequence[PipelineConfig] = ()
    wrong: Mapping[str, InvalidInput] = field(default_factory=dict)


def read_folder(folder: str, registry: Registry, defaults: PipelineDefaults = _DEFAULTS) -> Folder:
    """What the folder's `*.yaml` say, each by itself; see `beside`.

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
    return Folder(found, wrong)


def names_of(folder: Folder) -> list[str]:
    """The names of all pipelines in the files, also of what this process cannot run."""
    names = {one.name for one in folder.pipelines}
    for path in folder.wrong:
        with suppress(OSError, UnicodeDecodeError, InvalidInput, yaml.YAMLError):
            with open(path, encoding="utf-8") as file:
                content = parsed(file.read(), os.environ)
            name = content.get("name") if isinstance(content, dict) else None
            names |= {name} if isinstance(name, str) else set()
    return sorted(names)


def beside(found: Folder, running: Mapping[str, PipelineConfig] = _NONE) -> Folder:
    """What is to run when the files say `found`, and `running` does by name."""
    wrong, chosen = dict(found.wrong), _Chosen()
    names = {one.name for one in found.pipelines}
    kept = [one for one in running.values() if one.path in wrong and one.name not in names]
    for one in sorted([*found.pipelines, *kept], key=lambda one: (_news(one, running), one.path)):
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
    return Folder([chosen.found[name] for name in sorted(chosen.found)], wrong)


def _news(one: PipelineConfig, running: Mapping[str, PipelineConfig]) -> int:
    """0: it runs so already; 1: its file has changed; 2: it is new there."""
    old = running.get(one.name)
    if old is None or old.path != one.path:
        return 2
    return int(old != one)


class _Chosen:
    """Pipelines that can run beside each other."""

    def __init__(self) -> None:
        self.found: dict[str, PipelineConfig] = {}
        self._writers = Writers()

    def add(self, one: PipelineConfig) -> None:
        """Raises `InvalidInput` for one that cannot run beside the others."""
        other = self.found.get(one.name)
        if other is not None:
            raise InvalidInput(
                f"{one.path} and {other.path} both are the pipeline {one.name!r}",
                hint="A pipeline's name is that of its checkpoints: give each its own.",
            )
        self._writers.add(one)
        self.found[one.name] = one
