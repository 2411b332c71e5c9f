"""Every operator of the language, in each place where lines lie, beside plain Python.

Random trees of conditions are written as `q`, over lines such as programs write: in the journal, in
segments, and in the table with and without skip indexes and copies. `evaluate.holds` is the oracle.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest

from service.query.engine import QueryEngine
from service.query.facets import CountRequest, HistogramRequest, count_by, histogram
from service.query.request import QueryRequest, RecordKey, field_of, name_of
from tailrace.logstore import ulid
from tailrace.logstore.batch import RunKey
from tailrace.logstore.search.conditions import MESSAGE, All, AnyOf, Condition, Exists, Field, Not
from tailrace.logstore.search.language import parse
from tests.batches import Entry
from tests.logstore.search.evaluate import holds, value_of
from tests.seeds import seeds, some
from tests.service.query.scattered import ALL
from tests.service.query.test_scan_copies import copied, files_of
from tests.service.query.test_skipping import put_in_table
from tests.service.query.world import HOUR_MS, NODE, NOW_MS, World, engine_of, search

RUNS: Final = [RunKey(f"{team}.{name}", f"run-{n}") for team in ("shop", "ops")
               for name in ("orders", "users") for n in (1, 2)]  # fmt: skip
STATUS: Final = ("200", "404", "503", "503.0", '"503"', "5.03e2")
TAGS: Final = ('["a","b"]', '["b",503]', '"a"', "[]", '["a b",["a",[["503"]]]]', "null")
ITEMS: Final = (
    "[]",
    '{"name":"a","tags":["b"]}',
    '[{"name":"a"},{"name":["b",["a b"]]},{"tags":null}]',
    '[[{"name":503}],{"tags":[{"x":"a"}]}]',
)
IDS: Final = tuple(f"{n}{n + 1}{n * 7919:06}" for n in range(10, 60))
QUERIES: Final = 60


def some_line(rng: random.Random) -> str:
    """A line with a time and a level of its own: others take those of the lines before."""
    at = f"2026-11-21 0{rng.randrange(10)}:{rng.randrange(10, 60)}:17,{rng.randrange(100, 999)}"
    level = rng.choice(("INFO", "WARN", "ERROR", "DEBUG", "FATAL"))
    lines: list[Callable[[], str]] = [
        lambda: f"{at} {level} [main] com.shop.Job: step {rng.choice(('deploy', 'test'))} failed",
        lambda: f'{{"ts":"{at.replace(",", ".")}","level":"{level.lower()}",'
                f'"status":{rng.choice(STATUS)},"tags":{rng.choice(TAGS)},'
                f'"items":{rng.choice(ITEMS)},"id":"{rng.choice(IDS)}"}}',
        lambda: f"{at} level={level.lower()} status={rng.choice(STATUS)}"
                f" id={rng.choice(IDS)} a && b",
        lambda: f'{at} 10.0.0.{rng.randrange(9)} - - "GET /a*b?x={rng.choice(IDS)} HTTP/1.1" 503',
        lambda: f"{at} Caused by: java.io.IOException: connection {rng.choice(IDS)} refused",
        lambda: f"{at} step \x1b[32mdeploy\x1b[0m failed \x1b[36mstatus\x1b[0m=503 re\x1b[1mfused",
        lambda: at + rng.choice(("", " not found", "späße 🎉", "error: a or b", "x*y", "100%_")),
    ]  # fmt: skip
    return rng.choice(lines)()


def some_record(rng: random.Random) -> str:
    """A line, and in some of them others that continue it."""
    trace = (
        "    at com.shop.Job.run(Job.java:503)",
        f"Caused by: java.io.IOException: {rng.choice(IDS)} refused",
        "  step deploy failed",
    )
    lines = rng.choices(trace, k=rng.choice((0, 0, 0, 1, 3)))
    return "\n".join([some_line(rng), *lines])


def some_batch(rng: random.Random) -> Entry:
    at = ulid.lowest_at(NOW_MS - rng.randrange(3 * HOUR_MS)) | rng.getrandbits(55) << 25
    text = "".join(f"{some_record(rng)}\n" for _ in range(rng.randrange(1, 9)))
    attributes = {"region": rng.choice(("eu", "us")), "code": rng.choice(("503", "503.0", "7"))}
    connector = rng.choice((None, "c-1", rng.choice(IDS)))
    given = attributes if rng.random() < 0.4 else None
    return rng.choice(RUNS), at, text.encode(), connector, given


def some_values(rng: random.Random) -> str:
    values = ["503", "404.0", '"503"', "a", '"a b"', *rng.sample(IDS, rng.choice((2, 40)))]
    return f"in({', '.join(rng.sample(values, len(values)))})"


LEAVES: Final[list[tuple[Any, ...]]] = [
    ("fail*", "*refused", "step*failed", "x*y", '"x*y"', '"a && b"', "*", *IDS[:5]),
    ('"step deploy failed"', '"deploy failed status"', "deploy*503", "/deploy failed/", "failed"),
    ("refused", "Caused", '"not found"', '"ERROR"i', "/GET.*503/", "message:*", "message:conn*"),
    ("level", (":", ">=", "<", "!=", ":>"), ("warning", "ERROR", "critical", "notice", "Debug")),
    (("json.status", "logfmt.status"), (":", "=", "!=", ">=", "<"), ("503", "404.0", "1e2")),
    (("json.status", "logfmt.status"), (":", "!="), ('"503"', "5*", "/^50/", "*")),
    (
        ("json.items.name:", "json.items.tags:", "json.items.tags.x:", "json.items:"),
        ("a", "b", "503", "*", "a*", "/^a/", '"a b"', "in(a, 503)"),
    ),
    (("json.tags:",), ("a", "b", "503", "*", "a*", "/^a/", '"a b"')),
    (("*:",), ("503", "eu", "c-1", "warn", "run-1", "*", "/^u/", "sh*", '"not found"', *IDS[:5])),
    (("*", "json.id", "logfmt.id", "json.tags", "message", "connector"), ":", some_values),
    ("logfmt.id", (":", "="), IDS),
    ("attributes.code", (":", "!=", ">"), ("503", "7.0")),
    ("fqn:shop.*", "fqn:*.orders", "run:run-1", "fqn!=ops.*", "run:r*2"),
    ("level:in(warn, ERROR)", "level:in(info, fatal, debug)"),
    ("carried", (":", "=", "!="), ("true", "false")),
]
"""What a leaf is written of: one of some texts, or parts behind one another."""


def some_leaf(rng: random.Random, number: int | None = None) -> str:
    shape = rng.choice(LEAVES) if number is None else LEAVES[number]
    if all(isinstance(part, str) for part in shape):
        return str(rng.choice(shape))
    chosen = [
        part if isinstance(part, str) else part(rng) if callable(part) else rng.choice(part)
        for part in shape
    ]
    return "".join(chosen)


def some_query(rng: random.Random, depth: int = 0) -> str:
    if depth == 3 or rng.random() < 0.35:
        return some_leaf(rng)
    one, other = some_query(rng, depth + 1), some_query(rng, depth + 1)
    joined = (f"{one} AND {other}", f"({one} && {other})", f"({one} || {other})", f"{one} {other}",
              f"({one} OR {other})", f"NOT ({one})", f"!({one})")  # fmt: skip
    return rng.choice(joined)


async def places(world: World, rng: random.Random) -> None:
    """The same batches in several places, as they are when lines move."""
    entries = [some_batch(rng) for _ in range(120)]
    merged, rest = sorted(entries[:70], key=lambda one: one[1]), entries[70:]
    world.earlier = True  # of a version that knew of no marks
    put_in_table(world, merged[:30], group_rows=20)
    world.earlier = False
    put_in_table(world, merged[30:50], group_rows=20)
    put_in_table(world, merged[50:], group_rows=200)
    await world.index()
    world.merge([some_batch(rng) for _ in range(5)], {NODE: 0})
    await world.segment(sorted(rest[:30], key=lambda one: one[1]))
    await world.segment(sorted([*rest[15:25], *merged[30:39]], key=lambda one: one[1]), "node-02")
    await world.segment([some_batch(rng) for _ in range(9)], "node-03", earlier=True)
    world.unflushed(rest[25:])


async def all_rows(engine: QueryEngine) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    async with await engine.open(replace(ALL, descending=False)) as running:
        async for batch in running.batches():
            rows += batch.to_pylist()
    return [row | {"attributes": dict(row["attributes"] or ())} for row in rows]


def expected(rows: list[dict[str, Any]], request: QueryRequest) -> list[dict[str, Any]]:
    if request.condition is None:
        return rows
    return [row for row in rows if holds(request.condition, row)]


def counts_lines(condition: Condition) -> bool:
    """Whether a part that is not negated looks at the message, or at the mark."""
    match condition:
        case All(parts) | AnyOf(parts):
            return any(map(counts_lines, parts))
        case Not(Not(part)):
            return counts_lines(part)
        case Not(All(parts) | AnyOf(parts)):
            return any(counts_lines(Not(part)) for part in parts)
        case Not():
            return False
        case Exists(field) if field == MESSAGE:
            return False
    return name_of(condition.field).split(".")[0] in ("message", "json", "logfmt", "carried")


def worth(text: str | None) -> float | str | None:
    """A number, of which the values that these lines have are told by their last digit."""
    return float(text) if text and text[-1].isdigit() and text[:1].isdigit() else text


async def check_counts(engine: QueryEngine, by: str, text: str, rows: list[dict[str, Any]]) -> None:
    asked = CountRequest.parse({"q": text, "by": by, "from": "0", "limit": "9999"}, now_ms=NOW_MS)
    condition = asked.search.condition
    if condition is None or not counts_lines(condition):
        rows = [row for row in rows if not row["carried"]]
    async with await engine.open(asked.search) as running:
        found = await running.totals(lambda search: count_by(search, asked))
        assert running.stats()["matches"] == len(rows)
    fields: list[Field] = [field_of(name) for name in by.split(",")]
    found_values = [tuple(value_of(field, row) for field in fields) for row in rows]
    counted = Counter(tuple(map(worth, values)) for values in found_values)
    given = {tuple(map(worth, one.values)): one.records for one in found.counts}
    assert given == counted, (text, by)
    assert len(given) == len(found.counts), "one number is one value"
    assert {one.values for one in found.counts} <= set(found_values)
    assert [one.records for one in found.counts] == sorted(counted.values(), reverse=True)


def own_ms(row: dict[str, Any]) -> int:
    return int(row["ts"].timestamp() * 1000)


async def check_own_times(
    engine: QueryEngine, rng: random.Random, text: str, matching: list[dict[str, Any]]
) -> None:
    """Each way of asking with `time=ts`, for a stretch of the times that lines have."""
    day_ms = 24 * HOUR_MS
    first = NOW_MS // day_ms * day_ms + rng.randrange(10 * HOUR_MS)
    last = first + rng.randrange(5 * HOUR_MS)
    asked = {"q": text, "from": str(first), "to": str(last), "time": "ts"}
    within = [row for row in matching if first <= own_ms(row) <= last]
    request = QueryRequest.parse(asked | {"order": "asc"}, now_ms=NOW_MS)
    keys, _ = await search(engine, request)
    assert keys == [RecordKey(row["ulid"], row["fqn"], row["run_id"]) for row in within], asked
    if request.condition is None or not counts_lines(request.condition):
        within = [row for row in within if not row["carried"]]
    counting = CountRequest.parse(asked | {"by": "level"}, now_ms=NOW_MS)
    async with await engine.open(counting.search) as running:
        found = await running.totals(lambda search: count_by(search, counting))
        assert (running.stats()["matches"], running.stats()["by"]) == (len(within), "ts")
    levels = Counter((row["level"],) for row in within)
    assert {one.values: one.records for one in found.counts} == levels, asked
    charted = HistogramRequest.parse(asked | {"step": "1h"}, now_ms=NOW_MS)
    async with await engine.open(charted.search) as running:
        buckets = await running.totals(lambda search: histogram(search, charted))
    hours = Counter(own_ms(row) // HOUR_MS * HOUR_MS for row in within)
    assert {b.at_ms: b.count for b in buckets if b.count} == hours, asked


def some_queries(rng: random.Random) -> Iterator[str]:
    for number in range(len(LEAVES)):
        yield from (some_leaf(rng, number) for _ in range(2))
    while True:
        yield some_query(rng)


@pytest.mark.parametrize("seed", some(seeds(4), 4, "operators"))
async def test_each_search_finds_what_plain_python_finds(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    world = World(tmp_path)
    await places(world, rng)
    settings: dict[str, Any] = {} if seed % 2 else {"scan_copies_bytes": 0}
    async with engine_of(world, **settings) as engine:
        if seed % 2:
            await copied(engine, len(files_of(world)))
        rows = await all_rows(engine)
        assert 20 < sum(row["carried"] is True for row in rows) < len(rows) // 2
        assert {RecordKey(row["ulid"], row["fqn"], row["run_id"]) for row in rows} == set(
            world.records
        )
        hits = 0
        for _, text in zip(range(QUERIES), some_queries(rng), strict=False):
            condition = parse(text, now_ms=NOW_MS)
            request = replace(ALL, condition=condition, descending=False)
            keys, _ = await search(engine, request)
            matching = expected(rows, request)
            found = [RecordKey(row["ulid"], row["fqn"], row["run_id"]) for row in matching]
            assert keys == found, text
            hits += 0 < len(keys) < len(rows)
            if rng.random() < 0.2:
                by = rng.choice(("level", "level,json.status", "fqn,attributes.code", "carried"))
                await check_counts(engine, by, text, matching)
                await check_own_times(engine, rng, text, matching)
        assert hits > QUERIES // 4


async def test_files_whose_lines_have_other_times_are_skipped(tmp_path: Path) -> None:
    world = World(tmp_path)
    for day in range(1, 5):
        text = "".join(f"2025-03-0{day} 10:00:0{n} INFO late\n" for n in range(3)).encode()
        at = ulid.lowest_at(NOW_MS - day * HOUR_MS)
        put_in_table(world, [(RUNS[0], at, text, None, None)])
    async with engine_of(world) as engine:
        for asked, found in (
            ({"from": "2025-03-02", "to": "2025-03-02 23:00", "time": "ts"}, (3, 1, 3)),
            ({"from": "2025-03-02 10:00:01", "to": "2025-03-03 10:00:00", "by": "ts"}, (3, 2, 2)),
            ({"from": "0", "q": "ts>=2025-03-04 late"}, (3, 1, 3)),
            ({"from": "0", "q": "ts:2025-03-01 OR ts:2025-03-04"}, (6, 4, 0)),
        ):
            request = QueryRequest.parse(asked, now_ms=NOW_MS)
            async with await engine.open(request) as running:
                matches, stats = await running.count(), running.stats()
            assert (matches, stats["files"], stats["files_skipped"]) == found, asked


def test_a_list_may_have_thousands_of_values() -> None:
    values = [f"id-{n}" for n in range(9_999)]
    asked: Any = parse(f"json.id:in({json.dumps(values)[1:-1]})", now_ms=NOW_MS)
    assert list(asked.texts) == values
