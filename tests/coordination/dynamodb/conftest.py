"""DynamoDB Local checks no key, but botocore wants one to sign with."""

from __future__ import annotations

import pytest

from tests.servers.dynamodb import ACCESS_KEY, SECRET_KEY


@pytest.fixture(autouse=True)
def keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", ACCESS_KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET_KEY)
