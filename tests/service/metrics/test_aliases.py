"""Renamed metrics: the scrape has them under both names, with the same samples."""

from __future__ import annotations

from pathlib import Path

from prometheus_client.core import Metric
from prometheus_client.parser import text_string_to_metric_families

from service.metrics.scrape import METRICS
from service.workers import LINES_LEFT
from tests.service.test_main import PLAIN, RUN, STOPS_AT_ONCE, service, settings_for

RENAMED = {metric.alias: metric.name for metric in METRICS if metric.alias}


def samples(family: Metric) -> list[tuple[str, tuple[tuple[str, str], ...], float]]:
    """Values by labels, and by what the sample's name adds to the metric's."""
    return [
        (one.name.removeprefix(family.name), tuple(sorted(one.labels.items())), one.value)
        for one in family.samples
    ]


async def test_a_scrape_has_the_same_samples_under_both_names(tmp_path: Path) -> None:
    settings = settings_for(tmp_path, **STOPS_AT_ONCE)
    async with service(settings, statuses=(LINES_LEFT,)) as (client, _):
        await client.post(RUN, content=b"a\nb\n", headers=PLAIN)
        text = (await client.get("/metrics")).text
    families = {family.name: family for family in text_string_to_metric_families(text)}
    assert {old: samples(families[old]) for old in RENAMED} == {
        old: samples(families[new]) for old, new in RENAMED.items()
    }
    for old, new in RENAMED.items():
        assert families[old].type == families[new].type
        assert families[old].documentation == f"Alias of `{new}`, until the next version."
    assert samples(families["tailrace_text_lag_lines"]) == [("", (), 2)]
    assert samples(families["tailrace_text_bytes"]) == [("_total", (), 4)]


def test_no_name_is_exported_twice() -> None:
    names = [metric.name for metric in METRICS]
    assert len({*names, *RENAMED}) == len(names) + len(RENAMED)
    assert all(old.startswith("tailrace_") for old in RENAMED)
