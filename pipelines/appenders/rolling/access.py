"""Who may read an appender's files: permissions, owner and group, where a pipeline's file says so.

Files are made for their owner alone and opened to others afterwards, so nobody reads them too
early. Only root gives files to another user; others may name a group that they are in.
"""

from __future__ import annotations

import grp
import os
import pwd
from dataclasses import dataclass
from typing import Annotated, Self

from pydantic import Field

from pipelines.appenders.contract import AppenderFailed
from pipelines.definition.section import Section, key

Octal = Annotated[str, Field(pattern=r"^0?[0-7]{3}$")]
_UNCHANGED = -1


class AccessSettings(Section):
    """Permissions, owner and group of files."""

    file_permissions: Octal = key("600", "of files, in octal and in quotes")
    dir_permissions: Octal = key("700", "of folders, in octal and in quotes")
    owner: str = key("", "user that files and folders are given to, by name or number")
    group: str = key("", "group that files and folders are given to, by name or number")


@dataclass(frozen=True, slots=True)
class Access:
    """Gives files and folders what the settings say."""

    file_mode: int | None
    folder_mode: int | None
    owner: int
    group: int

    @classmethod
    def of(cls, settings: AccessSettings) -> Self:
        """Finds owner and group. Raises `AppenderFailed` for one that this machine has not."""
        files, folders = int(settings.file_permissions, 8), int(settings.dir_permissions, 8)
        return cls(
            None if files == 0o600 else files,
            None if folders == 0o700 else folders,
            _number(settings.owner, "user"),
            _number(settings.group, "group"),
        )

    def file(self, path: str) -> None:
        """Applies to a file. Raises `AppenderFailed`, `OSError`."""
        self._apply(path, self.file_mode)

    def folder(self, path: str) -> None:
        """Applies to a folder. Raises `AppenderFailed`, `OSError`."""
        self._apply(path, self.folder_mode)

    def _apply(self, path: str, mode: int | None) -> None:
        if (self.owner, self.group) != (_UNCHANGED, _UNCHANGED):
            try:
                os.chown(path, self.owner, self.group)
            except PermissionError as error:
                raise AppenderFailed(
                    f"{path} cannot be given away: {error.strerror}",
                    hint="Only root gives files to another owner. A group must be one of the user"
                    " that runs the pipelines.",
                ) from error
        if mode is not None:
            os.chmod(path, mode)


def _number(name: str, kind: str) -> int:
    if not name:
        return _UNCHANGED
    if name.isdigit():
        return int(name)
    try:
        return pwd.getpwnam(name).pw_uid if kind == "user" else grp.getgrnam(name).gr_gid
    except KeyError:
        raise AppenderFailed(
            f"this machine has no {kind} {name!r}", hint="Name one that it has, or a number."
        ) from None
