"""Expressions of `if`, `is_first_entry`, `is_last_entry`; fields of an entry; its severity.

    body matches "^\\d{4}-"      attributes.logtag == 'F'      not (body contains "x") and body !=
    ""

Operators: `==`, `!=`, `matches`, `contains`, `startsWith`, `endsWith`, `in` (a list), `and`, `or`,
`not` (also `&&`, `||`, `!`), parentheses. Values: fields, texts, whole numbers, `true`, `false`,
`nil`. A comparison with a missing field is false, and `!=` true. An expression has at most 10,000
characters, and at most 100 levels of nesting.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from tailrace.forwarder.config.values import compile_regex
from tailrace.forwarder.entries.entry import Entry

# Fields of an entry: `body`, `body.a.b`, `attributes.a`, `attributes["a.b"]`, `resource.a`.


_FIELD = re.compile(r"""\$?(body|attributes|resource)((?:\.[\w-]+|\[(?:"[^"]*"|'[^']*')\])*)""")
_STEP = re.compile(r"""\.([\w-]+)|\[(?:"([^"]*)"|'([^']*)')\]""")
MISSING: Final = object()
"""What `get` gives where there is nothing."""


@dataclass(frozen=True, slots=True)
class Field:
    """One place in an entry."""

    root: str
    path: tuple[str, ...] = ()

    def get(self, entry: Entry) -> Any:
        """The value, or `MISSING`."""
        value = getattr(entry, self.root)
        for name in self.path:
            if not isinstance(value, dict) or name not in value:
                return MISSING
            value = value[name]
        return value

    def take(self, entry: Entry) -> Any:
        """The value, which is no longer there afterwards, or `MISSING`."""
        value = self.get(entry)
        if value is MISSING:
            return value
        if not self.path:
            setattr(entry, self.root, "" if self.root == "body" else {})
        else:
            inner = getattr(entry, self.root)
            for name in self.path[:-1]:
                inner = inner[name]
            del inner[self.path[-1]]
        return value

    def getter(self) -> Callable[[Entry], Any]:
        """`get`, made for this field."""
        if self.root == "body" and not self.path:
            return lambda entry: entry.body
        if self.root == "attributes" and len(self.path) == 1:
            (name,) = self.path
            return lambda entry: entry.attributes.get(name, MISSING)
        return self.get

    def set(self, entry: Entry, value: Any) -> None:
        """Sets the value; one that is no mapping goes out of the way of one that must be."""
        if not self.path:
            if self.root == "body":
                entry.body = value
            elif isinstance(value, dict):
                getattr(entry, self.root).update(value)
            return
        inner = getattr(entry, self.root)
        if not isinstance(inner, dict):
            inner = entry.body = {}
        for name in self.path[:-1]:
            following = inner.get(name)
            if not isinstance(following, dict):
                following = inner[name] = {}
            inner = following
        inner[self.path[-1]] = value


def parse_field(value: object) -> Field:
    """A field as it is written. Raises `ValueError` with what a field looks like."""
    if isinstance(value, Field):
        return value
    found = _FIELD.fullmatch(value) if isinstance(value, str) else None
    if found is None:
        raise ValueError('a field is body, body.name, attributes.name or attributes["a.b"]')
    return Field(found[1], tuple("".join(one) for one in _STEP.findall(found[2])))


Value: TypeAlias = Callable[[Entry], Any]

_TOKEN = re.compile(
    r"""\s*(?:
        (?P<text>"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'|`[^`]*`)
      | (?P<number>-?\d+)
      | (?P<field>\$?(?:body|attributes|resource)(?:\.[\w-]+|\[(?:"[^"]*"|'[^']*')\])*)
      | (?P<word>[A-Za-z]\w*)
      | (?P<sign>==|!=|&&|\|\||[!()\[\],])
    )""",
    re.VERBOSE,
)
_CONSTANTS = {"true": True, "false": False, "nil": MISSING}
_COMPARED = ("==", "!=", "matches", "contains", "startsWith", "endsWith", "in")
_MOST_CHARACTERS: Final = 10_000
_MOST_DEPTH: Final = 100
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r"}


def parse_expression(text: object) -> Value:
    """Parses an expression over an entry. Raises `ValueError` with the place of the error."""
    if not isinstance(text, str) or not text.strip():
        raise ValueError('an expression is a text, such as body matches "^ERROR"')
    if len(text) > _MOST_CHARACTERS:
        raise ValueError(f"the expression has more than {_MOST_CHARACTERS} characters")
    parser = _ExpressionParser(text)
    value = parser.disjunction()
    if parser.kind:
        raise parser.wrong("the end")
    return value


class _ExpressionParser:
    def __init__(self, text: str) -> None:
        self._text = text.rstrip()
        self._at = 0
        self._depth = 0
        self.kind = self.token = ""
        self._next()

    def _next(self) -> None:
        if self._at >= len(self._text):
            self.kind = self.token = ""
            return
        found = _TOKEN.match(self._text, self._at)
        if found is None:
            raise ValueError(f"cannot read the expression at {self._text[self._at :][:20]!r}")
        self.kind, self.token = str(found.lastgroup), found[str(found.lastgroup)]
        self._at = found.end()

    def wrong(self, wanted: str) -> ValueError:
        return ValueError(
            f"the expression has {self.token or 'its end'!r} where {wanted} should be"
        )

    def _took(self, *tokens: str) -> str:
        if self.kind in ("word", "sign") and self.token in tokens:
            token = self.token
            self._next()
            return token
        return ""

    def disjunction(self) -> Value:
        values = [self._conjunction()]
        while self._took("or", "||"):
            values.append(self._conjunction())
        return values[0] if len(values) == 1 else _either(values)

    def _conjunction(self) -> Value:
        values = [self._negation()]
        while self._took("and", "&&"):
            values.append(self._negation())
        return values[0] if len(values) == 1 else _all(values)

    def _inner(self, parse: Callable[[], Value]) -> Value:
        """The result of `parse` one level deeper. Raises `ValueError` if that is too deep."""
        self._depth += 1
        if self._depth > _MOST_DEPTH:
            raise ValueError(f"the expression is nested more than {_MOST_DEPTH} deep")
        value = parse()
        self._depth -= 1
        return value

    def _negation(self) -> Value:
        if self._took("not", "!"):
            value = self._inner(self._negation)
            return lambda entry: not _true(value(entry))
        left = self._operand()
        sign = self._took(*_COMPARED)
        if not sign:
            return left
        if sign == "matches":
            if self.kind != "text":
                raise self.wrong("a regular expression in quotes")
            search = compile_regex(_unquoted(self.token)).search
            self._next()
            return lambda entry: isinstance(v := left(entry), str) and search(v) is not None
        return _compared(sign, left, self._operand())

    def _operand(self) -> Value:
        kind, token = self.kind, self.token
        if self._took("("):
            value = self._inner(self.disjunction)
            if not self._took(")"):
                raise self.wrong(")")
            return value
        if self._took("["):
            return self._inner(self._list)
        if kind == "text":
            constant: Any = _unquoted(token)
        elif kind == "number":
            constant = int(token)
        elif kind == "word" and token in _CONSTANTS:
            constant = _CONSTANTS[token]
        elif kind == "field":
            self._next()
            return parse_field(token).get
        else:
            raise self.wrong("a field or a value")
        self._next()
        return lambda _: constant

    def _list(self) -> Value:
        items = [self._operand()]
        while self._took(","):
            items.append(self._operand())
        if not self._took("]"):
            raise self.wrong("]")
        return lambda entry: [item(entry) for item in items]


def _unquoted(token: str) -> str:
    inner = token[1:-1]
    if token[0] == "`":
        return inner
    return re.sub(r"\\(.)", lambda found: _ESCAPES.get(found[1], found[1]), inner, flags=re.DOTALL)


def _true(value: Any) -> bool:
    return value is not MISSING and bool(value)


def _either(values: Sequence[Value]) -> Value:
    return lambda entry: any(_true(value(entry)) for value in values)


def _all(values: Sequence[Value]) -> Value:
    return lambda entry: all(_true(value(entry)) for value in values)


def _compared(sign: str, left: Value, right: Value) -> Value:
    if sign == "==":
        return lambda entry: left(entry) == right(entry)
    if sign == "!=":
        return lambda entry: left(entry) != right(entry)
    if sign == "in":
        return lambda entry: isinstance(many := right(entry), list) and left(entry) in many
    test: Callable[[str, str], bool] = {
        "contains": str.__contains__,
        "startsWith": str.startswith,
        "endsWith": str.endswith,
    }[sign]

    def compare(entry: Entry) -> bool:
        one, other = left(entry), right(entry)
        return isinstance(one, str) and isinstance(other, str) and test(one, other)

    return compare


def holds(value: Value, entry: Entry) -> bool:
    """Whether the expression is true of the entry."""
    return _true(value(entry))


# Levels of entries: OpenTelemetry's mapping of values to severities.
#
# The record's level is the name of the severity in capitals without its number: `error3` is ERROR.
# A value without a mapping leaves the level open.


NAMES: Final = ("trace", "debug", "info", "warn", "error", "fatal")
ALIASES: Final[Mapping[str, str]] = {
    f"{name}{number or ''}": name.upper() for name in NAMES for number in (0, 2, 3, 4)
}
_RANGES = {"2xx": (200, 299), "3xx": (300, 399), "4xx": (400, 499), "5xx": (500, 599)}
_WIDEST = 100_000


def level_mapping(preset: str, mapping: Mapping[str, Any]) -> dict[str, str]:
    """Levels by values in small letters. Raises `ValueError` for a severity that there is not."""
    found: dict[str, str] = {} if preset == "none" else dict(_preset(preset))
    for alias, values in mapping.items():
        level = ALIASES.get(str(alias).lower())
        if level is None and str(alias).lower() != "default":
            raise ValueError(
                f"{alias!r} is not a severity; severities are trace, debug, … to fatal4"
            )
        for value in _values(values):
            found[value] = level or ""
    return found


def _preset(name: str) -> Iterator[tuple[str, str]]:
    yield from ALIASES.items()
    for number in range(1, 25):
        yield str(number), NAMES[(number - 1) // 4].upper()
    if name in ("", "default"):
        for suffix in ("", "2", "3", "4"):
            yield f"warning{suffix}", "WARN"
            yield f"err{suffix}", "ERROR"


def _values(said: Any) -> Iterator[str]:
    if isinstance(said, list | tuple):
        for one in said:
            yield from _values(one)
    elif isinstance(said, Mapping):
        low, high = said.get("min"), said.get("max")
        if type(low) is not int or type(high) is not int or abs(high - low) > _WIDEST:
            raise ValueError("a range has min and max, whole numbers that are not far apart")
        yield from map(str, range(min(low, high), max(low, high) + 1))
    elif said in _RANGES:
        low, high = _RANGES[said]
        yield from map(str, range(low, high + 1))
    else:
        yield str(said).lower()


def level_parser(levels: Mapping[str, str]) -> Callable[[Any], str | None]:
    """The level of a value; empty if it has none; None for what can be no severity."""

    def parse(value: Any) -> str | None:
        if isinstance(value, float) and value == int(value):
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, str | int):
            return None
        return levels.get(str(value).lower(), "")

    return parse
