r"""Conditions as terms of a WHERE clause of DuckDB, and as texts for a skip index.

`Where` makes the terms. Values of the user are bound, never spelled. A comparison with a field that
a record lacks is NULL in SQL, and false in our language: below NOT the term makes it false,
elsewhere both leave the record out. The records are named `r`.

`logfmt` takes the first `key=value` or `key="a \"value\""` after a blank or at the beginning.

`needs_of` gives the texts that a skip index must have for a condition.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, reduce
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tailrace.logstore.colours import SEQUENCE
from tailrace.logstore.search.conditions import (
    DETECTED_LEVEL,
    MESSAGE,
    SERVICE,
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
    StreamLabel,
    attribute_name,
    digits_of,
)
from tailrace.logstore.table.skip_index import Grams, SkipIndex, grams_of, ranges

# Texts that a message must have for a condition to be true, as far as a skip index can tell.
#
# A condition becomes pieces of text that every message has for which it holds. Conditions that give
# no certain text (a negation, a comparison of numbers, JSON, which may be escaped) are left out. So
# a row group that lacks a needed text has no match, and one that has it may have none either.


@dataclass(frozen=True, slots=True)
class AllNeeded:
    """Each of the parts is needed."""

    parts: Sequence[Needs]


@dataclass(frozen=True, slots=True)
class AnyNeeded:
    """One of the parts is needed."""

    parts: Sequence[Needs]


Needs: TypeAlias = Grams | AllNeeded | AnyNeeded


@dataclass(frozen=True)
class IndexCondition:
    """The answer of an index about its file for a search.

    `rows` of each row group, and which `groups` may hold a match; `bare`: no line has attributes.
    `coloured` row groups have lines whose stored text differs from the displayed one.
    """

    rows: NDArray[np.int64]
    groups: NDArray[np.bool_]
    bare: bool
    coloured: frozenset[int] = frozenset()

    @cached_property
    def share(self) -> float:
        """The part of the file's rows that may match."""
        return float(self.rows[self.groups].sum()) / max(int(self.rows.sum()), 1)

    @cached_property
    def ranges(self) -> Sequence[tuple[int, int]]:
        """Their numbers, first and last."""
        return tuple(ranges(self.rows, self.groups))


_MOST_TEXTS: Final = 8
_MOST_ALTERNATIVES: Final = 64  # each reads pages of the index


def wanted(needs: Needs, index: SkipIndex) -> IndexCondition:
    """What the index says. Raises `Damaged`, and what reading the index raises."""
    return IndexCondition(index.rows, may_hold(needs, index), index.bare, index.head.coloured)


def may_hold(needs: Needs, index: SkipIndex) -> NDArray[np.bool_]:
    """For each row group of the index, False only if none of its messages has what is needed.

    Raises `Damaged`, and what reading the index raises.
    """
    match needs:
        case AllNeeded(parts):
            return reduce(np.logical_and, (may_hold(part, index) for part in parts))
        case AnyNeeded(parts):
            return reduce(np.logical_or, (may_hold(part, index) for part in parts))
        case _:
            return index.may_hold(needs)


def pages_for(needs: Needs, index: SkipIndex) -> Iterator[tuple[int, int]]:
    """Yields the pages of the index that `may_hold` reads at most: place in the index, bytes."""
    if isinstance(needs, Grams):
        yield from index.pages(needs)
    else:
        for part in needs.parts:
            yield from pages_for(part, index)


def needs_of(condition: Condition | None) -> Needs | None:
    """Returns the texts that a message must have for the condition; None if no text is certain."""
    match condition:
        case All(parts):
            return _all(*map(needs_of, parts))
        case AnyOf(parts):
            known = [needs for part in parts if (needs := needs_of(part)) is not None]
            return AnyNeeded(known) if len(known) == len(parts) > 0 else None
        case Matches(pattern, field, ignore_case) if field == MESSAGE:
            return _all(*(_text(text, ignore_case) for text in literals(pattern)))
        case Contains() | Is() | StartsWith() if condition.field == MESSAGE:
            return _text(condition.text, condition.ignore_case)
        case OneOf(texts, field) if field == MESSAGE:
            needed = [needs for text in texts if (needs := _text(text, False)) is not None]
            few = len(needed) == len(texts) <= _MOST_ALTERNATIVES
            return AnyNeeded(needed) if few and needed else None
        case None | Not():
            return None
    return _logfmt(condition) if isinstance(condition.field, LogfmtField) else None


