"""The paths of events: each event under its own, however many values the fields have."""

from __future__ import annotations

import pyarrow as pa

from tailrace.pipelines.appenders.rolling.paths import PathTemplate
from tests.pipelines.events import events

NAMES = "abcdefg"
COUNT = 1024


def test_many_fields_of_many_values_are_told_apart() -> None:
    """Their numbers together need 70 bits; the last two events differ above the 64th alone."""
    rows = [dict.fromkeys(NAMES, str(n)) for n in range(COUNT)]
    rows.append(rows[0] | {"a": "16"})
    given = pa.concat_tables([events(["x"], attributes=row) for row in rows])
    template = PathTemplate(".".join(f"{{attribute.{name}}}" for name in NAMES))
    found = [(path, places.tolist()) for path, places in template.groups(given, 0)]
    assert sorted(found) == sorted((".".join(row.values()), [n]) for n, row in enumerate(rows))


def test_a_path_has_its_events_in_order() -> None:
    given = pa.concat_tables([events(["x"], run=f"r{n % 3}") for n in range(9)])
    found = [(path, rows.tolist()) for path, rows in PathTemplate("{run}.log").groups(given, 0)]
    assert found == [("r0.log", [0, 3, 6]), ("r1.log", [1, 4, 7]), ("r2.log", [2, 5, 8])]
    assert list(PathTemplate("{run}.log").groups(given.slice(0, 0), 0)) == []
