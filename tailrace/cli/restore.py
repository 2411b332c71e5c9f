"""`tailrace restore`: copies a backup back into an empty store and an empty data folder.

It reads all of the backup first, and refuses one that is cut or damaged. No service and no
compactor may run on the target.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from tailrace.cli.backup import add_only
from tailrace.cli.source_flags import add_source, load_source
from tailrace.cli.terminal import say
from tailrace.logstore.filesystem import apply_umask

if TYPE_CHECKING:
    from tailrace.backups.repository import Backup


def configure(parser: argparse.ArgumentParser) -> None:
    """Which backup, and where to."""
    parser.add_argument("folder", metavar="FOLDER", help="folder that `tailrace backup` wrote to")
    add_source(parser)
    add_only(parser, "restore")
    parser.add_argument("--backup", metavar="ID", help="id of the backup (default: the newest)")
    parser.add_argument(
        "--replace",
        action="store_true",
        help="first delete the contents of the store and the data folder",
    )
    instead = parser.add_mutually_exclusive_group()
    instead.add_argument("--list", action="store_true", help="list the backups, restore nothing")
    instead.add_argument(
        "--check", action="store_true", help="compare all checksums, restore nothing"
    )


def run(arguments: argparse.Namespace) -> int:
    """Restores a backup. Raises what `tailrace.backups.setup.restore` raises."""
    from tailrace.backups.setup import BackupParts, open_folder, restore

    folder = open_folder(arguments.folder)
    if arguments.list:
        for known in folder.ids():
            say(_described(folder.read(known)))
        return 0
    if arguments.check:
        backup = folder.chosen(arguments.backup)
        asyncio.run(folder.check(backup.entries))
        say(f"whole: {_described(backup)}")
        return 0
    settings = load_source(arguments)
    apply_umask(settings.umask)
    parts = BackupParts(data=arguments.only != "store", store=arguments.only != "data")
    work = restore(
        settings, arguments.folder, arguments.backup, parts, replace_all=arguments.replace
    )
    backup, nodes = asyncio.run(work)
    say(f"restored: {_described(backup)}")
    for node in nodes:
        say(f"the data folder now belongs to the node {node}")
    for key in backup.absent:
        say(f"warning: the store lacked {key} when the backup was made", sys.stderr)
    say(
        "now run `tailrace verify` with the same flags, then start the service"
        " (docs/operate/backup.md)"
    )
    return 0


def _described(backup: Backup) -> str:
    at = datetime.fromtimestamp(backup.created_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%SZ")
    of = ", ".join(backup.nodes) or "no data folder"
    return (
        f"backup {backup.id} of {at}: {len(backup.entries)} objects and files, {backup.bytes}"
        f" bytes, of {backup.store} and {of}"
    )
