"""A reply whose body is read from the store or the journal while it is sent.

What cannot be read on breaks off: the connection ends, so that no client takes a part for the
whole, and the log says why in one line. An error before the first byte is answered as any other.
"""

from __future__ import annotations

import logging

from starlette.responses import StreamingResponse
from starlette.types import Message, Receive, Scope, Send

from logstore.errors import TailraceError

log = logging.getLogger(__name__)


class Streamed(StreamingResponse):
    """Ends the connection if its body raises a `TailraceError`."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        begun = False

        async def noting(message: Message) -> None:
            nonlocal begun
            await send(message)
            begun = True

        try:
            await super().__call__(scope, receive, noting)
        except TailraceError as error:
            if not begun:
                raise
            # The server ends the connection of a reply that is not complete.
            log.warning("a reply to %s broke off: %s", scope.get("path"), error)
