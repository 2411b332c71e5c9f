"""Processes of log pipelines killed -9 at random moments: `make torture OF=pipelines`.

With `--store minio` on a real S3 server, with `--store faults` through a proxy that misbehaves;
with `--http` they read from the service.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
from pathlib import Path

from tests.e2e.torture_store import KINDS, tortured_store
from tests.pipelines.torture.torture import Torture


def main() -> int:
    """0 if each record is in the files exactly once, in order."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--store", choices=KINDS, default="local")
    parser.add_argument("--http", action="store_true", help="read over HTTP from the service")
    arguments = parser.parse_args()
    print(f"seed {arguments.seed}", flush=True)
    with tempfile.TemporaryDirectory(prefix="tailrace-pipelines-") as temporary:
        folder = arguments.folder or Path(temporary)
        with tortured_store(arguments.store, arguments.seed, folder / "store") as store:
            torture = Torture(
                folder,
                kills=arguments.kills,
                seed=arguments.seed,
                store=store,
                http=arguments.http,
                patient=True,
            )
            torture.run()
    print(f"{arguments.store}, seed {arguments.seed}: {torture.told}")
    for fault in torture.faults[:20]:
        print(fault)
    return 1 if torture.faults else 0


if __name__ == "__main__":
    sys.exit(main())