def _all(*parts: Needs | None) -> Needs | None:
    known = [part for part in parts if part is not None]
    return AllNeeded(known) if known else None


def _text(text: str, ignore_case: bool) -> Needs | None:
    grams = grams_of(text, ignore_case=ignore_case)
    return None if grams.empty else grams


def _logfmt(leaf: Contains | Is | StartsWith | Matches | OneOf | Compares | Exists) -> Needs | None:
    """The key, and its value unless that may be written with escapes."""
    assert isinstance(leaf.field, LogfmtField)
    key = _text(f"{leaf.field.key}=", ignore_case=False)
    if isinstance(leaf, Compares) and leaf.operator == "=" and not isinstance(leaf.value, str):
        return _all(key, _number(leaf.value))
    if (
        isinstance(leaf, Matches | OneOf | Compares | Exists)
        or '"' in leaf.text
        or "\\" in leaf.text
    ):
        return key
    return _all(key, _text(leaf.text, leaf.ignore_case))


def _number(number: float) -> Needs | None:
    """The digits of a number, wherever its dot stands."""
    digits = digits_of(number)
    spellings = [digits, *(f"{digits[:at]}.{digits[at:]}" for at in range(1, len(digits)))]
    known = [needs for text in spellings if (needs := _text(text, ignore_case=False)) is not None]
    return AnyNeeded(known) if len(known) == len(spellings) else None


def sure_texts(condition: Condition | None) -> tuple[str, ...]:
    """Returns texts of which each matching message has at least one, spelled like this.

    They are the longest ones that are certain; empty if none is certain.
    """
    match condition:
        case All():
            return max(needed_texts(condition), key=_narrowness, default=())
        case AnyOf(parts):
            each = [sure_texts(part) for part in parts]
            texts = {text for some in each for text in some}
            return tuple(sorted(texts)) if all(each) and len(texts) <= _MOST_TEXTS else ()
        case Matches(pattern, field, False) if field == MESSAGE:
            return tuple(sorted(literals(pattern), key=len)[-1:])
        case Contains(text, field, False) | Is(text, field, False) | StartsWith(text, field, False):
            if field == MESSAGE:
                return (text,) if text else ()
        case OneOf(texts, field) if field == MESSAGE:
            return tuple(sorted(set(texts))) if len(texts) <= _MOST_TEXTS else ()
        case None | Not():
            return ()
    at = condition.field
    return (f"{at.key}=",) if isinstance(at, LogfmtField) else ()


def needed_texts(condition: Condition | None) -> list[tuple[str, ...]]:
    """Returns groups of texts; every matching message has at least one text of each group."""
    if isinstance(condition, All):
        return [texts for part in condition.parts for texts in needed_texts(part)]
    texts = sure_texts(condition)
    return [texts] if texts else []


def _narrowness(texts: tuple[str, ...]) -> int:
    """How much a choice of texts is likely to leave out."""
    return min(map(len, texts), default=0)


_TOKEN: Final = re.compile(
    r"""
      (?P<open>  \( (?: \?: | \?P?<[A-Za-z_][A-Za-z0-9_]*> | (?!\?) ) )
    | (?P<close> \) )
    | (?P<or>    \| )
    | (?P<zero>  [*?] | \{0+(?:,[0-9]*)?\} )
    | (?P<more>  \+ | \{[0-9]+(?:,[0-9]*)?\} )
    | (?P<any>   [.^$] | \\[dDwWsSbBAzntrfva] | \[\^?\]?(?:\[:\^?[a-z]+:\]|\\.|[^\]\\])*\] )
    | \\(?P<escaped> [^A-Za-z0-9\x80-\U0010ffff] )
    | (?P<plain> [^\\()\[\]{}*+?|.^$] )
    """,
    re.VERBOSE | re.DOTALL,
)


