"""The kinds of appenders: our own, and those of plugins.

A distribution that is installed names its kinds as entry points of the group `tailrace.appenders`;
the name is the `type` in a pipeline's file. An entry point names an `AppenderKind`
(`tailrace.pipelines.appenders.contract`). Plugins that are not installed are in the folders of
`--lib` (`Libraries`).
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import sys
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.machinery import SourceFileLoader
from importlib.metadata import EntryPoint, distributions, entry_points
from types import CodeType
from typing import Any, Final

from tailrace.logstore.errors import InvalidInput
from tailrace.pipelines.appenders.contract import AppenderKind, WrapperKind
from tailrace.pipelines.appenders.notify import Notify
from tailrace.pipelines.appenders.otlp import Otlp, Webhook
from tailrace.pipelines.appenders.rolling.file import RollingFile
from tailrace.pipelines.appenders.rolling.object import RollingObject
from tailrace.pipelines.appenders.simple import LevelMetrics, Stdout
from tailrace.pipelines.appenders.wrappers import Async, Filter, Mask, RetryingAppender
from tailrace.pipelines.section import Section

# Plugins in folders (`--lib DIR`): Python files and wheels that are not installed.
#
#   DIR/counting.py                    has APPENDERS = {"counting": Counting}
#   DIR/acme_appenders-1.0-py3-none-any.whl   has entry points of the group `tailrace.appenders`
#
# A file that changed is loaded again. A wheel is imported without installation, so it must be pure
# Python, and its dependencies must be installed; a wheel that changed needs another process, since
# Python keeps its modules.


GROUP: Final = "tailrace.appenders"
_COMPILED: Final = (".so", ".pyd", ".dylib")
_HINT: Final = "A folder of --lib holds Python files with APPENDERS, and wheels."
Load = Callable[[], Any]


@dataclass(frozen=True, slots=True)
class Plugin:
    """A kind of appender that is found, and not loaded yet; `origin` is for people.

    `value` is what its entry point names, if it has one.
    """

    name: str
    origin: str
    load: Load
    value: str = ""


class Libraries:
    """The plugins of some folders. A file is loaded again only when it has changed."""

    def __init__(self, folders: Sequence[str] = ()) -> None:
        self._folders = [os.path.abspath(folder) for folder in folders]
        self._files: dict[str, tuple[tuple[int, int], Mapping[str, Any]]] = {}

    def plugins(self, wrong: dict[str, InvalidInput]) -> list[Plugin]:
        """What is there now; a file that cannot be used comes into `wrong`, by its path.

        Raises `InvalidInput` for a folder that cannot be read.
        """
        found: list[Plugin] = []
        for folder in self._folders:
            try:
                names = sorted(os.listdir(folder))
            except OSError as error:
                raise InvalidInput(
                    f"the folder {folder} of --lib cannot be read: {error.strerror}", hint=_HINT
                ) from None
            for name in names:
                path = os.path.join(folder, name)
                try:
                    found += self._of(path)
                except InvalidInput as error:
                    wrong[path] = error
        return found

    def _of(self, path: str) -> list[Plugin]:
        if path.endswith(".py"):
            return self._of_file(path)
        return _of_wheel(path) if path.endswith(".whl") else []

    def _of_file(self, path: str) -> list[Plugin]:
        try:
            found = os.stat(path)
        except OSError as error:  # taken away since it was listed
            raise InvalidInput(f"{path} cannot be read: {error.strerror}", hint=_HINT) from None
        stamp = found.st_mtime_ns, found.st_size
        known = self._files.get(path)
        if known is None or known[0] != stamp:
            known = self._files[path] = stamp, _appenders_of(path)
        return [
            Plugin(name, path, lambda kind=kind: kind)  # type: ignore[misc]
            for name, kind in known[1].items()
        ]


class _FromSource(SourceFileLoader):
    """Compiles a file each time: bytecode is known by the second and size, a change need not be."""

    def get_code(self, fullname: str) -> CodeType:  # noqa: ARG002  (the base class has it)
        return self.source_to_code(self.get_data(self.path), self.path)


def _appenders_of(path: str) -> Mapping[str, Any]:
    """What a Python file has in `APPENDERS`. Raises `InvalidInput`."""
    stem = os.path.splitext(os.path.basename(path))[0]
    name = f"tailrace_lib_{hashlib.sha256(path.encode()).hexdigest()[:8]}_{stem}"
    spec = importlib.util.spec_from_file_location(name, path, loader=_FromSource(name, path))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # where classes look for their annotations
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        raise InvalidInput(
            f"{path} cannot be loaded: {type(error).__name__}: {error}",
            hint="Repair it, or remove it from the folder of --lib.",
        ) from error
    found = getattr(module, "APPENDERS", None)
    if not isinstance(found, Mapping) or not found or not all(isinstance(k, str) for k in found):
        raise InvalidInput(
            f"{path} has no appenders",
            hint='A plugin declares its appenders: APPENDERS = {"my_type": MyAppender}.',
        )
    return found


def _of_wheel(path: str) -> list[Plugin]:
    """What a wheel's entry points name. Raises `InvalidInput`."""
    try:
        with zipfile.ZipFile(path) as wheel:
            compiled = [name for name in wheel.namelist() if name.endswith(_COMPILED)]
    except (OSError, zipfile.BadZipFile) as error:
        raise InvalidInput(f"{path} is not a wheel: {error}", hint=_HINT) from None
    if compiled:
        raise InvalidInput(
            f"{path} has compiled code ({compiled[0]}), which cannot be imported from a wheel",
            hint="Install it with pip into the environment of Tailrace.",
        )
    entries = [entry for one in distributions(path=[path]) for entry in one.entry_points]
    ours = [entry for entry in entries if entry.group == GROUP]
    if not ours:
        raise InvalidInput(
            f"{path} has no appenders", hint=f"Its entry points need the group {GROUP}."
        )
    return [
        Plugin(one.name, f"{one.value} in {path}", _loading(path, one), one.value) for one in ours
    ]


