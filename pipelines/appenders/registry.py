"""The kinds of appenders: our own, and those that other distributions bring.

A distribution names its kinds as entry points of the group `tailrace.appenders`; the name is the
`type` in a pipeline's file. See `contract.Kind` for what it names.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import EntryPoint, entry_points
from typing import Final

from logstore.errors import InvalidInput
from pipelines.appenders.contract import Kind
from pipelines.appenders.rolling_file import RollingFile
from pipelines.appenders.stdout import Stdout

GROUP: Final = "tailrace.appenders"
_OURS: Final[Mapping[str, Kind]] = {"rolling_file": RollingFile, "stdout": Stdout}


class Registry:
    """Kinds by the `type` that names them. A plugin is loaded when somebody names it."""

    def __init__(self) -> None:
        self._plugins: dict[str, EntryPoint] = {one.name: one for one in entry_points(group=GROUP)}

    @property
    def names(self) -> list[str]:
        """All types that are known."""
        return sorted({*_OURS, *self._plugins})

    def kind(self, name: str) -> Kind:
        """The kind of that type. Raises `InvalidInput`."""
        if name in _OURS:
            return _OURS[name]
        entry = self._plugins.get(name)
        if entry is None:
            raise InvalidInput(
                f"no appender is of type {name!r}",
                field="type",
                hint=f"Known are {', '.join(self.names)}; install the package of another one.",
            )
        try:
            found = entry.load()
        except Exception as error:
            raise InvalidInput(
                f"the appender {name!r} of {entry.value} cannot be loaded: {error}", field="type"
            ) from error
        if not isinstance(found, Kind):
            raise InvalidInput(
                f"{entry.value} is no kind of appender: it needs `settings`, and to be callable",
                field="type",
            )
        return found
