r"""LogQL, the language of Loki's clients: `parse_logql` makes an expression of its text.

    {app="web", run=~"n.*"} |= "timeout" or "refused" != "retry" | json | status >= 500
    sum by (level) (count_over_time({app="web"} | logfmt | duration > 1s [5m]))

The subset has stream selectors, line filters, `json`, `logfmt`, label filters, `line_format`,
`drop`, `keep`, four range aggregations, six vector aggregations and sums of `vector`. Everything
else is refused by its name, with a hint. The grammar is LALR(1): parsing takes linear time.

Precedence follows Loki's parser: in label filters `or` binds less than `and`, and a comma takes
all that follows as its right side.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, TypeAlias, cast

from lark import (
    Lark,
    Token,
    Transformer_NonRecursive,
    UnexpectedCharacters,
    UnexpectedInput,
    UnexpectedToken,
)
from lark.exceptions import VisitError

from tailrace.logstore.errors import InvalidInput
from tailrace.logstore.patterns import LinearRegex

ERROR_LABEL: Final = "__error__"
DETAILS_LABEL: Final = "__error_details__"
MOST_CHARACTERS: Final = 10_000
_MOST_PARTS: Final = 200
"""Matchers, filters and stages of one expression."""


@dataclass(frozen=True, slots=True)
class LabelMatcher:
    """A comparison of a label with a text or an anchored pattern; a missing label is empty."""

    name: str
    operator: str
    value: str

    def holds(self, text: str) -> bool:
        """Returns whether it holds for a label of this value."""
        if self.operator in ("=", "!="):
            return (text == self.value) is (self.operator == "=")
        found = compiled(f"(?s:{self.value})").fullmatch(text) is not None
        return found is (self.operator == "=~")


@dataclass(frozen=True, slots=True)
class QuantityFilter:
    """A comparison of a label with a number, a duration in seconds, or bytes."""

    name: str
    operator: str
    value: float
    unit: str


@dataclass(frozen=True, slots=True)
class JoinedFilters:
    """Two label filters, both of which hold (`and`), or one of them."""

    operator: str
    left: LabelPredicate
    right: LabelPredicate


LabelPredicate: TypeAlias = LabelMatcher | QuantityFilter | JoinedFilters


@dataclass(frozen=True, slots=True)
class LineFilter:
    """The line has one of the texts (`|=`) or patterns (`|~`), or none of them (`!=`, `!~`)."""

    operator: str
    texts: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class JsonStage:
    """Makes a label of each value in a line that is a JSON object."""


@dataclass(frozen=True, slots=True)
class LogfmtStage:
    """Makes a label of each `key=value` of a line."""

    strict: bool = False
    keep_empty: bool = False


@dataclass(frozen=True, slots=True)
class LineFormat:
    """Replaces the line: texts, and labels between them."""

    parts: tuple[str | TemplateLabel, ...]


@dataclass(frozen=True, slots=True)
class TemplateLabel:
    """A label of a template; `__line__` is the line."""

    name: str


@dataclass(frozen=True, slots=True)
class SelectLabels:
    """Drops the labels, or keeps only them; a matcher also asks for the value."""

    keep: bool
    labels: tuple[str | LabelMatcher, ...]


Stage: TypeAlias = LineFilter | LabelPredicate | JsonStage | LogfmtStage | LineFormat | SelectLabels


@dataclass(frozen=True, slots=True)
class LogExpression:
    """The lines of some streams, after the stages."""

    matchers: tuple[LabelMatcher, ...]
    stages: tuple[Stage, ...] = ()


@dataclass(frozen=True, slots=True)
class RangeAggregation:
    """A number for each label set, of the lines in a window of `range_ns` before each step."""

    operator: str
    lines: LogExpression
    range_ns: int


@dataclass(frozen=True, slots=True)
class LabelGrouping:
    """The labels by which series are grouped, or all but these (`without`)."""

    without: bool
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class VectorAggregation:
    """One number of many series, or with `topk` the series with the largest."""

    operator: str
    inner: MetricExpression
    grouping: LabelGrouping | None = None
    count: int = 0


@dataclass(frozen=True, slots=True)
class VectorSum:
    """The same number at each step; Grafana asks `vector(1)+vector(1)` to test a source."""

    value: float


MetricExpression: TypeAlias = RangeAggregation | VectorAggregation | VectorSum
LogqlExpression: TypeAlias = LogExpression | MetricExpression

_RANGE_OPERATORS: Final = ("count_over_time", "rate", "bytes_over_time", "bytes_rate")
_VECTOR_OPERATORS: Final = ("sum", "min", "max", "avg", "count", "topk")
_QUERY_HINT: Final = "GET /query and /query/count have fields of JSON and logfmt."
_REFUSED_STAGES: Final = {
    "regexp": "Filter with |~, or parse with | json or | logfmt.",
    "pattern": "Filter with |~, or parse with | json or | logfmt.",
    "unpack": "Parse with | json.",
    "label_format": "Use the label under its own name, or | line_format.",
    "decolorize": "Filters find coloured text as it is seen.",
    "unwrap": f"Count lines with count_over_time; {_QUERY_HINT}",
    "offset": "Move start and end of the query.",
}
_REFUSED_FUNCTIONS: Final = {
    **dict.fromkeys(
        (
            *("rate_counter", "avg_over_time", "sum_over_time", "min_over_time", "max_over_time"),
            *("stdvar_over_time", "stddev_over_time", "quantile_over_time", "first_over_time"),
            "last_over_time",
        ),
        "It needs unwrap, which does not exist here. Use count_over_time, rate, bytes_over_time "
        "or bytes_rate.",
    ),
    "absent_over_time": "Use count_over_time and look for steps without a value.",
    **dict.fromkeys(("bottomk", "sort", "sort_desc", "approx_topk"), "Use topk."),
    **dict.fromkeys(("stddev", "stdvar"), "Use min, max and avg."),
    "label_replace": "Group by the labels as they are.",
    "variants": "Send a query for each variant.",
}
_DURATION: Final = r"[0-9]+(?:\.[0-9]+)?(?:ns|us|µs|ms|[smhdwy])"
_AMOUNT: Final = r"[0-9]+(?:\.[0-9]+)?(?:[kKMGTP](?:i?B|i)?|B)\b"
_GRAMMAR: Final = rf"""
    start: lines | metric
    ?lines: selector stage* -> log
        | "(" lines ")"
    selector: "{{" [matcher ("," matcher)*] "}}"
    matcher: NAME (EQUAL | UNEQUAL | RE | NOT_RE) STRING

    ?stage: line_filter
        | "|" JSON [json_names] -> json
        | "|" LOGFMT FLAG* [logfmt_names] -> logfmt
        | "|" predicate -> label_filter
        | "|" LINE_FORMAT STRING -> line_format
        | "|" DROP chosen ("," chosen)* -> drop
        | "|" KEEP chosen ("," chosen)* -> keep
        | "|" REFUSED_STAGE -> refused
        | REFUSED_FILTER -> refused
    line_filter: (HAS | FINDS | UNEQUAL | NOT_RE) text (OR text)*
    ?text: STRING | REFUSED_IP
    json_names: NAME [EQUAL STRING] ("," NAME [EQUAL STRING])*
    logfmt_names: NAME [EQUAL STRING] ("," NAME [EQUAL STRING])*
    chosen: NAME | matcher

    ?predicate: both (OR both)* -> either
    ?both: unit (AND unit)* -> both
    ?unit: atom
        | atom ["," ] predicate -> comma
    ?atom: matcher
        | NAME (EQUAL | UNEQUAL | COMPARES) (DURATION | AMOUNT | NUMBER) -> quantity
        | NAME (EQUAL | UNEQUAL) REFUSED_IP -> refused
        | "(" predicate ")"

    ?metric: counted
        | RANGE_OPERATOR "(" windowed ")" [grouping] -> range_aggregation
        | VECTOR_OPERATOR grouping "(" [NUMBER ","] metric ")" -> grouped_before
        | VECTOR_OPERATOR "(" [NUMBER ","] metric ")" [grouping] -> grouped_behind
        | "(" metric ")"
        | REFUSED_FUNCTION -> refused
        | metric REFUSED_OPERATOR -> refused
    counted: vector ("+" vector)*
    vector: VECTOR "(" NUMBER ")"
    ?windowed: selector stage* RANGE stage* [REFUSED_OFFSET] -> window
        | "(" selector stage* ")" RANGE [REFUSED_OFFSET] -> window
        | "(" windowed ")"
    grouping: (BY | WITHOUT) "(" [NAME ("," NAME)*] ")"

    EQUAL: "="
    RE.2: "=~"
    UNEQUAL: "!="
    NOT_RE.2: "!~"
    HAS: "|="
    FINDS: "|~"
    COMPARES.2: ">=" | "<=" | "==" | ">" | "<"
    OR.3: /or\b/i
    AND.3: /and\b/i
    BY.3: /by\b/i
    WITHOUT.3: /without\b/i
    JSON.3: /json\b/i
    LOGFMT.3: /logfmt\b/i
    LINE_FORMAT.3: /line_format\b/i
    DROP.3: /drop\b/i
    KEEP.3: /keep\b/i
    VECTOR.3: /vector\b/i
    FLAG: /--[a-z-]+/
    RANGE_OPERATOR.3: /(?:{"|".join(_RANGE_OPERATORS)})\b/i
    VECTOR_OPERATOR.3: /(?:{"|".join(_VECTOR_OPERATORS)})\b/i
    REFUSED_FUNCTION.3: /(?:{"|".join(_REFUSED_FUNCTIONS)})\b/i
    REFUSED_STAGE.3: /(?:{"|".join(_REFUSED_STAGES)})\b/i
    REFUSED_OFFSET.3: /offset\b/i
    REFUSED_FILTER.3: /\|>|!>/
    REFUSED_IP.3: /ip(?=\s*\()/i
    REFUSED_OPERATOR: /[-+*\/%^]|[=!<>]=|[<>]|(?:and|or|unless)\b/i
    NAME: /[A-Za-z_][A-Za-z0-9_]*/
    STRING: /"(?:[^"\\\n]|\\.)*"|`[^`]*`/
    RANGE: /\[[^\]]*\]/
    DURATION.2: /-?(?:{_DURATION})+/
    AMOUNT.2: /{_AMOUNT}/
    NUMBER: /[-+]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][-+]?[0-9]+)?/
    COMMENT: /#[^\n]*/
    %ignore /\s+/
    %ignore COMMENT
