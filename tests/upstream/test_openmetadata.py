"""Every behaviour that OpenMetadata tests has a test here, and can be found by its name."""

from __future__ import annotations

from collections import Counter

from tests.upstream.openmetadata import COUNTS, SOURCES, behaviours


def test_there_is_one_test_for_each_of_upstreams() -> None:
    found = behaviours()
    assert Counter(behaviour.group for behaviour in found) == COUNTS
    names = Counter((behaviour.group, behaviour.name) for behaviour in found)
    assert [name for name, count in names.items() if count > 1] == []
    assert set(SOURCES) == set(COUNTS)


def test_numbered_ones_are_numbered_without_a_gap() -> None:
    for group in ("MinioIT", "LogTailer", "LogStreamFactory"):
        numbers = [int(behaviour.name) for behaviour in behaviours() if behaviour.group == group]
        assert sorted(numbers) == list(range(1, COUNTS[group] + 1))
