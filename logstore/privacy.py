"""File permissions: logs are not readable for every user of the machine.

The umask of a program that writes to a store is a setting, so that it does not depend on a shell
or an init system. Files that belong to a node alone (the journal with its secret) are opened by a
`Disk` that gives other users no rights, whatever the umask is. At the start, the rights are also
removed from a folder of an older version.
"""

from __future__ import annotations

import logging
import os
from contextlib import suppress

log = logging.getLogger(__name__)


def apply_umask(umask: str) -> None:
    """Sets the umask (octal) for all files that this process and its children make from now on."""
    os.umask(int(umask, 8))


def close_to_others(folder: str) -> None:
    """Lets only the owner look into the folder from now on; does nothing if it does not exist."""
    with suppress(FileNotFoundError):
        try:
            os.chmod(folder, 0o700)
        except PermissionError:
            log.warning("%s belongs to another user: others may be able to read it", folder)
