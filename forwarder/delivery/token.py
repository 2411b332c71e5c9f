"""The token of the services: given, or read from a file that may be replaced while we run."""

from __future__ import annotations

import threading
from typing import Final

from logstore.credentials import read_token
from logstore.errors import InvalidInput

_FIELD: Final = "token_file"


class Token:
    """`current` is the token; None if there is none. Raises `InvalidInput` for a bad file."""

    def __init__(self, token: str = "", *, file: str = "") -> None:
        self._file = file
        self._lock = threading.Lock()
        self.current = (read_token(file, field=_FIELD) if file else token) or None

    def renew(self) -> bool:
        """Reads the file again; whether it has another token now."""
        if not self._file:
            return False
        with self._lock:
            try:
                found = read_token(self._file, field=_FIELD)
            except InvalidInput:  # it is being replaced: the old one goes on until then
                return False
            before, self.current = self.current, found
            return found != before
