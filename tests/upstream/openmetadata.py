"""OpenMetadata's behaviours and the tests of ours that hold them, read from the tests themselves.

A test below `tests/openmetadata/` that stands for one of upstream's says so in its docstring:

    S3LogStorageTest.testGetLogs: what it asks.

    Ours: what differs on purpose.

`COUNTS` says how many there are of each; `tests/upstream/test_openmetadata.py` holds the tests to
it, and `tests/upstream/openmetadata.md` is the table.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).parents[2]
TESTS: Final = ROOT / "tests" / "openmetadata"
COUNTS: Final = {
    "S3LogStorageTest": 46,
    "MinioIT": 13,
    "LogStreamingResourceIT": 10,
    "LogTailer": 19,
    "LogStreamFactory": 2,
    "DesignSpec": 4,
}
SOURCES: Final = {
    "S3LogStorageTest": "unit tests of its storage on S3",
    "MinioIT": "integration tests of that storage on MinIO",
    "LogStreamingResourceIT": "integration tests of the routes",
    "LogTailer": "tests of the engine behind live views",
    "LogStreamFactory": "tests of the state of a run that is watched",
    "DesignSpec": "asked for by its design, and never written there",
}
_NAMED = re.compile(r"([A-Z]\w+)\.(\w+)[.:](.*)", re.DOTALL)


class Behaviour(NamedTuple):
    """One of upstream's tests, what it asks, how ours differs, and where ours is."""

    group: str
    name: str
    asks: str
    ours: str
    test: str


def behaviours() -> list[Behaviour]:
    """All that the tests name, by group, in the order of upstream's names or of the files."""
    found = [behaviour for path in sorted(TESTS.rglob("test_*.py")) for behaviour in _in(path)]
    groups = list(COUNTS)
    return sorted(found, key=lambda b: groups.index(b.group) if b.group in groups else len(groups))


def _in(path: Path) -> Iterator[Behaviour]:
    place = path.relative_to(ROOT).as_posix()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            said = _NAMED.fullmatch(" ".join((ast.get_docstring(node) or "").split()))
            if said is not None:
                asks, _, ours = said[3].strip().partition("Ours: ")
                test = f"{place}::{node.name}"
                yield Behaviour(said[1], said[2], asks.strip(), ours.strip(), test)


def rows(group: str) -> Iterator[tuple[str, ...]]:
    """The rows of a group's table."""
    for behaviour in behaviours():
        if behaviour.group == group:
            name = f"`{behaviour.name}`" if not behaviour.name.isdigit() else behaviour.name
            test = behaviour.test.removeprefix("tests/openmetadata/")
            yield name, behaviour.asks or _words(behaviour), behaviour.ours, f"`{test}`"


def _words(behaviour: Behaviour) -> str:
    """What a test asks whose name says it all."""
    name = behaviour.test.rpartition("::")[2].removeprefix("test_").replace("_", " ")
    return name[0].upper() + name[1:] + "."
