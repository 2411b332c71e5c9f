"""Names as key components: one-to-one, readable, safe on S3 and on every file system.

An fqn, run or node name becomes one component of a key:

- letters, digits, `.`, `-` and `_` of ASCII stand as they are, but for a leading dot;
- every other byte of the name's UTF-8 is `%XX`, in capitals; the empty name is `%`;
- a component longer than 200 bytes is cut to a head, `~`, and 40 hexadecimal digits
  of a BLAKE2b of the name. No other component holds a `~`.

So a component is never empty, `.` or `..`, holds no `/`, and two names never share
one. A component with a hash cannot be decoded: manifests carry names in clear.
"""

from __future__ import annotations

import hashlib
import re

from logstore.errors import InvalidName

MAX_COMPONENT_BYTES = 200
MAX_NAME_BYTES = 4096
HASH_MARK = "~"

_HASH_DIGITS = 40
_EMPTY = "%"
_READABLE = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789.-_")
_SPELLING = [chr(byte) if byte in _READABLE else f"%{byte:02X}" for byte in range(256)]
_COMPONENT = re.compile(r"(?:[A-Za-z0-9._-]|%[0-9A-F]{2})+")
_TORN_ESCAPE = re.compile(r"%[0-9A-F]?$")


def encode(name: str) -> str:
    """The component of `name`. Raises `InvalidName` if it is not text (lone surrogates)."""
    raw = _utf8(name, "name")
    component = _spell(raw)
    if len(component) <= MAX_COMPONENT_BYTES:
        return component
    head = component[: MAX_COMPONENT_BYTES - _HASH_DIGITS - len(HASH_MARK)]
    digest = hashlib.blake2b(raw, digest_size=_HASH_DIGITS // 2).hexdigest()
    return _TORN_ESCAPE.sub("", head) + HASH_MARK + digest


def decode(component: str) -> str | None:
    """The name of a component; None if it was cut, or if `encode` never gives it."""
    if component == _EMPTY:
        return ""
    if _COMPONENT.fullmatch(component) is None or len(component) > MAX_COMPONENT_BYTES:
        return None
    parts = component.split("%")
    raw = parts[0].encode() + b"".join(bytes([int(p[:2], 16)]) + p[2:].encode() for p in parts[1:])
    try:
        name = raw.decode()
    except UnicodeDecodeError:
        return None
    return name if _spell(raw) == component else None


def check_name(name: str, field: str) -> None:
    """Raises `InvalidName` if it is empty, above 4,096 bytes of UTF-8, or not text."""
    if not name:
        raise InvalidName(f"{field} is empty", field=field, hint=f"Give the {field} a name.")
    size = len(_utf8(name, field))
    if size > MAX_NAME_BYTES:
        raise InvalidName(
            f"{field} has {size} bytes of UTF-8",
            field=field,
            hint=f"Use at most {MAX_NAME_BYTES} bytes.",
        )


def check_new_name(name: str, field: str) -> None:
    """`check_name` for what is about to begin. What has such a name already stays readable."""
    check_name(name, field)
    if name in (".", ".."):
        raise InvalidName(
            f"{field} is {name!r}, which is a folder in every URL",
            field=field,
            hint="Browsers and clients leave it out of addresses. Choose another name.",
        )


def _utf8(name: str, field: str) -> bytes:
    try:
        return name.encode()
    except UnicodeEncodeError as error:
        raise InvalidName(
            f"{field} is not text: it holds half of a surrogate pair",
            field=field,
            hint="Send the name as valid UTF-8.",
        ) from error


def _spell(raw: bytes) -> str:
    if not raw:
        return _EMPTY
    spelled = "".join([_SPELLING[byte] for byte in raw])
    return "%2E" + spelled[1:] if spelled[0] == "." else spelled
