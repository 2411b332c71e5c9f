r"""Fields and values as the language of searches spells them: the way back from `language`.

    attributes."a key"   json.user."first.name"   logfmt.status   "a \"quoted\" value"

Names and values of letters, digits and a few harmless signs stay as they are.
"""

from __future__ import annotations

import re
from typing import Final

from logstore.errors import InvalidInput, TailraceError
from logstore.search.conditions import (
    MESSAGE,
    AnyAttribute,
    Attribute,
    Column,
    Exists,
    Field,
    Json,
    Logfmt,
)

NAMES: Final = {
    **{name: name for name in ("fqn", "level", "ulid", "ts", "pos", "message", "carried")},
    "run_id": "run",
    "connector_id": "connector",
}
"""How a search calls the columns, by their own names."""
_PART: Final = re.compile(r"[\w-]+")
_KEY: Final = re.compile(r"[\w-]+(?:\.[\w-]+)*")
_VALUE: Final = re.compile(r"(?!(?i:and|or|not)$)[\w-][\w.:/@+-]*")
_HINT: Final = (
    f"Write one of {', '.join(NAMES.values())}, attributes.x, json.x or logfmt.x; "
    "GET /query/fields tells which ones records have."
)


def field_of(text: str, parameter: str = "field") -> Field:
    """The field that the text names. Raises `InvalidInput` on the parameter."""
    # Here: a node that nobody searches does without the parser.
    from logstore.search.language import parse

    if text.strip() == MESSAGE.name:
        return MESSAGE
    try:
        asked = parse(f"{text}:*", now_ms=0)
    except TailraceError as error:
        raise _no_field(text, parameter) from error
    if not isinstance(asked, Exists) or text.strip() == "*":
        raise _no_field(text, parameter)
    return asked.field


def name_of(field: Field) -> str:
    """The field as it stands before the colon."""
    match field:
        case Column(name):
            return NAMES[name]
        case Attribute(key):
            return f"attributes.{_quoted_unless(_KEY, key)}"
        case Logfmt(key):
            return f"logfmt.{_quoted_unless(_KEY, key)}"
        case Json(path):
            return ".".join(["json", *(_quoted_unless(_PART, part) for part in path)])
        case AnyAttribute():
            return "*"


def value_of(text: str) -> str:
    """The value as it stands behind the colon."""
    return _quoted_unless(_VALUE, text)


def _quoted_unless(plain: re.Pattern[str], text: str) -> str:
    if plain.fullmatch(text):
        return text
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _no_field(text: str, parameter: str) -> InvalidInput:
    return InvalidInput(f"there is no field {text[:80]!r}", field=parameter, hint=_HINT)