"""
_UNITS: Final = {
    "ns": 1,
    "us": 1_000,
    "µs": 1_000,
    "ms": 1_000_000,
    "s": 1_000_000_000,
    "m": 60_000_000_000,
    "h": 3_600_000_000_000,
    "d": 86_400_000_000_000,
    "w": 604_800_000_000_000,
    "y": 31_536_000_000_000_000,
}
_STEP: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?)(ns|us|µs|ms|[smhdwy])")
_LONGEST_AMOUNT: Final = 100
"""Characters of a duration or of an amount of bytes; a number of more is none of them."""
_POWERS: Final = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4, "p": 5}
_BYTES: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?) ?([kKmMgGtTpP]?)(i?)[bB]?")
_ESCAPE: Final = re.compile(
    r"""\\(?:([abfnrtv\\"'])|x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|([0-7]{3}))"""
)
_ESCAPED: Final = dict(zip("abfnrtv\\\"'", "\a\b\f\n\r\t\v\\\"'", strict=True))
_TEMPLATE_LABEL: Final = re.compile(r"\.([A-Za-z_][A-Za-z0-9_]*)|__line__")


def parse_logql(text: str) -> LogqlExpression:
    """Returns the expression. Raises `InvalidInput` in Loki's words, with the place."""
    if len(text) > MOST_CHARACTERS:
        raise InvalidInput(f"parse error : the query has more than {MOST_CHARACTERS} characters")
    try:
        return cast("LogqlExpression", _Expressions().transform(_parser().parse(text)))
    except UnexpectedInput as error:
        raise _unexpected(text, error) from error
    except VisitError as error:
        raise error.orig_exc from error


def parse_selector(text: str) -> LogExpression:
    """Returns an expression of lines. Raises `InvalidInput`, also for one of numbers."""
    found = parse_logql(text)
    if not isinstance(found, LogExpression):
        raise InvalidInput("parse error : only label matchers are supported")
    return found


def duration_ns(text: str) -> int | None:
    """Returns the nanoseconds of a duration such as 1h30m; None if the text is none."""
    if text == "0":
        return 0
    if len(text) > _LONGEST_AMOUNT:
        return None
    sign, text = (-1, text[1:]) if text[:1] == "-" else (1, text.removeprefix("+"))
    parts = list(_STEP.finditer(text))
    if not parts or "".join([part[0] for part in parts]) != text:
        return None
    return sign * round(sum(float(part[1]) * _UNITS[part[2]] for part in parts))


def bytes_of(text: str) -> int | None:
    """Returns the bytes of an amount such as 1.5KiB; None if the text is none."""
    found = _BYTES.fullmatch(text.strip()) if len(text) <= _LONGEST_AMOUNT else None
    if found is None:
        return None
    base = 1024 if found[3] else 1000
    return int(float(found[1]) * float(base ** _POWERS[found[2].lower()]))


@lru_cache(maxsize=16)
def compiled(pattern: str) -> LinearRegex:
    """Returns the pattern of a user, compiled. Raises `InvalidInput`."""
    try:
        return LinearRegex(pattern)
    except ValueError as error:
        raise InvalidInput(
            f"parse error : error parsing regexp: {pattern[:200]!r} {error}"
        ) from None


def patterns_of(stages: Sequence[Stage]) -> Iterator[str]:
    """Yields the patterns of line filters."""
    for stage in stages:
        if isinstance(stage, LineFilter) and stage.operator in ("|~", "!~"):
            yield from stage.texts


@lru_cache(maxsize=1)
def _parser() -> Lark:
    # A token of LogQL that the subset lacks is refused where it stands.
    names = ("STAGE", "FUNCTION", "FILTER", "IP", "OPERATOR", "OFFSET")
    refused = dict.fromkeys([f"REFUSED_{name}" for name in names], _refuse)
    return Lark(_GRAMMAR, parser="lalr", lexer="contextual", lexer_callbacks=refused)


def _refuse(token: Token) -> Token:
    name = token.lower()
    match token.type:
        case "REFUSED_STAGE" | "REFUSED_OFFSET":
            raise _refused(token, name, _REFUSED_STAGES[name])
        case "REFUSED_FUNCTION":
            raise _refused(token, name, _REFUSED_FUNCTIONS[name])
        case "REFUSED_FILTER":
            raise _refused(token, name, "Write a regular expression: |~ or !~.")
        case "REFUSED_IP":
            raise _refused(token, "ip()", "Write a pattern: |~ `10[.]0[.]`.")
    raise _refused(
        token,
        f"the operator {name}",
        "Only vector(1)+vector(1) is calculated. Send a query for each side.",
    )


class _Expressions(Transformer_NonRecursive[Token, Any]):
    """From the grammar's rules to expressions, from the leaves up."""

    def __init__(self) -> None:
        super().__init__()
        self._parts = 0

    def start(self, found: list[Any]) -> LogqlExpression:
        return cast("LogqlExpression", found[0])

    def log(self, found: list[Any]) -> LogExpression:
        matchers, *stages = found
        return LogExpression(matchers, tuple(stages))

    def selector(self, found: list[Any]) -> tuple[LabelMatcher, ...]:
        matchers = tuple([one for one in found if one is not None])
        if not any(_narrows(matcher) for matcher in matchers):
            raise InvalidInput(
                "parse error : queries require at least one regexp or equality matcher that does "
                'not have an empty-compatible value. For instance, app=~".*" does not meet this '
                'requirement, but app=~".+" will'
            )
        return matchers

    def matcher(self, found: list[Token]) -> LabelMatcher:
        self._count(found[0])
        made = LabelMatcher(str(found[0]), str(found[1]), _unquoted(found[2]))
        if made.operator in ("=~", "!~"):
            compiled(f"(?s:{made.value})")
        return made

    def line_filter(self, found: list[Token]) -> LineFilter:
        operator, *texts = found
        self._count(operator)
        made = LineFilter(
            str(operator), tuple([_unquoted(text) for text in texts if text.type == "STRING"])
        )
        for pattern in patterns_of([made]):
            compiled(pattern)
        return made

    def json(self, found: list[Any]) -> JsonStage:
        self._count(found[0])
        if found[1] is not None:
            raise _refused(found[0], "json with expressions", "Write | json: it has all values.")
        return JsonStage()

    def logfmt(self, found: list[Any]) -> LogfmtStage:
        token, *flags, names = found
        self._count(token)
        if names is not None:
            raise _refused(token, "logfmt with names", "Write | logfmt: it has all values.")
        for flag in flags:
            if flag not in ("--strict", "--keep-empty"):
                raise _refused(flag, str(flag), "Flags are --strict and --keep-empty.")
        return LogfmtStage("--strict" in flags, "--keep-empty" in flags)

    def json_names(self, found: list[Any]) -> list[Any]:
        return found

    logfmt_names = json_names

    def label_filter(self, found: list[Any]) -> LabelPredicate:
        return cast("LabelPredicate", found[0])

    def either(self, found: list[Any]) -> LabelPredicate:
        return _joined("or", found)

    def both(self, found: list[Any]) -> LabelPredicate:
        return _joined("and", found)

    def comma(self, found: list[Any]) -> LabelPredicate:
        return JoinedFilters("and", found[0], found[-1])

    def quantity(self, found: list[Token]) -> QuantityFilter:
        name, operator, value = found
        self._count(name)
        number: float | None
        if value.type == "NUMBER":
            unit, number = "number", float(value)
        elif value.type == "AMOUNT":
            unit, number = "bytes", bytes_of(value)
        else:
            unit, number = "duration", duration_ns(value)
        if number is None:
            raise _wrong(value, f"{str(value)!r} is not an amount")
        return QuantityFilter(str(name), "==" if operator == "=" else str(operator), number, unit)

    def line_format(self, found: list[Token]) -> LineFormat:
        self._count(found[0])
        return LineFormat(tuple(_template(found[1])))

    def chosen(self, found: list[Any]) -> str | LabelMatcher:
        return found[0] if isinstance(found[0], LabelMatcher) else str(found[0])

    def drop(self, found: list[Any]) -> SelectLabels:
        self._count(found[0])
        return SelectLabels(False, tuple(found[1:]))

    def keep(self, found: list[Any]) -> SelectLabels:
        self._count(found[0])
        return SelectLabels(True, tuple(found[1:]))

    def window(self, found: list[Any]) -> tuple[LogExpression, int]:
        matchers, *rest, _ = found
        at = next(n for n, one in enumerate(rest) if isinstance(one, Token))
        size = duration_ns(rest[at][1:-1].strip())
        if not size or size < 0:
            raise _wrong(rest[at], f"not a valid duration string: {rest[at][1:-1][:80]!r}")
        return LogExpression(matchers, (*rest[:at], *rest[at + 1 :])), size

    def range_aggregation(self, found: list[Any]) -> RangeAggregation:
        operator, (lines, size), grouping = found
        if grouping is not None:
            raise InvalidInput(
                f"parse error : grouping not allowed for {operator.lower()} aggregation"
            )
        return RangeAggregation(operator.lower(), lines, size)

    def grouping(self, found: list[Any]) -> LabelGrouping:
        names = tuple([str(name) for name in found[1:] if name is not None])
        return LabelGrouping(found[0].lower() == "without", names)

    def grouped_before(self, found: list[Any]) -> VectorAggregation:
        operator, grouping, number, inner = found
        return self._aggregation(operator, grouping, number, inner)

    def grouped_behind(self, found: list[Any]) -> VectorAggregation:
        operator, number, inner, grouping = found
        return self._aggregation(operator, grouping, number, inner)

    def _aggregation(
        self, token: Token, grouping: LabelGrouping | None, number: Token | None, inner: Any
    ) -> VectorAggregation:
        operator = token.lower()
        self._count(token)
        if (operator == "topk") is not (number is not None):
            wants = "requires" if operator == "topk" else "does not take"
            raise InvalidInput(f"parse error : {operator} {wants} a parameter")
        if number is None:
            return VectorAggregation(operator, inner, grouping)
        if not number.isdigit() or not 0 < len(number) < 7 or not int(number):
            raise InvalidInput(
                f"parse error : invalid parameter (must be greater than 0) topk({number}"
            )
        return VectorAggregation(operator, inner, grouping, int(number))

    def counted(self, found: list[float]) -> VectorSum:
        return VectorSum(sum(found))

    def vector(self, found: list[Token]) -> float:
        return float(found[1])

    def _count(self, token: Token) -> None:
        self._parts += 1
        if self._parts > _MOST_PARTS:
            raise _wrong(token, f"the query has more than {_MOST_PARTS} filters and stages")


def _narrows(matcher: LabelMatcher) -> bool:
    """Returns whether a label must be there for the matcher to hold."""
    return matcher.operator in ("=", "=~") and not matcher.holds("")


def _joined(operator: str, found: list[Any]) -> LabelPredicate:
    parts = [one for one in found if not isinstance(one, Token)]
    whole = parts[0]
    for part in parts[1:]:
        whole = JoinedFilters(operator, whole, part)
    return cast("LabelPredicate", whole)


def _unquoted(token: Token) -> str:
    if token[0] == "`":
        return token[1:-1]

    def plain(found: re.Match[str]) -> str:
        if found[1]:
            return _ESCAPED[found[1]]
        code = next(int(text, 8 if text is found[5] else 16) for text in found.groups()[1:] if text)
        if code > 0x10FFFF or 0xD800 <= code <= 0xDFFF:
            raise _wrong(token, "invalid syntax")
        return chr(code)

    text = token[1:-1]
    if "\\" in _ESCAPE.sub("", text):
        raise _wrong(token, "invalid char escape")
    return _ESCAPE.sub(plain, text)


def _template(token: Token) -> Iterator[str | TemplateLabel]:
    text = _unquoted(token)
    while True:
        before, _, rest = text.partition("{{")
        inner, end, after = rest.partition("}}")
        if not end:
            yield text
            return
        yield before
        name = inner.removeprefix("-").removesuffix("-").strip()
        label = _TEMPLATE_LABEL.fullmatch(name)
        if label is None:
            raise _refused(
                token, f"{{{{{name[:80]}}}}}", "Use only labels in a template: {{.name}}."
            )
        yield TemplateLabel(label[1] or "__line__")
        text = after


def _refused(token: Token, name: str, instead: str) -> InvalidInput:
    return _wrong(token, f"{name} is not supported by Tailrace. {instead}")


def _wrong(token: Token, what: str) -> InvalidInput:
    return InvalidInput(f"parse error at line {token.line}, col {token.column}: {what}")


_SHOWN: Final = {
    "$END": "$end",
    "NAME": "IDENTIFIER",
    "STRING": "STRING",
    "NUMBER": "NUMBER",
    "RANGE": "RANGE",
    "DURATION": "DURATION",
    "AMOUNT": "BYTES",
}
"""The names of tokens in Loki's messages."""


def _unexpected(text: str, error: UnexpectedInput) -> InvalidInput:
    if not text.strip():
        return InvalidInput("parse error : syntax error: unexpected $end")
    if isinstance(error, UnexpectedToken):
        token = error.token
        if token.type == "$END":
            lines = text.split("\n")
            line, column, shown = len(lines), len(lines[-1]) + 1, "$end"
        else:
            line, column = token.line or 1, token.column or 1
            shown = _SHOWN.get(token.type, str(token))
    else:
        assert isinstance(error, UnexpectedCharacters)
        line, column, shown = error.line, error.column, error.char
    return InvalidInput(
        f"parse error at line {line}, col {column}: syntax error: unexpected {shown}"
    )
