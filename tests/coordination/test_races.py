"""Coordinators in processes of their own share a folder, a bucket and a table."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from tests.contracts.partition_races import PartitionRacesContract, PartitionSkewContract
from tests.coordination.dynamodb.tables import settings_of
from tests.coordination.opened import in_bucket, in_folder, in_table
from tests.coordination.remote import OpenPartitions
from tests.servers.dynamodb import DynamoDb
from tests.servers.minio import Bucket


class TestInAFolder(PartitionRacesContract):
    LEASE_SECONDS = 30.0

    @pytest.fixture
    def opened(self, tmp_path: Path) -> OpenPartitions:
        return partial(in_folder, str(tmp_path))


@pytest.mark.minio
class TestInABucket(PartitionSkewContract):
    @pytest.fixture
    def opened(self, bucket: Bucket) -> OpenPartitions:
        return partial(in_bucket, bucket)


@pytest.mark.dynamodb
class TestInATable(PartitionSkewContract):
    @pytest.fixture
    def opened(self, dynamodb: DynamoDb) -> OpenPartitions:
        return partial(in_table, settings_of(dynamodb))
