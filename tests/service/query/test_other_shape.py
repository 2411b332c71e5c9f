"""A search of a table that another program changed: refused, with what to do."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests import reshaped
from tests.reshaped import Reshape
from tests.service.http.query_client import client_of, mixed, records
from tests.service.query.world import engine_of, entry


@pytest.mark.parametrize("change", [reshaped.with_deletion_vector, reshaped.with_column_mapping])
async def test_it_is_refused_with_what_to_do(tmp_path: Path, change: Reshape) -> None:
    world = await mixed(tmp_path)
    async with engine_of(world) as engine, client_of(engine) as client:
        found, _ = records(await client.get("/query", params={"from": "0", "limit": 1000}))
        assert len(found) == len(world.records)
        change(Path(world.table.uri))
        answer = await client.get("/query", params={"from": "0"})
    assert answer.status_code == 500
    problem = answer.json()
    assert problem["type"].endswith("unsupported-version")
    assert "has another shape and is not read" in problem["detail"]
    assert "A table of another shape" in problem["hint"]


async def test_one_that_is_read_all_the_same(tmp_path: Path) -> None:
    """A column that we do not know is no reason to leave lines out."""
    world = await mixed(tmp_path)
    column = {"name": "note", "type": "string", "nullable": True, "metadata": {}}
    reshaped.with_columns(lambda columns: [*columns, column])(Path(world.table.uri))
    world.unflushed([entry(random.Random(2))])
    async with engine_of(world) as engine, client_of(engine) as client:
        found, _ = records(await client.get("/query", params={"from": "0", "limit": 1000}))
    assert len(found) == len(world.records)
