"""Reading settings: flags over environment over `tailrace.yaml` over defaults.

A program's settings are one frozen pydantic-settings class whose fields have a default
and a description; sections are frozen models inside it. That one table defines the
environment's names (`TAILRACE_` and, between section and field, `__`), the keys of the
file and the reference page; keys that it lacks are refused.

`${NAME:-default}` in the file is replaced as OpenMetadata's server replaces it. Its rules are those
of Dropwizard's `EnvironmentVariableSubstitutor(false)`, which is commons-text's
`StringSubstitutor` (`substitute` in org.apache.commons.text). They differ from a shell's:

- The text is replaced before it is YAML, comments and keys too: a value may be a list or a number.
- A variable that is set to nothing is replaced by nothing. The default stands only for one that is
  not set.
- A variable that is not set and has no default stays as it is written.
- What a variable or a default holds is replaced in turn, but a name or a default ends at the first
  `}`: `${A:-${B}}` is `${B}`.
- `$${A}` is `${A}`.
"""

from __future__ import annotations

import difflib
import json
import os
import re
from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar, get_origin, get_type_hints

import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError
from pydantic_settings import BaseSettings, InitSettingsSource, PydanticBaseSettingsSource

from tailrace.logstore.bounded_yaml import BoundedLoader
from tailrace.logstore.errors import InvalidInput
from tailrace.logstore.openmetadata_settings import SECTIONS

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
PREFIX = "TAILRACE_"
FILE = "tailrace.yaml"
S = TypeVar("S", bound=BaseSettings)

# Variables with our prefix that are not settings: of the command line, of the benchmarks, and
# what Kubernetes tells every container about a Service that is called `tailrace`.
_OTHER_VARIABLES = re.compile(
    r"TAILRACE_(CONFIG|URL|TOKEN|TOKEN_FILE|CORPUS(_CACHE)?|SIM_SEED|(\w+_)?SERVICE_(HOST|PORT(_\w+)?)|PORT(_[0-9]+_(TCP|UDP)(_\w+)?)?)"
)
_AS_WRITTEN = frozenset(SECTIONS)
_UNITS = {"": 1} | {
    unit: base**power
    for power, letter in enumerate("kmgt", 1)
    for unit, base in ((letter, 1000), (f"{letter}i", 1024))
}
_SECRET = re.compile(r"secret|token|password", re.IGNORECASE)
_SIZE = re.compile(r"\s*([0-9]+)\s*([kmgt]i?|)b?\s*", re.IGNORECASE)


def _bytes(value: object) -> object:
    """`64MiB`, `64 MiB` and `64000000` are sizes; all else is left to pydantic to refuse."""
    found = _SIZE.fullmatch(value) if isinstance(value, str) else None
    return int(found[1]) * _UNITS[found[2].lower()] if found else value


Bytes = Annotated[int, BeforeValidator(_bytes), Field(ge=1)]
BytesOrZero = Annotated[int, BeforeValidator(_bytes), Field(ge=0)]
"""A size whose description says what 0 is."""


def _joined(value: object) -> object:
    """A list of the file in the form of the environment: separated by commas."""
    return ",".join(map(str, value)) if isinstance(value, list) else value


Listed = Annotated[str, BeforeValidator(_joined)]
"""Several names; `items` has them one by one."""


def items(listed: str) -> list[str]:
    """The items between the commas, without spaces and empty ones."""
    return [item.strip() for item in listed.split(",") if item.strip()]


class Section(BaseModel):
    """A section of the table; nothing in it changes after start-up."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


@dataclass(frozen=True, slots=True)
class Setting:
    """A row of the table: dotted name, default as text, help, and the environment's name."""

    name: str
    default: str
    help: str
    keyed: bool = False
    """Whether it is a mapping, whose keys are the operator's."""

    @property
    def variable(self) -> str:
        return PREFIX + self.name.upper().replace(".", "__")


def table(model: type[BaseModel], prefix: str = "") -> Iterator[Setting]:
    """All settings of a class, in the order of their declaration."""
    kinds = get_type_hints(model)
    for name, field in model.model_fields.items():
        kind = kinds[name]
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            yield from table(kind, f"{prefix}{name}.")
        else:
            default = field.get_default(call_default_factory=True, validated_data={})
            keyed = get_origin(kind) is dict
            yield Setting(prefix + name, _plain(default), field.description or "", keyed)


def _plain(value: object) -> str:
    """A default in the form of the file."""
    return json.dumps(value) if isinstance(value, bool) or value is None else str(value)


def read_file(path: str | None) -> dict[str, Any]:
    """The content of a settings file; without a path, of `tailrace.yaml` in this folder.

    `${NAME:-default}` in it is replaced from the environment. Raises `InvalidInput` if the named
    file does not exist or is no YAML mapping.
    """
    name = path or os.environ.get(PREFIX + "CONFIG") or FILE
    try:
        with open(name, encoding="utf-8") as file:
            content = _parsed(substituted(file.read(), os.environ))
    except FileNotFoundError:
        if name == FILE and path is None:
            return {}
        raise InvalidInput(f"the settings file {name} does not exist") from None
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise InvalidInput(f"the settings file {name} cannot be read: {error}") from error
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise InvalidInput(f"the settings file {name} must hold keys and values")
    return content


def _parsed(text: str) -> Any:
    """The YAML's content; scalars of OpenMetadata's sections are kept as text.

    In those sections a bucket may be called 2024 and a key be `0123`. OpenMetadata reads every
    field of text as text as well, whatever type YAML gives it.
    """
    loader = BoundedLoader(text)
    try:
        root = loader.get_single_node()
        _keep_written(root)
        return None if root is None else loader.construct_document(root)
    finally:
        loader.dispose()


