"""The house keeps its shape: imports point one way, files stay small, the world is a parameter."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = [
    "service",
    "compactor",
    "tailrace",
]
SOURCES = [
    path
    for name in [*PACKAGES, "client/tailrace_client"]
    for path in sorted((ROOT / name).rglob("*.py"))
]
ALL = [
    *SOURCES,
    *sorted((ROOT / "tests").rglob("*.py")),
    *sorted((ROOT / "benchmarks").rglob("*.py")),
]
FORBIDDEN_NAMES = {"utils", "util", "helpers", "helper", "common", "manager", "misc"}
GOES_ROUND = re.compile(
    r"\b(datetime\.now|datetime\.utcnow|time\.time|time\.time_ns|os\.rename|os\.replace)\(|"
    r"^\s*(import random|from random import)\b",
    re.MULTILINE,
)
ADAPTERS = {
    "tailrace/logstore/clock.py",
    "tailrace/logstore/filesystem.py",
    "client/tailrace_client/system.py",
}


def test_imports_point_one_way() -> None:
    command = [str(Path(sys.executable).with_name("lint-imports")), "--no-logo", "--no-cache"]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stdout


START = """
import asyncio, sys
from service.main import run
from service.settings import Settings

async def start_and_stop():
    stop = asyncio.Event()
    server, compaction = {"port": 0}, {"enabled": False}
    settings = Settings(data=sys.argv[1], server=server, compaction=compaction)
    await run(settings, stop, on_listening=lambda _: stop.set())

asyncio.run(start_and_stop())
print("started", *sorted({"aiohttp", "botocore", "duckdb", "httpx", "lark"} & set(sys.modules)))
"""


def test_a_node_loads_what_large_vendors_bring_only_when_it_is_used(tmp_path: Path) -> None:
    """A searched node needs DuckDB and a parser, one on S3 its client; together they take 80 MB."""
    command = [sys.executable, "-c", START, str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["started"]


def _name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def test_no_file_is_too_long_to_read_at_once() -> None:
    """A module is about one concept: usually 150 to 600 lines, and never more than 950."""
    lines = {_name(path): path.read_text().count("\n") for path in ALL}
    assert {name: count for name, count in lines.items() if count > 950} == {}


def test_no_file_is_named_after_nothing() -> None:
    assert [_name(path) for path in ALL if path.stem in FORBIDDEN_NAMES] == []


@pytest.mark.parametrize("path", SOURCES, ids=_name)
def test_a_module_says_what_it_is_for_and_keeps_to_the_seams(path: Path) -> None:
    text = path.read_text()
    assert text.lstrip().startswith(('"""', 'r"""'))
    if _name(path) not in ADAPTERS:
        assert [found.group().strip() for found in GOES_ROUND.finditer(text)] == []
