"""`tailrace compact`: starts the compactor's program with the same flags."""

from __future__ import annotations

import argparse
import os
import sys

from logstore.errors import Unavailable
from service.compaction import job_path
from service.java import why_no_spark


def configure(parser: argparse.ArgumentParser) -> None:
    """The flags of `compactor/job.py`."""
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--data", metavar="DIR", help="data folder (default: ./data)")
    where.add_argument("--config", metavar="FILE", help="settings file (default: ./tailrace.yaml)")
    parser.add_argument(
        "--every", metavar="TIME", help="keep compacting with this pause, as in 5m (default: once)"
    )


def run(arguments: argparse.Namespace) -> int:
    """Exits as the compactor does. Raises `Unavailable` where Spark cannot run."""
    reason = why_no_spark()
    if reason is not None:
        raise Unavailable(
            f"compaction needs Spark: {reason}",
            hint="Install a Java runtime of version 17 or newer, then run `make setup`.",
        )
    command = [sys.executable, job_path()]
    for flag in ("data", "config", "every"):
        value = getattr(arguments, flag)
        if value is not None:
            command += [f"--{flag}", value]
    # In this process's place: whoever stops it stops the compactor, and nobody in between.
    os.execv(command[0], command)  # noqa: S606 - of our own
