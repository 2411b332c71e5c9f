"""Patterns that backtrack for ever, and events made for them, in the files of pipelines.

Each filter, layout and path is asked about hostile events. Of several tries the quickest counts:
the first one loads parsers. A real process has a pipeline for each of them, and one more.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import httpx
import pyarrow as pa
import pytest
import yaml

from tailrace.logstore.errors import InvalidInput
from tailrace.pipelines.appenders.registry import AppenderRegistry
from tailrace.pipelines.appenders.rolling.paths import PathTemplate
from tailrace.pipelines.appenders.rolling.rolled import RollingFileSettings
from tailrace.pipelines.definition import PipelineConfig, parse, read
from tests.e2e.service_process import BASE, ServiceProcess
from tests.fuzz.hostile import NUMBERS, PATTERNS, SEARCHES, TEXTS
from tests.fuzz.probe import Memory, scheduled
from tests.fuzz.test_forwarder import (
    BEYOND_BUDGET_BYTES,
    LINES,
    LONGEST_WAIT_SECONDS,
    REGEXES,
    ROUNDS,
    SEED,
)
from tests.pipelines.events import events
from tests.pipelines.remembering import FAST
from tests.pipelines.torture.torture import PipelinesProcess
from tests.seeds import choose, some
from tests.waiting import PATIENCE_SECONDS

TRIES = 5
NAME = "a" * 200
FILTERS: list[dict[str, Any]] = [
    *({"matches": regex} for regex in REGEXES),
    *({"where": f"message:/{regex}/"} for regex in (r"(x+x+)+y", r"(a|a)*$", r"(\w+\s?)*!")),
    *({"where": text.decode("latin-1")} for text in SEARCHES),
    *({"fqn": text.decode("latin-1")} for text in PATTERNS[:6]),
    {"exclude_fqn": "*a" * 90 + "*b", "run": "*?" * 60 + "X"},
    {"where": "*a" * 100},
    {"where": "*a" * 100 + "X"},
    {"loggers": {"root": "OFF", **{"a." * depth + "b": "ALL" for depth in range(60)}}},
    {"logger": "*." * 200 + "x", "contains": "a" * 4000},
]
LAYOUTS: list[dict[str, Any]] = [
    {"type": "pattern", "pattern": pattern}
    for pattern in (
        "%msg" * 400,
        "%-999999999msg%n",
        "%1000msg",
        "%500msg" * 50,
        "%.-1000000msg" * 50,
        "%.-1msg %.999999999msg",
        "%d{" + "yyyy-MM-dd'T'HH:mm:ss" * 100 + "}",
        "%logger{1} " * 50,
        "%X{a:-" + "b" * 4000 + "}",
        "%" * 2000,
        "\\" * 2001,
        "%d{'" * 900,
    )
]
PATHS = [
    "{fqn}_{run}.log",
    "{fqn}/{run}/{logger}.log",
    "{date}" * 200,
    "{attribute.logger}{run}{fqn}" * 30,
    "{" * 900,
    "../{run}",
    "{a:b}",
]


def pipeline(name: str, folder: str, **more: Any) -> dict[str, Any]:
    """A pipeline with a rolling file; `more` is its appender's."""
    appender = {"type": "rolling_file", "name": "files", "dir": folder, "path": f"{name}.log"}
    return {"name": name, "appenders": [appender | more]}


def hostile(folder: str) -> Iterator[dict[str, Any]]:
    """A pipeline for each filter, layout and path; some are refused."""
    given: list[dict[str, Any]] = [
        *({"filter": one} for one in FILTERS),
        *({"layout": one} for one in LAYOUTS),
        *({"path": one} for one in PATHS),
    ]
    for number, more in enumerate(given):
        yield pipeline(f"h{number}", f"{folder}/{number}", **more)


def taken(content: dict[str, Any]) -> PipelineConfig | None:
    """The pipeline; None if it is refused."""
    try:
        return parse(content, AppenderRegistry())
    except InvalidInput:
        return None


def groups(path: PathTemplate, given: pa.Table) -> list[Any]:
    """The paths of events, and which they are."""
    return list(path.groups(given, 0))


def quickest(act: Callable[[], object], most: float = LONGEST_WAIT_SECONDS) -> float:
    """Seconds of the processor that it takes; it stops at the first try below `most`."""
    found = []
    for _ in range(TRIES):
        begun = time.process_time()
        act()
        found.append(time.process_time() - begun)
        if found[-1] < most:
            break
    return min(found)


@pytest.mark.parametrize(
    "content", some([*hostile("/out")], 3, "pipelines"), ids=lambda content: content["name"]
)
def test_no_filter_layout_or_path_takes_long(content: dict[str, Any]) -> None:
    assert quickest(partial(taken, content)) < LONGEST_WAIT_SECONDS
    config = taken(content)
    if config is None:
        return
    (appender,) = config.appenders
    assert isinstance(appender.settings, RollingFileSettings)
    layout, path = appender.settings.layout, PathTemplate(appender.settings.path)
    long = events(list(LINES), fqn=NAME, run=NAME, attributes={"logger": "a." * 2000})
    many = pa.concat_tables([events(["x"], run=f"r{n}", batch=n) for n in range(3000)])
    many = many.combine_chunks()
    for given in (long, many):
        assert quickest(partial(appender.part.filter.of, given)) < LONGEST_WAIT_SECONDS
        assert quickest(partial(layout.lines, given)) < LONGEST_WAIT_SECONDS
        assert quickest(partial(groups, path, given)) < LONGEST_WAIT_SECONDS


