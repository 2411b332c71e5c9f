"""`tailrace backup`: copies a store and a data folder into a folder of backups.

It runs beside services and compactors. Objects that the newest backup in the folder holds are not
read again. Exit status: 0 made, 1 made without objects that the store itself lacks, or an error.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from dataclasses import asdict

import orjson

from tailrace.cli.source_flags import add_source, load_source
from tailrace.cli.terminal import add_json, say, say_json
from tailrace.logstore.clock import SystemClock
from tailrace.logstore.progress import Line, ProgressLine


def configure(parser: argparse.ArgumentParser) -> None:
    """Into which folder, and what."""
    parser.add_argument(
        "folder", metavar="FOLDER", help="folder of backups; created if it does not exist"
    )
    add_source(parser)
    add_only(parser, "back up")
    parser.add_argument(
        "--keep",
        metavar="N",
        type=positive,
        help="afterwards, remove all backups in the folder except the newest N",
    )
    add_json(parser, "print one JSON object")


def add_only(parser: argparse.ArgumentParser, verb: str) -> None:
    """Adds the flag that leaves out one of the two."""
    parser.add_argument(
        "--only", choices=["data", "store"], help=f"{verb} the data folder or the store alone"
    )


def positive(text: str) -> int:
    """A whole number of at least 1."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of at least 1")
    return int(text)


def run(arguments: argparse.Namespace) -> int:
    """Makes a backup. Raises what `tailrace.backups.setup.back_up` raises."""
    from tailrace.backups.setup import BackupParts, back_up, open_folder

    settings, parts = (
        load_source(arguments),
        BackupParts(data=arguments.only != "store", store=arguments.only != "data"),
    )
    copied = 0

    def count(size: int) -> None:
        nonlocal copied
        copied += size

    with ProgressLine(
        Line(sys.stderr),
        lambda: f"copied: {copied} bytes",
        SystemClock(),
        say=lambda text: say(text, sys.stderr),
    ):
        backup, new = asyncio.run(back_up(settings, arguments.folder, parts, count))
    removed = 0
    if arguments.keep is not None:
        folder = open_folder(arguments.folder)
        with folder.held():
            removed = folder.remove_older(arguments.keep)
    if arguments.json:
        whole = {name: value for name, value in asdict(backup).items() if name != "entries"}
        counts = {"objects": len(backup.entries), "bytes": backup.bytes, "new_bytes": new}
        say_json(orjson.dumps({**whole, **counts, "removed": removed}).decode(), sys.stdout)
    else:
        say(
            f"backup {backup.id}: {len(backup.entries)} objects and files, {backup.bytes} bytes,"
            f" {new} of them new in the folder"
        )
        if removed:
            say(f"removed: {removed} older backups")
        for node in backup.registered:
            if node not in backup.nodes and parts.data:
                say(
                    f"note: the journal of {node} is not in the backup: it is on the node's own "
                    f"machine",
                    sys.stderr,
                )
    for key in backup.absent:
        say(f"warning: the store itself lacks {key}; see `tailrace verify`", sys.stderr)
    return 1 if backup.absent else 0
