"""Variables of the environment in a pipeline's file: `${NAME}`, `${NAME:-default}`, `$${` for `${`.

One that is not set and has no default is an error, or an appender would write to a folder with that
name. A comment may name any.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

import yaml

from logstore.errors import InvalidInput
from logstore.settings import substituted

_MARK: Final = "\ue000"


class _Marked(dict[str, str]):
    """The environment, where what is not set is its name between marks."""

    def get(self, name: str, default: Any = None) -> Any:
        return super().get(name, f"{_MARK}{name}{_MARK}" if default is None else default)


def parsed(text: str, environment: Mapping[str, str]) -> Any:
    """The content of a file. Raises `InvalidInput` for variables that are not set, `YAMLError`."""
    content = yaml.safe_load(substituted(text, _Marked(environment)))
    missing = {name: where for where, name in _missing(content, ())}
    if missing:
        said = "; ".join(f"{where} needs ${{{name}}}" for name, where in missing.items())
        raise InvalidInput(
            f"{said}: the environment does not have it",
            field=next(iter(missing.values())),
            hint="Set it where the process is started, or write ${NAME:-default};"
            " $${ is ${ itself.",
        )
    return content


def _missing(value: Any, where: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    """Where variables are missing, and which."""
    if isinstance(value, str):
        for name in value.split(_MARK)[1::2]:
            yield ".".join(where), name
    elif isinstance(value, Mapping):
        for key, one in value.items():
            yield from _missing(key, where)
            yield from _missing(one, (*where, str(key)))
    elif isinstance(value, list):
        for number, one in enumerate(value):
            yield from _missing(one, (*where, str(number)))
