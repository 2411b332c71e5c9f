"""Processes of log pipelines killed -9 at random moments: `make torture OF=pipelines`."""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
from pathlib import Path

from tests.pipelines.torture.torture import Torture


def main() -> int:
    """0 if each record is in the files exactly once, in order."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--store", choices=["local"], default="local")
    arguments = parser.parse_args()
    print(f"seed {arguments.seed}", flush=True)
    with tempfile.TemporaryDirectory(prefix="tailrace-pipelines-") as temporary:
        torture = Torture(
            arguments.folder or Path(temporary), kills=arguments.kills, seed=arguments.seed
        )
        torture.run()
    print(f"seed {arguments.seed}: {torture.told}")
    for fault in torture.faults[:20]:
        print(fault)
    return 1 if torture.faults else 0


if __name__ == "__main__":
    sys.exit(main())
