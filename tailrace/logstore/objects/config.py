"""Settings that the service and the compactor share, and `open_store`, which opens the store.

They cover the object store, compaction, retention of the queue, and defaults of pipelines. The
section of the compactor's run is in this module too: on which Spark it runs, and when it starts
ahead of schedule. The service needs that section to start a compactor as a child process.
"""

from __future__ import annotations

import os
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final, Literal, NamedTuple, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from tailrace.logstore.clock import Clock, Entropy
from tailrace.logstore.filesystem import FileSystem
from tailrace.logstore.objects.local import LocalStore
from tailrace.logstore.objects.s3.keys import BucketPlace
from tailrace.logstore.objects.s3.settings import S3Settings
from tailrace.logstore.objects.store import ObjectStore
from tailrace.logstore.runs.deletions import Days
from tailrace.logstore.settings import MIB, PREFIX, Bytes, BytesOrZero


class RunningSettings(BaseModel):
    """Where Spark runs its tasks, and how much may wait for the next pass."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    master: str = Field(
        default="",
        description="Spark's master, such as `spark://host:7077`; empty: the master of "
        "spark-submit, else `local[*, 4]`",
    )
    spark: dict[str, str] = Field(
        default={},
        description="Further Spark configuration, such as `spark.executor.memory: 4g`; in the "
        "environment as JSON. Flags of spark-submit take precedence. Do not put"
        " secrets here: Spark shows them",
    )
    lag_bytes: Bytes = Field(
        default=256 * MIB,
        description="With --every: start a pass early when this many bytes of segments wait",
    )
    lag_segments: int = Field(
        default=1000,
        ge=1,
        description="With --every: start a pass early when this many segments wait",
    )
    lag_seconds: float | None = Field(
        default=None,
        ge=1,
        description="With --every: start a pass early when a segment has waited this long; null: "
        "never",
    )
    gather_seconds: float = Field(
        default=30,
        ge=0,
        description="With --every: segments below these limits are left for a later pass"
        " until one of them has waited this long, so that small segments become"
        " one commit",
    )
    poll_seconds: float = Field(
        default=15, ge=1, description="With --every: how often the compactor checks what waits"
    )


# delta-rs takes a path for an address, and would read and write somewhere else.
_NOT_IN_A_FOLDER: Final = re.compile(r"[?#%\\\x00-\x1f\x7f]")
_S3: Final = re.compile(r"s3a?://([a-z0-9][a-z0-9.-]{1,61}[a-z0-9])(?:/+(.*?))?/*", re.DOTALL)


class Bucket(NamedTuple):
    """A store's place on S3; `prefix` is empty or has no slash at its ends."""

    name: str
    prefix: str

    @property
    def uri(self) -> str:
        """The place as an address."""
        return f"s3://{self.name}/{self.prefix}".rstrip("/")


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
        default="",
        description=(
            "The object store: a folder, or `s3://bucket/prefix`; empty: `store` in the data folder"
        ),
    )
    umask: str = Field(
        default="077",
        pattern=r"^0?[0-7]{3}$",
        description="Umask for files of a store in a folder, in quotes: `027` lets the group "
        "read them, `007` also write. Only the owner can read the journal",
    )
    s3: S3Settings = S3Settings()

    @field_validator("store")
    @classmethod
    def _is_a_place(cls, value: str) -> str:
        if "://" in value:
            _parse_bucket(value)
        return value

    @model_validator(mode="after")
    def _is_a_place_for_a_table(self) -> Self:
        place = "prefix" if self.bucket is not None else "folder"
        name = self.store_folder if self.bucket is None else self.bucket.prefix
        found = _NOT_IN_A_FOLDER.search(name)
        if found is not None:
            raise ValueError(
                f"the store's {place} {name!r} has {found[0]!r} in its name; a table"
                f" cannot live there: choose a {place} without ? # % \\ and control characters"
            )
        return self

    @property
    def bucket(self) -> Bucket | None:
        """The place of the store on S3; None if it is a folder."""
        return _parse_bucket(self.store) if "://" in self.store else None

    @property
    def store_folder(self) -> str:
        """The absolute path of the local store; there is one only if `bucket` is None."""
        return os.path.abspath(self.store or os.path.join(self.data, "store"))

    @property
    def store_place(self) -> str:
        """The store for people and for other programs: an absolute path or an `s3://` address."""
        return self.store_folder if self.bucket is None else self.bucket.uri


def _parse_bucket(store: str) -> Bucket:
    found = _S3.fullmatch(store)
    if found is None:
        raise ValueError("should be a folder, or s3://bucket/prefix with a valid bucket name")
    prefix = found[2] or ""
    if any(part in ("", ".", "..") for part in prefix.split("/")) and prefix:
        raise ValueError("the prefix has no empty part, no . and no .. between its slashes")
    return Bucket(found[1], prefix)


