"""Three nodes on one bucket, harmed at random moments: `make torture OF=nodes`.

The bucket is on a real S3 server; with `--store faults` all nodes reach it through a proxy that
misbehaves.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import tempfile
from pathlib import Path

from tests.e2e.torture_store import tortured_store
from tests.nodes.torture.torture import Torture


def main() -> int:
    """0 if everything that was acknowledged is everywhere once, in order."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--kills", type=int, default=20, help="how often a node is harmed")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--store", choices=("minio", "faults"), default="minio")
    arguments = parser.parse_args()
    print(f"seed {arguments.seed}", flush=True)  # also of a run that does not come to its end
    with tempfile.TemporaryDirectory(prefix="tailrace-nodes-") as temporary:
        folder = arguments.folder or Path(temporary)
        with tortured_store(arguments.store, arguments.seed) as store:
            torture = Torture(folder, store, kills=arguments.kills, seed=arguments.seed)
            asyncio.run(torture.run())
            print(f"seed {arguments.seed}: {torture.told}")
            if store.told():
                print(store.told())
    for fault in torture.faults[:20]:
        print(fault)
    return 1 if torture.faults else 0


if __name__ == "__main__":
    sys.exit(main())
