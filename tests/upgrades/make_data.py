"""Writes what this version stores: a data folder with its store, and the lines that it holds.

    python -m tests.upgrades.make_data

The file is named after the version, and never changes after its release: later versions read it.
"""

from __future__ import annotations

import asyncio
import tarfile
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

import orjson

from service.settings import Settings
from service.workers import LINES_LEFT
from tests.service.test_main import STOPS_AT_ONCE, service
from tests.tailrace.verification.conftest import made
from tests.tailrace.verification.world import BASE, NODE, PLAIN, settings_for

FOLDER = Path(__file__).parent
RUNS = ("p/closed", "p/open", "p/records", "q/late", "q/waiting")
_MADE_AGAIN = ("reserve", "cache", "scratch", "lock")


async def write(data: Path) -> dict[str, str]:
    """A service's lives: chunks, texts, segments, a table, a deletion, and lines in the journal."""
    await made(settings_for(data))
    off: dict[str, Any] = {"compaction": {"enabled": False}, **STOPS_AT_ONCE}
    last = Settings(data=str(data), node_id=NODE, **off)
    texts = {}
    async with service(last, statuses=(LINES_LEFT,)) as (client, _):
        text = "".join(f"waiting {number} é\n" for number in range(30))
        answer = await client.post(f"{BASE}/q/waiting", content=text.encode(), headers=PLAIN)
        assert answer.status_code == 200, answer.text
        for run in RUNS:
            texts[run] = (await client.get(f"{BASE}/{run}/download")).text
    return texts


def main() -> None:
    """Writes the file."""
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "data"
        texts = asyncio.run(write(data))
        (Path(folder) / "texts.json").write_bytes(orjson.dumps(texts, option=orjson.OPT_INDENT_2))
        target = FOLDER / f"data-{version('tailrace')}.tar.xz"
        with tarfile.open(target, "w:xz", format=tarfile.PAX_FORMAT) as tar:
            tar.add(Path(folder) / "texts.json", "texts.json")
            tar.add(data, "data", filter=_kept)


def _kept(found: tarfile.TarInfo) -> tarfile.TarInfo | None:
    parts = found.name.split("/")
    if len(parts) > 1 and parts[1] in _MADE_AGAIN:
        return None
    found.uid = found.gid = 0
    found.uname = found.gname = ""
    return found


if __name__ == "__main__":
    main()