class CompactionSettings(RunningSettings):
    """The limits of a compaction, and how long data is kept.

    The service's part is in the same class (`enabled`, `every_seconds`), so that a compactor that
    runs elsewhere, and reads the same file, refuses unknown keys.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    grace_seconds: float = Field(
        default=3600,
        ge=0,
        le=86_400,
        description="How long consumed segments are kept; choose more than the longest search "
        "takes",
    )
    retention_days: Days | None = Field(
        default=None,
        description="Retention of the table: an hour is removed this many days after its end, or "
        "hours, as `12h`; 0: never; null: the longest of `runs.expiration_days` and "
        "`runs.expiration_days_of`",
    )
    retention_bytes: Bytes | None = Field(
        default=None,
        description="The table's oldest hours, but never the newest, are removed while its files "
        "have more than this in total; null: no limit",
    )
    purge_seconds: float = Field(
        default=3600,
        ge=0,
        description="Deleted lines are removed from the table after this long by rewriting its "
        "files; sooner if the files have at most `compaction.purge_bytes` in total",
    )
    purge_bytes: Bytes = Field(
        default=128 * MIB,
        description="Bytes of files that one pass rewrites for deletions younger than"
        " `compaction.purge_seconds`",
    )
    away_days: float = Field(
        default=30,
        ge=0,
        description="The longest time that a node may be down: deletions are remembered this"
        " long beyond the retention. A node refuses a journal with older lines that"
        " are in no segment",
    )
    batch_bytes: Bytes = Field(
        default=256 * MIB, description="Bytes of segments that one commit ingests"
    )
    bucket_bytes: Bytes = Field(
        default=128 * MIB,
        description="Bytes of text that one Spark task sorts, which become about one table file",
    )
    file_bytes: Bytes = Field(
        default=128 * MIB,
        description="Target size of Parquet files when a finished hour is rewritten",
    )
    index_min_bytes: Bytes | None = Field(
        default=MIB,
        description="Table files of at least this size get a skip index, which lets a search "
        "skip parts that cannot match; null: no file gets one",
    )
    settle_seconds: float = Field(
        default=900,
        ge=0,
        description="An hour is finished this long after its end: until then, late lines are "
        "expected",
    )
    gap_alarm_seconds: float = Field(
        default=600, ge=0, description="A missing segment becomes an alarm after this long"
    )
    driver_memory: str = Field(
        default="2g",
        pattern=r"^[0-9]+[mg]$",
        description="Heap of the Spark driver, unless spark-submit set one",
    )
    frozen_seconds: float = Field(
        default=300,
        ge=1,
        description="Spark's JVM is killed, and started again in the next pass, if it uses no "
        "processor time for this long while a pass waits for it",
    )
    jars: str = Field(
        default="",
        description="Folder of the jars that Spark needs for S3; empty: Spark downloads them",
    )
    lease_seconds: float = Field(
        default=600,
        ge=15,
        description="A compactor that gives no sign for this long loses its nodes to others; a "
        "restart on the same data folder takes them back at once",
    )
    idle_seconds: float = Field(
        default=900, ge=0, description="With --every: Spark is stopped after this long without work"
    )
    metrics_file: str = Field(
        default="compactor.prom",
        description="File with the compactor's metrics in Prometheus' text format, written"
        " every ten seconds of a pass and at its end; the service's `/metrics`"
        " shows them too. A relative path is in the data folder, if there is one;"
        " empty: none",
    )
    push_gateway: str = Field(
        default="",
        pattern=r"^(https?://.+)?$",
        description="Address of a Prometheus push gateway that receives the compactor's metrics, "
        "such as `http://host:9091`; empty: none",
    )
    log_format: Literal["text", "json"] = Field(
        default="text",
        description="Format of the compactor's log: text, or one JSON object per line",
    )
    enabled: bool = Field(default=True, description="Compact on a schedule, if Java is installed")
    every_seconds: float = Field(
        default=300, ge=1, description="Time from the end of a compaction to the next"
    )


class SegmentRetention(BaseModel):
    """How much of the store may be kept for log pipelines."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    max_bytes: Bytes = Field(
        default=100 << 30,
        description="Bytes of segments that are kept only for one log pipeline, unless its file"
        " has `segments_max_bytes`. A pipeline that needs more is evicted, and stops"
        " until an operator decides where it continues",
    )


