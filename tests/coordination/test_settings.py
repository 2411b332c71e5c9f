"""The section `source_coordination`: Data Prepper's files are read as they are."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from random import Random

import pytest

from service.settings import load_settings
from tailrace.coordination.dynamodb.store import DynamoPartitions
from tailrace.coordination.memory_store import InMemoryPartitions
from tailrace.coordination.object_store.store import ObjectPartitions
from tailrace.coordination.open import open_partitions
from tailrace.coordination.settings import (
    CoordinatorLimits,
    SourceCoordination,
    StoreChoice,
    milliseconds,
)
from tailrace.logstore.clock import SystemClock
from tailrace.logstore.errors import InvalidInput
from tailrace.logstore.objects.local import LocalStore
from tests.simulation.powercut import PowerCutFileSystem

DAY_MS = 86_400_000
UPSTREAM = """
source_coordination:
  partition_prefix: blue
  store:
    dynamodb:
      table_name: "DataPrepperSourceCoordinationStore"
      region: "us-east-1"
      sts_role_arn: "arn:aws:iam::123456789012:role/SourceCoordinationTableRole"
      sts_external_id: "theirs"
      ttl: "P7D"
      skip_table_creation: true
      provisioned_read_capacity_units: 5
"""


@pytest.fixture(autouse=True)
def empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def read(folder: Path, text: str) -> SourceCoordination:
    path = folder / "tailrace.yaml"
    path.write_text(text)
    return load_settings(config=str(path))[0].source_coordination


def test_upstreams_own_example(empty_folder: Path) -> None:
    section = read(empty_folder, UPSTREAM)
    found = section.store.dynamodb
    assert section.partition_prefix == "blue"
    assert found.table_name == "DataPrepperSourceCoordinationStore"
    assert found.sts_role_arn.endswith("SourceCoordinationTableRole")
    assert (found.sts_external_id, found.skip_table_creation) == ("theirs", True)
    assert found.ttl_ms == 7 * DAY_MS
    assert found.provisioned_read_capacity_units == 5
    assert found.provisioned_write_capacity_units == 10
    assert not section.store.in_memory.enabled


@pytest.mark.parametrize("text", ["in_memory:", "in_memory: {}", "in_memory: {enabled: true}"])
def test_a_store_is_chosen_by_its_name_alone(text: str, empty_folder: Path) -> None:
    found = read(empty_folder, f"source_coordination:\n  store:\n    {text}\n")
    assert found.store.in_memory.enabled


def test_everything_can_be_said_by_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    prefix = "TAILRACE_SOURCE_COORDINATION__"
    monkeypatch.setenv(f"{prefix}STORE__DYNAMODB__TABLE_NAME", "leases")
    monkeypatch.setenv(f"{prefix}STORE__DYNAMODB__REGION", "eu-west-1")
    monkeypatch.setenv(f"{prefix}STORE__DYNAMODB__TTL", "12h")
    monkeypatch.setenv(f"{prefix}MAX_ATTEMPTS", "3")
    section = load_settings()[0].source_coordination
    assert section.store.dynamodb.table_name == "leases"
    assert section.store.dynamodb.ttl_ms == DAY_MS // 2
    assert section.limits == CoordinatorLimits(max_attempts=3)


def test_every_constant_of_a_coordinator_is_a_setting() -> None:
    other = {
        name: (getattr(SourceCoordination(), name) + 17)
        for name, field in SourceCoordination.model_fields.items()
        if name not in ("partition_prefix", "store")
    }
    limits = SourceCoordination.model_validate(other).limits
    assert SourceCoordination().limits == CoordinatorLimits()
    for field in fields(CoordinatorLimits):
        assert getattr(limits, field.name) != getattr(CoordinatorLimits(), field.name), field.name


@pytest.mark.parametrize(
    ("store", "said"),
    [
        ("{dynamodb: {table_name: abc}}", "needs table_name and region"),
        ("{dynamodb: {region: us-east-1}}", "needs table_name and region"),
        ("{dynamodb: {ttl: P7D}}", "needs table_name and region"),
        ("{dynamodb: }", "needs table_name and region"),
        ("{dynamodb: {table_name: ab, region: r}}", "table_name"),
        ("{dynamodb: {table_name: abc, region: r, ttl: soon}}", "should be a duration"),
        ("{dynamodb: {table_name: abc, region: r, ttl: 10ms}}", "one second at least"),
        ("{dynamodb: {table_name: abc, region: r, sts_external_id: x}}", "needs sts_role_arn"),
        ("{dynamodb: {table_name: abc, region: r, nobody_knows: 1}}", "nobody_knows"),
        ("{in_memory: {}, dynamodb: {table_name: abc, region: r}}", "one store, not"),
        ("{object_store: {}, in_memory: }", "one store, not"),
        ("{jdbc: {url: x}}", "jdbc"),
    ],
)
def test_what_cannot_be_is_refused_by_name(store: str, said: str, empty_folder: Path) -> None:
    with pytest.raises(InvalidInput, match=said):
        read(empty_folder, f"source_coordination: {{store: {store}}}\n")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("500ms", 500),
        ("90s", 90_000),
        ("3m", 180_000),
        ("12h", DAY_MS // 2),
        ("7d", 7 * DAY_MS),
        ("P7D", 7 * DAY_MS),
        ("PT12H", DAY_MS // 2),
        ("P1DT1H1M1S", DAY_MS + 3_661_000),
    ],
)
def test_durations(text: str, expected: int) -> None:
    assert milliseconds(text) == expected


@pytest.mark.parametrize("text", ["", "7", "d", "P", "PT", "P1DT", "1w", "-7d", "P-7D", "7 d"])
def test_what_is_no_duration(text: str) -> None:
    with pytest.raises(ValueError, match="duration"):
        milliseconds(text)


@pytest.mark.parametrize(
    ("store", "kind"),
    [
        ({}, ObjectPartitions),
        ({"object_store": {}}, ObjectPartitions),
        ({"in_memory": None}, InMemoryPartitions),
        ({"dynamodb": {"table_name": "abc", "region": "us-east-1"}}, DynamoPartitions),
    ],
)
async def test_settings_open_the_store_that_they_name(
    store: dict[str, object], kind: type[object]
) -> None:
    clock = SystemClock()
    objects = LocalStore("/store", PowerCutFileSystem(), clock, Random(1))
    choice = StoreChoice.model_validate(store)
    opening = open_partitions(choice, objects, clock, Random(2), newest_date=None)
    async with opening as partitions:
        assert type(partitions) is kind
