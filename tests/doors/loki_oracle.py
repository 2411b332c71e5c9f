"""Compares our LogQL with a real Loki: the same lines in both, the same queries to both.

    LOKI_BIN=loki python -m tests.doors.loki_oracle            several hundred queries, all compared
    LOKI_BIN=loki python -m tests.doors.loki_oracle --record   writes the answers that CI compares

Loki is not in CI, which compares our answers with the recorded ones (`answers.json`). Both sides
are brought to one form first: labels that only one of them has are left out, and the details of an
error, which have other words in each.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import orjson
from fastapi import FastAPI

from service.http import errors
from service.http.loki import loki_query_routes
from tailrace.logstore import ulid
from tailrace.logstore.batch import RecordMeta, RunKey
from tests.service.query.world import NOW_MS, World, engine_of

ANSWERS = Path(__file__).with_name("loki_answers.json")
RANGE = "/loki/api/v1/query_range"
MINUTE_NS = 60_000_000_000
END_NS = NOW_MS * 1_000_000
START_NS = END_NS - 60 * MINUTE_NS
OURS_ALONE = ("pipeline", "run", "service_name", "detected_level", "__error_details__")
STREAMS: Sequence[Mapping[str, str]] = (
    {"app": "web", "env": "prod"},
    {"app": "web", "env": "dev"},
    {"app": "job", "env": "prod", "zone": "eu-1"},
    {"app": "api"},
)
_WORDS = ("timeout", "refused", "ok", "Straße 🎉", "a.b", "x|y", "100%", "tab\tend", 'quo"te')


@dataclass(frozen=True)
class Sent:
    """A line of the corpus: its time in nanoseconds, its stream, and its metadata."""

    ts_ns: int
    stream: int
    line: str
    metadata: Mapping[str, str]


def corpus(seed: int = 7, lines: int = 300) -> list[Sent]:
    """Lines of the hour before `END_NS`, no two of the same time; some at edges of windows."""
    rng = random.Random(seed)
    sent, taken = list[Sent](), set[int]()
    while len(sent) < lines:
        at = START_NS + rng.randrange(3_600) * 1_000_000_000
        at += rng.choice((0, 0, 1_000, 500_000_000, 999_999_000))
        if at in taken:
            continue
        taken.add(at)
        metadata = {"trace_id": f"t{rng.randrange(4)}"} if rng.random() < 0.5 else {}
        sent.append(Sent(at, rng.randrange(len(STREAMS)), _line(rng), metadata))
    return sorted(sent, key=lambda one: one.ts_ns)


def _line(rng: random.Random) -> str:
    status, word = rng.choice((200, 404, 500, 503.5, "n/a")), rng.choice(_WORDS)
    took = rng.choice(("12ms", "1.5s", "2m", "soon", "250us"))
    size = rng.choice(("10KB", "512B", "1.5MiB", "many", "2000"))
    match rng.randrange(7):
        case 0 | 1:
            value: dict[str, Any] = {"status": status, "msg": word, "took": took, "size": size}
            value |= {"ok": rng.random() < 0.5, "none": None, "list": [1, {"a": 2}], "app": "x"}
            value["deep"] = {"in side": {"n": rng.randrange(3), "3d": "y"}, "empty": {}}
            return json.dumps(value, ensure_ascii=rng.random() < 0.5)
        case 2 | 3:
            quoted = json.dumps(word, ensure_ascii=False)
            return f"status={status} msg={quoted} took={took} size={size} app=y flag empty= 1st=z"
        case 4:
            return rng.choice(
                ('{"status"', "[1,2]", '{"a":1} tail', '{"status":1e3,"b":0.10}', "{}")
            )
        case 5:
            return rng.choice(('a="unterminated b=2', "k=v=w a=b", '="x" c=d', 'status=x e="\\n" '))
        case _:
            return f"ERROR {word} took {took}"


# --- Queries ------------------------------------------------------------------------------------


_SELECTORS = (
    '{app=~"w.*"}', '{app=~".*e.*", env=~".*"}',
    '{app="web"}', '{app=~"web|job"}', '{app=~".+"}', '{app="web", env!="dev"}', '{env="prod"}',
    '{app!="", env=~"p.*"}', '{app=~"w.b|job", zone=""}', '{app="api", env!~"p.+"}',
    '{zone="eu-1"}', '{app="nothing"}', '{env=~"prod|"  , app="web"}', '{app=~"(?i)WEB"}',
)  # fmt: skip
_LINE_FILTERS = (
    "",
    '|= "timeout"', '!= "ok"', '|= "timeout" or "refused"', '!= "timeout" or "ok"',
    '|~ "(?i)error"', '!~ "(?i)OK"', "|~ `st.tus=\\d+`", '!~ "a.b|x"', '|= ""', '|~ ""',
    '|= "Straße"',
    '|= `x|y` != "zzz"', '|~ "tim.*t" or "ref"', '!~ "o" or "z"', '|= "\\t"',
)  # fmt: skip
_PARSERS = ("| json", "| logfmt", "| logfmt --strict", "| logfmt --keep-empty", "| json | logfmt")
_FILTERS = (
    "", "| status=500", '| status="500"', "| status>=404", '| status!="200"', "| took>1s",
    "| took<=12ms", "| size>10KB", "| size<1MiB", '| msg=~"(timeout|ok)"', '| msg!~"t[a-z]+"',
    '| ok="true"',
    "| status>=404 and took>1s", '| status=200 or msg="ok"', "| status=200, took<1m",
    "| status=404 or took>1s and size>1KB", "| deep_in_side_n>0", '| __error__=""',
    '| __error__!=""', '| __error__="JSONParserErr"', '| app_extracted="x"', '| trace_id="t1"',
    '| (status=200 or status=404) and msg!="ok"', "| status==503.5", '| nothing=""', '| list=""',
    "| status>100 | took!=1.5s", '| a="b"', '| none="" | empty!=""',
)  # fmt: skip
_FORMATS = (
    "", '| line_format "{{.app}} {{.status}}"', '| line_format "{{ .msg }}" |= "o"',
    "| drop status, took", '| drop status="200"', "| keep app, status", '| keep status="500"',
    "| drop __error__", "| line_format `{{__line__}}!`", "| drop app",
)  # fmt: skip
_RANGES = ("count_over_time", "rate", "bytes_over_time", "bytes_rate")
_GROUPS = (
    "",
    "by (app)",
    "by (env, app)",
    "without (trace_id)",
    "by (status)",
    "by (nothing)",
    "by ()",
)


def log_queries(rng: random.Random, count: int) -> Iterator[dict[str, str]]:
    for _ in range(count):
        parser = rng.choice(("", "", *_PARSERS))
        parts = [rng.choice(_SELECTORS), rng.choice(_LINE_FILTERS), parser]
        parts += [rng.choice(_FILTERS if parser else ("", '| trace_id="t1"', '| env!="dev"'))]
        parts += [rng.choice((*[""] * 4, *_FORMATS))]
        start = START_NS + rng.choice((0, 0, 10, 25)) * MINUTE_NS
        yield {
            "query": " ".join(filter(None, parts)),
            "start": str(start),
            "end": str(rng.choice((END_NS, END_NS, START_NS + 40 * MINUTE_NS))),
            "limit": rng.choice(("5", "20", "1000")),
            "direction": rng.choice(("forward", "backward")),
        }


def metric_queries(rng: random.Random, count: int) -> Iterator[dict[str, str]]:
    for _ in range(count):
        parser = rng.choice(("", "", *_PARSERS))
        # A line that cannot be parsed ends a query of numbers; which one is named may differ.
        filters = f'{rng.choice(_FILTERS)} | __error__=""' if parser else ""
        lines = " ".join([rng.choice(_SELECTORS), rng.choice(_LINE_FILTERS), parser, filters])
        query = f"{rng.choice(_RANGES)}({lines} [{rng.choice(('1m', '5m', '90s', '15m'))}])"
        if parser or rng.random() < 0.7:
            query = _grouped(rng, query)
        asked = {"query": query, "limit": "100"}
        if rng.random() < 0.2:
            yield asked | {"time": str(START_NS + rng.randrange(60) * MINUTE_NS)}
            continue
        yield asked | {
            "start": str(START_NS + rng.choice((0, 7, 10 * 60)) * 1_000_000_000),
            "end": str(END_NS - rng.choice((0, 13)) * 1_000_000_000),
            "step": rng.choice(("1m", "5m", "45s", "60", "7m", "300.5")),
        }


def _grouped(rng: random.Random, query: str) -> str:
    outer = rng.choice(("sum", "min", "max", "avg", "count", "sum", "sum"))
    group = rng.choice(_GROUPS)
    made = f"{outer} {group} ({query})" if rng.random() < 0.5 else f"{outer}({query}) {group}"
    # Loki chooses among equal numbers in an order of its own.
    return f"topk(2, {made})" if "bytes_over_time" in query and "(app)" in made else made


# --- Both sides ---------------------------------------------------------------------------------


def normal(answer: Mapping[str, Any]) -> Any:
    """The answer without what only one side has, in one order."""
    data = answer["data"]
    if data["resultType"] == "streams":
        found = []
        for stream in data["result"]:
            labels = _common(stream["stream"])
            found += [[int(ts), line, labels] for ts, line in stream["values"]]
        return found
    series: dict[str, dict[str, float]] = {}
    for one in data["result"]:
        points = series.setdefault(json.dumps(_common(one["metric"])), {})
        for at, value in one.get("values") or [one["value"]]:
            assert str(at) not in points, "labels of ours alone told two series apart"
            points[str(at)] = round(float(value), 9)
    return dict(sorted(series.items()))


def _common(labels: Mapping[str, str]) -> dict[str, str]:
    return {name: text for name, text in sorted(labels.items()) if name not in OURS_ALONE}


def same(query: Mapping[str, str], ours: Any, theirs: Any) -> bool:
    """Whether the answers agree; lines are in order of time, which the sides group otherwise."""
    if isinstance(theirs, list) and isinstance(ours, list):
        backward = query.get("direction") != "forward"
        return sorted(ours, reverse=backward, key=lambda x: x[0]) == sorted(
            theirs, reverse=backward, key=lambda x: x[0]
        )
    return bool(ours == theirs)


async def ask(client: httpx.AsyncClient, query: Mapping[str, str]) -> Any:
    """The normal answer of a side; an error is its status."""
    path = RANGE if "time" not in query else "/loki/api/v1/query"
    response = await client.get(path, params=dict(query))
    if response.status_code != 200:
        return f"{response.status_code}"
    return normal(orjson.loads(response.content))


def world_of(root: Path) -> World:
    """Our side: half of the lines are in the journal, as one run for each stream."""
    world = World(root)
    for number, stream in enumerate(STREAMS):
        sent = [one for one in corpus() if one.stream == number]
        key = RunKey(f"oracle.{stream['app']}", f"run-{number}")
        half = len(sent) // 2
        for part, lines in enumerate((sent[:half], sent[half:])):
            ends, text = [], b""
            for one in lines:
                text += one.line.encode() + b"\n"
                ends.append(len(text))
            meta = RecordMeta(
                ends=ends,
                ts=[one.ts_ns // 1_000 for one in lines],
                levels=["INFO"] * len(lines),
                attributes=[{**stream, **one.metadata} for one in lines],
            )
            at = ulid.lowest_at(NOW_MS) + ((number * 2 + part + 1) << 25)
            entry = (key, at, text, None, meta)
            if part:
                world.unflushed([entry], known=False)
            else:
                world.merge([entry], {})
    return world


@asynccontextmanager
async def ours(root: Path) -> AsyncIterator[httpx.AsyncClient]:
    async with engine_of(world_of(root)) as engine:
        app, routes = FastAPI(), loki_query_routes(lambda: engine)
        app.include_router(routes)
        errors.install(app, lambda: "request-1", [routes])
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://node") as client:
            yield client


_CONFIG = """
auth_enabled: false
server: {http_listen_address: 127.0.0.1, http_listen_port: PORT, grpc_listen_address: 127.0.0.1,
         grpc_listen_port: GRPC, log_level: error}