class PipelineDefaults(BaseModel):
    """Defaults of a pipeline; the same key in the pipeline's own file overrides each."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    start: Literal["oldest", "now"] = Field(
        default="oldest",
        description="Where a new pipeline begins: at the oldest segment that is kept, or at the "
        "next one",
    )
    parts: int = Field(
        default=1,
        ge=1,
        le=1024,
        description="Number of processes that can share an appender's work, divided by the names "
        "of the logged pipelines",
    )
    event_delay_ms: int = Field(
        default=2000,
        ge=0,
        description="How long an event waits for earlier ones, measured by the newest events of "
        "the nodes",
    )
    idle_node_ms: int = Field(
        default=30_000,
        ge=0,
        description="The appender does not wait for a node that has sent nothing for this long",
    )
    buffer_size_bytes: BytesOrZero = Field(
        default=0,
        description="Bytes of waiting events of an appender; beyond it, the oldest half is sent "
        "at once. 0: a share of `pipelines.memory_bytes`, the limit for all "
        "appenders together",
    )
    checkpoint_interval_ms: int = Field(
        default=10_000, ge=1, description="How often a checkpoint is saved"
    )
    retry_ms: int = Field(
        default=1000,
        ge=1,
        description="First pause after a failure of an appender; doubled with each further failure",
    )
    most_retry_ms: int = Field(default=60_000, ge=1, description="The longest of these pauses")
    dead_letter_dir: str = Field(
        default="",
        description="Folder of dead-letter files, for events of disabled appenders and for "
        "refused events; empty: events of disabled appenders wait, and refused "
        "events are kept in the store",
    )
    error_threshold: int = Field(
        default=0,
        ge=0,
        description="Consecutive failures after which an appender is disabled, if "
        "`dead_letter_dir` is set; 0: it is retried for ever",
    )


class PipelineSettings(BaseModel):
    """How processes of `tailrace pipelines` share their work."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    lease_seconds: float = Field(
        default=60,
        ge=10,
        description="Appenders of a dead process are taken over after this long",
    )
    poll_seconds: float = Field(
        default=5, gt=0, description="How often a process looks for appenders without an owner"
    )
    stop_seconds: float = Field(
        default=30,
        gt=0,
        description="How long a stopping process waits for its appenders; events that a hanging "
        "appender has not saved are sent again",
    )
    memory_bytes: BytesOrZero = Field(
        default=512 << 20,
        description="Memory of a process; 0: the memory of its container or machine",
    )
    prefetch_bytes: BytesOrZero = Field(
        default=8 << 20,
        description="Bytes of segments that a process fetches before its appenders ask for them; "
        "0: none. A pipeline's own `prefetch_bytes` comes on top",
    )
    auto_buffer_ratio: float = Field(
        default=0.7,
        gt=0,
        lt=1,
        description="Share of `memory_bytes`, less 224 MiB for code and decoded segments, for "
        "waiting events. Appenders without their own limit get equal parts; if the "
        "limits exceed it, the largest are cut",
    )
    source_url: str = Field(
        default="",
        description="Read segments from the service at this URL, and keep checkpoints in the "
        "processes' own store; empty: read from the store. See docs/use/pipelines.md",
    )
    source_token_file: str = Field(
        default="",
        description="File with the token for `source_url`, with the scope consume; it may be"
        " replaced at any time",
    )
    source_ca_file: str = Field(
        default="",
        description="Trusted certificates (PEM) for `source_url`, instead of the machine's",
    )
    defaults: PipelineDefaults = PipelineDefaults()
    metrics_listen: str = Field(
        default="",
        description="host:port at which a process of pipelines answers /metrics, /health/live "
        "and /health/ready, such as 127.0.0.1:8792; empty: none",
    )


class QueueRetention(BaseModel):
    """How long a consumer group of the segment queue may hold back the deletion of segments."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    evict_after_hours: float = Field(
        default=24.0,
        gt=0,
        description="A consumer group that is the only one to need a segment for this long is "
        "evicted; a failed segment that is not retried for this long is given up",
    )


# Opens the object store that the settings name: a folder, or a place on S3.


_OPEN_SECONDS = 1.0


@asynccontextmanager
async def open_store(
    settings: StoreSettings, clock: Clock, entropy: Entropy, fs: FileSystem
) -> AsyncIterator[ObjectStore]:
    """The store while the block runs, in the loop that runs the block.

    Sends nothing to the server, so it opens while the server is unreachable; a folder that hangs
    takes a second. Raises `InvalidInput` for invalid settings, `StoreUnavailable` for a folder that
    cannot be made.
    """
    if settings.bucket is None:
        folder = LocalStore(settings.store_folder, fs, clock, entropy, made=False)
        await folder.open(_OPEN_SECONDS)
        yield folder
        return
    from tailrace.logstore.objects.s3.store import open_s3

    place = BucketPlace(settings.bucket.name, settings.bucket.prefix)
    async with open_s3(settings.s3, place, clock, entropy) as store:
        yield store
