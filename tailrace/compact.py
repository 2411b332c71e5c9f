"""`tailrace compact`: starts the compactor's program with the same flags."""

from __future__ import annotations

import argparse
import os
import sys

from compactor.flags import configure, words
from logstore.errors import Unavailable
from service.compaction import job_path
from service.java import why_no_spark

__all__ = ["configure", "run"]


def run(arguments: argparse.Namespace) -> int:
    """Exits as the compactor does. Raises `Unavailable` where Spark is needed and cannot run."""
    reason = None if arguments.dry_run else why_no_spark()
    if reason is not None:
        raise Unavailable(
            f"compaction needs Spark: {reason}",
            hint="Install a Java runtime of version 17 or newer, then run `make setup`.",
        )
    command = [sys.executable, job_path(), *words(arguments)]
    # In this process's place: whoever stops it stops the compactor, and nobody in between.
    os.execv(command[0], command)  # noqa: S606 - of our own
