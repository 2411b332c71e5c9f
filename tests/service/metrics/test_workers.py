"""The metrics of several workers as one text of Prometheus."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from service.metrics.workers import merged


def text(lines: int, *, compactor: bool) -> bytes:
    registry = CollectorRegistry()
    Counter("lines", "Lines.", registry=registry).inc(lines)
    Histogram("sizes", "Sizes.", ["kind"], buckets=(1, 2), registry=registry).labels(
        'a"{ b'
    ).observe(lines)
    if compactor:
        Gauge("compactor", "Of one worker.", registry=registry).set(7)
    return generate_latest(registry)


def test_every_sample_says_whose_it_is_and_families_stay_together() -> None:
    content = merged({1: text(5, compactor=False), 0: text(3, compactor=True), 2: None}).decode()
    families = {one.name: one for one in text_string_to_metric_families(content)}
    found = {(s.labels["worker"], s.value) for s in families["lines"].samples}
    assert {("0", 3.0), ("1", 5.0)} <= found
    counts = [s for s in families["sizes"].samples if s.name == "sizes_count"]
    assert [(s.labels, s.value) for s in counts] == [
        ({"worker": "0", "kind": 'a"{ b'}, 1.0),
        ({"worker": "1", "kind": 'a"{ b'}, 1.0),
    ]
    assert [s.labels for s in families["compactor"].samples] == [{"worker": "0"}]
    up = {s.labels["worker"]: s.value for s in families["tailrace_worker_up"].samples}
    assert up == {"0": 1.0, "1": 1.0, "2": 0.0}
    names = [line.split()[2] for line in content.splitlines() if line.startswith("# TYPE")]
    assert len(names) == len(set(names)), "a family that comes twice is refused by Prometheus"
