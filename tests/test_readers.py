"""Every example of docs/use/readers.md, run as it stands on a table in a folder and on MinIO.

Each is a process of its own, as a reader would start it: no engine finds what another one,
or this test run, has loaded.
"""

from __future__ import annotations

import ast
import asyncio
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tailrace.logstore.clock import SystemClock, system_entropy
from tailrace.logstore.filesystem import Disk
from tailrace.logstore.objects.config import StoreSettings, open_store
from tailrace.logstore.table.table import Table, open_table
from tests.compactor.lake import NOON, Lake, batch
from tests.servers.minio import Bucket
from tests.tailrace.verification.world import ingest

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "use" / "readers.md").read_text()
# The code blocks of each chapter, in order.
EXAMPLES = {
    title: re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    for title, text in re.findall(r"^## (.+?)\n(.*?)(?=^## |\Z)", PAGE, re.DOTALL | re.MULTILINE)
}
LINES = [
    batch("shop.orders", "run-1", NOON, 30),
    batch("shop.orders", "run-2", NOON + 3_600_000, 20),
    batch("shop.über", "run 1", NOON, 7),
]
ROWS = [("shop.orders", "run-1", 30), ("shop.orders", "run-2", 20), ("shop.über", "run 1", 7)]


async def take_in(settings: StoreSettings) -> None:
    """All segments of a store into its table, without a Spark."""
    async with open_store(settings, SystemClock(), system_entropy(), Disk()) as store:
        await ingest(store, open_table(settings))


# What a small table needs of Spark, so that nobody waits for two hundred empty tasks.
SMALL = {
    "PYSPARK_SUBMIT_ARGS": "--master local[1] --driver-memory 512m --conf spark.ui.enabled=false"
    " --conf spark.sql.shuffle.partitions=1 pyspark-shell"
}


def ran(code: str, folder: Path, environment: dict[str, str]) -> object:
    """What the example prints, read as Python."""
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=folder,
        env={**os.environ, **SMALL, "PYTHONPATH": str(ROOT), **environment},
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return ast.literal_eval(done.stdout.splitlines()[-1])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    lake = Lake(tmp_path / "data")
    lake.put("n", LINES[:2])
    lake.put("n", LINES[2:])
    asyncio.run(take_in(lake.settings))
    return tmp_path


ENGINES = ["DuckDB", "Polars", "deltalake", pytest.param("Spark SQL", marks=pytest.mark.spark)]


@pytest.mark.in_turn(4)
@pytest.mark.parametrize("engine", ENGINES)
def test_a_table_without_files(tmp_path: Path, engine: str) -> None:
    Table(str(tmp_path / "data" / "store" / "table")).create()
    (code,) = EXAMPLES[engine]
    assert ran(code, tmp_path, {}) == []


@pytest.mark.in_turn(4)
@pytest.mark.parametrize("engine", ENGINES)
def test_a_table_in_a_folder(folder: Path, engine: str) -> None:
    (code,) = EXAMPLES[engine]
    assert ran(code, folder, {}) == ROWS


@pytest.mark.minio
def test_a_table_on_s3(bucket: Bucket, tmp_path: Path) -> None:
    """One table for both engines."""
    settings = bucket.settings
    assert settings.bucket is not None
    place = settings.bucket.uri

    source = Lake(tmp_path / "other")
    put = [source.put("n", LINES[:2]), source.put("n", LINES[2:])]
    bodies = {key: source.run(source.store.get(key))[1] for key in put}

    async def filled() -> None:
        async with bucket.open() as store:
            for key, body in bodies.items():
                await store.put(key, body)
            await ingest(store, open_table(settings))

    asyncio.run(filled())
    keys = {
        "AWS_ACCESS_KEY_ID": settings.s3.access_key_id,
        "AWS_SECRET_ACCESS_KEY": settings.s3.secret_access_key.get_secret_value(),
        "AWS_ENDPOINT_URL": settings.s3.endpoint_url,
    }
    assert len(EXAMPLES["On S3"]) == 2
    for code in EXAMPLES["On S3"]:
        assert ran(code.replace("s3://bucket/prefix", place), tmp_path, keys) == ROWS


def test_no_example_is_left_out() -> None:
    assert {title: len(code) for title, code in EXAMPLES.items()} == {
        "DuckDB": 1,
        "Polars": 1,
        "deltalake": 1,
        "Spark SQL": 1,
        "On S3": 2,
    }
