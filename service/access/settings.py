"""Settings of access; a part of the table in `service/settings.py`."""

from __future__ import annotations

from pydantic import Field

from logstore.settings import Section


class AccessSettings(Section):
    """Where the rules are, and where is written what was done and refused."""

    rules: str = Field(
        default="",
        description="File with the rules of access (YAML), read again when it changes and at"
        " SIGHUP; empty: everybody who reaches the service may do everything",
    )
    reload_seconds: float = Field(
        default=2, gt=0, description="How often is looked whether the file of rules has changed"
    )
    audit_log: str = Field(
        default="",
        description="File of the audit log (JSON lines), which is written when there are rules;"
        " empty: `audit.log` in the data folder",
    )