def test_some_of_them_are_taken_and_some_refused() -> None:
    found = [taken(content) is not None for content in hostile("/out")]
    assert 0 < found.count(True) < len(found)


@pytest.mark.in_turn(4, "files of pipelines")
def test_no_pipeline_stops_the_others(tmp_path: Path) -> None:
    service = ServiceProcess(tmp_path / "node", TAILRACE_FLUSH__SEGMENT_SECONDS="0.2")
    service.start()
    definitions = tmp_path / "pipelines"
    definitions.mkdir()
    # A process does not start with one that is refused.
    attacking = [content for content in hostile(str(tmp_path / "out")) if taken(content)]
    if ROUNDS < 10:
        attacking = Random(SEED or choose()).sample(attacking, 6)
    probe = pipeline("probe", str(tmp_path / "probe"), filter={"fqn": "probe"})
    for content in (*attacking, probe):
        path = definitions / f"{content['name']}.yaml"
        text = yaml.safe_dump({**content, **FAST})
        path.write_text(text, encoding="utf-8", errors="surrogatepass")
    process = PipelinesProcess(
        tmp_path / "process", definitions, {"TAILRACE_STORE": str(tmp_path / "node" / "store")}
    )
    found = tmp_path / "probe" / "probe.log"

    def post(fqn: str, text: str) -> None:
        headers = {"content-type": "text/plain", "tailrace-durability": "bulk"}
        url = f"{service.url}{BASE}/{fqn}/{NAME}"
        httpx.post(url, content=text.encode(), headers=headers, timeout=60).raise_for_status()

    def held(number: int) -> float:
        """Seconds of the processor that the loop takes until a line of a probe is there."""
        before, deadline = scheduled(process.pid)[0], time.monotonic() + PATIENCE_SECONDS
        post("probe", f"line {number}\n")
        while not found.exists() or len(found.read_text().splitlines()) <= number:
            assert time.monotonic() < deadline, process.output()
            time.sleep(0.05)
        return scheduled(process.pid)[0] - before

    process.start()
    try:
        quiet = min([held(number) for number in range(ROUNDS)])
        attacked = []
        with Memory(process.pid) as memory:
            for number in range(ROUNDS, 2 * ROUNDS):
                post(NAME, "".join(f"{line}\n" for line in LINES))
                attacked.append(held(number))
        print(f"seconds of the processor until a line is there: {quiet}, attacked: {attacked}")
        assert min(attacked) < quiet + LONGEST_WAIT_SECONDS
        assert memory.most - memory.before < BEYOND_BUDGET_BYTES
        assert process.stop() == 0
        assert "Traceback" not in process.output()
    finally:
        service.stop()
    assert [line.split()[-1] for line in found.read_text().splitlines()] == [
        str(number) for number in range(2 * ROUNDS)
    ]


def _made_up(random: Random) -> Any:
    """A value of any kind for a key."""
    kinds: list[Any] = [
        lambda: random.choice(REGEXES),
        lambda: random.choice((*PATTERNS, *SEARCHES, *NUMBERS, *TEXTS)).decode("utf-8", "replace"),
        lambda: random.choice((None, True, -1, 0, 10**400, 1e308, float("nan"), float("-inf"))),
        lambda: [_made_up(random) for _ in range(random.randrange(3))],
        lambda: {random.choice(KEYS): _made_up(random) for _ in range(random.randrange(3))},
    ]
    return random.choice(kinds)()


KEYS = (
    *("filter", "fqn", "run", "where", "matches", "loggers", "level", "type", "name", "dir"),
    *("path", "layout", "pattern", "max_file_size", "roll_every", "keep_files", "to", "url"),
    *("headers", "threshold", "event_delay_ms", "buffer_size_bytes", "auto_buffer_ratio"),
    *("dead_letter_dir", "error_threshold", "description", "${NAME}", "${A:-${B}}"),
)
KINDS = ("rolling_file", "rolling_object", "stdout", "webhook", "http", "otlp", "notify", "metrics")


def test_a_made_up_pipeline_is_one_or_is_refused_in_a_sentence(tmp_path: Path) -> None:
    random, path = Random(SEED), tmp_path / "p.yaml"
    refused = 0
    for _ in range(30 * ROUNDS):
        appender = {"type": random.choice(KINDS), "name": "a", "dir": "/out"}
        for _ in range(random.randrange(3)):
            appender[random.choice(KEYS)] = _made_up(random)
        content: dict[str, Any] = {"name": "p", "appenders": [appender]}
        for _ in range(random.randrange(3)):
            content[random.choice(KEYS)] = _made_up(random)
        path.write_text(yaml.safe_dump(content), encoding="utf-8", errors="surrogatepass")
        try:
            read(str(path), AppenderRegistry())
        except InvalidInput:
            refused += 1
    assert refused > 0
