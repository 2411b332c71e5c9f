"""Each threat that rules of access answer names a test, and the test is there."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
HEAD = "| attack | defence | test |"


def test_each_threat_names_tests_that_are_there() -> None:
    page = (ROOT / "docs" / "threat-model.md").read_text()
    table = page.partition(HEAD)[2].partition("\n\n")[0].strip().splitlines()[1:]
    assert len(table) >= 19
    code = "".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    there = set(re.findall(r"^ *(?:async )?def (test_\w+)\(", code, re.MULTILINE))
    for row in table:
        named = re.findall(r"`(test_\w+)`", row.rpartition("| ")[2])
        assert named, f"no test: {row}"
        assert set(named) <= there, f"not there: {set(named) - there}"
