"""A handler of `logging` whose records become a run.

    logging.getLogger().addHandler(
        Handler("http://127.0.0.1:8790", "shop.orders", "run-1", spool="/var/tmp/shop-spool")
    )

Each record has its level, its time and, as attributes, logger, process, thread, place in the
code, and the values of `extra`. The text of an exception belongs to the message: one record.

`emit` writes to a file at most; the network is a thread's. At the end of the program (`logging`
closes its handlers then) the run is closed, within `exit_seconds`. Records that could not be
delivered are in the spool, and the next program with this spool delivers them.
"""

from __future__ import annotations

import logging
import os
import ssl
import sys
from types import TracebackType
from typing import Any, Callable, Dict, Optional, Type

from tailrace_client import system
from tailrace_client.buffer import Options
from tailrace_client.delivery import Delivery, Left, Stats
from tailrace_client.errors import InvalidRequest
from tailrace_client.records import BatchIds, encode_record
from tailrace_client.run import OUTCOMES, check_durability, run_path
from tailrace_client.service import Service
from tailrace_client.spool import Closing, Target

_LEVELS = ((50, "FATAL"), (40, "ERROR"), (30, "WARN"), (20, "INFO"), (10, "DEBUG"))
_NAMES = frozenset({"DEBUG", "INFO", "WARNING", "WARN", "ERROR", "CRITICAL", "FATAL"})
# The attributes of every record; all others came as `extra`.
_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
AUTO = "auto"


class Handler(logging.Handler):
    """Ships records to the run `run` of the pipeline `fqn`; without `run` to a new one.

    `spool` is a folder for what is not delivered yet: on a disk that outlives the program, for
    this user alone. `outcome` is how the run is closed: `success`, `failed`,
    `partialSuccess` or `stopped`, None for closing it without one, or `auto`: `failed` if an
    unhandled exception ended the program (its traceback is logged too), `stopped` after Ctrl-C,
    else `success`. `handler.outcome` may be set until the end. The handler reports the start of the
    run, and that the program lives. `close_run=False` reports neither and leaves the run open, for
    programs that share one. `options` has sizes, times, and what happens when the
    spool is full.

    Raises `InvalidRequest` for arguments that cannot be. A spool that cannot be used is said: then
    records are sent from memory, and those that the service has not taken do not outlive a kill.
    """

    flushOnClose = False  # noqa: N815 -- `logging` reads it: `close` does more

    def __init__(
        self,
        url: str,
        fqn: str,
        run: Optional[str] = None,
        *,
        spool: str,
        token: Optional[str] = None,
        level: int = logging.NOTSET,
        outcome: Optional[str] = None,
        close_run: bool = True,
        durability: str = "durable",
        options: Optional[Options] = None,
        timeout_seconds: float = 30.0,
        ssl_context: Optional[ssl.SSLContext] = None,
        ca_file: Optional[str] = None,
        say: Optional[Callable[[str], None]] = None,
    ) -> None:
        if outcome not in (None, AUTO, *OUTCOMES):
            known = ", ".join((AUTO, *OUTCOMES))
            raise InvalidRequest(
                f"{outcome!r} is not an outcome", hint=f"Use None, or one of {known}."
            )
        ids = BatchIds()
        service = Service(
            url,
            token=token,
            timeout_seconds=timeout_seconds,
            ssl_context=ssl_context,
            ca_file=ca_file,
        )
        self.fqn = fqn
        self.run = ids.mint() if run is None else run
        self.outcome = outcome
        run_path(fqn, self.run)
        self._close_run = close_run
        self._options = (options or Options()).check()
        self._say = say or _say
        self._hook: Any = None
        target = Target(service.url, fqn, self.run, check_durability(durability))
        self.delivery = Delivery(
            service,
            spool,
            target,
            self._options,
            say=self._say,
            ids=ids,
            started_ms=system.now_ms() if close_run else None,
        )
        super().__init__(level)
        if outcome == AUTO:
            self._hook = sys.excepthook
            sys.excepthook = self._unhandled

    def __repr__(self) -> str:
        return f"<Handler {self.fqn}/{self.run} ({logging.getLevelName(self.level)})>"

    def handle(self, record: logging.LogRecord) -> bool:
        """As `logging` does it, but without a lock for which threads wait behind one another."""
        kept: Any = self.filter(record)
        if isinstance(kept, logging.LogRecord):
            record = kept
        if kept:
            self.emit(record)
        return bool(kept)

    def emit(self, record: logging.LogRecord) -> None:
        """Takes a record. Waits for at most `block_seconds`, and never for the network."""
        try:
            self.delivery.put(
                encode_record(
                    self.format(record),
                    ts=record.created,
                    level=_level(record.levelno or 0),
                    attributes=_attributes(record),
                )
            )
        except Exception:  # noqa: BLE001 -- as every handler of `logging`
            self.handleError(record)

    def flush(self) -> None:
        """Writes to the spool and syncs it; `wait` waits for the service."""
        self.delivery.flush()

    def wait(self, seconds: float) -> bool:
        """Waits until the service has acknowledged everything; False if that takes longer."""
        return self.delivery.wait(seconds)

    @property
    def stats(self) -> Stats:
        """What became of the records so far."""
        return self.delivery.stats

    def close(self) -> None:
        """Delivers what there is and closes the run, within `exit_seconds`.

        In a forked child it only delivers: the run is closed by the process that made the handler.
        """
        closing = None
        if self._close_run and os.getpid() == self.delivery.owner:
            closing = Closing("success" if self.outcome == AUTO else self.outcome)
        left = self.delivery.close(closing, self._options.exit_seconds)
        if self._hook is not None and sys.excepthook == self._unhandled:
            sys.excepthook = self._hook
        super().close()
        if left is not None:
            self._say(left_behind(left, self.fqn, self.run))

    def _unhandled(
        self, kind: Type[BaseException], error: BaseException, trace: Optional[TracebackType]
    ) -> None:
        if os.getpid() == self.delivery.owner:
            stopped = issubclass(kind, KeyboardInterrupt)
            if self.outcome == AUTO:
                self.outcome = "stopped" if stopped else "failed"
            record = logging.makeLogRecord(
                {
                    "name": "tailrace_client",
                    "levelno": logging.CRITICAL,
                    "levelname": "CRITICAL",
                    "msg": "the program was interrupted" if stopped else "unhandled exception",
                    "exc_info": (kind, error, trace),
                }
            )
            self.handle(record)
        self._hook(kind, error, trace)


