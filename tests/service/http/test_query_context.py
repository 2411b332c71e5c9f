"""`GET /query?context=N` against a plain list of each run's records."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest

from service.query.request import RecordKey
from tests.seeds import seeds
from tests.service.http.query_client import client_of, records
from tests.service.query.world import World, engine_of, entry

Groups = list[list[tuple[RecordKey, bool]]]


async def mixed(root: Path, dice: random.Random) -> World:
    world = World(root)
    world.merge([entry(dice) for _ in range(20)], {})
    await world.segment([entry(dice) for _ in range(20)])
    world.unflushed([entry(dice) for _ in range(20)])
    return world


def expected(
    world: World, hits: list[RecordKey], before: int, behind: int
) -> list[list[tuple[RecordKey, bool]]]:
    """Windows around the hits of each run, merged where they overlap, by their first hits."""
    windows: list[tuple[int, set[RecordKey]]] = []
    for run in {(hit.fqn, hit.run) for hit in hits}:
        whole = sorted(key for key in world.records if (key.fqn, key.run) == run)
        merged: list[set[RecordKey]] = []
        for hit in sorted(hit for hit in hits if (hit.fqn, hit.run) == run):
            at = whole.index(hit)
            window = set(whole[max(at - before, 0) : at + behind + 1])
            if merged and merged[-1] & window:
                merged[-1] |= window
            else:
                merged.append(window)
        windows += [(min(hits.index(h) for h in hits if h in some), some) for some in merged]
    return [
        [(key, key in hits) for key in sorted(window)]
        for _, window in sorted(windows, key=lambda one: one[0])
    ]


def grouped(found: list[dict[str, Any]]) -> Groups:
    groups: Groups = []
    for record in found:
        if record["group"] == len(groups):
            groups.append([])
        assert record["group"] == len(groups) - 1, "the records of a group stand together"
        key = RecordKey(record["ulid"], record["fqn"], record["run_id"])
        groups[-1].append((key, record["hit"]))
    return groups


@pytest.mark.in_turn(3)
@pytest.mark.parametrize("seed", seeds(3))
async def test_hits_come_with_what_is_around_them(tmp_path: Path, seed: int) -> None:
    dice = random.Random(seed)
    world = await mixed(tmp_path, dice)
    async with engine_of(world) as engine, client_of(engine) as client:
        for _ in range(4):
            before, behind = dice.randrange(4), dice.randrange(4)
            word, order = dice.choice(["failed", "slow", " 1"]), dice.choice(["asc", "desc"])
            parameters = {"from": "0", "q": f'"{word}"', "limit": "7", "order": order}
            plain, _ = records(await client.get("/query", params=parameters))
            hits = [RecordKey(r["ulid"], r["fqn"], r["run_id"]) for r in plain]
            around = {"context": str(before), "context_after": str(behind)}
            found, last = records(await client.get("/query", params=parameters | around))
            wanted = expected(world, hits, before, behind)
            assert grouped(found) == wanted
            assert last["stats"]["complete"] is True
            assert last["stats"]["matches"] == len(hits)
            assert last["stats"]["context"] == sum(len(g) for g in wanted) - len(hits)
            for record in found:
                key = RecordKey(record["ulid"], record["fqn"], record["run_id"])
                assert record["message"] == world.records[key].message


async def test_text_has_a_line_between_groups(tmp_path: Path) -> None:
    world = await mixed(tmp_path, random.Random(1))
    async with engine_of(world) as engine, client_of(engine) as client:
        parameters = {"from": "0", "q": "failed", "limit": "5", "context": "1"}
        found, _ = records(await client.get("/query", params=parameters))
        text = (await client.get("/query", params=parameters | {"format": "text"})).text
        groups: dict[int, str] = {}
        for record in found:
            groups[record["group"]] = groups.get(record["group"], "") + f"{record['message']}\n"
        assert text == "--\n".join(groups.values())
        assert len(groups) > 1


@pytest.mark.in_turn(4)
async def test_pages_of_hits_go_on_at_the_cursor(tmp_path: Path) -> None:
    world = await mixed(tmp_path, random.Random(1))
    async with engine_of(world) as engine, client_of(engine) as client:
        parameters = {"from": "0", "q": "failed", "limit": "3", "context": "1"}
        hits: list[str] = []
        after: str | None = ""
        while after is not None:
            given = parameters | ({"after": after} if after else {})
            found, last = records(await client.get("/query", params=given))
            hits += [record["ulid"] for record in found if record["hit"]]
            after = last["stats"]["next"]
        plain, _ = records(await client.get("/query", params={"from": "0", "q": "failed"}))
        assert sorted(hits) == sorted(record["ulid"] for record in plain)


async def test_a_damaged_segment_makes_it_partial(tmp_path: Path) -> None:
    world = await mixed(tmp_path, random.Random(1))
    key = await world.segment([entry(random.Random(2))])
    await world.store.put(key, b"damaged")
    async with engine_of(world) as engine, client_of(engine) as client:
        parameters = {"from": "0", "q": "failed", "limit": "3", "context": "1"}
        reply = await client.get("/query", params=parameters)
        assert reply.status_code == 206
        last = orjson.loads(reply.content.splitlines()[-1])
        assert last["stats"]["unreadable"] == [key]


@pytest.mark.parametrize(
    ("parameters", "field"),
    [
        ({"context": "101"}, "context"),
        ({"context_before": "-1"}, "context_before"),
        ({"context": "1", "format": "parquet"}, "format"),
        ({"context": "1", "limit": "101"}, "limit"),
    ],
)
async def test_what_is_refused(tmp_path: Path, parameters: dict[str, str], field: str) -> None:
    async with engine_of(World(tmp_path)) as engine, client_of(engine) as client:
        reply: httpx.Response = await client.get("/query", params=parameters)
        assert reply.status_code == 400
        assert reply.json().get("field") == field
