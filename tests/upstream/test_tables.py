"""Behaviours of CDAP, Data Prepper, OK Log and OpenTelemetry: tables, each row with its tests."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[2]
TESTS = ROOT / "tests"
COUNTS = {
    "cdap.md": {
        "Processing": 18,
        "Files": 12,
        "Reading": 5,
        "Design": 9,
        "Limits": 12,
        "Gaps": 7,
    },
    "data-prepper.md": {
        "LeaseBasedSourceCoordinatorTest": 27,
        "PartitionManagerTest": 3,
        "SourceCoordinatorFactoryTest": 8,
        "EnhancedLeaseBasedSourceCoordinatorTest": 8,
        "PartitionIdentifierTest": 2,
        "SourcePartitionTest": 2,
        "EnhancedSourcePartitionTest": 10,
        "DdbClientCustomRetryConditionTest": 2,
        "DynamoDbClientFactoryTest": 2,
        "DynamoDbClientWrapperTest": 22,
        "DynamoDbSourceCoordinationStoreTest": 14,
        "DynamoDbSourceCoordinationStoreIT": 7,
        "InMemoryPartitionAccessorTest": 13,
        "InMemorySourceCoordinationStoreTest": 7,
        "QueuedPartitionsItemTest": 3,
        "JdbcSourceCoordinationStoreIT": 15,
        "JdbcSourceCoordinationStoreTest": 43,
        "JdbcPartitionItemTest": 2,
        "JdbcStoreSettingsTest": 8,
        "Design": 16,
        "NeverTested": 8,
        "Issues": 28,
        "Flaws": 12,
        "Gaps": 10,
    },
    "opentelemetry.md": {"Files": 24, "Rotation": 6, "Units": 8},
    "oklog.md": {"Tests": 41, "Queue": 11, "Design": 10, "Flaws": 17, "Gaps": 11, "Metrics": 23},
}
"""How many there are upstream, of each class of tests or kind of statement."""

GROUP = re.compile(r"^## (\w+): .* \((\d+)\)$")
ROW = re.compile(r"^\| `([\w.]+)` \| (.+?) \| (.*?) ?\| (.*?) ?\|$")
CITED = re.compile(r"`([^`]*?\.py)::(\w+)`")
WITHOUT_TEST = ("Does not apply: ", "Not yet: ")


class Row(NamedTuple):
    """One of upstream's, what it asks, how ours differs, and what holds ours."""

    name: str
    asks: str
    ours: str
    tests: list[tuple[str, str]]


def groups(page: str) -> dict[str, list[Row]]:
    """The rows of a page, by the name in the heading above them."""
    found: dict[str, list[Row]] = {}
    rows: list[Row] = []
    for line in (Path(__file__).parent / page).read_text().splitlines():
        if heading := GROUP.match(line):
            rows = found[heading[1]] = []
            assert int(heading[2]) == COUNTS[page].get(heading[1]), heading[1]
        elif line.startswith("| ") and not line.startswith(("| upstream ", "| --- ")):
            row = ROW.match(line)
            assert row is not None, line
            rows.append(Row(row[1], row[2], row[3], CITED.findall(row[4])))
            assert CITED.sub("", row[4]).strip() == "", line
    return found


@cache
def named_in(path: str) -> dict[str, str | None]:
    """Its tests by their names, with the class that they are in."""
    found: dict[str, str | None] = {}
    for node in ast.parse((TESTS / path).read_text()).body:
        inside = node.body if isinstance(node, ast.ClassDef) else [node]
        for one in inside:
            if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef):
                found[one.name] = node.name if isinstance(node, ast.ClassDef) else None
    return found


def runs(path: str, name: str) -> bool:
    """Whether pytest finds it, or it is of a contract that some test module subclasses."""
    if not (TESTS / path).exists() or name not in named_in(path):
        return False
    if Path(path).name.startswith("test_"):
        return True
    return path.startswith("contracts/") and named_in(path)[name] in subclassed()


@cache
def subclassed() -> frozenset[str]:
    """Names of classes that others in tests are made of, and theirs in turn."""
    found: set[str] = set()
    for path in TESTS.rglob("*.py"):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef):
                found |= {base.id for base in node.bases if isinstance(base, ast.Name)}
    return frozenset(found)


@pytest.mark.parametrize("page", COUNTS)
def test_each_of_upstreams_is_there_once(page: str) -> None:
    found = groups(page)
    assert {group: len(rows) for group, rows in found.items()} == COUNTS[page]
    for group, rows in found.items():
        names = [row.name for row in rows]
        assert len(names) == len(set(names)), group


@pytest.mark.parametrize("page", COUNTS)
def test_each_names_tests_that_run_or_a_reason(page: str) -> None:
    for group, rows in groups(page).items():
        for row in rows:
            assert row.tests or row.ours.startswith(WITHOUT_TEST), f"{group} {row.name}"
            missing = [f"{path}::{name}" for path, name in row.tests if not runs(path, name)]
            assert missing == [], f"{group} {row.name}"