def _level(number: int) -> str:
    """The service's level at or below a level of `logging`."""
    for lowest, level in _LEVELS:
        if number >= lowest:
            return level
    return "TRACE"


def _attributes(record: logging.LogRecord) -> Dict[str, Any]:
    attributes: Dict[str, Any] = {
        "logger": record.name,
        "process": record.process,
        "thread": record.threadName,
        "file": f"{record.pathname}:{record.lineno}",
        "function": record.funcName,
    }
    if record.levelname not in _NAMES:
        attributes["level"] = record.levelname
    if record.exc_info and record.exc_info[0] is not None:
        attributes["exception"] = record.exc_info[0].__qualname__
    more = vars(record)
    if len(more) > len(_STANDARD) - 3:
        attributes.update({key: more[key] for key in more if key not in _STANDARD})
    return {key: value for key, value in attributes.items() if value is not None}


def left_behind(left: Left, fqn: str, run: str) -> str:
    """The sentence about what could not be delivered in time."""
    what = f"{left.records} records" if left.records != 1 else "1 record"
    lost = (
        f"run {fqn}/{run}: {left.lost} records could not be delivered in time and are lost, since"
        f" the spool {os.path.dirname(left.folder)} cannot be written"
    )
    if left.lost and not left.records:
        return lost
    if not left.records:
        what = "the request to close it"
    return (lost + "; " if left.lost else "") + (
        f"run {fqn}/{run}: {what} could not be delivered in time, and wait in {left.folder}. The "
        f"next program with this spool delivers them. To deliver them now, run: python -m "
        f"tailrace_client send"
        f" {os.path.dirname(left.folder)}"
    )


def _say(sentence: str) -> None:
    if logging.raiseExceptions and sys.stderr is not None:
        sys.stderr.write(f"tailrace-client: {sentence}\n")
