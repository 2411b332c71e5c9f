"""A deletion through its stages at one node, idle from then on; all bytes are looked at."""

from __future__ import annotations

from logstore import keys
from logstore.table.snapshot import Snapshot
from service.erasure import DeletionState, Erasure
from tests.marker import holds
from tests.openmetadata.server import OTHER, RUN, Server, numbered, play

MARKER = "MARKER-44e0"


async def erasure_of(server: Server) -> DeletionState:
    node = server.node
    erasure = Erasure(
        server.disk_store,
        lambda: Snapshot("nowhere"),
        lambda: node.places,
        lambda: node.members.peers,
        lambda: (node.identity.node, *node.identity.parents),
        texts=keys.PREFIX,
    )
    return (await erasure.states(await erasure.deletions()))[0]


def marked(server: Server) -> list[str]:
    """The parts of the disk with the marker."""
    found = [path for path, body in server.fs.contents("/data") if holds(body, MARKER.encode())]
    return sorted({path.split("/")[3 if "/store/" in path else 2] for path in found})


def test_a_deleted_run_leaves_every_place_and_the_state_says_when() -> None:
    async def scenario(server: Server) -> None:
        await server.append(numbered(0, 50, MARKER))
        await server.append("kept\n", OTHER)
        await server.passes(minutes=5)
        await server.append(numbered(50, 60, MARKER))
        assert marked(server) != []
        await server.delete(RUN)
        one = await erasure_of(server)
        assert one.state != "erased"
        assert "the journal of this node" in one.left
        await server.passes(minutes=6)
        one = await erasure_of(server)
        assert [left.partition("/")[0] for left in one.left] == ["segments"] * len(one.left)
        assert one.left
        listed = server.disk_store.list(keys.SEGMENTS)
        await server.disk_store.delete([info.key async for info in listed])  # as the compactor
        assert marked(server) == []
        assert (await erasure_of(server)).state == "erased"
        assert await server.text(OTHER) == "kept\n"
        await server.restart()
        await server.passes(minutes=3)
        assert marked(server) == []
        assert (await erasure_of(server)).state == "erased"

    play(scenario)


def test_a_copy_of_damage_counts_until_somebody_removes_it() -> None:
    async def scenario(server: Server) -> None:
        await server.append("line\n")
        await server.delete(RUN)
        await server.passes(minutes=6)
        listed = server.disk_store.list(keys.SEGMENTS)
        await server.disk_store.delete([info.key async for info in listed])
        aside = "/data/journal/aside"
        server.fs.make_folders(aside)
        server.fs.open(f"{aside}/X-0.bin", "create").close()
        assert (await erasure_of(server)).left == (
            "copies of damage in journal/aside of this node",
        )
        server.fs.unlink(f"{aside}/X-0.bin")
        assert (await erasure_of(server)).state == "erased"

    play(scenario)
