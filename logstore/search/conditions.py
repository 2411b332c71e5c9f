"""What a record must be like, as a tree: what `language` makes of a search and `where` of the tree.

A comparison with a field that a record does not have is false, and `Not` of it true.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

COLUMNS: Final = {
    "message": "message",
    "fqn": "fqn",
    "run": "run_id",
    "run_id": "run_id",
    "level": "level",
    "connector": "connector_id",
    "connector_id": "connector_id",
    "ulid": "ulid",
    "pos": "pos",
    "ts": "ts",
    "carried": "carried",
}
"""Fields that are columns of a record, by the names that a search may use."""

Operator: TypeAlias = Literal["=", ">", ">=", "<", "<="]


@dataclass(frozen=True, slots=True)
class Column:
    """A column of the record, by its own name."""

    name: str


@dataclass(frozen=True, slots=True)
class Attribute:
    """An attribute that came with the record."""

    key: str


@dataclass(frozen=True, slots=True)
class Json:
    """A value within a message that is JSON; numbers in the path count in arrays, from 0.

    What is said of an array holds for the array as text, or for something in it: an element, or
    one of an array within it. A path leads into the objects of an array as well.
    """

    path: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Logfmt:
    """The value of `key=value` or `key="a value"` in the message."""

    key: str


@dataclass(frozen=True, slots=True)
class AnyAttribute:
    """The values of all attributes: what is said of them holds for one."""


Field: TypeAlias = Column | Attribute | Json | Logfmt | AnyAttribute
MESSAGE: Final = Column("message")
CARRIED: Final = Column("carried")
"""It exists in lines that continue the record before them."""


@dataclass(frozen=True, slots=True)
class Contains:
    """The field has the text somewhere."""

    text: str
    field: Field = MESSAGE
    ignore_case: bool = False


@dataclass(frozen=True, slots=True)
class Matches:
    """The regular expression (RE2) is found in the field; linear in the length of both."""

    pattern: str
    field: Field = MESSAGE
    ignore_case: bool = False


@dataclass(frozen=True, slots=True)
class StartsWith:
    """The field begins with the text."""

    text: str
    field: Field
    ignore_case: bool = False


@dataclass(frozen=True, slots=True)
class Is:
    """The field is the text."""

    text: str
    field: Field
    ignore_case: bool = False


@dataclass(frozen=True, slots=True)
class OneOf:
    """The field is one of the texts, or is worth one of the numbers; a message has one of them."""

    texts: tuple[str, ...]
    field: Field
    numbers: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Exists:
    """The record has the field."""

    field: Field


@dataclass(frozen=True, slots=True)
class Compares:
    """The field's order to a value: with a number by what it is worth, with text by code point.

    `ts` compares with microseconds since the epoch.
    """

    field: Field
    operator: Operator
    value: str | float | int


@dataclass(frozen=True, slots=True)
class All:
    """Each of the parts holds."""

    parts: tuple[Condition, ...]


@dataclass(frozen=True, slots=True)
class AnyOf:
    """One of the parts holds."""

    parts: tuple[Condition, ...]


@dataclass(frozen=True, slots=True)
class Not:
    """The part does not hold."""

    part: Condition


Condition: TypeAlias = (
    Contains | Matches | StartsWith | Is | OneOf | Exists | Compares | All | AnyOf | Not
)


def leaves(condition: Condition) -> Iterator[Condition]:
    """All conditions in it that have no parts."""
    waiting = [condition]
    while waiting:
        part = waiting.pop()
        if isinstance(part, All | AnyOf):
            waiting += part.parts
        elif isinstance(part, Not):
            waiting.append(part.part)
        else:
            yield part


def asks_for_text(condition: Condition | None) -> bool:
    """Whether a part that has to hold says what stands in a line.

    Anything else that is asked for (a level, a name, a time) a record and the lines that continue
    it have in common, or it says where they lie.
    """
    waiting = [] if condition is None else [(condition, True)]
    while waiting:
        part, holds = waiting.pop()
        if isinstance(part, All | AnyOf):
            waiting += [(inner, holds) for inner in part.parts]
        elif isinstance(part, Not):
            waiting.append((part.part, not holds))
        elif holds and part != Exists(MESSAGE) and _is_of_line(part.field):
            return True
    return False


def _is_of_line(field: Field) -> bool:
    return field in (MESSAGE, CARRIED) or isinstance(field, Json | Logfmt)


def depth(condition: Condition) -> int:
    """How many conditions stand within one another."""
    deepest, waiting = 0, [(condition, 1)]
    while waiting:
        part, level = waiting.pop()
        deepest = max(deepest, level)
        if isinstance(part, All | AnyOf):
            waiting += [(inner, level + 1) for inner in part.parts]
        elif isinstance(part, Not):
            waiting.append((part.part, level + 1))
    return deepest


def patterns(condition: Condition | None) -> list[str]:
    """The regular expressions in it."""
    if condition is None:
        return []
    return [leaf.pattern for leaf in leaves(condition) if isinstance(leaf, Matches)]


def bounds_of_ts(condition: Condition | None) -> tuple[int | None, int | None]:
    """The lowest and the highest time of a record's own for which the condition may hold.

    In microseconds since the epoch, inclusive; None is no bound.
    """
    if isinstance(condition, All):
        bounds = [bounds_of_ts(part) for part in condition.parts]
        lows = [low for low, _ in bounds if low is not None]
        highs = [high for _, high in bounds if high is not None]
        return max(lows, default=None), min(highs, default=None)
    if not isinstance(condition, Compares) or condition.field != Column("ts"):
        return None, None
    value = int(condition.value)
    match condition.operator:
        case "=":
            return value, value
        case ">" | ">=":
            return value, None
    return None, value


def required(condition: Condition | None, column: str) -> str | None:
    """The text that the column must be for the condition to hold, if there is one."""
    parts = condition.parts if isinstance(condition, All) else (condition,)
    for part in parts:
        if isinstance(part, Is) and not part.ignore_case and part.field == Column(column):
            return part.text
    return None
