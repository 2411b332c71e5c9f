"""Settings of the store of partitions, as in Data Prepper's files, and limits of coordinators.

    source_coordination:
      partition_prefix: "blue"
      store:
        dynamodb:
          table_name: "coordination"
          region: "us-east-1"
          ttl: "P7D"

`store` names one store: `in_memory`, `object_store` or `dynamodb`. Without it, partitions are in
the object store of all other data. Data Prepper has constants instead of the limits
(`CoordinatorLimits`).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated, Any, Final, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from tailrace.coordination.partitions import AGEING_MS
from tailrace.logstore.retry import doubled

# Limits of a coordinator, each with its unit in its name.


@dataclass(frozen=True, slots=True)
class CoordinatorLimits:
    """The limits of a coordinator; the length of leases is the one that Data Prepper has."""

    lease_seconds: float = 600.0
    """How long a lease lasts without renewal; its owner renews it three times as often."""
    max_attempts: int = 10
    """A partition that was acquired this often without progress becomes FAILED; 0 is never."""
    retry_seconds: float = 1.0
    """The first pause of a partition that failed; it doubles with each attempt."""
    max_retry_seconds: float = 600.0
    """The longest such pause."""
    ageing_ms: int = AGEING_MS
    """The waiting time that equals one step of priority."""
    supplier_seconds: float = 300.0
    """How often the supplier is asked for new partitions while work exists."""
    supplier_pause_seconds: float = 5.0
    """The shortest pause between two calls of the supplier, over all nodes."""
    supplier_batch: int = 50_000
    """New partitions that are created at a time and held in memory, about 15 MB. Each batch may
    rewrite every shard of an object store, so many small ones cost far more than they save."""
    supplier_batch_seconds: float = 5.0
    """New partitions of a slow supplier are created after this long, however few there are."""
    worker_seconds: float = 60.0
    """A worker without a sign for this long no longer counts in the fair share of the others."""
    rotate_seconds: float = 600.0
    """A partition that is held this long is requested back while other workers wait."""
    poll_seconds: float = 5.0
    """How often a caller that waits for the end of all work checks."""

    @property
    def lease_ms(self) -> int:
        """`lease_seconds` in milliseconds."""
        return round(self.lease_seconds * 1000)

    def retry_ms(self, attempts: int, dice: float) -> int:
        """The pause in ms before attempt `attempts` + 1; `dice`, from 0 to 1, scales half of it."""
        pause = doubled(self.retry_seconds, attempts - 1, self.max_retry_seconds)
        return round(pause * 1000 * (1 + dice) / 2)


_LIMITS: Final = CoordinatorLimits()
_ISO: Final = re.compile(
    r"P(?:(?P<d>[0-9]+)D)?(?:T(?:(?P<h>[0-9]+)H)?(?:(?P<m>[0-9]+)M)?(?:(?P<s>[0-9]+)S)?)?"
)
_SHORT: Final = re.compile(r"(?P<number>[0-9]+)(?P<unit>ms|[smhd])")
_UNITS_MS: Final = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_TTL: Final = (
    "COMPLETED partitions are removed this long after their last change, as"
    " `7d` or `P7D`; empty: only `tailrace leases purge` removes them"
)


def milliseconds(text: str) -> int:
    """Milliseconds of a duration: `500ms`, `90s`, `7d`, `P7D`, `PT12H`. Raises `ValueError`."""
    short = _SHORT.fullmatch(text)
    if short:
        return int(short["number"]) * _UNITS_MS[short["unit"]]
    iso = _ISO.fullmatch(text)
    if iso is None or not any(iso.groupdict().values()) or text.endswith("T"):
        raise ValueError("should be a duration like 7d, 12h, P7D or PT12H")
    return sum(int(count) * _UNITS_MS[unit] for unit, count in iso.groupdict().items() if count)


def _duration(text: str) -> str:
    if text and milliseconds(text) < 1000:
        raise ValueError("should be one second at least")
    return text


Duration = Annotated[str, AfterValidator(_duration)]


class _CoordinationSection(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class _DurableStore(_CoordinationSection):
    """A store whose partitions outlive the process."""

    ttl: Duration = Field(default="", description=_TTL)

    @property
    def ttl_ms(self) -> int | None:
        """The TTL in milliseconds; with None COMPLETED partitions stay."""
        return milliseconds(self.ttl) if self.ttl else None


class InMemorySettings(_CoordinationSection):
    """Partitions in the memory of one process, lost when it ends."""

    enabled: bool = Field(
        default=False,
        description="Keep partitions in the memory of one process; the key `in_memory:` is enough",
    )


class ObjectStoreSettings(_DurableStore):
    """Partitions in the object store of all other data."""

    shards: int = Field(
        default=64,
        ge=1,
        le=4096,
        description="Number of objects for the partitions of a new source: several times the"
        " number of workers, and one for each 5,000 partitions; existing sources"
        " keep theirs",
    )


class DynamoDbSettings(_DurableStore):
    """A table of DynamoDB; the names are Data Prepper's."""

    table_name: str = Field(
        default="",
        pattern=r"^([A-Za-z0-9_.-]{3,255})?$",
        description="DynamoDB table for partitions",
    )
    region: str = Field(
        default="", pattern=r"^[A-Za-z0-9-]*$", description="Region of the table; required with it"
    )
    sts_role_arn: str = Field(
        default="", description="Role to assume with these credentials; it is renewed in time"
    )
    sts_external_id: str = Field(default="", description="External id that the role requires")
    skip_table_creation: bool = Field(
        default=False,
        description="Do not create the table: the start checks the existing one "
        "and reports missing parts",
    )
    provisioned_read_capacity_units: int = Field(
        default=10, ge=1, description="Capacity of a new table, and of its index"
    )
    provisioned_write_capacity_units: int = Field(
        default=10, ge=1, description="Capacity of a new table, and of its index"
    )
    endpoint_url: str = Field(
        default="",
        pattern=r"^(https?://[^/?#]+/?)?$",
        description="Address of a DynamoDB-compatible server; empty: AWS",
    )

    @model_validator(mode="after")
    def _goes_together(self) -> Self:
        if bool(self.table_name) != bool(self.region):
            raise ValueError("a dynamodb store needs table_name and region")
        if not self.table_name and self != DynamoDbSettings.model_construct():
            raise ValueError("a dynamodb store needs table_name and region")
        if self.sts_external_id and not self.sts_role_arn:
            raise ValueError("sts_external_id needs sts_role_arn")
        return self


