"""The check at the start, with a fault in each of its requests: none makes a good store a bad one.

"Not checked yet" is a fair answer, since each request is made once and the check again later.
"""

from __future__ import annotations

from contextlib import suppress

import pytest

from tailrace.logstore.errors import StoreUnavailable
from tailrace.logstore.objects.s3.store import S3Store
from tests.faults.kinds import HIDDEN, Kind
from tests.faults.requests import Request
from tests.faults.schedule import Schedule
from tests.logstore.test_s3_faults import standing
from tests.servers.minio import Bucket

pytestmark = pytest.mark.minio


class Nth:
    """Accepts one of the requests that come, by its number from 0."""

    def __init__(self, number: int) -> None:
        self._number = number
        self.seen = 0

    def __call__(self, _: Request) -> bool:
        self.seen += 1
        return self.seen == self._number + 1


@pytest.mark.in_turn(3)
@pytest.mark.parametrize("kind", HIDDEN, ids=lambda kind: kind.value)
async def test_a_fault_in_any_request_of_the_check(bucket: Bucket, kind: Kind) -> None:
    schedule = Schedule(1, delay_seconds=0.001)
    async with standing(bucket, schedule) as site:
        assert isinstance(site.store, S3Store)
        await site.store.check()
        for number in range(schedule.requests):
            schedule.plan(kind, applies=Nth(number))
            with suppress(StoreUnavailable):
                await site.store.check()
            schedule.calm()
    assert schedule.injected[kind] > 0
