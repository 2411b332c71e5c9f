"""How the compactor runs: on which Spark, and when it starts before its time.

Shared by the compactor and the service that starts one beside itself.
"""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field

from logstore.settings import Bytes

_MIB = 1 << 20


class RunningSettings(BaseModel):
    """Where Spark runs its tasks, and how much may wait for the next pass."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    master: str = Field(
        default="",
        description="Spark's master, as `spark://host:7077`; empty: what spark-submit says, or "
        "`local[*, 4]`",
    )
    spark: dict[str, str] = Field(
        default={},
        description="More of Spark's configuration, as `spark.executor.memory: 4g`; in the "
        "environment as JSON. Flags of spark-submit win. No place for secrets: Spark shows it",
    )
    lag_bytes: Bytes = Field(
        default=256 * _MIB,
        description="With --every: a pass starts before its time when so many bytes of segments "
        "wait",
    )
    lag_segments: int = Field(
        default=1000, ge=1, description="The same, when so many segments wait"
    )
    lag_seconds: float | None = Field(
        default=None,
        ge=1,
        description="The same, when one of them has waited so long; null: however long it waits",
    )
    gather_seconds: float = Field(
        default=30,
        ge=0,
        description="With --every: what waits is left for a later pass while it is less than "
        "these limits and none of it has waited so long, so that small segments become one commit",
    )
    poll_seconds: float = Field(
        default=15, ge=1, description="With --every: how often it is looked at what waits"
    )