def _keep_written(node: yaml.Node | None, *, within: bool = False) -> None:
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            named = isinstance(key, yaml.ScalarNode) and key.value in _AS_WRITTEN
            _keep_written(value, within=within or named)
    elif isinstance(node, yaml.ScalarNode) and within and not node.tag.endswith(":null"):
        node.tag = "tag:yaml.org,2002:str"


def load(cls: type[S], *, flags: Mapping[str, Any], file: Mapping[str, Any], strict: bool) -> S:
    """Settings from all sources; `flags` has the nested form of the file.

    `strict` refuses keys that the class does not know. A program that reads only its part
    of a shared file is not strict, except for sections that belong to it as a whole: models that
    forbid more. Raises `InvalidInput` with a sentence that names the key.
    """
    if strict:
        _refuse_unknown(cls, file)
    try:
        return _reading(cls, dict(file))(**flags)
    except ValidationError as error:
        raise _invalid(cls, error) from None


def _reading(cls: type[S], file: dict[str, Any]) -> type[S]:
    """The same class with a file as its lowest source."""

    class Loaded(cls):  # type: ignore[valid-type,misc]
        @classmethod
        def settings_customise_sources(
            cls,
            settings_cls: type[BaseSettings],
            init_settings: PydanticBaseSettingsSource,
            env_settings: PydanticBaseSettingsSource,
            dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003 - the shape is pydantic's
            file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003
        ) -> tuple[PydanticBaseSettingsSource, ...]:
            return init_settings, env_settings, InitSettingsSource(settings_cls, file)

    return Loaded


def _refuse_unknown(cls: type[BaseModel], file: Mapping[str, Any]) -> None:
    rows = list(table(cls))
    known = [row.name for row in rows]
    keyed = {row.name for row in rows if row.keyed}
    for name in _names(file, keyed):
        _refuse(name, known, "in the settings file")
    for variable in sorted(os.environ):
        if variable.startswith(PREFIX) and not _OTHER_VARIABLES.fullmatch(variable):
            _refuse(variable[len(PREFIX) :].lower().replace("__", "."), known, f"({variable})")


def _refuse(name: str, known: list[str], where: str) -> None:
    if name not in known and not any(k.startswith(f"{name}.") for k in known):
        raise _unknown(name, known, where)


def _unknown(name: str, known: list[str], where: str) -> InvalidInput:
    near = [k for k in known if k.endswith(f".{name}")]
    near = near or difflib.get_close_matches(name, known, n=2, cutoff=0.6)
    hint = (
        f"Did you mean {' or '.join(near)}?"
        if near
        else "The settings are listed in docs/reference/settings.md."
    )
    return InvalidInput(f"unknown setting {name} {where}", field=name, hint=hint)


def _invalid(cls: type[BaseModel], error: ValidationError) -> InvalidInput:
    first = error.errors()[0]
    name = _dotted(first["loc"])
    if first["type"] != "extra_forbidden":
        return InvalidInput(_sentence(error), field=name)
    variable = PREFIX + name.upper().replace(".", "__")
    where = f"({variable})" if variable in os.environ else "in the settings file"
    return _unknown(name, [row.name for row in table(cls)], where)


def _names(content: Mapping[str, Any], keyed: Container[str], prefix: str = "") -> Iterator[str]:
    for key, value in content.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping) and value and name not in keyed:
            yield from _names(value, keyed, f"{name}.")
        else:
            yield name


def _dotted(location: tuple[int | str, ...]) -> str:
    return ".".join(str(part) for part in location)


def _sentence(error: ValidationError) -> str:
    first = error.errors()[0]
    message = first["msg"].removeprefix("Value error, ")
    message = message[:1].lower() + message[1:]
    if not first["loc"]:  # about several settings together
        return message
    name = _dotted(first["loc"])
    said = first["input"]
    return f"setting {name}: {message}" + (shown(name, said) if said != "" else "")


def shown(name: str, value: object) -> str:
    """Returns a wrong value as the end of a sentence; empty for secrets and sections."""
    hidden = _SECRET.search(name) or isinstance(value, Mapping | BaseModel)
    return "" if hidden else f" (it is {value!r})"


_VARIABLE = re.compile(r"\$(?P<escaped>\$\{)(?=[^}]*\})|\$\{(?P<inside>[^}]*)\}")


def substituted(text: str, variables: Mapping[str, str]) -> str:
    """`text` with its variables replaced. Raises `InvalidInput` for one that needs itself."""
    return _substituted(text, variables, ())


def _substituted(text: str, variables: Mapping[str, str], within: tuple[str, ...]) -> str:
    def value(found: re.Match[str]) -> str:
        if found["escaped"]:
            return found["escaped"]
        name, default = _parts(found["inside"])
        said = variables.get(name, default)
        if said is None:
            return found[0]
        if name in within:
            chain = " needs ".join([*within, name])
            raise InvalidInput(f"a variable of the settings file needs itself: {chain}", field=name)
        return _substituted(said, variables, (*within, name))

    return _VARIABLE.sub(value, text)


def _parts(inside: str) -> tuple[str, str | None]:
    """Returns name and default; a `:-` after a further `${` does not separate them."""
    stem, delimiter, default = inside.partition(":-")
    return (stem, default) if delimiter and "${" not in stem else (inside, None)
