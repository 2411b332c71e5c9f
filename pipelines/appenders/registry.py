"""The kinds of appenders: our own, and those of plugins.

A distribution that is installed names its kinds as entry points of the group
`tailrace.appenders`; the name is the `type` in a pipeline's file. See `contract.Kind` for what it
names. Plugins that are not installed are in the folders of `--lib` (`libraries`).
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import entry_points
from typing import Final

from logstore.errors import InvalidInput
from pipelines.appenders.contract import Kind, WrapperKind
from pipelines.appenders.level_metrics import LevelMetrics
from pipelines.appenders.libraries import GROUP, Libraries, Plugin
from pipelines.appenders.notification.notify import Notify
from pipelines.appenders.otlp import Otlp
from pipelines.appenders.rolling.file import RollingFile
from pipelines.appenders.rolling.object import RollingObject
from pipelines.appenders.stdout import Stdout
from pipelines.appenders.webhook import Webhook
from pipelines.appenders.wrappers.masking import Mask
from pipelines.appenders.wrappers.narrowing import Filter
from pipelines.appenders.wrappers.queueing import Async
from pipelines.appenders.wrappers.retrying import Retry
from pipelines.definition.section import Section

OURS: Final[Mapping[str, Kind | WrapperKind]] = {
    "rolling_file": RollingFile,
    "rolling_object": RollingObject,
    "stdout": Stdout,
    "webhook": Webhook,
    "notify": Notify,
    "otlp": Otlp,
    "metrics": LevelMetrics,
    "filter": Filter,
    "retry": Retry,
    "async": Async,
    "mask": Mask,
}
_METHODS: Final = ("start", "append", "sync", "saved", "stop")


class Registry:
    """Kinds by the `type` that names them. A plugin is loaded when somebody names it.

    A plugin that cannot be used, or has the name of another, is in `wrong` by what it is of: it
    keeps nobody from running who does not name it. Raises `InvalidInput` for folders that cannot be
    read.
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
                    hint="Give it another name, or take one of them away.",
                )
            else:
                self._plugins[plugin.name] = plugin

    @property
    def names(self) -> list[str]:
        """All types that are known."""
        return sorted({*OURS, *self._plugins})

    def kind(self, name: str) -> Kind | WrapperKind:
        """The kind of that type. Raises `InvalidInput`."""
        if name in OURS:
            return OURS[name]
        plugin = self._plugins.get(name)
        if plugin is None:
            raise InvalidInput(
                f"no appender is of type {name!r} for this process",
                field="type",
                hint=f"It knows {', '.join(self.names)}. One of a plugin is known to a process that"
                " has its package installed, or is given its folder by --lib: processes that"
                " have it run the pipeline, and this one does not.",
            )
        try:
            found = plugin.load()
        except Exception as error:
            raise InvalidInput(
                f"the appender {name!r} of {plugin.origin} cannot be loaded: {error}", field="type"
            ) from error
        return _checked(found, plugin)


def _checked(found: object, plugin: Plugin) -> Kind | WrapperKind:
    """What a plugin names, if it is a kind of appender. Raises `InvalidInput`."""
    if not isinstance(found, Kind | WrapperKind):
        raise InvalidInput(
            f"{plugin.origin} is no kind of appender: it needs `settings`, and to be callable",
            field="type",
        )
    settings: object = found.settings
    if not (isinstance(settings, type) and issubclass(settings, Section)):
        raise InvalidInput(
            f"{plugin.origin} is no kind of appender: its `settings` must be a class that is"
            " derived from pipelines.definition.section.Section",
            field="type",
        )
    missing = [name for name in _METHODS if isinstance(found, type) and not hasattr(found, name)]
    if missing:
        raise InvalidInput(
            f"{plugin.origin} is no kind of appender: it has no {', '.join(missing)}",
            field="type",
            hint="pipelines/appenders/contract.py says what each method must do.",
        )
    return found
