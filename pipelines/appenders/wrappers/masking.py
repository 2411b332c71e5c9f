"""`mask`: replaces what regular expressions match, before anything is written.

    type: mask
    rules:
      - {pattern: '(?i)(password|token)=[^ ]+', replace: '\\1=***'}
    attributes: true
    to: {type: rolling_file, dir: /var/log/runs}

Expressions are RE2's, which take time in proportion to the text. It stands before the dead-letter
file too, so that what is masked is written nowhere.

What replacements add is bounded, since a short pattern may match at each character and each rule
again in what the rule before wrote: a text that would grow to more than four times its size and
1 KiB becomes one mask as a whole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import ClassVar, Final, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import field_validator, model_validator

from pipelines.appenders.contract import Appender
from pipelines.appenders.wrappers.base import Wrapper
from pipelines.definition.section import Section, key

_MOST_REPLACEMENT: Final = 200
_MOST_RULES: Final = 100
_PIECE_BYTES: Final = 1 << 20
"""Of texts that are masked together."""
_TIMES, _MORE_BYTES = 4, 1 << 10
_WHOLE: Final = "(masked as a whole: its replacements need too much room)"


class Rule(Section):
    """What is replaced by what."""

    pattern: str = key(..., "a regular expression (RE2)")
    replace: str = key(
        "***",
        r"what stands there instead, at most 200 characters; \1 is the first group",
        max_length=_MOST_REPLACEMENT,
    )

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
        if len(value) > _MOST_RULES:
            raise ValueError(f"has more than {_MOST_RULES} rules")
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
        message = self._masked(events.column("message").combine_chunks())
        events = events.set_column(at, events.schema.field(at), message)
        if self._settings.attributes:
            at = events.schema.get_field_index("attributes")
            maps = self._masked_values(events.column("attributes").combine_chunks())
            events = events.set_column(at, events.schema.field(at), maps)
        self._inner.append(events)

    def _masked(self, texts: pa.Array) -> pa.Array:
        pieces = [self._piece(piece) for piece in _pieces(texts)]
        return pa.concat_arrays(pieces) if pieces else texts

    def _piece(self, texts: pa.Array) -> pa.Array:
        given, nothing = texts, pa.scalar(None, texts.type)
        most = pc.add(pc.multiply(_sizes(texts), _TIMES), _MORE_BYTES)
        for rule in self._settings.rules:
            if len(texts) == 1 and pc.greater(_at_most(rule, texts), most)[0].as_py():
                texts = pa.nulls(1, texts.type)
                break
            texts = pc.replace_substring_regex(
                texts, pattern=rule.pattern, replacement=rule.replace
            )
            texts = pc.if_else(pc.greater(_sizes(texts), most), nothing, texts)
        if texts.null_count == given.null_count:
            return texts
        return pc.if_else(given.is_valid(), pc.fill_null(texts, _WHOLE), texts)

    def _masked_values(self, maps: pa.MapArray) -> pa.MapArray:
        """The same maps with masked values."""
        offsets = pa.array(maps.offsets.to_numpy())
        values = self._masked(maps.items)
        return pa.MapArray.from_arrays(
            offsets, maps.keys, values, type=maps.type, mask=maps.is_null()
        )


def _sizes(texts: pa.Array) -> pa.Array:
    return pc.binary_length(texts).cast(pa.int64())


def _at_most(rule: Rule, texts: pa.Array) -> pa.Array:
    """Bytes of each text with the rule's replacements, or more: each reference may be all of it."""
    matches = pc.count_substring_regex(texts, pattern=rule.pattern).cast(pa.int64())
    added = pc.multiply(matches, len(rule.replace.encode()))
    return pc.add(pc.multiply(_sizes(texts), 1 + rule.replace.count("\\")), added)


def _pieces(texts: pa.Array) -> Iterator[pa.Array]:
    """The texts in their order, some at a time; a long one is alone."""
    ends = np.cumsum(pc.fill_null(_sizes(texts), 0).to_numpy(zero_copy_only=False))
    at, before = 0, 0
    while at < len(texts):
        end = int(np.searchsorted(ends, before + _PIECE_BYTES, side="right"))
        end = max(end, at + 1)
        yield texts[at:end]
        at, before = end, int(ends[end - 1])
