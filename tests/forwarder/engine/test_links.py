"""`within`: what a symbolic link leads out of is not read, whenever the link is made."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from tailrace.forwarder.files.finder import FoundFile
from tests.forwarder.engine.world import World


def _world(tmp_path: Path, **config: Any) -> World:
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret" / "shadow").write_text("root:secret\n")
    return World(tmp_path, run="{stem}", **config)


def test_links_lead_anywhere_unless_folders_are_named(tmp_path: Path) -> None:
    world = _world(tmp_path)
    world.path("a.log").symlink_to(tmp_path / "secret" / "shadow")
    world.poll()
    assert world.store.lines() == ["root:secret"]


def test_a_link_out_of_the_folders_is_said_once_and_everything_else_is_read(
    tmp_path: Path,
) -> None:
    pods, containers = tmp_path / "logs" / "pods", tmp_path / "logs" / "containers"
    include = [str(containers / "**" / "*.log")]
    (tmp_path / "logs").mkdir()
    world = _world(tmp_path, within=[str(tmp_path / "logs")], include=include)
    for folder in (pods, containers):
        folder.mkdir()
    (pods / "0.log").write_text("of a container\n")
    (containers / "good.log").symlink_to(pods / "0.log")
    (containers / "bad.log").symlink_to(tmp_path / "secret" / "shadow")
    (containers / "folder").symlink_to(tmp_path / "secret")
    (tmp_path / "secret" / "b.log").write_text("more secrets\n")
    (tmp_path / "logs-beside").mkdir()
    (tmp_path / "logs-beside" / "c.log").write_text("not in the folder\n")
    (containers / "beside.log").symlink_to(tmp_path / "logs-beside" / "c.log")
    world.poll()
    world.poll()
    assert world.store.lines() == ["of a container"]
    assert any("bad.log" in said and "`within`" in said for said in world.said)


class Swapping(World):
    """Somebody changes the link between the scan's look at it and its opening."""

    def listed(self, found: list[FoundFile]) -> list[FoundFile]:
        link, secret = self.path("a.log"), self.logs.parent / "secret" / "shadow"
        if found and os.readlink(link) != str(secret):
            there = os.stat(link)
            link.unlink()
            link.symlink_to(secret)
            changed = os.stat(link)
            return [
                FoundFile(
                    one.path,
                    changed.st_dev,
                    changed.st_ino,
                    changed.st_size,
                    changed.st_mtime_ns,
                )
                for one in found
                if one.inode == there.st_ino
            ]
        return found


def test_a_link_that_is_changed_between_look_and_opening_leads_nowhere(tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    logs.mkdir()
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret" / "shadow").write_text("root:secret\n")
    (logs / "real").write_text("harmless\n")
    world = Swapping(tmp_path, run="{stem}", within=[str(logs)])
    world.path("a.log").symlink_to(logs / "real")
    for _ in range(3):
        world.poll()
    assert os.readlink(world.path("a.log")).endswith("shadow")
    assert world.store.lines() == []
