"""What the node asks of its process: descriptors that suffice.

A process that has used up its descriptors can neither write a journal file nor reach the
store. So the limit is raised at the start as far as the system lets it, and connections
get only a part of it: the rest is for the journal, the store and searches.
"""

from __future__ import annotations

import resource

from logstore.descriptors import ENOUGH, open_files

_MOST_KEPT = 1024


def raise_limit() -> int:
    """Raises the process's limit of open files, and gives it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = ENOUGH if hard == resource.RLIM_INFINITY else min(hard, ENOUGH)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return open_files()


def for_connections(files: int) -> int:
    """How many of `files` connections may have: all but half, or but 1,024 if half is more."""
    return max(1, files - min(files // 2, _MOST_KEPT))
