"""Whose files are whose: logs are not for every user of the machine.

The umask of a program that writes to a store is a setting, and not what a shell or an init
system happens to have. What is a node's alone (the journal with its secret) is opened by a
`Disk` that gives nobody else any rights, whatever the umask is; a folder of an older version
is closed at the start.
"""

from __future__ import annotations

import logging
import os
from contextlib import suppress

log = logging.getLogger(__name__)


def apply_umask(umask: str) -> None:
    """For all files that this process and its children make from now on; octal."""
    os.umask(int(umask, 8))


def close_to_others(folder: str) -> None:
    """Only the owner may look into the folder from now on; nothing is done if there is none."""
    with suppress(FileNotFoundError):
        try:
            os.chmod(folder, 0o700)
        except PermissionError:
            log.warning("%s belongs to another user: others may be able to read it", folder)
