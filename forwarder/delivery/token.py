"""The token of the services: given, or read from a file that may be replaced while we run."""

from __future__ import annotations

import threading

from logstore.errors import InvalidInput


class Token:
    """`current` is the token; None if there is none. Raises `InvalidInput` for a bad file."""

    def __init__(self, token: str = "", *, file: str = "") -> None:
        self._file = file
        self._lock = threading.Lock()
        self.current = (self._read() if file else token) or None

    def renew(self) -> bool:
        """Reads the file again; whether it has another token now."""
        if not self._file:
            return False
        with self._lock:
            try:
                found = self._read()
            except InvalidInput:  # it is being replaced: the old one goes on until then
                return False
            before, self.current = self.current, found
            return found != before

    def _read(self) -> str:
        try:
            with open(self._file, encoding="ascii") as file:
                token = file.read().strip()
        except (OSError, UnicodeDecodeError) as error:
            raise InvalidInput(
                f"the token in {self._file} cannot be read: {error}",
                hint="`token_file` is a file with one line, which this user may read.",
            ) from None
        if not token:
            raise InvalidInput(f"{self._file} is empty", hint="It is to hold the token.")
        return token
