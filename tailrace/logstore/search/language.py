r"""The language of searches: `parse` makes a `Condition` of the text of `q`.

    timeout                       the message has this text somewhere; case counts
    "connection refused"          with blanks and signs; \" and \\ are a quote and a backslash
    "timeout"i                    case does not count
    /id=\d+/  /error/i            a regular expression (RE2, linear time); \/ is a slash
    level:ERROR  level>=WARN      levels in their order
    fqn:shop.orders  fqn:shop.*   the whole name
    run:"nightly 7"  connector:c  a name with blanks
    ts>=2026-11-21T10:00:00Z      every form of time; ts>now-5m
    attributes.region:eu          what came with the record; attributes."a key":x
    json.user.id=7  json.ms>1.5   within a message that is JSON; numbers by what they are worth
    logfmt.status>=500            `status=503` in the message
    pos:[10 TO 20]  ts:{a TO *]   ranges: [ ] with the ends, { } without, * is open
    level:(ERROR OR FATAL)        one of several values
    level:in(ERROR, FATAL)        the same, also for thousands of values
    json.tags:a                   an array has the element
    *:12345                       any field is this, or the message has it
    error*  fqn:*.orders          a `*` stands for anything, without quotes
    attributes.region:*           the record has it
    carried:false                 no line that continues the record before it
    a b   a AND b                 both
    a OR b   NOT a   (a OR b) c   NOT binds closest, then AND, then OR

Operators are words in capitals, or `&&`, `||` and `!`. `field=x` is `field:x` but for the message,
where `:` asks for a part and `=` for all; `field!=x` is `NOT field=x`, `field:>=x` is
`field>=x`. Signs that only other languages know are refused (`foreign_word`). The grammar is
LALR(1): parsing takes linear time.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import cache, lru_cache, partial
from typing import Any, Final, NamedTuple, cast

from lark import (
    Lark,
    Token,
    Transformer_NonRecursive,
    Tree,
    UnexpectedCharacters,
    UnexpectedInput,
    UnexpectedToken,
)
from lark.exceptions import VisitError

from tailrace.logstore import ulid
from tailrace.logstore.cache import Cache
from tailrace.logstore.errors import InvalidInput, TooLarge
from tailrace.logstore.patterns import LinearRegex
from tailrace.logstore.search.conditions import (
    CARRIED,
    COLUMNS,
    LEVEL,
    LEVEL_HINT,
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
    MomentRange,
    Not,
    OneOf,
    Operator,
    depth,
    is_exact,
    leaves,
    level_named,
    number_in,
    parse_span,
    wildcard,
)
from tailrace.logstore.segments.file_format import LEVELS

# Signs of other search languages that mean nothing in ours, and what to write instead.
#
# Users of Lucene, Kibana, Loki, VictoriaLogs, Splunk or SQL type them. As text they would match
# nothing, or something else than was meant, without an error. So a bare word or value that looks
# like one is refused. Within quotes everything is text.


class WordRefusal(NamedTuple):
    """The reason why a word is refused, and the spelling to use instead."""

    what: str
    hint: str


def foreign_word(word: str) -> WordRefusal | None:
    """Why a bare word is refused; None if it is text."""
    return _refusal(word, _WORDS)


def foreign_value(value: str) -> WordRefusal | None:
    """Returns why a bare value after a field is refused; None if it is text."""
    return _refusal(value, _VALUES)


def field_hint(name: str) -> str:
    """Returns the hint for a name before a colon that is not a field."""
    meant = _FIELD_NAMES.get(name.lower())
    if meant is not None:
        return meant
    return (
        "Fields are message, fqn, run, level, connector, ts, ulid, pos, attributes.x, json.x and "
        f"logfmt.x: write json.{name}:… or logfmt.{name}:… for what lines have. Text with a colon "
        'goes into quotes: "Caused by: x".'
    )


_FIELD_NAMES: Final = {
    "_exists_": "Write field:* for records that have the field, for example json.user:*.",
    "_missing_": "Write NOT field:* for records without the field.",
    "_time": "Give from and to, or compare the line's own time: ts>now-5m.",
    "_msg": "Write message:…, or the text alone.",
    "_stream": "Write fqn:… and run:…",
    "@timestamp": "Write ts>=2026-11-21T10:00:00Z, ts>now-5m or ts:[low TO high].",
    **dict.fromkeys(
        ("time", "timestamp"),
        "Write ts>=2026-11-21T10:00:00Z, ts>now-5m or ts:[low TO high]; json.time:… is what the "
        "line has.",
    ),
    **dict.fromkeys(
        ("severity", "lvl", "loglevel"), "Write level:ERROR or level>=WARN; json.lvl:… is raw."
    ),
    **dict.fromkeys(("pipeline", "job", "app", "stream"), "Write fqn:… for a pipeline."),
    **dict.fromkeys(("msg", "text"), "Write message:…, or json.msg:… for a value in JSON."),
}

_QUOTES: Final = 'As text it goes into quotes: "{word}".'
_PIPES: Final = (
    "There are no pipes. limit and order are parameters, GET /query/count counts, and "
    "GET /query/histogram counts over time. " + _QUOTES
)
_EITHER: Final = (
    (r"(?i:and|or|not)", "{word!r} is in small letters",
     'Operators are in capitals: {upper}. A sentence goes into quotes: "was {word} found".'),
    (r".*(?:&&|\|\|).*", "this operator stands within a word",
     "Write blanks around && and ||, or AND and OR. " + _QUOTES),
    (r"['`].*", "this sign quotes nothing", 'Quotes are double: "a text". ' + _QUOTES),
    (r".*\\[:*()\"!\[\]{}^~?].*", "a backslash means nothing outside of quotes", _QUOTES),
)  # fmt: skip
_WORDS: Final = (
    *_EITHER,
    (r"\||\|>", "there is no command behind a |", _PIPES),
    (r"\|=", "|= is not an operator", 'Write the text alone: "a text".'),
    (r"\|~|=~", "{word} is not an operator", "Write a regular expression between slashes: /a.*b/."),
    (r"!~|!=", "{word} has no field before it",
     'Write NOT "a text", NOT /a.*b/ or field!=value, without blanks.'),
    (r"[&=<>~!^+]+", "{word!r} has no field before it",
     "Write field>=value without blanks around the operator. " + _QUOTES),
    (r".*\w(?:~[0-9.]*|\^[0-9.]+)", "words have neither distance nor weight",
     "Write a regular expression: /colou?r/. " + _QUOTES),
    (r"[\w*]*\w\?\w[\w*]*", "a ? stands for no character",
     "Write * for anything, or a regular expression: /te.t/. " + _QUOTES),
    (r"\{[\w.]+(?:=~|!~|!=|=).*", "{{…}} selects nothing",
     "Write fqn:name, run:name or attributes.name:value. " + _QUOTES),
    (r"[\w.]+(?:=~|!~).*", "{key} is compared with no text here",
     "Write a regular expression behind a field and a colon: field:/a.*b/. " + _QUOTES),
    (r"[\w.]+='.*", "{key} is compared with no text here",
     'Write field:"a text", with a field such as level, fqn or json.x. ' + _QUOTES),
    (r"(?:earliest|latest)=.+", "{key} is not a field", "Give from and to. " + _QUOTES),
    (r"(?:index|sourcetype)=.+", "{key} is not a field",
     "Write fqn:name, run:name or connector:name. " + _QUOTES),
    (r"[A-Za-z_][\w.-]*(?:[<>]=?|!=|==)[-+]?[0-9][0-9.]*", "there is no field {key!r}",
     "Write json.{word} or logfmt.{word} for what lines have. " + _QUOTES),
)  # fmt: skip
_VALUES: Final = (
    *_EITHER,
    (r"~.*", "~ begins no value",
     "Write a regular expression between slashes: field:/a.*b/. " + _QUOTES),
    (r"[=<>!].*", "{first} does not belong there",
     "Operators are field=x, field!=x, field>=x, field>x, field<=x and field<x. " + _QUOTES),
    (r"[\w.*-]*\w\?[\w.*-]+", "a ? stands for no character",
     "Write * for anything, or a regular expression: field:/te.t/. " + _QUOTES),
    (r".*,", "a comma separates nothing here", "Write field:(a OR b). " + _QUOTES),
)  # fmt: skip


@cache
def _regex(pattern: str) -> LinearRegex:
    return LinearRegex(f"(?s:{pattern})")


def _refusal(word: str, rules: tuple[tuple[str, str, str], ...]) -> WordRefusal | None:
    for pattern, what, hint in rules:
        if _regex(pattern).fullmatch(word):
            shown = word[:80]
            key = re.split(r"[=<>!]", shown, maxsplit=1)[0]
            given = {"word": shown, "upper": shown.upper(), "key": key, "first": shown[0]}
            return WordRefusal(what.format(**given), hint.format(**given))
    return None


MOST_LEAVES: Final = 200
MOST_DEPTH: Final = 50
MOST_VALUES: Final = 10_000
MOST_TEXTS: Final = 1_000  # in a list for the message
_TREES_BYTES: Final = 8 << 20
_CHARACTER_BYTES: Final = 256
"""What a tree takes for each character of its text at most, measured."""
_COLUMNS: Final = "|".join(sorted(COLUMNS, key=len, reverse=True))
_KEYED: Final = r'(?:attributes|json|logfmt)\.(?:"(?:[^"\\]|\\.)*"|[^\s:=<>!()"])+'
_OPENS: Final = "|".join(
    (
        r"(?<![^\s(:=])\(",
        *(rf"(?<={operator})\(" for operator in (r"\bNOT", r"\bAND", r"\bOR", "&&", r"\|\|")),
        r"(?<![^\s(]!)(?<=!)\(",
    )
)
_GRAMMAR: Final = rf"""
    ?start: either
    ?either: both (_OR both)*
    ?both: single (_AND? single)*
    ?single: _NOT single -> negation
        | _OPEN either _CLOSE
        | WORD -> word
        | PHRASE -> word
        | REGEX -> word
        | UNKNOWN
        | SIGN
        | FIELD VALUE -> comparison
        | FIELD PHRASE -> comparison
        | FIELD REGEX -> comparison
        | FIELD LIST -> listed
        | FIELD _OPEN item (_OR item)* _CLOSE -> several
        | FIELD FROM _limit _TO _limit UNTIL -> between
    ?item: VALUE | PHRASE | REGEX
    _limit: LIMIT | PHRASE

    _AND.9: /AND(?=[\s()]|$)|&&(?=[\s(!"\/]|$)/
    _OR.9: /OR(?=[\s()]|$)|\|\|(?=[\s(!"\/]|$)/
    _NOT.9: /NOT(?=[\s()]|$)|!(?=[^\s=~])/
    _TO.9: /TO(?=\s)/
    _OPEN.8: /{_OPENS}/
    _CLOSE: ")"
    SIGN.8: /[-+](?=[^\s>=+-])|(?i:in)(?=\s*\()/
    FIELD.7: /(?:{_COLUMNS}|{_KEYED})(?:!=|:?[<>]=|:?==|:=|:?[<>]|[:=])|\*:/
    UNKNOWN.6: /@?[A-Za-z_][\w.-]*:(?=[^\s)])/
    LIST.6: /(?i:in)\([^()"]*(?:"[^"\\]*(?:\\.[^"\\]*)*"[^()"]*)*\)/s
    PHRASE.5: /(?<![^\s(:=<>\[{{!&|])(?<![^\s(]!)"(?:[^"\\]|\\.)*"[A-Za-z]*(?=[\s)\]}}]|$)/s
    REGEX.5: /\/(?:[^\/\\]|\\.)+\/[A-Za-z]?(?=[\s)]|$)/s
    FROM.5: /[\[{{]/
    UNTIL.5: /[\]}}]/
    LIMIT: /[^\s()"\[\]{{}}]+/
    VALUE: /(?!(?:AND|OR|NOT)(?=[\s()]|$))[^\s()"\/\[{{][^\s()"]*/
    WORD: /(?!(?:AND|OR|NOT)(?=[\s()]|$))[^\s()"\/][^\s()"]*/
    %ignore /\s+/
"""
_SPELLED: Final = {":>=": ">=", ":<=": "<=", ":>": ">", ":<": "<"} | dict.fromkeys(
    (":=", "==", ":=="), "="
)
"""Operators as other languages write them."""
_ITEM: Final = re.compile(
    r'\s*(?:("[^"\\]*(?:\\.[^"\\]*)*")|([^\s,()"]+))\s*(?:,|$|(?=\)))', re.DOTALL
)
_NO_LIST: Final = 'Write field:in(a, b, "c d").'
_ANYWHERE: Final[tuple[Field, ...]] = (
    MESSAGE, Column("fqn"), Column("run_id"), Column("connector_id"), AnyAttribute()
)  # fmt: skip
_PART: Final = re.compile(r'"((?:[^"\\]|\\.)*)"|([^."]+)', re.DOTALL)
_ESCAPED: Final = re.compile(r"\\([\"\\])")
_QUOTE: Final = 'Put quotes around text with signs: "a (b)".'


def parse(text: str, *, now_ms: int) -> Condition | None:
    """The condition that the text says, None for blanks.

    Raises `InvalidInput` on `q` with the place and what to do, `TooLarge`.
    """
    if not text.strip():
        return None
    try:
        tree = _tree(text)
        condition = _Conditions(text, now_ms).transform(tree)
    except UnexpectedInput as error:
        raise _unexpected(text, error) from error
    except VisitError as error:
        raise error.orig_exc from error
    if depth(condition) > MOST_DEPTH or sum(1 for _ in leaves(condition)) > MOST_LEAVES:
        raise TooLarge(
            f"q has more than {MOST_LEAVES} conditions, or {MOST_DEPTH} within one another",
            field="q",
            hint="Use a regular expression for many words: /a|b|c/.",
        )
    return cast("Condition", condition)


_trees: Final = Cache[Tree[Token]](_TREES_BYTES)


def _tree(text: str) -> Tree[Token]:
    """Kept, since the same text comes again: for the next page, and for its histogram."""
    tree = _trees.get(text)
    if tree is None:
        tree = _parser().parse(text)
        _trees.put(text, tree, _CHARACTER_BYTES * len(text))
    return tree


@lru_cache(maxsize=1)
def _parser() -> Lark:
    # Refused where it stands, whatever is wrong behind it.
    refused = {
        "UNKNOWN": _refuse_field,
        "SIGN": _refuse_sign,
        "WORD": partial(_check_foreign, foreign_word),
        "VALUE": partial(_check_foreign, foreign_value),
    }
    return Lark(_GRAMMAR, parser="lalr", lexer="contextual", lexer_callbacks=refused)


def _refuse_field(token: Token) -> Token:
    name = token[:-1][:80]
    raise _wrong_at(token.start_pos or 0, f"there is no field {name!r}", field_hint(name))


def _refuse_sign(token: Token) -> Token:
    what = f"{str(token)!r} before a word is not an operator"
    hint = {
        "-": 'Write NOT x for records without it. Text with a - goes into quotes: "-x".',
        "+": 'Each word is needed anyway. Text with a + goes into quotes: "+x".',
    }.get(token, "Write the field first, without a blank: level:in(ERROR, FATAL).")
    raise _wrong_at(token.start_pos or 0, what, hint)


def _check_foreign(read: Callable[[str], WordRefusal | None], token: Token) -> Token:
    refusal = read(token)
    if refusal is not None:
        raise _wrong_at(token.start_pos or 0, *refusal)
    return token


class _Conditions(Transformer_NonRecursive[Token, Any]):
    """From the grammar's rules to conditions, from the leaves up."""

    def __init__(self, text: str, now_ms: int) -> None:
        super().__init__()
        self._text = text
        self._now_ms = now_ms

    def either(self, parts: list[Condition]) -> Condition:
        return AnyOf(tuple(parts))

    def both(self, parts: list[Condition]) -> Condition:
        return All(tuple(parts))

    def negation(self, parts: list[Condition]) -> Condition:
        return Not(parts[0])

    def word(self, tokens: list[Token]) -> Condition:
        return self._equal(MESSAGE, ":", tokens[0])

    def comparison(self, tokens: list[Token]) -> Condition:
        return self._compare(tokens[0], tokens[1])

    def several(self, tokens: list[Token]) -> Condition:
        return AnyOf(tuple([self._compare(tokens[0], value) for value in tokens[1:]]))

    def listed(self, tokens: list[Token]) -> Condition:
        at, values = tokens
        field, operator = self._field(at)
        if operator not in (":", "=", "!="):
            raise self._wrong(values, "a list has no < or >", "Write field:in(a, b).")
        if field == AnyAttribute():
            return self._anywhere(lambda where: self._one_of(where, values))
        found = self._one_of(field, values)
        return Not(found) if operator == "!=" else found

    def between(self, tokens: list[Token]) -> Condition:
        at, opened, low, high, closed = tokens
        field, operator = self._field(at)
        if operator not in (":", "=") or field == AnyAttribute():
            raise self._wrong(
                at, "a range stands after a field and a colon", "Write field:[low TO high]."
            )
        bounds = [
            self._order(field, ">=" if opened == "[" else ">", low),
            self._order(field, "<=" if closed == "]" else "<", high),
        ]
        given = [bound for bound, limit in zip(bounds, (low, high), strict=True) if limit != "*"]
        return All(tuple(given)) if given else Exists(field)

    def _one_of(self, field: Field, token: Token) -> Condition:
        """One of the values of `in(a, "b c")`, which may be many."""
        values = self._values(token)
        most = MOST_TEXTS if field == MESSAGE else MOST_VALUES
        if len(values) > most:
            raise TooLarge(
                f"q has a list of {len(values)} values", field="q", hint=f"Use at most {most}."
            )
        if field == Column("ts"):
            raise self._wrong(token, "a list cannot contain times", "Write ts:[low TO high].")
        if field in (LEVEL, Column("pos"), CARRIED):
            return AnyOf(tuple([self._equal(field, ":", value) for value in values]))
        texts, numbers = list[str](), list[float]()
        for value in values:
            text, _ = self._text_of(value)
            number = number_in(text) if value.type == "VALUE" and is_exact(text) else None
            if number is None or isinstance(field, Column):
                texts.append(self._name(field, value, text))
            else:
                numbers.append(number)
        return OneOf(tuple(texts), field, tuple(numbers))

    def _values(self, token: Token) -> list[Token]:
        """The values between the commas of a list."""
        at, values = token.index("(") + 1, list[Token]()
        while token[at:].strip() not in ("", ")"):
            found = _ITEM.match(token, at)
            if found is None:
                raise _wrong_at(
                    (token.start_pos or 0) + at, "this is not a value of a list", _NO_LIST
                )
            kind = "VALUE" if found[1] is None else "PHRASE"
            values.append(Token(kind, found[2] or found[1], start_pos=token.start_pos))
            if found[2] is not None and "*" in found[2]:
                raise self._wrong(token, "a list cannot contain *", "Write field:(a* OR b*).")
            at = found.end()
        if not values:
            raise self._wrong(token, "the list is empty", _NO_LIST)
        return values

    def _anywhere(
        self, condition: Callable[[Field], Condition], value: Token | None = None
    ) -> Condition:
        """The condition of any field: within the message, else of a whole name or value."""
        if value is not None and value.type == "VALUE":
            if not value.strip("*"):
                return Exists(MESSAGE)
            if len(value) > 1 and not value.isdigit() and level_named(value) is not None:
                return AnyOf((*map(condition, _ANYWHERE), condition(LEVEL)))
        return AnyOf(tuple(map(condition, _ANYWHERE)))

    def _compare(self, at: Token, value: Token) -> Condition:
        field, operator = self._field(at)
        if field == AnyAttribute():
            return self._anywhere(lambda where: self._equal(where, ":", value), value)
        if operator in (":", "="):
            return self._equal(field, operator, value)
        if operator == "!=":
            return Not(self._equal(field, "=", value))
        if value.type == "REGEX":
            raise self._wrong(value, "a regular expression has no < or >", "Write field:/…/.")
        return self._order(field, cast("Operator", operator), value)

    def _field(self, token: Token) -> tuple[Field, str]:
        """The field before its operator, and the operator: `:>=` is `>=`."""
        name = token.rstrip(":=<>!")
        operator = _SPELLED.get(written := token[len(name) :], written)
        if name == "*":
            return AnyAttribute(), str(operator)
        if name in COLUMNS:
            return Column(COLUMNS[name]), str(operator)
        kind, _, rest = name.partition(".")
        if any("*" in plain for _, plain in _PART.findall(rest)):
            raise self._wrong(token, "* is not a field's name", "Write *:x to look in all fields.")
        parts = [_unescaped(quoted) if quoted else plain for quoted, plain in _PART.findall(rest)]
        if kind == "json":
            return JsonField(tuple(parts)), str(operator)
        whole = parts[0] if rest.startswith('"') and len(parts) == 1 else rest
        return (Attribute if kind == "attributes" else LogfmtField)(str(whole)), str(operator)

    def _equal(self, field: Field, operator: str, value: Token) -> Condition:
        if field == CARRIED:
            return self._carried(value)
        if value.type == "REGEX":
            return self._regex(field, value)
        text, ignore_case = self._text_of(value)
        quoted = value.type == "PHRASE"
        if not quoted and "*" in text:
            return self._wildcard(field, value, text, within=(field, operator) == (MESSAGE, ":"))
        if field == MESSAGE:
            made = Contains if operator == ":" else Is
            return made(text, field, ignore_case)
        if field in (Column("pos"), Column("ts")):
            return self._order(field, "=", value)
        if not isinstance(field, Column) and not quoted and is_exact(text):
            number = number_in(text)
            if number is not None:
                return Compares(field, "=", number)
        return Is(self._name(field, value, text), field, ignore_case)

    def _wildcard(self, field: Field, value: Token, text: str, *, within: bool) -> Condition:
        if field in (Column("pos"), Column("ts")) and text.strip("*"):
            raise self._wrong(
                value, "a number or a time cannot contain *", "Write a range: field:[low TO high]."
            )
        return wildcard(text, field, within=within)

    def _carried(self, value: Token) -> Condition:
        if value in ("true", "*"):
            return Exists(CARRIED)
        if value == "false":
            return Not(Exists(CARRIED))
        raise self._wrong(
            value, f"carried cannot be {value[:80]!r}", "Write carried:true or carried:false."
        )

    def _order(self, field: Field, operator: Operator, value: Token) -> Condition:
        text, _ = self._text_of(value)
        if text == "*" and value.type == "LIMIT":
            return Exists(field)
        if field == CARRIED:
            return self._carried(value)
        match field:
            case Column("level"):
                return _levels(operator, LEVELS.index(self._name(field, value, text)))
            case Column("ts"):
                return _moments(operator, self._span(value, text))
            case Column("pos"):
                if not re.fullmatch(r"[0-9]{1,18}", text):
                    raise self._wrong(value, f"pos is a number, not {text[:80]!r}", "Write pos>=5.")
                return Compares(field, operator, int(text))
            case Column():
                return Compares(field, operator, self._name(field, value, text))
        number = None if value.type == "PHRASE" else number_in(text)
        return Compares(field, operator, text if number is None else number)

    def _regex(self, field: Field, token: Token) -> Condition:
        body, _, flags = token[1:].rpartition("/")
        return Matches(body.replace("\\/", "/"), field, self._ignores_case(token, flags))

    def _text_of(self, token: Token) -> tuple[str, bool]:
        """The text of the token, and whether case is ignored."""
        if token.type != "PHRASE":
            return str(token), False
        body, _, flags = token[1:].rpartition('"')
        return _unescaped(body), self._ignores_case(token, flags)

    def _ignores_case(self, token: Token, flags: str) -> bool:
        if flags not in ("", "i"):
            raise self._wrong(
                token,
                f"the flag {flags!r} is unknown",
                'The only flag is i, to ignore case. Put a path into quotes: "/a/b".',
            )
        return bool(flags)

    def _name(self, field: Field, token: Token, text: str) -> str:
        """The text as the column has it; case does not count in levels and ULIDs."""
        if field == LEVEL:
            level = level_named(text)
            if level is None:
                raise self._wrong(token, f"there is no level {text[:80]!r}", LEVEL_HINT)
            return level
        if field == Column("ulid"):
            try:
                return ulid.encode(ulid.decode(text.upper()))
            except InvalidInput as error:
                hint = "Write one of 26 characters; a time is compared with ts."
                raise self._wrong(token, f"{text[:80]!r} is not a ULID", hint) from error
        return text

    def _span(self, token: Token, text: str) -> MomentRange:
        try:
            return parse_span(text, now_ms=self._now_ms, field="q")
        except InvalidInput as error:
            raise self._wrong(token, f"ts is a time, not {text[:80]!r}", error.hint) from error

    def _wrong(self, token: Token, what: str, hint: str) -> InvalidInput:
        return _wrong_at(token.start_pos or 0, what, hint)


def _levels(operator: Operator, number: int) -> Condition:
    chosen: Sequence[str] = {
        "=": LEVELS[number : number + 1],
        ">": LEVELS[number + 1 :],
        ">=": LEVELS[number:],
        "<": LEVELS[:number],
        "<=": LEVELS[: number + 1],
    }[operator]
    return AnyOf(tuple([Is(level, LEVEL) for level in chosen]))


def _moments(operator: Operator, span: MomentRange) -> Condition:
    """A moment is a whole millisecond of the record's microseconds; with `=`, all of the span."""
    field, first, behind = Column("ts"), span.start * 1000, (span.start + 1) * 1000
    match operator:
        case "=":
            return All((Compares(field, ">=", first), Compares(field, "<", span.end * 1000)))
        case ">":
            return Compares(field, ">=", behind)
        case "<=":
            return Compares(field, "<", behind)
    return Compares(field, operator, first)


def _unescaped(text: str) -> str:
    return _ESCAPED.sub(r"\1", text)


def _wrong_at(position: int, what: str, hint: str) -> InvalidInput:
    return InvalidInput(f"q, character {position + 1}: {what}", field="q", hint=hint)


_NO_VALUE: Final = "Write a value behind the field."
_ENDS: Final = (
    ("_CLOSE", "Close the bracket with )."),
    ("UNTIL", "Write both ends of the range: [10 TO 20], or * for an open one."),
    ("LIMIT", "Write both ends of the range: [10 TO 20], or * for an open one."),
    ("WORD", "Write a condition behind the operator."),
)
"""What to write at the end, by what the parser would take there."""
_BETWEEN: Final = (
    ("_TO", 'Write field:[low TO high], with quotes around an end that has blanks: ["a b" TO *].'),
    ("UNTIL", "Close the range with ] or }, without a blank in its ends."),
    ("WORD", "Put quotes around text."),
    ("_OR", "Write OR between values: field:(a OR b). Else write field:a AND NOT field:b."),
)
"""The same for what stands in another one's place."""


def _unexpected(text: str, error: UnexpectedInput) -> InvalidInput:
    """Describes the token that the parser refused, in words of the language."""
    if isinstance(error, UnexpectedToken) and error.token.type == "$END":
        hint = next((hint for name, hint in _ENDS if name in error.expected), _NO_VALUE)
        return _wrong_at(len(text), "something is missing at the end", hint)
    place = cast("int", error.pos_in_stream)
    found = text[place]
    if isinstance(error, UnexpectedCharacters) or found in '"/(':
        match found:
            case '"':
                return _wrong_at(
                    place,
                    "this quote does not begin or end a phrase",
                    r'Write a phrase alone: "a b", or "a b"i. Within it a quote is \".',
                )
            case "/":
                return _wrong_at(
                    place,
                    "a / begins a regular expression, which has no end",
                    'Write /…/, or put quotes around a path: "/var/log".',
                )
            case "(":
                return _wrong_at(place, "this ( stands within a word", _QUOTE)
    if found == ")":
        return _wrong_at(place, "this ) has nothing before it, or no (", _QUOTE)
    expected = error.expected if isinstance(error, UnexpectedToken) else ()
    hint = next((hint for name, hint in _BETWEEN if name in expected), "Put quotes around text.")
    return _wrong_at(place, f"{text[place : place + 20]!r} cannot stand here", hint)
