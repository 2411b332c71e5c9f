"""One store for all tests of a run, made by a service; each test gets a copy."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest

from service.settings import Settings
from tailrace.logstore.clock import SystemClock, system_entropy
from tailrace.logstore.filesystem import Disk
from tailrace.logstore.objects.config import open_store
from tailrace.logstore.table.table import open_table
from tests.tailrace.verification.world import World, ingest, live, live_on, settings_for


async def made(settings: Settings) -> None:
    await live(settings)
    async with open_store(settings, SystemClock(), system_entropy(), Disk()) as store:
        await ingest(store, open_table(settings))
    await live_on(settings)


@pytest.fixture(scope="session")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    data = tmp_path_factory.mktemp("verified") / "data"
    asyncio.run(made(settings_for(data)))
    return data


@pytest.fixture
def world(template: Path, tmp_path: Path) -> World:
    data = tmp_path / "data [of *]"  # which engines would take for a pattern
    shutil.copytree(template, data)
    return World(settings_for(data), tmp_path)
