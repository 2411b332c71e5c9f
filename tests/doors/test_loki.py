"""Our answers to LogQL beside those of a real Loki 3.7.8, which `loki_oracle` has recorded."""

from __future__ import annotations

import json
from pathlib import Path

from tests.doors.loki_oracle import ANSWERS, ask, ours, same


async def test_answers_are_those_of_loki(tmp_path: Path) -> None:
    recorded = json.loads(ANSWERS.read_text())
    assert len(recorded) >= 40
    assert all(one["answer"] for one in recorded), "an empty answer compares nothing"
    async with ours(tmp_path) as client:
        for one in recorded:
            found = await ask(client, one["query"])
            assert same(one["query"], found, one["answer"]), one["query"]
