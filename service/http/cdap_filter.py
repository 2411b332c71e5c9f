"""CDAP's filter of log events: `loglevel=ERROR AND .origin=plugin OR MDC:user=ann`.

    filter    = condition [("AND" | "OR") filter]
    condition = key "=" value          neither holds a blank
    key       = "loglevel" | "." tag | "MDC:" name

There are no parentheses, no NOT, and one operator binds as the other: `a AND b OR c` is
`a AND (b OR c)`. A condition is equality; levels are compared whatever their case. A tag is an
attribute of the record, with its dot or without; `.fqn`, `.runId` and `.connectorId` are the
record's own. An `MDC` name is an attribute.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Final

from logstore.errors import InvalidInput

Event = Mapping[str, Any]
"""A record with the fields of `/query`; its attributes are a mapping, or None."""

Matches = Callable[[Event], bool]

_WORD: Final = re.compile(r"\S+")
_OWN: Final = {".fqn": "fqn", ".runId": "run_id", ".connectorId": "connector_id"}
_HINT: Final = "Write key=value, with AND or OR between; keys are loglevel, .tag and MDC:name."


def parse_filter(text: str) -> Matches:
    """What the filter matches; one without a condition matches all. Raises `InvalidInput`."""
    words = list(_WORD.finditer(text))
    if not words:
        return lambda _: True
    if len(words) % 2 == 0:
        raise _wrong(f"it ends behind {words[-1][0][:80]!r}", words[-1].start())
    matches = _condition(words[-1])
    for number in range(len(words) - 3, -1, -2):
        matches = _joined(_condition(words[number]), words[number + 1], matches)
    return matches


def _joined(first: Matches, operator: re.Match[str], rest: Matches) -> Matches:
    if operator[0] == "AND":
        return lambda event: first(event) and rest(event)
    if operator[0] == "OR":
        return lambda event: first(event) or rest(event)
    raise _wrong(f"{operator[0][:80]!r} is neither AND nor OR", operator.start())


def _condition(word: re.Match[str]) -> Matches:
    key, equals, value = word[0].partition("=")
    if not equals:
        raise _wrong(f"{word[0][:80]!r} is no key=value", word.start())
    if key == "loglevel":
        return lambda event: (event["level"] or "") == value.upper()
    if key in _OWN:
        field = _OWN[key]
        return lambda event: event[field] == value
    if key.startswith(".") and len(key) > 1:
        return lambda event: value in (_attribute(event, key), _attribute(event, key[1:]))
    if key.startswith("MDC:") and len(key) > len("MDC:"):
        name = key.removeprefix("MDC:")
        return lambda event: _attribute(event, name) == value
    raise _wrong(f"there is no key {key[:80]!r}", word.start())


def _attribute(event: Event, name: str) -> str | None:
    attributes: Mapping[str, str] = event["attributes"] or {}
    return attributes.get(name)


def _wrong(what: str, place: int) -> InvalidInput:
    return InvalidInput(f"filter: {what}, at character {place + 1}", field="filter", hint=_HINT)
