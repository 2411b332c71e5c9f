"""What a call of the store costs on S3 is counted, tries and parts included."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import pytest

from service.metrics.declared import MetricSources
from service.metrics.scrape import METRICS
from service.node import Node
from service.query.engine import QueryEngine
from service.runtime.counters import MeteredStore, StoreCounters
from tailrace.logstore.clock import SystemClock
from tailrace.logstore.objects.store import ObjectPart, requests_of
from tests.servers.minio import Bucket
from tests.service.metrics.test_moves import MOVE_ON_S3

pytestmark = pytest.mark.minio


async def test_the_metric_of_requests_to_s3(bucket: Bucket) -> None:
    counters = StoreCounters()
    nobody = SimpleNamespace()
    sources = MetricSources(cast("Node", nobody), cast("QueryEngine", nobody), store=counters)
    (metric,) = [metric for metric in METRICS if metric.name in MOVE_ON_S3]
    async with bucket.open() as inner:
        counters.s3_requests = requests_of(inner)
        store = MeteredStore(inner, SystemClock(), counters)
        assert metric.read(sources) == {}
        await store.put("a", b"x" * (6 << 20))
        await store.put("b", b"y")
        await store.compose("c", [ObjectPart("a"), ObjectPart("b")])
        assert counters.calls() == 3
        made = dict(cast("dict[str, int]", metric.read(sources)))
    assert made["put_object"] == 2
    assert made["complete_multipart_upload"] == 1
    assert sum(made.values()) > counters.calls()
    assert (counters.sent, counters.composed) == (
        {"put": (6 << 20) + 1, "compose": 0},
        {"compose": (6 << 20) + 1},
    )
