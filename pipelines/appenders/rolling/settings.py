"""The keys of rolling files."""

from __future__ import annotations

import os
from typing import Final, Literal, Self

from pydantic import field_validator, model_validator

from pipelines.appenders.rolling.access import AccessSettings
from pipelines.appenders.rolling.paths import PathTemplate
from pipelines.appenders.rolling.rolled import RolledSettings
from pipelines.definition.section import Bytes, Seconds, key
from pipelines.layouts import Layout, default_layout

_MIB: Final = 1 << 20


class RollingFileSettings(RolledSettings, AccessSettings):
    """Where the files are, and when they are rolled."""

    dir: str = key(..., "the folder below which all files are")
    path: str = key("{fqn}.log", "the file of an event, below `dir`")
    layout: Layout = key(default_layout(), "how an event becomes a line")
    max_file_size: Bytes = key(100 * _MIB, "a file is rolled before it is larger")
    roll_every: Seconds = key(
        0.0, "files are rolled when such a period of UTC is over, as 1h or 1d; 0: never"
    )
    roll_idle: Seconds = key(
        0.0, "a file that nothing was written to for so long is rolled; 0: never"
    )
    idle_close: Seconds = key(1800.0, "a file that nothing was written to for so long is closed")
    max_open_files: int = key(
        200, "files that are open at once, and at most a quarter of `ulimit -n`", ge=1
    )
    on_delete: Literal["keep", "remove"] = key(
        "keep", "what becomes of the files of a run that is deleted"
    )

    @property
    def output(self) -> str:
        """The template of all files."""
        return os.path.join(os.path.abspath(self.dir), self.path)

    @field_validator("path")
    @classmethod
    def _is_template(cls, value: str) -> str:
        PathTemplate(value)
        return value

    @model_validator(mode="after")
    def _can_remove(self) -> Self:
        if self.on_delete == "remove" and PathTemplate(self.path).run_folders is None:
            raise ValueError(
                "on_delete: remove needs {fqn} and {run} as folders in the path, such as"
                " {fqn}/{run}/log.txt: a file of several runs cannot be removed for one"
            )
        return self
