"""What a client of a service keeps in files: its token, and the certificates it trusts."""

from __future__ import annotations

import ssl

from logstore.errors import InvalidInput


def read_token(path: str, *, field: str | None = None) -> str:
    """The token in a file of one line. Raises `InvalidInput` with `field`: unreadable or empty."""
    hint = "It is a file with one line, the token, which this user may read."
    try:
        with open(path, encoding="ascii") as file:
            token = file.read().strip()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not ASCII"
        message = f"the token in {path} cannot be read: {why}"
        raise InvalidInput(message, field=field, hint=hint) from error
    if not token:
        raise InvalidInput(f"{path} is empty", field=field, hint=hint)
    return token


def hint_of_trust(error: Exception, setting: str) -> str | None:
    """What to do if the error says that a certificate is not trusted; None for other errors."""
    if "CERTIFICATE_VERIFY_FAILED" not in str(error):
        return None
    return f"Name its authority's certificate with {setting}, or with SSL_CERT_FILE."


def trust(ca_file: str, *, field: str) -> ssl.SSLContext:
    """A context that trusts the certificates in a PEM file. Raises `InvalidInput` with `field`."""
    try:
        return ssl.create_default_context(cafile=ca_file)
    except (OSError, ssl.SSLError) as error:
        raise InvalidInput(
            f"the certificates in {ca_file} cannot be read: {error}",
            field=field,
            hint="It is a file in PEM format, which this user may read.",
        ) from error
