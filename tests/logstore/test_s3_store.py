"""The store on S3: the contract of all stores, on a real MinIO."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from tailrace.logstore.objects.store import ObjectStore
from tests.contracts.object_races import ObjectRacesContract, OpenStore
from tests.contracts.object_store import (
    HashedObjectContract,
    LargeObjectContract,
    ObjectStoreContract,
)
from tests.servers.minio import KMS_KEY, Bucket, Minio

pytestmark = pytest.mark.minio


@asynccontextmanager
async def opened(minio: Minio, **s3: str) -> AsyncIterator[ObjectStore]:
    async with minio.bucket(**s3).open() as store:
        yield store


class TestS3Store(LargeObjectContract, HashedObjectContract, ObjectStoreContract):
    @pytest.fixture
    async def store(self, minio: Minio) -> AsyncIterator[ObjectStore]:
        async with opened(minio) as store:
            yield store


class TestEncryptedS3Store(LargeObjectContract, HashedObjectContract, ObjectStoreContract):
    @pytest.fixture
    async def store(self, minio: Minio) -> AsyncIterator[ObjectStore]:
        async with opened(minio, encryption="AES256") as store:
            yield store


class TestS3StoreWithKeysOfAKeyStore(ObjectStoreContract):
    @pytest.fixture
    async def store(self, minio: Minio) -> AsyncIterator[ObjectStore]:
        async with opened(minio, encryption="aws:kms", kms_key_id=KMS_KEY) as store:
            yield store


class TestS3StoreRaces(ObjectRacesContract):
    @pytest.fixture
    def open_store(self, bucket: Bucket) -> OpenStore:
        return bucket.open
