"""What may be said of an object beside its bytes: short pairs of text.

S3 keeps them as headers: 2 KB of them, names and values in ASCII, names in lower case.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from logstore.errors import InvalidInput

# S3's 2048, less the id of the write that an S3 store adds, and MinIO counts `x-amz-meta-`.
MAX_BYTES: Final = 1900
_NAME: Final = re.compile(r"[a-z0-9-]+")
_VALUE: Final = re.compile(r"[ -~]*")


def check_metadata(metadata: Mapping[str, str]) -> None:
    """Raises `InvalidInput` for what S3 would not keep as it is."""
    for name, value in metadata.items():
        if not _NAME.fullmatch(name) or not _VALUE.fullmatch(value) or value != value.strip():
            raise InvalidInput(
                f"metadata {name!r} is not a name in lower case with a value in ASCII",
                field="metadata",
                hint="Encode it, or put it into an object of its own.",
            )
    size = sum([len(name) + len(value) for name, value in metadata.items()])
    if size > MAX_BYTES:
        raise InvalidInput(
            f"metadata has {size} bytes of {MAX_BYTES}",
            field="metadata",
            hint="Put it into an object of its own.",
        )
