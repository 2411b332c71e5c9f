"""Entry of `spark-submit compactor/job.py --data ./data [--config FILE] [--every 5m]`.

Submitted as a file, it finds the packages in the parent of its folder; executors need none.
"""

from __future__ import annotations

import os
import sys

_HERE = os.path.dirname(os.path.abspath(__file__))

if __name__ == "__main__":
    # Its own folder has modules whose names could hide others, so it must not be searched.
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry or ".") != _HERE]
    sys.path.insert(0, os.path.dirname(_HERE))
    from compactor.cli import main

    sys.exit(main())