def literals(pattern: str) -> list[str]:
    """Returns texts that every match of the regular expression (RE2) has; empty if none is certain.

    These are literals outside of groups and classes that are not optional. Flags, characters by
    number and classes by name are not understood; then nothing is certain.
    """
    parts, at, depth = [""], 0, 0
    while at < len(pattern):
        token = _TOKEN.match(pattern, at)
        if token is None or (token["or"] and not depth):
            return []
        depth += bool(token["open"]) - bool(token["close"])
        character = token["escaped"] or token["plain"]
        if token["zero"]:
            parts[-1] = parts[-1][:-1]
        if character is None:
            parts.append("")
        elif not depth:
            parts[-1] += character
        at = token.end()
    return [part for part in parts if part]


_ALWAYS: Final = {MESSAGE, Column("fqn"), Column("run_id"), Column("ulid")}
"""Columns that every record has."""
_COLOURED: Final = "contains(r.message, chr(27))"
_SEQUENCE: Final = SEQUENCE.replace("'", "''")
_TEXTS_AT_ONCE: Final = 200
ARRAYS: Final = 3
"""So many arrays within each other are taken apart, at each name of a path in JSON."""
_Leaf: TypeAlias = Contains | Matches | StartsWith | Is | OneOf | Compares
_MOMENT: Final = "%Y-%m-%dT%H:%M:%S.%gZ"
_LAST_US: Final = 253_402_300_799_999_999  # of the year 9999: what RFC 3339 can write
_EXPONENT: Final = r"([eE][-+]?[0-9]{1,3})?"
_NUMBER: Final = rf"[-+]?[0-9]{{1,300}}(\.[0-9]{{1,300}})?{_EXPONENT}"


