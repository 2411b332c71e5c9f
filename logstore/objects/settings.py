"""Where durable things are: the settings that the service and the compactor share."""

from __future__ import annotations

import os

from pydantic import Field, field_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from logstore.settings import PREFIX


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

    @property
    def store_folder(self) -> str:
        """The absolute path of the local store."""
        return os.path.abspath(self.store or os.path.join(self.data, "store"))
