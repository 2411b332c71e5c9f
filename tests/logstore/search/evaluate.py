"""What a condition means, in plain Python: the model that searches are compared with."""

from __future__ import annotations

import json
import operator
import re
from collections.abc import Mapping
from typing import Any, Final

from logstore.search.conditions import (
    All,
    AnyOf,
    Attribute,
    Column,
    Compares,
    Condition,
    Contains,
    Exists,
    Field,
    Json,
    Logfmt,
    Matches,
    Not,
    StartsWith,
)

_ORDERS: Final = {
    "=": operator.eq,
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "<=": operator.le,
}
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
    if value is None:
        return False
    match condition:
        case Exists():
            return True
        case Matches(pattern, _, ignore_case):
            pattern = pattern.replace(r"\z", r"\Z")  # RE2's end of the text, as `re` has it
            return re.search(pattern, value, re.IGNORECASE if ignore_case else 0) is not None
        case Compares(field, order, bound):
            return _compares(field, value, order, bound)
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
        case Column(name):
            return row[name]
        case Attribute(key):
            return (row["attributes"] or {}).get(key)
        case Json(path):
            return _in_json(row["message"], path)
        case Logfmt(key):
            return _in_logfmt(row["message"], key)


def _compares(field: Field, value: Any, order: str, bound: Any) -> bool:
    if not isinstance(field, Column) and not isinstance(bound, str):
        if not _NUMBER.fullmatch(value):
            return False
        value = float(value)
    return bool(_ORDERS[order](value, bound))


def _in_json(message: str, path: tuple[str, ...]) -> str | None:
    try:
        value = json.loads(message)
    except ValueError:
        return None
    for part in path:
        if isinstance(value, dict):
            value = value.get(part)
        elif isinstance(value, list) and part.isdigit() and int(part) < len(value):
            value = value[int(part)]
        else:
            return None
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
