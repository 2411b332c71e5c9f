"""`tailrace compact`: starts the compactor's program with the same flags."""

from __future__ import annotations

import argparse
import logging
import os
import sys
from typing import NoReturn

from compactor.cli import configure, words
from compactor.listeners import configure as configure_log
from service.compaction import job_path
from tailrace.logstore.java import install_command, why_no_spark

__all__ = ["configure", "run"]

log = logging.getLogger("tailrace.compactor")
_HINT = "Install a Java runtime of version 17 or newer, then run `{}`."


def run(arguments: argparse.Namespace) -> int:
    """Exits as the compactor does, also where Spark is needed and cannot run: with 3."""
    reason = None if arguments.dry_run else why_no_spark()
    if reason is None:
        _become(arguments)
    configure_log(arguments.log_format or "text", sys.stderr)
    log.error("compaction needs Spark: %s (%s)", reason, _HINT.format(install_command()))
    return 3


def _become(arguments: argparse.Namespace) -> NoReturn:
    command = [sys.executable, job_path(), *words(arguments)]
    # In this process's place: whoever stops it stops the compactor, and nobody in between.
    os.execv(command[0], command)  # noqa: S606 - of our own
