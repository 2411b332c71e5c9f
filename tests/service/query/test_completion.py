"""Fields and values of samples, against a model and against the search itself."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from service.query import facets
from service.query.engine import QueryEngine
from service.query.facets import (
    DEFAULT_SAMPLE,
    MAX_FIELDS,
    MAX_NAME_CHARS,
    MAX_SAMPLE,
    MAX_VALUE_CHARS,
    CountRequest,
    SeenField,
    SeenFields,
    SeenValues,
    ValuesRequest,
    count_by,
    values,
)
from service.query.request import QueryRequest, field_of, name_of, value_of
from tailrace.logstore import ulid
from tailrace.logstore.errors import InvalidInput
from tailrace.logstore.search.conditions import Compares, Exists, Field, JsonField, LogfmtField
from tailrace.logstore.search.language import parse
from tests.batches import Entry
from tests.logstore.search.evaluate import value_of as model_value
from tests.seeds import some
from tests.service.query.scattered import ALL, scattered
from tests.service.query.world import HOUR_MS, NOW_MS, RUNS, World, engine_of, search

KEYS = ["a", "user id", "x.y", 'q"q', "b\\", "", "7", "é", "AND", "a/b~c", "[z]", "*", "(", "n\n"]
TEXTS = [*KEYS, "5", "-1.5e3", "level:ERROR", "/x/", "/x", "a b", "x\u00a0y", "NOT", "it's", "a*"]
VALUES: list[Any] = [*TEXTS, 7, 1.5, 1e22, -0.0, True, None, [], {}, [1, {"k": "v"}], 10**20]

LOOSE = {"message", "level", "ts", "pos"}
"""What a search may find more by: a part of a message, and what copies of a record differ in."""


def some_json(rng: random.Random, depth: int = 0) -> dict[str, Any]:
    made: dict[str, Any] = {}
    for key in rng.sample(KEYS, rng.randrange(1, 4)):
        deeper = depth < 3 and rng.random() < 0.4
        made[key] = some_json(rng, depth + 1) if deeper else rng.choice(VALUES)
    return made


def some_line(rng: random.Random) -> str:
    match rng.randrange(6):
        case 0:
            return f'ERROR status={rng.choice([200, 503])} path="/a \\"b\\" {rng.randrange(3)}"'
        case 1:
            return (
                f"x a=1 a=b ms={rng.random():.3f} k-1= k.2=AND 9=9 url?q=1\tt={rng.choice('xyz')}"
            )
        case 2:
            return rng.choice(['{"a":1,"a":{"b":2}}', '{"a":"\\ud800"}', "{a=1}", '{"a":', "[1]"])
        case 3:
            return '2026-11-21T09:00:00.123Z INFO open="half k=v'
        case _:
            return json.dumps(some_json(rng), ensure_ascii=rng.random() < 0.5)


def rich(given: Entry) -> Entry:
    """With JSON and logfmt in its lines, which depend on the batch only."""
    run, batch, text, *rest = given
    rng = random.Random(batch)
    lines = [some_line(rng) for _ in text.decode().splitlines()]
    return run, batch, "".join(f"{line}\n" for line in lines).encode(), *rest


async def seen_fields(engine: QueryEngine, text: str = "from=0") -> SeenFields:
    sample = facets.parse(pairs(text), now_ms=NOW_MS)
    async with await engine.open(sample.search) as running:
        return await running.totals(lambda search: facets.fields(search, sample))


async def seen_values(engine: QueryEngine, **parameters: str) -> SeenValues:
    asked = ValuesRequest.parse({"from": "0", **parameters}, now_ms=NOW_MS)
    async with await engine.open(asked.sample.search) as running:
        return await running.totals(lambda search: values(search, asked))


async def found_by(engine: QueryEngine, q: str) -> int:
    asked = replace(ALL, condition=parse(q, now_ms=NOW_MS))
    return len((await search(engine, asked))[0])


def pairs(text: str) -> Mapping[str, str]:
    return dict(pair.split("=", 1) for pair in text.split(" ") if pair)


@pytest.mark.parametrize("seed", some(range(4), 4, "names of fields"))
async def test_each_name_is_a_field_and_finds_as_many_records_as_it_says(
    tmp_path: Path, seed: int
) -> None:
    world = await scattered(World(tmp_path), seed, rich)
    if seed % 2:
        middle = ulid.lowest_at(NOW_MS - 2 * HOUR_MS)
        world.deletions = [(RUNS[0].fqn, RUNS[0].run, middle), (RUNS[5].fqn, None, middle)]
    async with engine_of(world) as engine:
        found = await seen_fields(engine)
        assert found.looked.records == len(world.expected(ALL))
        assert found.looked.complete
        assert found.complete
        for field in found.fields:
            assert name_of(field_of(field.name)) == field.name
            if field.name != "message":
                assert parse(f"{field.name}:*", now_ms=NOW_MS) == Exists(field_of(field.name))
                count = await found_by(engine, f"{field.name}:*")
                assert count == field.records or field.name in LOOSE, field
                assert count >= field.records, field
        keyed = [field for field in found.fields if "." in field.name]
        for field in keyed[::5]:
            numbers = await found_by(engine, f"{field.name}:[-1e300 TO 1e300]")
            # Of an array, which is a text, a range finds a number that it holds.
            assert numbers == field.records or field.kind != "number", field


@pytest.mark.parametrize("seed", some(range(3), 3, "fields and values"))
async def test_fields_and_values_are_those_of_a_model(tmp_path: Path, seed: int) -> None:
    """A plain loop over the newest records that were acknowledged."""
    world = await scattered(World(tmp_path), seed, rich)
    rng = random.Random(seed)
    names: list[Field] = [
        LogfmtField("status"),
        LogfmtField("path"),
        LogfmtField("t"),
        JsonField(("user id",)),
    ]
    async with engine_of(world) as engine:
        for size in (1, rng.randrange(2, 60), len(world.records), DEFAULT_SAMPLE):
            newest = world.expected(QueryRequest(limit=size))
            rows = [{"message": world.records[key].message} for key in newest]
            found = await seen_fields(engine, f"from=0 sample={size}")
            assert found.looked.records == len(newest)
            assert found.looked.complete == (len(newest) == len(world.records))
            counted = {field.name: field.records for field in found.fields}
            for name in names[:3]:
                having = Counter(v for row in rows if (v := model_value(name, row)) is not None)
                assert counted.get(name_of(name), 0) == having.total()
                given = await seen_values(engine, field=name_of(name), sample=str(size))
                assert {v.text: v.records for v in given.values} == having
                assert given.complete
            of_run = await seen_values(engine, field="fqn", sample=str(size))
            assert {v.text: v.records for v in of_run.values} == Counter(k.fqn for k in newest)


def is_number(text: str) -> bool:
    """Whether a value of a field is compared as a number."""
    try:
        float(text)
    except ValueError:
        return False
    return True


@pytest.mark.parametrize("seed", some(range(2), 2, "values"))
async def test_each_value_finds_its_records(tmp_path: Path, seed: int) -> None:
    world = await scattered(World(tmp_path), seed, rich)
    async with engine_of(world) as engine:
        for field in (await seen_fields(engine)).fields[:60]:
            given = await seen_values(engine, field=field.name, limit="12")
            assert given.values, field
            for value in given.values[:: 1 + len(given.values) // 4]:
                count = await found_by(engine, f"{field.name}:{value.value}")
                # A number finds its other spellings, too: 1.0 and 1.
                exact = field.name not in LOOSE and not is_number(value.text)
                assert count == value.records if exact else count >= value.records, value


@pytest.mark.parametrize("field", ["level", "ts", "pos", "ulid", "run", "fqn"])
async def test_values_of_columns_find_exactly_theirs(tmp_path: Path, field: str) -> None:
    world = World(tmp_path)
    text = "2026-11-21T09:00:00.123456Z INFO a\n2026-11-21T09:00:00.123999Z WARN b\nplain\n"
    old = "1969-12-31T23:59:59.999Z INFO a\n"
    for run, at, lines in ((RUNS[0], 0, text), (RUNS[1], 1, text), (RUNS[2], 2, old)):
        world.unflushed([(run, ulid.lowest_at(NOW_MS + at), lines.encode())])
    async with engine_of(world) as engine:
        given = await seen_values(engine, field=field)
        assert given.values
        assert given.complete
        for value in given.values:
            assert await found_by(engine, f"{field}:{value.value}") == value.records, value
    texts = {value.text for value in given.values}
    assert field != "ts" or "2026-11-21T09:00:00.123Z" in texts


async def test_values_are_the_most_frequent_that_begin_so(tmp_path: Path) -> None:
    world = World(tmp_path)
    long = "x" * (MAX_VALUE_CHARS + 1)
    text = f"k=b\nk=a\nk=b\nk=c k=b\nnone\nk={long}\nERROR k=ab\n"
    world.unflushed([(RUNS[0], ulid.lowest_at(NOW_MS), text.encode())])
    async with engine_of(world) as engine:
        two = await seen_values(engine, field="logfmt.k", limit="2")
        begun = await seen_values(engine, field='logfmt."k"', prefix="a")
        levels = await seen_values(engine, field="level", prefix="err")
    assert [(v.text, v.records) for v in two.values] == [("b", 2), ("a", 1)]
    assert not two.complete
    assert [(v.text, v.records) for v in begun.values] == [("a", 1), ("ab", 1)]
    assert begun.complete
    assert [(v.text, v.records) for v in levels.values] == [("ERROR", 1)]
    async with engine_of(world) as engine:
        assert not (await seen_values(engine, field="logfmt.k", prefix="x")).complete


@pytest.mark.parametrize("name", ["json.s", "logfmt.s"])
async def test_spellings_of_a_number_are_one_value(tmp_path: Path, name: str) -> None:
    world = World(tmp_path)
    ids = ("12345678901234567", "12345678901234568")  # as floats they are equal
    numbers = ("503.0", "503", '"503"', "5.03e2", "404", *ids)
    text = "".join(f'{{"s":{number}}}\ns={number} x\n' for number in numbers)
    world.unflushed([(RUNS[0], ulid.lowest_at(NOW_MS), text.encode())])
    expected: dict[str, int] = {"503": 4, "404": 1, **dict.fromkeys(ids, 1)}
    asked = CountRequest.parse({"by": f"level,{name}", "from": "0"}, now_ms=NOW_MS)
    async with engine_of(world) as engine:
        given = await seen_values(engine, field=name)
        some = await seen_values(engine, field=name, prefix="503.")
        async with await engine.open(asked.search) as running:
            counted = await running.totals(lambda search: count_by(search, asked))
        for value in given.values:
            assert await found_by(engine, f"{name}:{value.value}") == value.records
    assert {value.text: value.records for value in given.values} == expected
    assert [value.text for value in some.values] == ["503.0"]
    by_level = {(None, text): records for text, records in expected.items()}
    found = {one.values: one.records for one in counted.counts}
    assert found == by_level | {(None, None): len(numbers)}


async def test_attributes_and_kinds(tmp_path: Path) -> None:
    world = World(tmp_path)
    lines = ['{"n":1,"m":1,"t":true,"s":"7"}', '{"n":"1e3","m":"x"}', "n=1 m=2", "n=x m=3 n=1"]
    world.unflushed([(RUNS[0], ulid.lowest_at(NOW_MS), "".join(f"{x}\n" for x in lines).encode())])
    async with engine_of(world) as engine:
        found = {f.name: f for f in (await seen_fields(engine)).fields}
    assert found["pos"] == SeenField("pos", 4, "number")
    assert "connector" not in found, "no record has one"
    kinds = {name: field.kind for name, field in found.items() if "." in name}
    assert kinds == {
        "json.n": "number", "json.m": "text", "json.t": "text", "json.s": "number",
        "logfmt.n": "text", "logfmt.m": "number",
    }  # fmt: skip


async def test_names_are_bounded_in_number_and_length(tmp_path: Path) -> None:
    world = World(tmp_path)
    many = json.dumps({f"k{n}": n for n in range(MAX_FIELDS + 1)})
    world.unflushed([(RUNS[0], ulid.lowest_at(NOW_MS), f"{many}\n".encode())])
    long = json.dumps({"k" * MAX_NAME_CHARS: 1, "k": {"k": [{"k": 1}]}})
    world.unflushed([(RUNS[1], ulid.lowest_at(NOW_MS), f"{long}\n".encode())])
    deep = '{"a":' * 3_000 + "1" + "}" * 3_000
    world.unflushed([(RUNS[2], ulid.lowest_at(NOW_MS), f"{deep}\n".encode())])
    async with engine_of(world) as engine:
        found = await seen_fields(engine)
        short = await seen_fields(engine, f"from=0 fqn={RUNS[1].fqn} run={RUNS[1].run}")
    assert len(found.fields) == MAX_FIELDS
    assert not found.complete
    assert not short.complete
    assert [f.name for f in short.fields if f.name.startswith("json")] == ["json.k", "json.k.k"]


@pytest.mark.parametrize("text", TEXTS)
def test_names_and_values_are_spelled_as_the_language_reads_them(text: str) -> None:
    for field in (LogfmtField(text), JsonField((text, "x", text))):
        assert field_of(name_of(field)) == field
        said: Any = parse(f"{name_of(field)}:{value_of(text)}", now_ms=NOW_MS)
        assert said.field == field
        if isinstance(said, Compares):
            assert said.value == float(text)
        else:
            assert said.text == text


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ("", "field"),
        ("field=", "field"),
        ("field=nothing", "field"),
        ("field=level:ERROR", "field"),
        ("field=level:*\u00a0OR\u00a0fqn", "field"),
        ("field=NOT\u00a0level", "field"),
        ("field=(level", "field"),
        ("field=json.", "field"),
        ("field=level>", "field"),
        ("field=level limit=0", "limit"),
        ("field=level limit=1001", "limit"),
        (f"field=level sample={MAX_SAMPLE + 1}", "sample"),
        ("field=level sample=x", "sample"),
        ("field=level order=asc", "order"),
        ("field=level q=(", "q"),
    ],
)
def test_what_is_wrong_is_named(text: str, field: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        ValuesRequest.parse(pairs(text), now_ms=NOW_MS)
    assert caught.value.field == field
    assert caught.value.hint


@pytest.mark.parametrize("name", ["field", "limit", "prefix"])
def test_fields_take_no_parameters_of_values(name: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        facets.parse({name: "1"}, now_ms=NOW_MS)
    assert caught.value.field == name
