"""kill -9 at random moments under load: `make torture`.

With `--store minio` the objects are on a real S3 server, with `--store faults` on one behind a
proxy that misbehaves; some runs are then so large that they are uploaded in parts, and in
the end no upload may be left. `--prove` breaks a copy of the code in one way after another: the
torture must see each.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import tempfile
from pathlib import Path

from tests.e2e.torture.mutations import MUTATIONS
from tests.e2e.torture.torture import Torture
from tests.e2e.torture_store import KINDS, tortured_store
from tests.proving import prove

PROVING_TRIES = 3


def torment(arguments: argparse.Namespace) -> int:
    """One torture: 0 if nothing was lost, doubled or out of order."""
    print(f"seed {arguments.seed}", flush=True)  # also of a run that does not come to its end
    with tempfile.TemporaryDirectory(prefix="tailrace-torture-") as temporary:
        folder = arguments.folder or Path(temporary)
        with tortured_store(arguments.store, arguments.seed, folder / "store") as store:
            torture = Torture(folder, store, kills=arguments.kills, seed=arguments.seed)
            asyncio.run(torture.run())
    print(f"seed {arguments.seed}: {torture.told}")
    if store.told():
        print(store.told())
    for fault in torture.faults[:20]:
        print(fault)
    return 1 if torture.faults else 0


def main() -> int:
    """0 if all held; with `--prove`, if every fault was seen."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--store", choices=KINDS, default="local")
    parser.add_argument(
        "--prove",
        nargs="?",
        const="",
        metavar="WORDS",
        help="put faults into the code, those with WORDS in their names, and see each",
    )
    arguments = parser.parse_args()
    if arguments.prove is None:
        return torment(arguments)
    mutations = [mutation for mutation in MUTATIONS if arguments.prove in mutation.name]
    command = ["-m", "tests.e2e.torture", "--kills", f"{arguments.kills}"]
    unseen = prove(
        mutations, [*command, "--store", arguments.store], tries=PROVING_TRIES, timeout_seconds=600
    )
    print(f"{len(mutations)} faults, {len(unseen)} not seen")
    return 1 if unseen else 0


if __name__ == "__main__":
    sys.exit(main())
