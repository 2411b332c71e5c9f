"""Three nodes on one bucket, harmed at random moments: `make torture OF=nodes`.

The bucket is on a real S3 server; with `--store faults` all nodes reach it through a proxy that
misbehaves. With `--namespaces` each node has a network of its own, where the machine allows it.
`--no-table` leaves out the compaction by Spark at the end, and `--short` writes less.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import tempfile
from pathlib import Path

from tests.e2e.torture_store import TorturedStore, tortured_store
from tests.nodes.torture.network import STORE, Cables, Links, Network
from tests.nodes.torture.torture import SHORT, Size, Torture
from tests.servers.namespaces import Namespaces, why_no_namespaces


def main() -> int:
    """0 if everything that was acknowledged is everywhere once, in order."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--kills", type=int, default=20, help="how often a node is harmed")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--store", choices=("minio", "faults"), default="minio")
    parser.add_argument("--namespaces", action="store_true", help="a network for each node")
    parser.add_argument("--no-table", action="store_true", help="no compaction at the end")
    parser.add_argument("--short", action="store_true", help="few runs, and small ones")
    arguments = parser.parse_args()
    print(f"seed {arguments.seed}", flush=True)  # also of a run that does not come to its end
    reason = why_no_namespaces() if arguments.namespaces else None
    if reason is not None:
        print(f"left out: {reason}")
        return 0
    with tempfile.TemporaryDirectory(prefix="tailrace-nodes-") as temporary:
        play = _in_namespaces if arguments.namespaces else _over_links
        faults = play(arguments.folder or Path(temporary), arguments)
    for fault in faults[:20]:
        print(fault)
    return 1 if faults else 0


def _over_links(folder: Path, arguments: argparse.Namespace) -> list[str]:
    """All on one address; links are cut."""
    with tortured_store(arguments.store, arguments.seed) as store:
        assert store.bucket is not None
        # The proxy, if there is one, is what the settings name.
        bucket = store.bucket.through(store.settings["TAILRACE_S3__ENDPOINT_URL"])

        async def play() -> list[str]:
            async with Links(bucket) as network:
                return await _torture(folder, store, network, arguments)

        return asyncio.run(play())


def _in_namespaces(folder: Path, arguments: argparse.Namespace) -> list[str]:
    """An address and a stack for each; the kernel cuts."""
    with (
        Namespaces() as namespaces,
        tortured_store("minio", arguments.seed, place=namespaces.place(STORE)) as store,
    ):
        assert store.bucket is not None
        network = Cables(namespaces, store.bucket)
        return asyncio.run(_torture(folder, store, network, arguments))


async def _torture(
    folder: Path, store: TorturedStore, network: Network, arguments: argparse.Namespace
) -> list[str]:
    torture = Torture(
        folder,
        store,
        network,
        kills=arguments.kills,
        seed=arguments.seed,
        table=not arguments.no_table,
        size=SHORT if arguments.short else Size(),
    )
    await torture.run()
    print(f"seed {arguments.seed}: {torture.told}")
    if store.told():
        print(store.told())
    return torture.faults


if __name__ == "__main__":
    sys.exit(main())
