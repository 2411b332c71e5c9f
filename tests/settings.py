"""Settings of tests, also with values that no operator may set."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any, TypeVar

from pydantic import BaseModel

from service.settings import HttpSettings, Settings

S = TypeVar("S", bound=BaseModel)


def changed(section: S, **values: Any) -> S:
    """`section` with other values, which are not validated."""
    unknown = values.keys() - type(section).model_fields.keys()
    assert not unknown, f"no such settings: {sorted(unknown)}"
    return section.model_copy(update=values)


def settings_with(base: Settings, **sections: Mapping[str, Any]) -> Settings:
    """`base` with other values in some of its sections, which are not validated."""
    return changed(
        base, **{name: changed(getattr(base, name), **values) for name, values in sections.items()}
    )


def http_settings(**values: Any) -> HttpSettings:
    """The settings of requests with other values, each in the section that declares it."""
    made = HttpSettings()
    sections = {
        field.name: section
        for field in fields(made)
        if isinstance(section := getattr(made, field.name), BaseModel)
    }
    for name, value in values.items():
        [of] = [key for key, section in sections.items() if name in type(section).model_fields]
        sections[of] = changed(sections[of], **{name: value})
    return HttpSettings(**sections)  # type: ignore[arg-type]


# As the product is, but runs are kept for ever. The environment is not asked.
SETTINGS = settings_with(Settings.model_construct(), runs={"expiration_days": 0})
