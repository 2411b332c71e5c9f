"""Patterns of users: their meaning, and that none of them can stop a process."""

from __future__ import annotations

import ast
import fnmatch
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.forwarder.files.finder import Glob
from tailrace.logstore.errors import InvalidInput
from tailrace.logstore.patterns import LinearRegex, name_test, wildcard_test

ROOT = Path(__file__).parents[2]
PROGRAMS = [
    "service",
    "compactor",
    "tailrace",
]
CALLS = {"compile", "match", "fullmatch", "search", "sub", "subn", "split", "findall", "finditer"}


@given(
    st.text("ab*?[]!-c\\.", max_size=10).filter(lambda p: "[^" not in p),
    st.text("abc-]![^\\.\né", max_size=8),
)
def test_wildcards_mean_what_the_standard_library_means(pattern: str, name: str) -> None:
    assert wildcard_test(pattern)(name) == fnmatch.fnmatchcase(name, pattern)


def test_a_name_without_a_sign_is_a_beginning_and_brackets_are_characters() -> None:
    cases = {
        ("night", "night-1"): True,
        ("night", "a-night"): False,
        ("*-1", "night-1"): True,
        ("night-?", "night-12"): False,
        ("[ab]", "[ab] and more"): True,
        ("[ab]*", "a"): False,
        ("*\n", "a\n"): True,
    }
    found = {case: name_test(case[0])(case[1]) for case in cases}
    assert found == cases


@given(
    st.sampled_from(["a*", "é", "b|", "[^a]+", "^.", "(?:a|é)?b", r"\n", "^"]),
    st.text("abé\n", max_size=8),
)
def test_spans_are_those_of_python(pattern: str, text: str) -> None:
    expected = [found.span() for found in re.finditer(pattern, text, re.MULTILINE)]
    assert list(LinearRegex(pattern, multiline=True).spans(text)) == expected


def test_groups_are_texts_also_of_what_is_not_ascii() -> None:
    found = LinearRegex(r"(?P<first>\pL+)-(?<second>[[:digit:]]+)?(x)?").search("…é-12")
    assert found is not None
    assert (found["first"], found["second"], found[3]) == ("é", "12", None)
    assert found.groupdict("") == {"first": "é", "second": "12"}
    path = LinearRegex("/(.*)").fullmatch("/\udcff")  # a name of a file that is not UTF-8
    assert path is not None
    assert path[1] == "\udcff"


@pytest.mark.parametrize(
    ("pattern", "reason"),
    [
        ("(?=a)", r"invalid perl operator: \(\?=; look-around"),
        (r"(a)\1", r"references such as \\1 do not exist"),
        ("(", "missing \\)"),
        ("(?:(?:a{100}){10}){10}", "(too large|repetition)"),
        ("\udcff", "not Unicode"),
    ],
)
def test_what_is_no_pattern_is_refused_with_the_reason(pattern: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        LinearRegex(pattern)


# With `re`, each of these takes longer than the universe is old.
def test_no_pattern_stops_a_process() -> None:
    long = "a" * 4000
    assert not name_test("*?" * 13 + "X")(long)
    assert not name_test("*a*a*b")(long)
    assert not wildcard_test("*a" * 100 + "b")(long)
    with pytest.raises(ValueError, match="more than 100"):
        wildcard_test("*a" * 101)
    assert LinearRegex(r"^(?P<words>(\w+\s?)*)$").search("word " * 800 + "!") is None
    assert LinearRegex(r"(a|a)*$").fullmatch(long + "!") is None
    assert not Glob("/" + "*a" * 500 + "b").matches("/" + long)
    assert not Glob("/**" * 20 + "/x").matches("/a" * 2000)
    with pytest.raises(InvalidInput, match="braces"):
        Glob("/var/" + "{a,b}" * 40)


def not_constant(node: ast.expr) -> bool:
    """Whether an argument is anything but a constant of the source or of its module."""
    if isinstance(node, ast.BinOp):
        return not_constant(node.left) or not_constant(node.right)
    return not isinstance(node, ast.Constant) and not ast.unparse(node).strip("_").isupper()


def calls_of_re() -> Iterator[str]:
    """Calls within functions that match with `re` what is not constant.

    What a module compiles while it is imported cannot come from a user.
    """
    for path in [path for folder in PROGRAMS for path in (ROOT / folder).rglob("*.py")]:
        name = str(path.relative_to(ROOT))
        tree = ast.parse(path.read_text())
        for outer in ast.walk(tree):
            if isinstance(outer, ast.ImportFrom) and outer.module in ("re", "fnmatch"):
                yield f"{name}: from {outer.module}"
            if not isinstance(outer, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
                continue
            for node in ast.walk(outer):
                match node:
                    case ast.Call(func=ast.Attribute(ast.Name("fnmatch"))):
                        yield f"{name}: {ast.unparse(node)}"
                    case ast.Call(func=ast.Attribute(ast.Name("re"), called), args=[first, *_]):
                        if called in CALLS and not_constant(first):
                            yield f"{name}: {ast.unparse(node)}"
                    case _:
                        pass


@pytest.mark.in_turn(3)
def test_no_pattern_of_a_user_reaches_a_matcher_that_goes_back() -> None:
    assert sorted(set(calls_of_re())) == []


def caches_by_text() -> Iterator[str]:
    """Functions that remember what they made of a text."""
    for path in [path for folder in PROGRAMS for path in (ROOT / folder).rglob("*.py")]:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef) and any(
                re.search(r"\b(lru_)?cache\b", ast.unparse(one)) for one in node.decorator_list
            ):
                kinds = {ast.unparse(one.annotation) for one in node.args.args if one.annotation}
                if any(re.search(r"\b(str|bytes|Any)\b", kind) for kind in kinds):
                    yield f"{path.relative_to(ROOT)}: {node.name}"


def test_only_short_texts_are_keys_of_a_cache_that_counts_its_entries() -> None:
    assert sorted(caches_by_text()) == [
        "service/query/scan_copies.py: _slots",  # 32 bytes
        "tailrace/forwarder/files/finder.py: _part",  # of the file of settings, which is read once
        "tailrace/forwarder/operators/container.py: second_of",  # 20 to 25 characters
        "tailrace/forwarder/operators/times.py: _offset",  # an offset from UTC
        "tailrace/forwarder/operators/times.py: begin",  # digits of a minute
        "tailrace/logstore/search/conditions.py: _short_label",  # at most 100 characters
        "tailrace/logstore/search/language.py: _regex",  # constants of the module
        "tailrace/logstore/search/logql.py: compiled",  # 16, of queries of 10,000 characters
        "tailrace/logstore/segments/levels.py: regex_of",  # constants of the package
        "tailrace/logstore/state.py: _pattern",  # constants of the module
    ]
