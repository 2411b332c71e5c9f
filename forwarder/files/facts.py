"""What records say of the file that they are from, as `include_file_*` ask for."""

from __future__ import annotations

import grp
import os
import pwd
from collections.abc import Callable
from contextlib import suppress

from forwarder.config.source import Source
from forwarder.model import FileFacts

NAME = "log.file.name"
PATH = "log.file.path"
NAME_RESOLVED = "log.file.name_resolved"
PATH_RESOLVED = "log.file.path_resolved"
OWNER = "log.file.owner.name"
GROUP = "log.file.owner.group.name"
PERMISSIONS = "log.file.permissions"


def facts_of(source: Source) -> Callable[[str], FileFacts]:
    """A function that gives the facts of the file at a path; what nobody knows is left out."""

    def facts(path: str) -> FileFacts:
        attributes: dict[str, str] = {}
        if source.include_file_name:
            attributes[NAME] = os.path.basename(path)
        if source.include_file_path:
            attributes[PATH] = path
        if source.include_file_name_resolved or source.include_file_path_resolved:
            resolved = os.path.realpath(path)
            if source.include_file_name_resolved:
                attributes[NAME_RESOLVED] = os.path.basename(resolved)
            if source.include_file_path_resolved:
                attributes[PATH_RESOLVED] = resolved
        with suppress(OSError):  # it is gone: its content may still be read
            attributes.update(_of_inode(source, path))
        return FileFacts(path, attributes)

    return facts


def _of_inode(source: Source, path: str) -> dict[str, str]:
    attributes: dict[str, str] = {}
    wanted = (
        source.include_file_owner_name,
        source.include_file_owner_group_name,
        source.include_file_permissions,
    )
    if not any(wanted):
        return attributes
    found = os.stat(path)
    owner, group, permissions = wanted
    with suppress(KeyError):  # a number without a name
        if owner:
            attributes[OWNER] = pwd.getpwuid(found.st_uid).pw_name
    with suppress(KeyError):
        if group:
            attributes[GROUP] = grp.getgrgid(found.st_gid).gr_name
    if permissions:
        attributes[PERMISSIONS] = f"{found.st_mode & 0o7777:03o}"
    return attributes
