"""Sections of a pipeline's file: frozen models whose fields have a default and a description.

`${NAME}` in a file is replaced from the environment.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Final

from pydantic import BeforeValidator, Field

from tailrace.logstore.bounded_yaml import load_yaml
from tailrace.logstore.errors import InvalidInput
from tailrace.logstore.settings import Bytes, BytesOrZero, Section, substituted

__all__ = ["Bytes", "BytesOrZero", "Seconds", "Section", "Texts", "setting"]

_DURATION = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*(ms|s|m|h|d)\s*")
_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def setting(default: Any, description: str, **limits: Any) -> Any:
    """A field of a section."""
    return Field(default, description=description, **limits)


def _seconds(value: object) -> object:
    found = _DURATION.fullmatch(value) if isinstance(value, str) else None
    if isinstance(value, str) and found is None:
        raise ValueError("must be a time with its unit, such as 500ms, 30s, 10m, 6h or 7d")
    return float(found[1]) * _UNITS[found[2]] if found else value


def _texts(value: object) -> object:
    return (value,) if isinstance(value, str) else value


Seconds = Annotated[float, BeforeValidator(_seconds), Field(ge=0)]
"""A duration; a plain number is seconds."""
Texts = Annotated[tuple[str, ...], BeforeValidator(_texts)]
"""A text, or a list of texts."""


# Variables of the environment in a pipeline's file: `${NAME}`, `${NAME:-default}`, `$${` for `${`.
#
# A variable that is not set and has no default is an error, or an appender would write to a folder
# with that name; so is one in the default of another. A comment may name any.


_MARK: Final = "\ue000"
_NESTED: Final = "\ue001"


class _Marked(dict[str, str]):
    """The environment, in which a variable that is not set is its name between marks.

    Other marks are used if its default has a variable: such a default ends with the first brace, as
    in Dropwizard, and the rest would stay as text.
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
