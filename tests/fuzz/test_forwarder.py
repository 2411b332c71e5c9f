"""Patterns that backtrack for ever, and lines made for them, in the forwarder's configuration.

A forwarder reads a file for each of them, and the lines of another file arrive meanwhile. Of
several tries the quickest is what the wait is: in the others its thread does the ordinary work of
all files first.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import pytest
import yaml

from tailrace.forwarder.config.load import read
from tailrace.logstore.errors import InvalidInput
from tests.e2e.service_process import ServiceProcess
from tests.forwarder.forwarder_process import ForwarderProcess, stored
from tests.fuzz.hostile import NUMBERS, PATTERNS, TEXTS
from tests.fuzz.probe import Memory, scheduled

SEED = int(os.environ.get("FUZZ_SEED", "0"))
LONGEST_WAIT_SECONDS = 0.25
ROUNDS = int(os.environ.get("FUZZ_COUNT", "0")) or 3
BEYOND_BUDGET_BYTES = 100 * 1000 * 1000
REGEXES = (
    r"^(?P<words>(\w+\s?)*)$",
    r"^(?P<a>(a+)+)$",
    r"^(?P<a>(a|a)*)b$",
    r"^(?P<a>(a|aa)+)$",
    r"^(?P<a>(.*)*)x$",
    r"^(?P<a>(\w*)*-)+$",
    r"(?P<a>x*x*x*x*x*x*x*x*y)",
    r"^(?P<a>([[:alpha:]]+,?)*)$",
    r"^(?P<a>(\pL+\s*)+)\d$",
    r"(?P<a>(?:a?){900}a{60})",
)
LINES = (
    "a" * 60 + "!",
    "word " * 13 + "!",
    "a" * 20_000,
    "aaaa-" * 4000,
    "x" * 20_000,
    "é" * 9000,
    "{" * 5000,
    '{"a":' * 2000 + "1",
    "\x00\x1b[2J" * 3000,
    " " * 20_000 + "!",
)


def _receivers(logs: Path) -> dict[str, Any]:
    """A source for each pattern, in each place that a configuration has for one."""
    found: dict[str, Any] = {}
    for number, pattern in enumerate(REGEXES):
        unnamed = pattern.replace("?P<words>", "").replace("?P<a>", "")
        places: list[dict[str, Any]] = [
            {"operators": [{"type": "regex_parser", "regex": pattern}]},
            {"multiline": {"line_start_pattern": unnamed}},
            {"multiline": {"line_end_pattern": unnamed}},
            {"operators": [{"type": "json_parser", "if": f"body matches {unnamed!r}"}]},
        ]
        found[f"file_log/p{number}"] = {
            "include": [str(logs / f"hostile-{'*' * 20}{number}.log")],
            "start_at": "beginning",
            "fqn": "hostile",
            **places[number % len(places)],
        }
    found["file_log/probe"] = {
        "include": [str(logs / "probe*.log")],
        "start_at": "beginning",
        "fqn": "shop.orders",
        "run": "probe",
    }
    return found


@pytest.fixture
def service(tmp_path: Path) -> Iterator[ServiceProcess]:
    process = ServiceProcess(tmp_path / "data")
    process.start()
    yield process
    process.kill()


@pytest.fixture
def forwarder(service: ServiceProcess, tmp_path: Path) -> Iterator[ForwarderProcess]:
    process = ForwarderProcess(tmp_path / "forwarder", service.url)
    process.configure(
        targets=[service.url],
        storage=str(tmp_path / "state"),
        receivers=_receivers(process.logs),
    )
    process.start()
    yield process
    if process.process is not None:
        process.kill()


@pytest.mark.in_turn(4, "patterns of the forwarder")
def test_no_pattern_and_no_line_stops_the_other_files(
    service: ServiceProcess, forwarder: ForwarderProcess
) -> None:
    assert forwarder.process is not None
    pid, probe = forwarder.process.pid, forwarder.logs / "probe.log"
    probe.write_text("line 0\n")
    forwarder.until(lambda: stored(service.url, "probe") == ["line 0"])
    held = []
    with Memory(pid) as memory:
        for number in range(1, ROUNDS + 1):
            for index in range(len(REGEXES)):
                with (forwarder.logs / f"hostile-{index}.log").open("a") as file:
                    file.write("".join(f"{line}\n" for line in LINES))
            before = scheduled(pid)[0]
            with probe.open("a") as file:
                file.write(f"line {number}\n")
            forwarder.until(lambda: len(stored(service.url, "probe")) > number)  # noqa: B023
            held.append(scheduled(pid)[0] - before)
    assert stored(service.url, "probe") == [f"line {n}" for n in range(ROUNDS + 1)]
    print(f"seconds of the processor until a line of another file is there: {held}")
    assert min(held) < LONGEST_WAIT_SECONDS, held
    assert memory.most - memory.before < BEYOND_BUDGET_BYTES
    assert forwarder.stop() == 0
    assert "Traceback" not in forwarder.said(), forwarder.said()


def _made_up(random: Random) -> Any:
    """A value of any kind for a key."""
    kinds: list[Any] = [
        lambda: random.choice(REGEXES),
        lambda: random.choice(PATTERNS).decode("utf-8", "replace"),
        lambda: random.choice(TEXTS).decode("utf-8", "replace"),
        lambda: random.choice(NUMBERS).decode("utf-8", "replace"),
        lambda: random.choice((None, True, -1, 0, 10**400, 1e308, float("nan"), float("-inf"))),
        lambda: [_made_up(random) for _ in range(random.randrange(3))],
        lambda: {random.choice(KEYS): _made_up(random) for _ in range(random.randrange(3))},
    ]
    return random.choice(kinds)()


KEYS = (
    *("include", "exclude", "within", "operators", "multiline", "type", "regex", "if", "fqn"),
    *("run", "ordering_criteria", "sort_by", "path_pattern", "header", "pattern", "layout"),
    *("poll_interval", "max_log_size", "encoding", "attributes", "timestamp", "parse_from"),
    *("line_start_pattern", "from", "to", "mapping", "preset", "compression", "start_at"),
)


def test_a_made_up_configuration_is_one_or_is_refused_in_a_sentence(tmp_path: Path) -> None:
    random, path = Random(SEED), tmp_path / "forwarder.yaml"
    taken = 0
    for _ in range(100 * ROUNDS):
        content = {"targets": ["http://localhost:1"], "include": ["/x"], "fqn": "p"}
        for _ in range(random.randrange(1, 4)):
            content[random.choice(KEYS)] = _made_up(random)
        path.write_text(yaml.safe_dump(content), encoding="utf-8", errors="surrogatepass")
        with suppress(InvalidInput):
            read(str(path))
            taken += 1
    assert taken
