"""The language of searches: what it says, what it refuses, and that SQL means what it says."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import duckdb
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tailrace.logstore.errors import InvalidInput, TailraceError, TooLarge
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
    patterns,
    required,
)
from tailrace.logstore.search.language import parse
from tailrace.logstore.search.translate import Where
from tailrace.logstore.segments.file_format import LEVELS
from tailrace.logstore.table.schema import COLUMNS
from tests.logstore.search.evaluate import holds

ROOT: Final = Path(__file__).parents[3]
NOW: Final = 1_795_255_200_000
LEVEL, FQN, RUN, TS, POS = (Column(n) for n in ("level", "fqn", "run_id", "ts", "pos"))


def said(text: str) -> Condition | None:
    return parse(text, now_ms=NOW)


def anywhere(condition: Callable[[Field], Condition]) -> Condition:
    names: tuple[Field, ...] = (MESSAGE, FQN, RUN, Column("connector_id"), AnyAttribute())
    return AnyOf(tuple(map(condition, names)))


def level(*names: str) -> Condition:
    return AnyOf(tuple(Is(name, LEVEL) for name in names))


@pytest.mark.parametrize(
    ("text", "condition"),
    [
        ("timeout", Contains("timeout")),
        ('"connection refused"', Contains("connection refused")),
        (r'"a \"b\" \\ \n"', Contains(r'a "b" \ \n')),
        ('"Timeout"i', Contains("Timeout", ignore_case=True)),
        (r"/id=\d+\/x/", Matches(r"id=\d+/x")),
        ("/error/i", Matches("error", ignore_case=True)),
        ("12:30:45", Contains("12:30:45")),
        ("Error:", Contains("Error:")),
        ("--x - [y] a=b", All((Contains("--x"), Contains("-"), Contains("[y]"), Contains("a=b")))),
        ("a AND b", All((Contains("a"), Contains("b")))),
        ("a && b", All((Contains("a"), Contains("b")))),
        ("a || (b && c)", AnyOf((Contains("a"), All((Contains("b"), Contains("c")))))),
        ("a !b", All((Contains("a"), Not(Contains("b"))))),
        ('!(a || !"b c")', Not(AnyOf((Contains("a"), Not(Contains("b c")))))),
        ("!/a/ !level:error", All((Not(Matches("a")), Not(Is("ERROR", LEVEL))))),
        ("done! a!=b!", All((Contains("done!"), Contains("a!=b!")))),
        ("error*", Contains("error")),
        ("*err*", Contains("err")),
        ("err*code", Matches(r"err[\s\S]*code")),
        ("*", Exists(MESSAGE)),
        ("message:*", Exists(MESSAGE)),
        ('"a*"', Contains("a*")),
        ("message=a*", StartsWith("a", MESSAGE)),
        ("a b OR c", AnyOf((All((Contains("a"), Contains("b"))), Contains("c")))),
        ("a (b OR c)", All((Contains("a"), AnyOf((Contains("b"), Contains("c")))))),
        ("NOT a b", All((Not(Contains("a")), Contains("b")))),
        ("NOT(a OR b)", Not(AnyOf((Contains("a"), Contains("b"))))),
        ("NOT NOT a", Not(Not(Contains("a")))),
        ("ANDROID ORDER NOTE", All((Contains("ANDROID"), Contains("ORDER"), Contains("NOTE")))),
        ('"AND"', Contains("AND")),
        ("message:a*", Contains("a")),
        ("message=abc", Is("abc", Column("message"))),
        ('message!="a b"', Not(Is("a b", Column("message")))),
        ("level:error", Is("ERROR", LEVEL)),
        ("level:(error OR Fatal)", AnyOf((Is("ERROR", LEVEL), Is("FATAL", LEVEL)))),
        ("level:warning", Is("WARN", LEVEL)),
        ("level:(Notice OR severe)", AnyOf((Is("INFO", LEVEL), Is("ERROR", LEVEL)))),
        ("level!=critical", Not(Is("FATAL", LEVEL))),
        ("level:warn*", level("WARN")),
        ("level:crit*", level("FATAL")),
        ("level:>=warning", level("WARN", "ERROR", "FATAL")),
        ("level:=info level==info", All((Is("INFO", LEVEL), Is("INFO", LEVEL)))),
        ("level>=WARN", level("WARN", "ERROR", "FATAL")),
        ("level>WARN", level("ERROR", "FATAL")),
        ("level<INFO", level("TRACE", "DEBUG")),
        ("level:[DEBUG TO WARN}", All((level(*LEVELS[1:]), level(*LEVELS[:3])))),
        ("level:*", Exists(LEVEL)),
        ("fqn:shop.orders", Is("shop.orders", FQN)),
        ("fqn: shop.orders", Is("shop.orders", FQN)),
        ("fqn:shop.*", StartsWith("shop.", FQN)),
        ('fqn:"shop.*"', Is("shop.*", FQN)),
        ("fqn:*.orders", Matches(r"\A[\s\S]*\.orders\z", FQN)),
        ("fqn:a*b", Matches(r"\Aa[\s\S]*b\z", FQN)),
        ("fqn:/^a|b$/i", Matches("^a|b$", FQN, ignore_case=True)),
        ('run:"nightly 7"i', Is("nightly 7", RUN, ignore_case=True)),
        ("run_id!=a", Not(Is("a", RUN))),
        ("connector:c", Is("c", Column("connector_id"))),
        ("fqn:[a TO b}", All((Compares(FQN, ">=", "a"), Compares(FQN, "<", "b")))),
        ("ts>=2026-11-21T10:00:00Z", Compares(TS, ">=", NOW * 1000)),
        ("ts>2026-11-21T10:00:00Z", Compares(TS, ">=", NOW * 1000 + 1000)),
        ("ts<=now", Compares(TS, "<", NOW * 1000 + 1000)),
        ("ts:yesterday", All((Compares(TS, ">=", (NOW - 122_400_000) * 1000),
                              Compares(TS, "<", (NOW - 36_000_000) * 1000)))),
        ('ts:"2026-11-21 10:00"', All((Compares(TS, ">=", NOW * 1000),
                                       Compares(TS, "<", (NOW + 60_000) * 1000)))),
        ("ts>=5m", Compares(TS, ">=", (NOW - 300_000) * 1000)),
        ("ts<now-5m", Compares(TS, "<", (NOW - 300_000) * 1000)),
        ("ts:{now-1h TO *]", All((Compares(TS, ">=", (NOW - 3_600_000) * 1000 + 1000),))),
        ("ts:[* TO *]", Exists(TS)),
        ("pos:[10 TO 20]", All((Compares(POS, ">=", 10), Compares(POS, "<=", 20)))),
        ("pos=7", Compares(POS, "=", 7)),
        ("ulid>01kaj7f4000000000000000000",
         Compares(Column("ulid"), ">", "01KAJ7F4000000000000000000")),
        ("attributes.region:eu", Is("eu", Attribute("region"))),
        ('attributes."a \\"key\\"":*', Exists(Attribute('a "key"'))),
        ("attributes.a.b>=x", Compares(Attribute("a.b"), ">=", "x")),
        ("json.user.id=7", Compares(JsonField(("user", "id")), "=", 7.0)),
        ('json.user.id="7"', Is("7", JsonField(("user", "id")))),
        ("json.id:1234567890123456789", Is("1234567890123456789", JsonField(("id",)))),
        ("logfmt.status!=503.0", Not(Compares(LogfmtField("status"), "=", 503.0))),
        ("attributes.n:(1 OR x)", AnyOf((Compares(Attribute("n"), "=", 1.0),
                                         Is("x", Attribute("n"))))),
        ("json.ms:>1.5 json.ms:<=9", All((Compares(JsonField(("ms",)), ">", 1.5),
                                         Compares(JsonField(("ms",)), "<=", 9.0)))),
        ('json."a.b".0:x', Is("x", JsonField(("a.b", "0")))),
        ("json.ms>1.5e3", Compares(JsonField(("ms",)), ">", 1500.0)),
        ('json.ms>"1.5"', Compares(JsonField(("ms",)), ">", "1.5")),
        ("logfmt.status>=500", Compares(LogfmtField("status"), ">=", 500.0)),
        ('json.id:in(1, 2.0, "3",\n "a, \\"b\\")", x)',
         OneOf(("3", 'a, "b")', "x"), JsonField(("id",)), (1.0, 2.0))),
        ("NOT fqn:in(a.b, 7)", Not(OneOf(("a.b", "7"), FQN))),
        ("fqn!=in(a)", Not(OneOf(("a",), FQN))),
        ("level:in(warning, ERROR)", AnyOf((Is("WARN", LEVEL), Is("ERROR", LEVEL)))),
        ('message:in("a b", c)', OneOf(("a b", "c"), MESSAGE)),
        ("json.tags:a", Is("a", JsonField(("tags",)))),
        ("*:*", Exists(MESSAGE)),
        ("*:12345", anywhere(lambda f: Contains("12345") if f == MESSAGE else
                             Is("12345", f) if isinstance(f, Column) else
                             Compares(f, "=", 12345.0))),
        ('*:"a b"', anywhere(lambda f: (Contains if f == MESSAGE else Is)("a b", f))),
        ("*:/x/i", anywhere(lambda f: Matches("x", f, ignore_case=True))),
        ("*:in(a, b)", anywhere(lambda f: OneOf(("a", "b"), f))),
        ('logfmt.k:(a OR /b/ OR "c d"i)',
         AnyOf((Is("a", LogfmtField("k")), Matches("b", LogfmtField("k")),
                Is("c d", LogfmtField("k"), ignore_case=True)))),
    ],
)  # fmt: skip
def test_what_a_search_says(text: str, condition: Condition) -> None:
    assert said(text) == condition


def test_a_relative_time_moves_on_though_the_text_is_the_same() -> None:
    for later in (0, 60_000):
        asked = Compares(TS, "<", (NOW + later - 300_000) * 1000)
        assert parse("ts<now-5m", now_ms=NOW + later) == asked


FOREIGN = {
    "operators": ["a and b", "a Or b", "not found", "a&&b", "a||b", "-a", '-"a b"', "+a", "- a =",
                  "level = ERROR", "level in (a, b)", "level:(a and b)", "level:(a AND b)"],
    "wildcards": ["te?t", "fqn:sh?p.*", "run:n?ghtly"],
    "Lucene": ["_exists_:user", "a~2", "roam~", "quick^2", '"a b"~2', r"\(1\+1", "@timestamp:x",
               "status:500", "status:[400 TO 499]", "level:!error", "pos:[1 to 5]"],
    "Loki": ['{app="x"}', '|= "a"', '!= "a"', '|~ "a"', '!~ "a"', "a | json", 'fqn=~"a.*"',
             "fqn!~x", "`a b`"],
    "VictoriaLogs": ["_time:5m", "_msg:a", "_stream:x", "a | stats", 'i("a")', "level:exact(a)",
                     "level:~err"],
    "Splunk": ["index=main", "earliest=-5m", "sourcetype=x", "a | head 5", "status>=500",
               "'a b'"],
    "SQL": ["level <> 'x'", "level<>x", "severity='a'", "ms>100", "level IN (a)"],
}  # fmt: skip


@pytest.mark.parametrize("text", [text for texts in FOREIGN.values() for text in texts])
def test_signs_of_other_languages_are_refused_with_what_to_write(text: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        said(text)
    assert caught.value.field == "q"
    assert re.search(r"Write|quotes|Give|no pipes|capitals", caught.value.hint), caught.value.hint


@pytest.mark.parametrize(
    "text",
    ["x->y", "=>x", "vector<int>", "--verbose", "key=value", "don't", "C++", "100%", "a?", "x,y",
     "a??", "login?next=x", "user@host", "#1", "$HOME", "a|b", "x&y", "[ERROR]", "<title>", "...",
     r"dir\file", "AND1"],
)  # fmt: skip
def test_other_signs_of_log_lines_are_text(text: str) -> None:
    assert said(text) == Contains(text)


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("(a", "Close the bracket with )."),
        ("level:(ERROR", "Close the bracket with )."),
        ("a AND", "Write a condition behind the operator."),
        ("NOT", "Write a condition behind the operator."),
        ("level:", "Write a value behind the field."),
        ("level:(ERROR OR", "Write a value behind the field."),
        ("pos:[1", "Write both ends of the range"),
        ("ts:[", "Write both ends of the range"),
    ],
)
def test_an_end_that_is_missing_is_named(text: str, hint: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        said(text)
    assert caught.value.hint.startswith(hint)


@pytest.mark.parametrize("blank", ["", " ", "\n\t"])
def test_blanks_ask_for_everything(blank: str) -> None:
    assert said(blank) is None


@pytest.mark.parametrize(
    ("text", "character", "what"),
    [
        ("a OR", 5, "missing at the end"),
        ("a NOT", 6, "missing at the end"),
        ("(a", 3, "missing at the end"),
        ("pos:[1 TO", 8, "cannot stand here"),
        ("a)", 2, r"this \) has nothing before it"),
        ("()", 2, r"this \) has nothing before it"),
        ("OR a", 1, "cannot stand here"),
        ("level:(ERROR FATAL)", 14, "cannot stand here"),
        ("main() x", 5, r"this \( stands within a word"),
        ('a"b"', 2, "does not begin or end a phrase"),
        ('"a', 1, "does not begin or end a phrase"),
        ("x /var/log", 3, "regular expression, which has no end"),
        ("/a/x", 1, "flag 'x' is unknown"),
        ('"a"q', 1, "flag 'q' is unknown"),
        ("x foo:bar", 3, "no field 'foo'"),
        ("http://host", 1, "no field 'http'"),
        ('(lvl:"ERROR', 2, "no field 'lvl'"),
        ("level:bad", 7, "no level 'bad'"),
        ("level>/a/", 7, "has no <"),
        ("ts:2026*", 4, r"cannot contain \*"),
        ("json.a.*:x", 1, r"\* is not a field's name"),
        ("pos:x", 5, "pos is a number"),
        ("ts>tomorrow", 4, "ts is a time"),
        ("ulid:x", 6, "is not a ULID"),
        ("fqn:in(a b)", 8, "not a value of a list"),
        ("fqn:in()", 5, "the list is empty"),
        ("fqn:in(a*, b)", 5, r"cannot contain \*"),
        ("fqn>in(a)", 5, "has no <"),
        ("fqn:in(a, b", 7, r"this \( stands within"),
        ("ts:in(5m)", 4, "cannot contain times"),
        ("*:[a TO b]", 1, "a range stands after a field"),
        ("fqn>[a TO b]", 1, "a range stands after a field and a colon"),
    ],
)
def test_what_it_refuses_with_the_place_and_what_to_do(
    text: str, character: int, what: str
) -> None:
    with pytest.raises(InvalidInput, match=what) as caught:
        said(text)
    assert str(caught.value).startswith(f"q, character {character}: ")
    assert caught.value.field == "q"
    assert caught.value.hint


@pytest.mark.parametrize("text", ["(" * 60 + "a" + ")" * 60, "NOT " * 60 + "a", "a " * 300])
def test_searches_of_no_reasonable_size_are_refused(text: str) -> None:
    if text.startswith("("):
        assert said(text) == Contains("a")  # brackets around one thing are nothing
        return
    with pytest.raises(TooLarge, match="within one another"):
        said(text)


@settings(deadline=None, max_examples=300)
@given(st.text(st.sampled_from('ab "/\\()[]{}:=<>!*ANDORTi.json.levelts5'), max_size=30))
@example('"\\"')
@example("a\0b")
def test_whatever_is_written_is_said_or_refused_with_words(text: str) -> None:
    try:
        said(text)
    except TailraceError as error:
        if not str(error).startswith("q"):
            raise


def test_what_a_search_must_have_is_known() -> None:
    assert required(said("fqn:a.b x"), "fqn") == "a.b"
    assert required(said("run:7"), "run_id") == "7"
    for text in ("fqn:a OR fqn:b", "NOT fqn:a", 'fqn:"a"i', "fqn:a*", "x"):
        assert required(said(text), "fqn") is None
    assert patterns(said("/a/ OR NOT (b /c/i)")) == ["c", "a"]


def test_every_example_of_the_page_is_said() -> None:
    page = (ROOT / "docs" / "use" / "search.md").read_text()
    table = [line for line in page.splitlines() if line.startswith("| `")]
    examples = [text for line in table for text in re.findall("`([^`]+)`", line.split(" | ")[0])]
    assert len(examples) > 25
    assert [said(text) for text in examples].count(None) == 0


# --- the meaning: SQL beside plain Python ------------------------------------------------

WORDS = (
    "a",
    "B",
    "ab",
    "Ab",
    "error",
    "5",
    "-1.5",
    "1e3",
    "x=5",
    "é",
    "nan",
    "a b",
    "%",
    "_",
    "5.0",
    "+5",
    "-0",
)
MESSAGES = (
    "plain error", "A B", 'k=5 q="a b" z=', 'q="a \\"b\\" \\\\" k=ab', "kk=1 k=-1.5", "é Ab 5",
    '{"k": 5, "u": {"a": "b", "l": [1, "ab", null]}, "n": null}', '{"k": "ab", "t": true}',
    '[1, {"k": "5"}]', "5", "{broken", 'say k="5"', "", "k=05.0 q=0.5e1 z=-0",
    '{"k": ["a", 5, null, [1], {"a": "5.0"}], "u": {"l": []}}', '{"k": "[5]", "t": ["5"]}',
    "\x1b[32mA\x1b[0m B", "er\x1b[1mror\x1b[0m", "\x1b[36mk\x1b[0m=5 a",
    "\x1b]8;;a\x07ab\x1b]8;;\x07",
    '{"k": 5.0, "u": {"a": "1000.00"}}', '{"k": 5e0, "u": {"a": 0.0}}',
)  # fmt: skip
FIELDS = (
    Column("fqn"), Column("run_id"), LEVEL, Column("connector_id"), Column("message"),
    Attribute("k"), Attribute("no such"), AnyAttribute(), JsonField(("k",)), JsonField(("u", "l")),
    JsonField(("u", "a")), JsonField(("u", "l", "1")),
    JsonField(("1", "k")), JsonField(("n",)), LogfmtField("k"), LogfmtField("q"), LogfmtField("z"),
    LogfmtField("a.c"),
)  # fmt: skip


def _rows(rng: random.Random, count: int) -> list[dict[str, Any]]:
    return [
        {
            "ulid": f"{rng.randrange(10**6):026d}",
            "ts": rng.choice([None, NOW * 1000 + rng.randrange(-3, 3)]),
            "fqn": rng.choice(WORDS),
            "run_id": rng.choice(WORDS),
            "pos": rng.randrange(5),
            "level": rng.choice([None, *LEVELS]),
            "connector_id": rng.choice([None, *WORDS]),
            "message": rng.choice(MESSAGES),
            "attributes": rng.choice(
                [None, {}, {"k": rng.choice(WORDS)}, {"k": rng.choice(WORDS), "b": "ab"}]
            ),
        }
        for _ in range(count)
    ]


LEAVES = st.one_of(
    st.builds(Contains, st.sampled_from(WORDS), st.sampled_from(FIELDS), st.booleans()),
    st.builds(StartsWith, st.sampled_from(WORDS), st.sampled_from(FIELDS), st.booleans()),
    st.builds(Is, st.sampled_from([*WORDS, *LEVELS]), st.sampled_from(FIELDS), st.booleans()),
    st.builds(
        Matches, st.sampled_from(["a.b", "^5$", "[ab]{2}", "B|é", r"\Aa[\s\S]*b\z"]),
        st.sampled_from(FIELDS), st.booleans(),
    ),
    st.builds(
        OneOf, st.lists(st.sampled_from(WORDS), min_size=1, max_size=3).map(tuple),
        st.sampled_from(FIELDS),
    ),
    st.builds(
        OneOf, st.lists(st.sampled_from(WORDS), max_size=2).map(tuple),
        st.sampled_from([f for f in FIELDS if not isinstance(f, Column)]),
        st.lists(st.sampled_from([5.0, 1.0, 0.0]), min_size=1, max_size=2).map(tuple),
    ),
    st.builds(Exists, st.sampled_from([*FIELDS, TS])),
    st.builds(
        Compares, st.sampled_from(FIELDS), st.sampled_from(["=", ">", ">=", "<", "<="]),
        st.sampled_from(WORDS),
    ),
    st.builds(
        Compares, st.sampled_from([f for f in FIELDS if not isinstance(f, Column)]),
        st.sampled_from(["=", ">", ">=", "<", "<="]), st.sampled_from([5.0, -1.5, 0.0, 1000.0]),
    ),
    st.builds(Compares, st.just(POS), st.sampled_from(["=", ">", "<="]), st.integers(0, 4)),
    st.builds(
        Compares, st.just(TS), st.sampled_from([">=", "<"]),
        st.integers(NOW * 1000 - 3, NOW * 1000 + 3),
    ),
)  # fmt: skip
TREES = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.builds(Not, inner),
        st.builds(All, st.lists(inner, max_size=3).map(tuple)),
        st.builds(AnyOf, st.lists(inner, max_size=3).map(tuple)),
    ),
    max_leaves=6,
)


@pytest.mark.in_turn(4)
@settings(deadline=None, max_examples=200)
@given(TREES, st.integers(0, 1 << 30))
def test_sql_means_what_plain_python_says(condition: Condition, seed: int) -> None:
    rows = _rows(random.Random(seed), 40)
    schema = pa.schema([field for field in COLUMNS if field.name in rows[0]])
    table = pa.Table.from_pylist(
        [row | {"attributes": list((row["attributes"] or {}).items()) or None} for row in rows],
        schema=schema,
    )
    where = Where()
    term = where.term(condition)
    with duckdb.connect(":memory:") as database:
        database.register("records", table)
        found = database.execute(
            f"SELECT ulid, message FROM records r WHERE {term}",
            where.parameters,
        ).fetchall()
    expected = [(row["ulid"], row["message"]) for row in rows if holds(condition, row)]
    assert sorted(found) == sorted(expected), json.dumps([term, where.parameters])
