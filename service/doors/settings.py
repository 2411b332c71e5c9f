"""The settings of doors: which are open, where their records go, when their runs close."""

from __future__ import annotations

from pydantic import Field

from tailrace.logstore.settings import Listed, Section

DOORS = ("otlp", "loki", "elasticsearch", "splunk")


def door_of(connector: str | None) -> str:
    """The door by which lines of this sender came, empty for any other way."""
    door = (connector or "").partition("/")[0]
    return door if door in DOORS else ""


class DoorSettings(Section):
    """Which protocols of other log stores are answered, and to which runs their records go."""

    otlp: bool = Field(default=True, description="Accept OTLP/HTTP at `/v1/logs`")
    loki: bool = Field(default=True, description="Accept Loki's push at `/loki/api/v1/push`")
    elasticsearch: bool = Field(
        default=True,
        description="Accept Elasticsearch's `_bulk`, and answer its clients' first requests",
    )
    splunk: bool = Field(
        default=True, description="Accept Splunk's HTTP Event Collector at `/services/collector`"
    )
    pipeline: Listed = Field(
        default="service.namespace, service.name",
        description="Attributes whose values name the pipeline, joined by `/`; one that is missing"
        " is left out",
    )
    run: Listed = Field(
        default="tailrace.run.id, cicd.pipeline.run.id, k8s.job.name, k8s.pod.uid",
        description="Attributes that name the run; the first one that a record has. Without any,"
        " the run is a day (UTC)",
    )
    instance: Listed = Field(
        default="service.instance.id",
        description="Attributes that name an instance; each instance has its own days",
    )
    repeat_seconds: float = Field(
        default=600,
        ge=0,
        description="How long the same batch of the same client is recognised and not stored"
        " again; 0: not at all",
    )
    repeats: int = Field(
        default=32_768,
        ge=1,
        description="Batches that a node remembers to recognise repeats; eight times as many ids",
    )
    otlp_idle_minutes: float = Field(
        default=60,
        gt=0,
        description="A run whose lines all came by OTLP is closed after this long without one",
    )
    loki_idle_minutes: float = Field(
        default=60, gt=0, description="The same for lines that came by Loki's push"
    )
    elasticsearch_idle_minutes: float = Field(
        default=60, gt=0, description="The same for lines that came by `_bulk`"
    )
    splunk_idle_minutes: float = Field(
        default=60, gt=0, description="The same for lines that came by Splunk's collector"
    )

    def idle_seconds(self, door: str) -> float | None:
        """How long a run of this door stays open without a line; None if it is no door."""
        minutes = {
            "otlp": self.otlp_idle_minutes,
            "loki": self.loki_idle_minutes,
            "elasticsearch": self.elasticsearch_idle_minutes,
            "splunk": self.splunk_idle_minutes,
        }.get(door)
        return None if minutes is None else minutes * 60