def _loading(path: str, entry: EntryPoint) -> Load:
    def load() -> Any:
        if path not in sys.path:
            sys.path.append(path)
        return entry.load()

    return load


OURS: Final[Mapping[str, AppenderKind | WrapperKind]] = {
    "rolling_file": RollingFile,
    "rolling_object": RollingObject,
    "stdout": Stdout,
    "webhook": Webhook,
    "notify": Notify,
    "otlp": Otlp,
    "metrics": LevelMetrics,
    "filter": Filter,
    "retry": RetryingAppender,
    "async": Async,
    "mask": Mask,
}
_METHODS: Final = ("start", "append", "sync", "saved", "stop")


class AppenderRegistry:
    """Kinds by the `type` that names them. A plugin is loaded when a pipeline names it.

    A plugin that cannot be used, or has the name of another, is in `wrong` by its origin: it stops
    no pipeline that does not name it. Raises `InvalidInput` for folders that cannot be read.
    """

    def __init__(self, libraries: Libraries | None = None) -> None:
        self._plugins: dict[str, Plugin] = {}
        self.wrong: dict[str, InvalidInput] = {}
        others = [] if libraries is None else libraries.plugins(self.wrong)
        # A wheel that was loaded is on Python's path, and looks as if it was installed.
        again = {(one.name, one.value) for one in others}
        installed = [
            Plugin(one.name, one.value, one.load)
            for one in entry_points(group=GROUP)
            if (one.name, one.value) not in again
        ]
        for plugin in [*installed, *others]:
            known = self._plugins.get(plugin.name)
            if known is not None or plugin.name in OURS:
                other = "Tailrace itself" if known is None else known.origin
                self.wrong[plugin.origin] = InvalidInput(
                    f"the appender {plugin.name!r} of {plugin.origin} is also one of {other}",
                    field="type",
                    hint="Rename it, or remove one of the two.",
                )
            else:
                self._plugins[plugin.name] = plugin

    @property
    def names(self) -> list[str]:
        """All types that are known."""
        return sorted({*OURS, *self._plugins})

    def kind(self, name: str) -> AppenderKind | WrapperKind:
        """The kind of that type. Raises `InvalidInput`."""
        if name in OURS:
            return OURS[name]
        plugin = self._plugins.get(name)
        if plugin is None:
            raise InvalidInput(
                f"this process has no appender of the type {name!r}",
                field="type",
                hint=f"It knows {', '.join(self.names)}. For a plugin, install its package, or"
                f" name its folder with --lib. Processes that have the plugin run the"
                f" pipeline; this process does not.",
            )
        try:
            found = plugin.load()
        except Exception as error:
            raise InvalidInput(
                f"the appender {name!r} of {plugin.origin} cannot be loaded: {error}", field="type"
            ) from error
        return _checked(found, plugin)


def _checked(found: object, plugin: Plugin) -> AppenderKind | WrapperKind:
    """What a plugin names, if it is a kind of appender. Raises `InvalidInput`."""
    if not isinstance(found, AppenderKind | WrapperKind):
        raise InvalidInput(
            f"{plugin.origin} is not an appender: it must be callable and have `settings`",
            field="type",
        )
    settings: object = found.settings
    if not (isinstance(settings, type) and issubclass(settings, Section)):
        raise InvalidInput(
            f"{plugin.origin} is not an appender: its `settings` must be a class derived from"
            " tailrace.pipelines.section.Section",
            field="type",
        )
    missing = [name for name in _METHODS if isinstance(found, type) and not hasattr(found, name)]
    if missing:
        raise InvalidInput(
            f"{plugin.origin} is not an appender: it has no {', '.join(missing)}",
            field="type",
            hint="tailrace/pipelines/appenders/contract.py says what each method must do.",
        )
    return found
