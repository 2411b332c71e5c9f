"""Reads the YAML file: one source with its keys at the top, or several below `receivers`.

`${NAME}` and `${NAME:-default}` are replaced from the environment, also as `${env:NAME}`.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ValidationError

from tailrace.forwarder.config.source import FileSource, Forwarder
from tailrace.logstore.bounded_yaml import load_yaml
from tailrace.logstore.errors import InvalidInput
from tailrace.logstore.settings import shown, substituted

M = TypeVar("M", bound=BaseModel)

_RECEIVER = re.compile(r"file_?log(?:/(.+))?", re.DOTALL)
_AS_COLLECTORS = re.compile(r"\$\{env:")
_LISTED = "The keys are listed in docs/reference/forwarder-reference.md."
# Keys of a collector's file, and the keys that replace them in ours.
_ELSEWHERE = {
    "exporters": "The forwarder sends to `targets`.",
    "processors": "The forwarder has no processors; `operators` parse entries.",
    "extensions": "The checkpoints' folder is `storage`, at the top.",
    "connectors": "The forwarder sends to `targets`.",
    "service": "Every receiver runs; `metrics` and `targets` are keys of the top level.",
    "retry_on_failure": "Move it to the top level: all sources are sent together.",
    "storage": "Move it to the top level: it is the folder of all checkpoints.",
    "id": "Sources are named by their key, file_log/NAME.",
    "output": "Operators run one after the other, as they are listed.",
}
_TOP = frozenset(Forwarder.model_fields) - {"sources"}
_OF_SOURCE = frozenset(FileSource.model_fields) - {"name"}


def read(path: str) -> Forwarder:
    """The configuration in a file. Raises `InvalidInput` that names the key."""
    try:
        with open(path, encoding="utf-8") as file:
            text = _AS_COLLECTORS.sub("${", file.read())
        content = load_yaml(substituted(text, os.environ))
    except FileNotFoundError:
        raise InvalidInput(f"the file {path} does not exist", hint=_LISTED) from None
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise InvalidInput(f"the file {path} cannot be read: {error}", hint=_LISTED) from None
    if not isinstance(content, dict):
        raise InvalidInput(f"the file {path} must hold keys and values", hint=_LISTED)
    return parse(content)


def parse(content: Mapping[str, Any]) -> Forwarder:
    """The configuration that a file's content is. Raises `InvalidInput` that names the key."""
    if "receivers" in content:
        top = {name: value for name, value in content.items() if name != "receivers"}
        _refuse_unknown(top, _TOP, "")
        sources = _receivers(content["receivers"])
    else:
        _refuse_unknown(content, _TOP | _OF_SOURCE, "")
        top = {name: value for name, value in content.items() if name in _TOP}
        own = {name: value for name, value in content.items() if name not in _TOP}
        sources = (_source("", "file_log", own),)
    return _made(Forwarder, {**top, "sources": sources}, "")


def _receivers(content: object) -> tuple[FileSource, ...]:
    if not isinstance(content, Mapping) or not content:
        raise InvalidInput("receivers must hold at least one file_log/NAME", field="receivers")
    found: dict[str, FileSource] = {}
    for label, value in content.items():
        where = f"receivers.{label}"
        named = _RECEIVER.fullmatch(str(label))
        if named is None:
            raise InvalidInput(
                f"{where} is not a known receiver",
                field=where,
                hint="The only kind of receiver is file_log/NAME; filelog/NAME means the same.",
            )
        if value is not None and not isinstance(value, Mapping):
            raise InvalidInput(f"{where} must hold keys and values", field=where, hint=_LISTED)
        name = named[1] or "file_log"
        if name in found:
            raise InvalidInput(f"{where}: there are two sources {name}", field=where)
        _refuse_unknown(value or {}, _OF_SOURCE, f"{where}.")
        found[name] = _source(f"{where}.", name, value or {})
    return tuple(found.values())


def _source(where: str, name: str, content: Mapping[str, Any]) -> FileSource:
    return _made(FileSource, {"name": name, **content}, where)


def _refuse_unknown(content: Mapping[str, Any], known: Iterable[str], where: str) -> None:
    for name in map(str, content):
        if name not in known:
            raise _unknown(name, known, where)


def _unknown(name: str, known: Iterable[str], where: str) -> InvalidInput:
    near = difflib.get_close_matches(name, list(known), n=2, cutoff=0.6)
    hint = _ELSEWHERE.get(name) or (f"Did you mean {' or '.join(near)}?" if near else _LISTED)
    return InvalidInput(f"unknown key {where}{name}", field=f"{where}{name}", hint=hint)


def _made(cls: type[M], content: Mapping[str, Any], where: str) -> M:
    try:
        return cls(**content)
    except ValidationError as error:
        raise _invalid(error, cls, where) from None


def _invalid(error: ValidationError, cls: type[BaseModel], where: str) -> InvalidInput:
    first = error.errors()[0]
    field = where + ".".join(map(str, first["loc"]))
    if first["type"] == "extra_forbidden":
        above, _, name = field.rpartition(".")
        return _unknown(name, _known(cls, first["loc"]), f"{above}.")
    message = first["msg"].removeprefix("Value error, ").removeprefix("Assertion failed, ")
    message = message[:1].lower() + message[1:]
    if first["type"] == "missing":
        return InvalidInput(f"{field} is missing", field=field, hint=_LISTED)
    name = field.rstrip(".")
    said = f"{name}: {message}{shown(field, first['input'])}" if name else message
    return InvalidInput(said, field=name, hint=_LISTED)


def _known(cls: type[BaseModel], location: tuple[int | str, ...]) -> list[str]:
    """The keys that are known where an unknown one stands."""
    for part in location[:-1]:
        if isinstance(part, str) and part in cls.model_fields:
            kind = cls.model_fields[part].annotation
            cls = next((one for one in _models(kind)), cls)
    return list(cls.model_fields)


def _models(kind: Any) -> Iterable[type[BaseModel]]:
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        yield kind
    for inner in getattr(kind, "__args__", ()):
        yield from _models(inner)
