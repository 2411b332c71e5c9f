"""What can go wrong between a client and S3, and which requests it may lawfully happen to.

A test of a client proves something only if the server could have behaved so. Two lies are
left out for that reason: a 412 where the condition held and nobody wrote, and a success
that did not happen. A 412 after one's own write is lawful and the one that matters: a load
balancer tried again after a lost answer (`RETRIED`). If yet another writer comes between,
nobody can tell it from a lost race: a caller that heard 412 decides by what it reads then,
and a test that counts what was answered takes `KNOWABLE` only.
"""

from __future__ import annotations

from enum import Enum

from tests.faults.requests import Request


class Kind(Enum):
    """One fault. The first group happens instead of the request, the second after it."""

    INTERNAL_ERROR = "internal-error"  # 500, and nothing happened
    SLOW_DOWN = "slow-down"  # 503, and nothing happened
    CONFLICT = "conflict"  # 409 ConditionalRequestConflict: another writer was at it
    ERROR_IN_200 = "error-in-200"  # status 200, and an error in the body
    RESET = "reset"  # RST before a byte was passed on
    CUT_REQUEST = "cut-request"  # half of the request arrives, then both sides are cut
    DELAY = "delay"  # passed on a little later
    STALL = "stall"  # passed on much later, also if the client gave up: a late write

    ERROR_AFTER = "error-after"  # 500, and it happened
    DROPPED = "dropped"  # it happened, and the connection closes without an answer
    RETRIED = "retried"  # it was asked twice, and the second answer is passed on: the 412
    CUT_RESPONSE = "cut-response"  # half of the answer, then the connection closes

    def lawful(self, request: Request) -> bool:
        """Whether S3, or the network before it, may do this to the request."""
        if self is Kind.CONFLICT:
            return request.conditional_write
        if self is Kind.ERROR_IN_200:
            return request.copy or request.completion or request.batch_delete
        if self is Kind.RETRIED:
            # A second DeleteItem finds nothing, as if somebody else had been first.
            return request.write and request.operation != "DeleteItem"
        return True


# What a client with retries hides, as it answers late or wrongly but soon.
HIDDEN = tuple(kind for kind in Kind if kind is not Kind.STALL)
KNOWABLE = tuple(kind for kind in HIDDEN if kind is not Kind.RETRIED)
