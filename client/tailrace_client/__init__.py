"""Ships logs to Tailrace: a handler of `logging`, and runs to write and read.

`Handler` is for programs that log, `Run` for those that have lines, records or a run to read.
`Delivery`, `Service` and the spool under them are for programs that ship logs of others.
"""

from tailrace_client.buffer import Options
from tailrace_client.delivery import Delivery, Left, Stats
from tailrace_client.errors import (
    BatchConflict,
    BatchFromTheFuture,
    BatchTooOld,
    InvalidRequest,
    NotAuthorized,
    NotFound,
    Redirected,
    RunDeleted,
    TailraceError,
    TooLarge,
    Unavailable,
)
from tailrace_client.handler import Handler
from tailrace_client.reading import Page, Record
from tailrace_client.records import BatchIds, encode_record
from tailrace_client.run import Receipt, Run
from tailrace_client.service import Service
from tailrace_client.spool import Closing, Target

__version__ = "0.1.0"
__all__ = [
    "BatchConflict",
    "BatchFromTheFuture",
    "BatchIds",
    "BatchTooOld",
    "Closing",
    "Delivery",
    "Handler",
    "InvalidRequest",
    "Left",
    "NotAuthorized",
    "NotFound",
    "Options",
    "Page",
    "Receipt",
    "Record",
    "Redirected",
    "Run",
    "RunDeleted",
    "Service",
    "Stats",
    "TailraceError",
    "Target",
    "TooLarge",
    "Unavailable",
    "encode_record",
]