class Where:
    """Makes terms; `parameters` are the values that they bind."""

    def __init__(self) -> None:
        self.parameters: dict[str, Any] = {}

    def term(self, condition: Condition) -> str:
        """The condition as one term, which is true for the records that it holds for."""
        return self._term(condition, exact=False)

    def text(self, field: Field) -> str:
        """The field's value as text that the language can compare with it, or NULL."""
        value = self._value(field)
        if field == Column("ts"):
            # Without a time zone, of which DuckDB knows only with an extension.
            moment = f"strftime(make_timestamp(epoch_us({value})), '{_MOMENT}')"
            return f"CASE WHEN epoch_us({value}) BETWEEN 0 AND {_LAST_US} THEN {moment} END"
        return f"CAST({value} AS VARCHAR)"

    def _term(self, condition: Condition, *, exact: bool) -> str:
        """With `exact`, never NULL; else NULL may stand for false, and statistics skip more."""
        match condition:
            case All(parts):
                return self._joined(" AND ", parts, "true", exact)
            case AnyOf(parts):
                return self._joined(" OR ", parts, "false", exact)
            case Not(part):
                return f"NOT {self._term(part, exact=True)}"
            case Exists(AnyAttribute()):
                return "(coalesce(cardinality(r.attributes), 0) > 0)"
            case Exists(JsonField(path) as field) if len(path) > 1:
                inside = f"len(list_filter({self._inside(path)}, lambda e: e IS NOT NULL)) > 0"
                found = f"CASE WHEN {self._in_arrays(path)} THEN {inside} ELSE false END"
                return f"({self._value(field)} IS NOT NULL OR {found})"
            case Exists(field):
                return f"({self._value(field)} IS NOT NULL)"
        known = self._known(condition)
        return known if not exact or condition.field in _ALWAYS else f"coalesce({known}, false)"

    def _joined(self, operator: str, parts: tuple[Condition, ...], empty: str, exact: bool) -> str:
        terms = [self._term(part, exact=exact) for part in parts]
        return f"({operator.join(terms) or empty})"

    def _known(self, leaf: _Leaf) -> str:
        """The term of one field, NULL where the record does not have it."""
        value = self._value(leaf.field)
        match leaf.field:
            case AnyAttribute():
                return self._in_list(value, leaf)
            case JsonField(path):
                arrays = f"starts_with({value}, '[') OR {self._in_arrays(path)}"
                one = f"CASE WHEN {arrays} THEN {self._in_list(self._inside(path), leaf)}"
                return f"({self._test(value, leaf)} OR {one} ELSE false END)"
            case Column("message") if not isinstance(leaf, Compares):
                seen = f"{_COLOURED} AND {self._test(self._seen(), leaf)}"
                return f"({self._test(value, leaf)} OR ({seen}))"
        return self._test(value, leaf)

    def _seen(self) -> str:
        """The message without control sequences."""
        return f"regexp_replace(r.message, '{_SEQUENCE}', '', 'g')"

    def _in_arrays(self, path: tuple[str, ...]) -> str:
        """Whether the path leads into an array before its end."""
        before = [path[:end] for end in range(1, len(path))]
        types = [f"json_type(r.message, {self._bind(_pointer(part))}) = 'ARRAY'" for part in before]
        valid = "contains(r.message, '[') AND json_valid(r.message)"
        return f"CASE WHEN {valid} THEN {' OR '.join(types) or 'false'} ELSE false END"

    def _inside(self, path: tuple[str, ...]) -> str:
        """All that is at the path as texts: arrays on the way, and their elements."""
        found = _with_elements(f"json_extract(r.message, {self._bind(_pointer(path[:1]))})")
        for part in path[1:]:
            inner = _with_elements(f"json_extract(e, {self._bind(_pointer((part,)))})")
            found = f"flatten(list_transform({found}, lambda e: {inner}))"
        return f"list_transform({found}, lambda e: json_extract_string(e, '$'))"

    def _in_list(self, values: str, leaf: _Leaf) -> str:
        """Whether it holds for one of a list of texts."""
        if isinstance(leaf, OneOf):
            texts = f"list_has_any({values}, {self._bind(list(leaf.texts))})"
            if not leaf.numbers:
                return texts
            number = f"list_contains({self._bind(list(leaf.numbers))}, {self._worth('e', _NUMBER)})"
            return f"({texts} OR len(list_filter({values}, lambda e: {number})) > 0)"
        return f"(len(list_filter({values}, lambda e: {self._test('e', leaf)})) > 0)"

    def _test(self, value: str, leaf: _Leaf) -> str:
        match leaf:
            case Matches(pattern, _, ignore_case):
                if ignore_case:
                    return f"regexp_matches({value}, {self._bind(pattern)}, 'i')"
                # A search for a text is ten times as fast as one by a regular expression.
                sure = max(literals(pattern), key=len, default="")
                first = f"contains({value}, {self._bind(sure)}) AND " if sure else ""
                return f"({first}regexp_matches({value}, {self._bind(pattern)}))"
            case Compares(field, operator, bound):
                return self._compared(field, value, operator, bound)
            case OneOf():
                return self._one_of(value, leaf)
        text = self._bind(leaf.text)
        if leaf.ignore_case:
            value, text = f"lower({value})", f"lower({text})"
        match leaf:
            case Contains():
                return f"contains({value}, {text})"
            case StartsWith():
                return f"starts_with({value}, {text})"
        return f"({value} = {text})"

    def _one_of(self, value: str, leaf: OneOf) -> str:
        if leaf.field == MESSAGE:
            # DuckDB bounds the memory of one expression.
            texts = [
                leaf.texts[at : at + _TEXTS_AT_ONCE]
                for at in range(0, len(leaf.texts), _TEXTS_AT_ONCE)
            ]
            found = [f"regexp_matches({value}, {self._bind(_either(some))})" for some in texts]
            return f"({' OR '.join(found)})"
        terms = []
        if leaf.texts:
            terms.append(f"{value} IN (SELECT unnest({self._bind(list(leaf.texts))}))")
        if leaf.numbers:
            worth = value if isinstance(leaf.field, Column) else self._worth(value, _NUMBER)
            terms.append(f"{worth} IN (SELECT unnest({self._bind(list(leaf.numbers))}))")
        return f"({' OR '.join(terms)})"

    def _compared(self, field: Field, value: str, operator: str, bound: str | float) -> str:
        if field == Column("ts"):
            return f"({value} {operator} make_timestamptz({self._bind(bound)}))"
        if isinstance(field, Column) or isinstance(bound, str):
            return f"({value} {operator} {self._bind(bound)})"
        spelled = _NUMBER
        if operator == "=":
            digits = r"\.?".join(digits_of(float(bound)))
            spelled = rf"[-+]?[0.]*{digits}[0.]*{_EXPONENT}"
        return f"({self._worth(value, spelled)} {operator} {self._bind(float(bound))})"

    def _worth(self, value: str, spelled: str) -> str:
        """The number that a text spells, NULL for any other text."""
        number = f"regexp_full_match({value}, {self._bind(spelled)})"
        return f"CASE WHEN {number} THEN TRY_CAST({value} AS DOUBLE) END"

    def _value(self, field: Field) -> str:
        match field:
            case Column(name):
                return f"r.{name}"
            case Attribute(key):
                return f"r.attributes[{self._bind(key)}]"
            case JsonField(path):
                read = f"json_extract_string(r.message, {self._bind(_pointer(path))})"
                return f"CASE WHEN json_valid(r.message) THEN {read} END"
            case LogfmtField(key):
                return self._logfmt(key)
            case AnyAttribute():
                return "map_values(r.attributes)"
            case StreamLabel(name):
                return self._label(name)

    def _label(self, name: str) -> str:
        """The label's text, NULL for a record without it; an empty attribute is no label."""
        if name == DETECTED_LEVEL:
            return "coalesce(lower(r.level), 'unknown')"
        key = self._bind(attribute_name(name))
        attribute = f"r.attributes[{key}]"
        if "_" in name:
            spelled = r"regexp_replace(e.key, '^[0-9]', '_\0')"
            spelled = f"regexp_replace({spelled}, '[^a-zA-Z0-9_]', '_', 'g')"
            entries = f"list_filter(map_entries(r.attributes), lambda e: {spelled} = {key})"
            attribute = f"coalesce({attribute}, {entries}[1].value)"
        attribute = f"nullif({attribute}, '')"
        return f"coalesce({attribute}, r.fqn)" if name == SERVICE else attribute

    def _logfmt(self, key: str) -> str:
        text = f"CASE WHEN {_COLOURED} THEN {self._seen()} ELSE r.message END"
        pattern = self._bind(rf'(?:^|\s){re.escape(key)}=(?:"((?:[^"\\]|\\.)*)"|([^\s"]*))')
        quoted, plain = (f"regexp_extract({text}, {pattern}, {group})" for group in (1, 2))
        unescaped = rf"""replace(replace({quoted}, '\"', '"'), '\\', '\')"""
        return (
            f"CASE WHEN contains({text}, {self._bind(key + '=')}) "
            f"AND regexp_matches({text}, {pattern}) "
            f"THEN CASE WHEN {quoted} <> '' THEN {unescaped} ELSE {plain} END END"
        )

    def _bind(self, value: Any) -> str:
        name = f"c{len(self.parameters)}"
        self.parameters[name] = value
        return f"${name}"


def without_colours(term: str) -> str:
    """The term for messages without control sequences, which costs less."""
    return term.replace(_COLOURED, "false")


def _pointer(path: tuple[str, ...]) -> str:
    return "".join([f"/{part.replace('~', '~0').replace('/', '~1')}" for part in path])


def _with_elements(value: str) -> str:
    """A list of a value and, of an array, of its elements and those of arrays within it."""
    inside = [f"json_extract({value}, '${'[*]' * depth}')" for depth in range(1, ARRAYS + 1)]
    return f"list_concat([{value}], {', '.join(inside)})"


def _either(texts: tuple[str, ...]) -> str:
    return "|".join(map(re.escape, texts))
