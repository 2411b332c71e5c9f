"""Stores for the compactor, and one warm Spark for all tests that need it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from compactor.session import Session
from tests.compactor.lake import Lake


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    """A store whose compactor must not start Spark, or starts its own."""
    return Lake(tmp_path / "data")


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
