"""What a condition means, in plain Python: the model that searches are compared with."""

from __future__ import annotations

import json
import operator
import re
from collections.abc import Mapping
from typing import Any, Final

from tailrace.logstore.search.conditions import (
    MESSAGE,
    All,
    AnyAttribute,
    AnyOf,
    Attribute,
    Column,
    Compares,
    Condition,
    Contains,
    Exists,
    Field,
    Is,
    JsonField,
    LogfmtField,
    Matches,
    Not,
    OneOf,
    StartsWith,
)

_ORDERS: Final = {
    "=": operator.eq,
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "<=": operator.le,
}
_SEQUENCE: Final = re.compile(
    "\x1b\\[[0-9;]*[A-Za-z]|\x1b\\][^\x07]*\x07"  # as the tests write them
)
_NUMBER: Final = re.compile(r"[-+]?[0-9]+(\.[0-9]+)?([eE][-+]?[0-9]+)?")


def holds(condition: Condition, row: Mapping[str, Any]) -> bool:
    """Whether the record, as a row by column name, is what the condition asks for."""
    match condition:
        case All(parts):
            return all(holds(part, row) for part in parts)
        case AnyOf(parts):
            return any(holds(part, row) for part in parts)
        case Not(part):
            return not holds(part, row)
    value = value_of(condition.field, row)
    others = _elements(row["message"], condition.field)
    if isinstance(condition, Exists) and others:
        return True
    if isinstance(condition, Exists):
        return value is not None and value != []
    if isinstance(condition.field, AnyAttribute):
        return any(_is(condition, one) for one in value or () if one is not None)
    if value is None:
        return any(_is(condition, one) for one in others)
    if condition.field == MESSAGE and not isinstance(condition, Compares):
        others = [_SEQUENCE.sub("", value)]
    return _is(condition, value) or any(_is(condition, one) for one in others)


def _is(condition: Condition, value: Any) -> bool:
    """Whether the condition holds for one value of its field."""
    match condition:
        case OneOf(texts, field, numbers) if field == MESSAGE:
            return any(text in value for text in texts) and not numbers
        case OneOf(texts, _, numbers):
            return value in texts or any(_compares(condition.field, value, "=", n) for n in numbers)
        case Matches(pattern, _, ignore_case):
            pattern = pattern.replace(r"\z", r"\Z")  # RE2's end of the text, as `re` has it
            return re.search(pattern, value, re.IGNORECASE if ignore_case else 0) is not None
        case Compares(field, order, bound):
            return _compares(field, value, order, bound)
    assert isinstance(condition, Contains | StartsWith | Is)
    text = condition.text
    if condition.ignore_case:
        value, text = value.lower(), text.lower()
    match condition:
        case Contains():
            return text in value
        case StartsWith():
            return bool(value.startswith(text))
    return bool(value == text)


def value_of(field: Field, row: Mapping[str, Any]) -> Any:
    """The field's value, None if the record does not have it."""
    match field:
        case Column("carried"):
            return "true" if row["carried"] else None
        case Column(name):
            return row[name]
        case Attribute(key):
            return (row["attributes"] or {}).get(key)
        case JsonField(path):
            return _in_json(row["message"], path)
        case LogfmtField(key):
            return _in_logfmt(_SEQUENCE.sub("", row["message"]), key)
        case AnyAttribute():
            return None if row["attributes"] is None else list(row["attributes"].values())


def _compares(field: Field, value: Any, order: str, bound: Any) -> bool:
    if not isinstance(field, Column) and not isinstance(bound, str):
        if not _NUMBER.fullmatch(value):
            return False
        value = float(value)
    return bool(_ORDERS[order](value, bound))


def _elements(message: str, field: Field) -> list[str]:
    """What arrays hold that are at a path in JSON or on the way, as text."""
    if not isinstance(field, JsonField):
        return []
    try:
        value = json.loads(message)
    except ValueError:
        return []
    found = [value]
    for part in field.path:
        found = [inner for one in found for inner in _opened(_at(one, (part,)))]
    return [text for one in found if (text := _as_text(one)) is not None]


def _opened(value: Any, arrays: int = 3) -> list[Any]:
    """The value, and what is in it if it is an array, and in arrays within."""
    inside = value if isinstance(value, list) and arrays else ()
    return [value, *(one for element in inside for one in _opened(element, arrays - 1))]


def _in_json(message: str, path: tuple[str, ...]) -> str | None:
    try:
        value = json.loads(message)
    except ValueError:
        return None
    return _as_text(_at(value, path))


def _at(value: Any, path: tuple[str, ...]) -> Any:
    for part in path:
        if isinstance(value, dict):
            value = value.get(part)
        elif isinstance(value, list) and part.isdigit() and int(part) < len(value):
            value = value[int(part)]
        else:
            return None
    return value


def _as_text(value: Any) -> str | None:
    if value is None or isinstance(value, str):
        return value
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def _in_logfmt(message: str, key: str) -> str | None:
    for found in re.finditer(r'(?:^|\s)([^\s=]+)=(?:"((?:[^"\\]|\\.)*)"|([^\s"]*))', message):
        if found[1] == key:
            if found[2]:
                return re.sub(r'\\(["\\])', r"\1", found[2])
            return found[3] or ""
    return None