common:
  instance_addr: 127.0.0.1
  path_prefix: ROOT
  storage: {filesystem: {chunks_directory: ROOT/chunks, rules_directory: ROOT/rules}}
  replication_factor: 1
  ring: {kvstore: {store: inmemory}}
schema_config:
  configs:
    - {from: 2020-10-24, store: tsdb, object_store: filesystem, schema: v13,
       index: {prefix: index_, period: 24h}}
limits_config: {discover_log_levels: false, discover_service_name: [], reject_old_samples: false,
                max_query_series: 5000, volume_enabled: true, ingestion_rate_mb: 10000,
                ingestion_burst_size_mb: 10000, per_stream_rate_limit: 10GB,
                per_stream_rate_limit_burst: 10GB}
analytics: {reporting_enabled: false}
"""


@contextmanager
def started(binary: str, folder: Path) -> Iterator[tuple[str, int]]:
    """A Loki on a folder: its URL and its process."""
    folder.mkdir(exist_ok=True)
    config, port = folder / "loki.yaml", 23_100
    text = _CONFIG.replace("PORT", str(port)).replace("GRPC", str(port + 1))
    config.write_text(text.replace("ROOT", str(folder)))
    process = subprocess.Popen([binary, f"-config.file={config}"])
    url = f"http://127.0.0.1:{port}"
    try:
        with httpx.Client(base_url=url, timeout=60) as client:
            _wait_until_ready(client)
        yield url, process.pid
    finally:
        process.terminate()
        process.wait(timeout=60)


@contextmanager
def loki(binary: str) -> Iterator[httpx.Client]:
    """A Loki with the corpus in it."""
    with (
        tempfile.TemporaryDirectory() as folder,
        started(binary, Path(folder)) as (url, _),
        httpx.Client(base_url=url, timeout=60) as client,
    ):
        streams = [
            {
                "stream": stream,
                "values": [
                    [str(one.ts_ns), one.line, dict(one.metadata)]
                    for one in corpus()
                    if one.stream == number
                ],
            }
            for number, stream in enumerate(STREAMS)
        ]
        pushed = client.post("/loki/api/v1/push", json={"streams": streams})
        assert pushed.status_code == 204, pushed.text
        client.post("/flush")  # lines of the past are read from the store alone
        _wait_until_found(client)
        yield client


def _wait_until_found(client: httpx.Client) -> None:
    whole: dict[str, Any] = {
        "query": '{app=~".+"}',
        "start": START_NS,
        "end": END_NS,
        "limit": 5_000,
    }
    for _ in range(60):
        streams = client.get(RANGE, params=whole).json()["data"]["result"]
        if sum(len(stream["values"]) for stream in streams) == len(corpus()):
            return
        time.sleep(0.5)
    raise TimeoutError("Loki does not find what it got")


def _wait_until_ready(client: httpx.Client) -> None:
    for _ in range(120):
        try:
            if client.get("/ready").status_code == 200:
                return
        except httpx.TransportError:
            pass
        time.sleep(1)
    raise TimeoutError("Loki does not become ready")


async def compare(queries: Sequence[Mapping[str, str]], theirs: httpx.AsyncClient) -> int:
    differing = 0
    with tempfile.TemporaryDirectory() as folder:
        async with ours(Path(folder)) as client:
            for query in queries:
                here, there = await ask(client, query), await ask(theirs, query)
                if not same(query, here, there):
                    differing += 1
                    print(f"DIFFERS {json.dumps(query)}\n{_difference(here, there)}")
    print(f"{len(queries)} queries, {differing} differ")
    return differing


def _difference(here: Any, there: Any) -> str:
    if isinstance(here, list) and isinstance(there, list):
        first = [one for one in here if one not in there][:2]
        second = [one for one in there if one not in here][:2]
        return f"  {len(here)}, {len(there)} lines\n  ours   {first}\n  theirs {second}"
    if isinstance(here, dict) and isinstance(there, dict):
        for name in (*here, *there):
            if here.get(name) != there.get(name):
                return f"  {name}\n  ours   {here.get(name)}\n  theirs {there.get(name)}"
    return f"  ours   {str(here)[:500]}\n  theirs {str(there)[:500]}"


async def record(queries: Sequence[Mapping[str, str]], theirs: httpx.AsyncClient) -> int:
    answers = [{"query": query, "answer": await ask(theirs, query)} for query in queries]
    whole = [one for one in answers if one["answer"]]
    answers = [one for kind in (list, dict) for one in _some(whole, kind)]
    ANSWERS.write_text(json.dumps(answers, ensure_ascii=False, separators=(",", ":")) + "\n")
    print(f"{len(answers)} answers, {ANSWERS.stat().st_size} bytes")
    return 0


def _some(answers: Sequence[dict[str, Any]], kind: type) -> list[dict[str, Any]]:
    return [one for one in answers if type(one["answer"]) is kind][:20]


async def run(url: str) -> int:
    recording = "--record" in sys.argv
    rng = random.Random(1)
    counts = (100, 100) if recording else (300, 300)
    queries = [*log_queries(rng, counts[0]), *metric_queries(rng, counts[1])]
    if recording:
        queries = [dict(query, limit="10") if "direction" in query else query for query in queries]
    async with httpx.AsyncClient(base_url=url, timeout=60) as theirs:
        return await (record if recording else compare)(queries, theirs)


if __name__ == "__main__":
    with loki(os.environ["LOKI_BIN"]) as running:
        sys.exit(asyncio.run(run(str(running.base_url))) != 0)
