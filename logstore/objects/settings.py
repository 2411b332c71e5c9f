"""Where durable things are: the settings that the service and the compactor share;
and how they are compacted, since both read that section of one file."""

from __future__ import annotations

import os
import re
from typing import Final, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from logstore.settings import PREFIX, Bytes

MIB = 1 << 20
# delta-rs takes a path for an address, and would read and write somewhere else.
_NOT_IN_A_FOLDER: Final = re.compile(r"[?#%\\\x00-\x1f\x7f]")


class StoreSettings(BaseSettings):
    """The data folder and the object store. Other keys of a shared file are left alone."""

    model_config = SettingsConfigDict(
        env_prefix=PREFIX, env_nested_delimiter="__", frozen=True, extra="ignore"
    )

    data: str = Field(
        default="data",
        min_length=1,
        description="Folder of the journal and, unless `store` is set, of the store",
    )
    store: str = Field(
        default="", description="Folder of the object store; empty: `store` in the data folder"
    )

    @field_validator("store")
    @classmethod
    def _is_a_folder(cls, value: str) -> str:
        if "://" in value:
            raise ValueError(
                "this version keeps its store in a folder; object storage is not supported"
            )
        return value

    @model_validator(mode="after")
    def _is_a_place_for_a_table(self) -> Self:
        found = _NOT_IN_A_FOLDER.search(self.store_folder)
        if found is not None:
            raise ValueError(
                f"the store's folder {self.store_folder!r} has {found[0]!r} in its name; a table"
                " cannot live there: choose a folder without ? # % \\ and control characters"
            )
        return self

    @property
    def store_folder(self) -> str:
        """The absolute path of the local store."""
        return os.path.abspath(self.store or os.path.join(self.data, "store"))


class CompactionSettings(BaseModel):
    """How much is compacted at once, and how long things are kept."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    grace_seconds: float = Field(
        default=3600,
        ge=0,
        description="Consumed segments are kept this long; longer than any query takes",
    )
    batch_bytes: Bytes = Field(
        default=256 * MIB, description="Segments that are taken into the table by one commit"
    )
    bucket_bytes: Bytes = Field(
        default=128 * MIB, description="Text that one Spark task sorts; about one table file"
    )
    gap_alarm_seconds: float = Field(
        default=600, ge=0, description="A missing segment is an alarm after this long"
    )
    driver_memory: str = Field(
        default="2g",
        pattern=r"^[0-9]+[mg]$",
        description="Heap of the Spark driver, unless spark-submit set one",
    )
    idle_seconds: float = Field(
        default=900, ge=0, description="With --every: Spark is stopped after so long without work"
    )
