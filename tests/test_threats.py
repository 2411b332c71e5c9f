"""Each threat of the threat model names tests of its defence, and the tests are there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize(
    ("head", "threats"),
    [("| attack | defence | where | test |", 39), ("| attack | defence | test |", 20)],
)
def test_each_threat_names_tests_that_are_there(head: str, threats: int) -> None:
    page = (ROOT / "docs" / "operate" / "threat-model.md").read_text()
    table = page.partition(head)[2].partition("\n\n")[0].strip().splitlines()[1:]
    assert len(table) >= threats
    code = "".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    there = set(re.findall(r"^ *(?:async )?def (test_\w+)\(", code, re.MULTILINE))
    for row in table:
        assert row.count(" | ") == head.count(" | "), f"its cells are not those of the head: {row}"
        named = re.findall(r"`(test_\w+)`", row.rpartition("| ")[2])
        assert named, f"no test: {row}"
        assert set(named) <= there, f"not there: {set(named) - there}"
        for module in re.findall(r"`((?:service|compactor|tailrace)/[\w/.]+)`", row):
            assert (ROOT / module).exists(), f"no module {module}: {row}"
