"""Breaks a copy of the code in one way after another and tells which the histories see.

`python -m tests.compactor.histories`, or some of them, by a part of their names.
"""

from __future__ import annotations

import sys

from tests.compactor.histories.mutations import MUTATIONS
from tests.proving import prove

COMMAND = ("-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "tests/compactor/histories")


def main() -> int:
    """The number of faults that were not seen."""
    chosen = [one for one in MUTATIONS if all(word in one.name for word in sys.argv[1:])]
    unseen = prove(chosen, COMMAND)
    print(f"{len(chosen) - len(unseen)} of {len(chosen)} seen")
    return len(unseen)


if __name__ == "__main__":
    sys.exit(main())
