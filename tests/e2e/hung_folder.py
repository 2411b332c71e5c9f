"""Tailrace on a machine where a folder hangs, as one on NFS does.

`python -m tests.e2e.hung_folder VERB …`. `HUNG_FOLDER` names the folder. As long as a file of its
name with `.hangs` is there, no call of the system to the folder returns. The program is the real
one.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any, Final

FOLDER: Final = "HUNG_FOLDER"
_CALLS: Final = ("open", "stat", "mkdir", "scandir", "listdir", "rename", "unlink", "statvfs")


def marker(folder: Path) -> Path:
    """The file that makes the folder hang."""
    return folder.with_name(f"{folder.name}.hangs")


def hang(folder: Path) -> None:
    """From here on this process waits for the folder."""
    root, hangs, stat = str(folder), str(marker(folder)), os.stat

    def is_hung() -> bool:
        try:
            stat(hangs)
        except FileNotFoundError:
            return False
        return True

    def waiting(call: Any) -> Any:
        def made(path: Any, *rest: Any, **options: Any) -> Any:
            while str(path).startswith(root) and str(path) != hangs and is_hung():
                time.sleep(0.02)
            return call(path, *rest, **options)

        return made

    for name in _CALLS:
        setattr(os, name, waiting(getattr(os, name)))


if __name__ == "__main__":
    from tailrace.cli.main import main

    hang(Path(os.environ[FOLDER]))
    sys.exit(main())
