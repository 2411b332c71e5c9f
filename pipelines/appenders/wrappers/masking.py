"""`mask`: replaces what regular expressions match, before anything is written.

    type: mask
    rules:
      - {pattern: '(?i)(password|token)=[^ ]+', replace: '\\1=***'}
    attributes: true
    to: {type: rolling_file, dir: /var/log/runs}

Expressions are RE2's, which take time in proportion to the text. It stands before the dead-letter
file too, so that what is masked is written nowhere.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar, Self

import pyarrow as pa
import pyarrow.compute as pc
from pydantic import field_validator, model_validator

from pipelines.appenders.contract import Appender
from pipelines.appenders.wrappers.base import Wrapper
from pipelines.definition.section import Section, key


class Rule(Section):
    """What is replaced by what."""

    pattern: str = key(..., "a regular expression (RE2)")
    replace: str = key("***", r"what stands there instead; \1 is the first group")

    @model_validator(mode="after")
    def _works(self) -> Self:
        try:
            pc.replace_substring_regex(
                pa.array([""]), pattern=self.pattern, replacement=self.replace
            )
        except pa.ArrowInvalid as error:
            raise ValueError(f"the rule {self.pattern!r} cannot be: {error}") from None
        return self


class MaskSettings(Section):
    """What is masked, and where."""

    rules: tuple[Rule, ...] = key(..., "what is replaced, one after another")
    attributes: bool = key(True, "whether the values of attributes are masked as well")

    @field_validator("rules")
    @classmethod
    def _some(cls, value: tuple[Rule, ...]) -> tuple[Rule, ...]:
        if not value:
            raise ValueError("must have a rule at least")
        return value


class Mask(Wrapper):
    """Replaces text of messages and attributes."""

    settings: ClassVar[type[Section]] = MaskSettings
    dead_letters_too: ClassVar[bool] = True

    def __init__(self, settings: MaskSettings, make: Callable[[], Appender]) -> None:
        super().__init__(make)
        self._settings = settings

    def append(self, events: pa.Table) -> None:
        at = events.schema.get_field_index("message")
        message = self._masked(events.column("message"))
        events = events.set_column(at, events.schema.field(at), message)
        if self._settings.attributes:
            at = events.schema.get_field_index("attributes")
            maps = self._masked_values(events.column("attributes").combine_chunks())
            events = events.set_column(at, events.schema.field(at), maps)
        self._inner.append(events)

    def _masked(self, texts: pa.ChunkedArray | pa.Array) -> pa.ChunkedArray | pa.Array:
        for rule in self._settings.rules:
            texts = pc.replace_substring_regex(
                texts, pattern=rule.pattern, replacement=rule.replace
            )
        return texts

    def _masked_values(self, maps: pa.MapArray) -> pa.MapArray:
        """The same maps with masked values."""
        offsets = pa.array(maps.offsets.to_numpy())
        values = self._masked(maps.items)
        return pa.MapArray.from_arrays(
            offsets, maps.keys, values, type=maps.type, mask=maps.is_null()
        )
