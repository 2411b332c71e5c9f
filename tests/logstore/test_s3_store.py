"""The store on S3: the contract of all stores, on a real MinIO."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from logstore.objects.store import ObjectStore
from tests.contracts.object_races import ObjectRacesContract, OpenStore
from tests.contracts.object_store import LargeObjectContract, ObjectStoreContract
from tests.servers import KMS_KEY, Bucket, Minio

pytestmark = [pytest.mark.anyio, pytest.mark.minio]

ENCRYPTIONS = [
    {},
    {"encryption": "AES256"},
    {"encryption": "aws:kms", "kms_key_id": KMS_KEY},
]


class TestS3Store(LargeObjectContract, ObjectStoreContract):
    @pytest.fixture(params=ENCRYPTIONS, ids=["plain", "AES256", "aws:kms"])
    async def store(
        self, minio: Minio, request: pytest.FixtureRequest
    ) -> AsyncIterator[ObjectStore]:
        async with minio.bucket(**request.param).open() as store:
            yield store


class TestS3StoreRaces(ObjectRacesContract):
    @pytest.fixture
    def open_store(self, bucket: Bucket) -> OpenStore:
        return bucket.open
