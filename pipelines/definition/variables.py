"""Variables of the environment in a pipeline's file: `${NAME}`, `${NAME:-default}`, `$${` for `${`.

One that is not set and has no default is an error, or an appender would write to a folder with that
name; so is one in the default of another. A comment may name any.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from logstore.bounded_yaml import load_yaml
from logstore.errors import InvalidInput
from logstore.settings import substituted

_MARK: Final = "\ue000"
_NESTED: Final = "\ue001"


class _Marked(dict[str, str]):
    """The environment, where what is not set is its name between marks.

    Between others, if its default has a variable: that ends with the first brace, as Dropwizard
    has it, and what is behind would stay as text.
    """

    def get(self, name: str, default: Any = None) -> Any:
        if default is not None and "${" in default:
            return f"{_NESTED}{name}{_NESTED}"
        return super().get(name, f"{_MARK}{name}{_MARK}" if default is None else default)


def parsed(text: str, environment: Mapping[str, str]) -> Any:
    """The content of a file. Raises `InvalidInput` for variables that are not set, `YAMLError`."""
    content = load_yaml(substituted(text, _Marked(environment)))
    nested = next(_marked(content, (), _NESTED), None)
    if nested is not None:
        where, name = nested
        raise InvalidInput(
            f"{where} has a variable in the default of ${{{name}}}",
            field=where,
            hint=f"Write ${{{name}}} and set it where the process is started, or a default without"
            " variables.",
        )
    missing = {name: where for where, name in _marked(content, (), _MARK)}
    if missing:
        said = "; ".join(f"{where} needs ${{{name}}}" for name, where in missing.items())
        raise InvalidInput(
            f"{said}: the environment does not have it",
            field=next(iter(missing.values())),
            hint="Set it where the process is started, or write ${NAME:-default};"
            " $${ is ${ itself.",
        )
    return content


def _marked(value: Any, where: tuple[str, ...], mark: str) -> Iterator[tuple[str, str]]:
    """Where names are between such marks, and which."""
    if isinstance(value, str):
        for name in value.split(mark)[1::2]:
            yield ".".join(where), name
    elif isinstance(value, Mapping):
        for key, one in value.items():
            yield from _marked(key, where, mark)
            yield from _marked(one, (*where, str(key)), mark)
    elif isinstance(value, list):
        for number, one in enumerate(value):
            yield from _marked(one, (*where, str(number)), mark)
