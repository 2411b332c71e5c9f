"""LogQL's grammar: what is taken, what is refused by its name, and where."""

from __future__ import annotations

import pytest

from tailrace.logstore.errors import InvalidInput
from tailrace.logstore.search.logql import (
    JoinedFilters,
    LabelGrouping,
    LabelMatcher,
    LineFilter,
    LogExpression,
    QuantityFilter,
    RangeAggregation,
    VectorAggregation,
    VectorSum,
    bytes_of,
    duration_ns,
    parse_logql,
)

APP = LabelMatcher("app", "=", "a")


def filtered(text: str) -> object:
    found = parse_logql(f'{{app="a"}} | {text}')
    assert isinstance(found, LogExpression)
    return found.stages[0]


def test_selectors_and_line_filters() -> None:
    found = parse_logql('{app="a"} |= "x\\u00e9\\n" or `\\d` !~ "b" # said')
    assert found == LogExpression(
        (APP,), (LineFilter("|=", ("xé\n", "\\d")), LineFilter("!~", ("b",)))
    )


def test_a_comma_takes_all_that_follows() -> None:
    a, b, c = (QuantityFilter(name, "==", 1.0, "number") for name in "abc")
    assert filtered("a=1 or b=1 and c=1") == JoinedFilters("or", a, JoinedFilters("and", b, c))
    assert filtered("a=1 and b=1 or c=1") == JoinedFilters("or", JoinedFilters("and", a, b), c)
    assert filtered("a=1, b=1 or c=1") == JoinedFilters("and", a, JoinedFilters("or", b, c))


def test_numbers_of_lines() -> None:
    counted = RangeAggregation("rate", LogExpression((APP,)), 5_400_000_000_000)
    assert parse_logql('RATE({app="a"}[1h30m])') == counted
    grouped = VectorAggregation("sum", counted, LabelGrouping(without=True, names=("x", "y")))
    for text in ("sum without (x, y) ({})", "sum({}) without (x, y)", "(sum({}) without (x,y))"):
        assert parse_logql(text.format('rate({app="a"}[90m])')) == grouped
    top = parse_logql('topk(3, sum without (x, y) (rate(({app="a"})[90m])))')
    assert top == VectorAggregation("topk", grouped, None, 3)
    assert parse_logql("vector(1)+vector(1)") == VectorSum(2.0)


@pytest.mark.parametrize(
    ("query", "column", "name"),
    [
        ('{a="b"} | regexp "x"', 11, "regexp"),
        ('{a="b"} | pattern "<x>"', 11, "pattern"),
        ('{a="b"} | unpack', 11, "unpack"),
        ('{a="b"} | decolorize', 11, "decolorize"),
        ('{a="b"} | label_format x=y', 11, "label_format"),
        ('{a="b"} | json x="y"', 11, "json with expressions"),
        ('{a="b"} | line_format "{{.a | ToUpper}}"', 23, "{{.a | ToUpper}}"),
        ('{a="b"} |> "<_>"', 9, "|>"),
        ('{a="b"} |= ip("10.0.0.0/8")', 12, "ip()"),
        ('{a="b"} | x=ip("10.0.0.0/8")', 13, "ip()"),
        ('count_over_time({a="b"}[1m] offset 5m)', 29, "offset"),
        ('sum_over_time({a="b"} | unwrap x [1m])', 1, "sum_over_time"),
        ('rate({a="b"} | unwrap x [1m])', 16, "unwrap"),
        ('absent_over_time({a="b"}[1m])', 1, "absent_over_time"),
        ('label_replace(rate({a="b"}[1m]),"a","b","c","d")', 1, "label_replace"),
        ('sort_desc(rate({a="b"}[1m]))', 1, "sort_desc"),
        ('rate({a="b"}[1m]) / 2', 19, "the operator /"),
        ('rate({a="b"}[1m]) > 2', 19, "the operator >"),
    ],
)
def test_what_the_subset_lacks_is_refused_by_its_name(query: str, column: int, name: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        parse_logql(query)
    start = f"parse error at line 1, col {column}: {name} is not supported by Tailrace. "
    assert str(caught.value).startswith(start)
    assert str(caught.value) != start, "nothing to use instead"


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("", "parse error : syntax error: unexpected $end"),
        ('{app="a"', "parse error at line 1, col 9: syntax error: unexpected $end"),
        ('{app="a"}\n|= x', "parse error at line 2, col 4: syntax error: unexpected IDENTIFIER"),
        ("{app=}", "parse error at line 1, col 6: syntax error: unexpected }"),
        ("{}", "parse error : queries require at least one regexp or equality matcher"),
        ('{app=~".*", b!="c"}', "parse error : queries require at least one"),
        ('{app=~"("}', "parse error : error parsing regexp: "),
        ('{app="a"} |~ "(?=x)"', "parse error : error parsing regexp: "),
        ('{app="\\q"}', "parse error at line 1, col 6: invalid char escape"),
        ('rate({app="a"}[1x])', "parse error at line 1, col 15: not a valid duration string"),
        ('rate({app="a"}[0s])', "parse error at line 1, col 15: not a valid duration string"),
        ('rate({app="a"}[1m]) by (x)', "parse error : grouping not allowed for rate"),
        ('topk(0, rate({app="a"}[1m]))', "parse error : invalid parameter"),
        ('sum(1, rate({app="a"}[1m]))', "parse error : sum does not take a parameter"),
        ("what({})", "parse error at line 1, col 1: syntax error: unexpected IDENTIFIER"),
        ("(" * 3_000, "parse error at line 1, col 3001: syntax error: unexpected $end"),
        ('{app="a"}' + '|= "x"' * 300, "parse error at line 1, col "),
        ("x" * 10_001, "parse error : the query has more than 10000 characters"),
    ],
)
def test_errors_name_their_place(query: str, message: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        parse_logql(query)
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize(
    ("text", "nanoseconds"),
    [("1h30m", 5_400_000_000_000), ("-5s", -5_000_000_000), ("1.5ms", 1_500_000), ("0", 0),
     ("2d", 172_800_000_000_000), ("", None), ("5", None), ("5x", None), ("m5", None),
     ("9" * 400 + "h", None), ("9" * 60_000, None)],
)  # fmt: skip
def test_durations(text: str, nanoseconds: int | None) -> None:
    assert duration_ns(text) == nanoseconds


@pytest.mark.parametrize(
    ("text", "size"),
    [("10KB", 10_000), ("1.5KiB", 1_536), ("2000", 2_000), ("1 mb", 1_000_000), ("3Gi", 3 << 30),
     ("many", None), ("", None), ("1e3", None),
     ("9" * 400 + "KiB", None)],
)  # fmt: skip
def test_amounts_of_bytes(text: str, size: int | None) -> None:
    assert bytes_of(text) == size