class StoreChoice(_CoordinationSection):
    """One of the stores."""

    in_memory: InMemorySettings = InMemorySettings()
    object_store: ObjectStoreSettings = ObjectStoreSettings()
    dynamodb: DynamoDbSettings = DynamoDbSettings()

    @model_validator(mode="before")
    @classmethod
    def _one_is_named(cls, given: Any) -> Any:
        """Accepts `in_memory:` without a value, as in Data Prepper's files."""
        if not isinstance(given, dict):
            return given
        found = {name: {} if value is None else value for name, value in given.items()}
        memory = found.get("in_memory")
        if isinstance(memory, dict):
            found["in_memory"] = {"enabled": True, **memory}
            memory = found["in_memory"]["enabled"] not in (False, "false", "0")
        named = [name for name in found if name != "in_memory" or memory]
        if len(named) > 1:
            raise ValueError(f"give one store, not {' and '.join(sorted(named))}")
        if found.get("dynamodb") == {}:
            raise ValueError("a dynamodb store needs table_name and region")
        return found


class SourceCoordination(_CoordinationSection):
    """The store of partitions, and the names of the sources in it."""

    partition_prefix: str = Field(
        default="",
        max_length=200,
        pattern=r"^[^|]*$",
        description="Prefix of each source's name, for clusters that share a store",
    )
    store: StoreChoice = StoreChoice()
    lease_seconds: float = Field(
        default=_LIMITS.lease_seconds,
        ge=15,
        description="How long a lease lasts without renewal; its owner renews it three times as "
        "often",
    )
    max_attempts: int = Field(
        default=_LIMITS.max_attempts,
        ge=0,
        description="A partition becomes FAILED after this many acquisitions without progress; "
        "0: never",
    )
    retry_seconds: float = Field(
        default=_LIMITS.retry_seconds,
        gt=0,
        description="Pause of a partition after its first failure; doubled with each attempt, "
        "with jitter",
    )
    max_retry_seconds: float = Field(
        default=_LIMITS.max_retry_seconds, gt=0, description="The longest such pause"
    )
    ageing_seconds: float = Field(
        default=_LIMITS.ageing_ms / 1000,
        ge=0,
        le=86_400,
        description="Waiting time that counts as much as one step of priority; the same on all "
        "nodes",
    )
    supplier_seconds: float = Field(
        default=_LIMITS.supplier_seconds,
        gt=0,
        description="How often the supplier is asked for new partitions while work exists",
    )
    supplier_pause_seconds: float = Field(
        default=_LIMITS.supplier_pause_seconds,
        ge=0,
        description="The shortest pause between two calls of the supplier, over all nodes",
    )
    supplier_batch: int = Field(
        default=_LIMITS.supplier_batch,
        ge=1,
        le=100_000,
        description="Number of new partitions that are created at a time, and held in memory",
    )
    supplier_batch_seconds: float = Field(
        default=_LIMITS.supplier_batch_seconds,
        gt=0,
        description="Partitions of a slow supplier are created after this long, even if they are "
        "few",
    )
    worker_seconds: float = Field(
        default=_LIMITS.worker_seconds,
        gt=0,
        description="A worker that gives no sign for this long no longer counts in the fair share",
    )
    rotate_seconds: float = Field(
        default=_LIMITS.rotate_seconds,
        gt=0,
        description="A partition that is held this long is requested back while other workers wait",
    )
    poll_seconds: float = Field(
        default=_LIMITS.poll_seconds,
        gt=0,
        description="How often a caller that waits for the end of all work checks",
    )

    @property
    def prefix(self) -> str | None:
        """The prefix as coordinators take it."""
        return self.partition_prefix or None

    @property
    def limits(self) -> CoordinatorLimits:
        """The limits of a coordinator."""
        return CoordinatorLimits(
            lease_seconds=self.lease_seconds,
            max_attempts=self.max_attempts,
            retry_seconds=self.retry_seconds,
            max_retry_seconds=self.max_retry_seconds,
            ageing_ms=round(self.ageing_seconds * 1000),
            supplier_seconds=self.supplier_seconds,
            supplier_pause_seconds=self.supplier_pause_seconds,
            supplier_batch=self.supplier_batch,
            supplier_batch_seconds=self.supplier_batch_seconds,
            worker_seconds=self.worker_seconds,
            rotate_seconds=self.rotate_seconds,
            poll_seconds=self.poll_seconds,
        )
