"""Stores for the compactor, and one warm Spark for all tests that need it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from compactor.spark.session import Session
from tests.compactor.lake import Lake, lake_in


@pytest.fixture(autouse=True)
def kept_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of compactors in processes of their own: what the tests write may be as old as they are."""
    monkeypatch.setenv("TAILRACE_RUNS__EXPIRATION_DAYS", "0")


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    """A store whose compactor must not start Spark, or starts its own."""
    return Lake(tmp_path / "data")


@pytest.fixture(params=["folder", pytest.param("s3", marks=pytest.mark.minio)])
def any_lake(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Lake]:
    """A store of every kind, whose compactor must not start Spark."""
    if request.param == "folder":
        yield Lake(tmp_path / "data")
    else:
        with lake_in(request.getfixturevalue("bucket"), tmp_path / "data") as made:
            yield made


@pytest.fixture(scope="session")
def session() -> Iterator[Session]:
    spark = Session("1g")
    yield spark
    spark.stop()


@pytest.fixture
def warm(lake: Lake, session: Session) -> Lake:
    """A store whose compactor uses the Spark of all tests."""
    lake.session = session
    return lake
