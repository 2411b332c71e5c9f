"""Runs a DuckDB connection in a process of its own, for work that only its process's end stops.

DuckDB checks for an interrupt between two vectors of records. A regular expression works on the
lines of one vector for as long as they are long and its program is large: minutes, without a check.
So a search by regular expression has its database in a child process, and an interrupt kills the
child.

The child runs `SearchChild` of this module. Both ends speak by one socket, its standard input, in
messages of one byte for the kind and a payload:

    to the child     ! JSON                    a command, see below
                     t Arrow stream            a table, after the command that holds it
                     b Arrow batch, n, x       the next batch of a feed, its end, its failure
    from the child   f name                    asks for the next batch of a feed
                     s schema, b batch         a result
                     d                         done
                     e JSON                    failed: {"type", "message", "status"}

The commands:

    {"connect": {configuration}}
    {"begin": true}, {"end": true}  a session: its tables and streams go with it
    {"execute": statement, "parameters": {…}}
    {"fetch": rows}                 the result of the statement: s, then b for each batch
    {"hold": name}                  a table, which is the next message
    {"feed": name}                  a stream, whose schema is the next message

The child answers each with `d` or `e`. A statement asks for the next batch of a feed with `f`. The
child ends with its input, at any moment: a thread waits for that while DuckDB works.

Invariants: the child dies with this process, since its input ends then; this process executes
nothing that the child sends. Not thread-safe, except `interrupt`. A session whose result was not
read to its end ends the process: the next session would get the rest of it.
"""

from __future__ import annotations

import math
import os
import queue
import socket
import struct
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any, Final, TypeAlias

import duckdb
import orjson
import pyarrow as pa

from service.runtime.process import start_with_socket
from tailrace.logstore.errors import Unavailable

COMMAND: Final = b"!"
TABLE: Final = b"t"
FEED: Final = b"f"
NO_MORE: Final = b"n"
BROKEN: Final = b"x"
SCHEMA: Final = b"s"
BATCH: Final = b"b"
DONE: Final = b"d"
FAILED: Final = b"e"
_PATIENCE_SECONDS: Final = 20.0
"""For quick work of a healthy process: all commands but a statement and its result."""
_IDLE_SECONDS: Final = 3.0
"""For the first answer of an idle process: a new process costs less than a longer wait."""
_LOOK_SECONDS: Final = 0.1

Check: TypeAlias = Callable[[], None]
"""Raises once the caller must stop waiting."""


class ProcessEnded(OSError):
    """The child has ended without a request."""


class Result:
    """The result of the last statement; read it to its end, or the process is closed."""

    def __init__(self, process: ProcessConnection) -> None:
        self._process = process

    def to_arrow_reader(self, rows: int) -> Iterator[pa.RecordBatch]:
        """Yields its rows, `rows` at a time. Raises as `execute`."""
        process, schema = self._process, pa.schema([])
        process.unread = True
        process.send({"fetch": rows})
        while True:
            kind, payload = process.receive()
            if kind == SCHEMA:
                schema = pa.ipc.read_schema(pa.py_buffer(payload))
            elif kind == BATCH:
                yield pa.ipc.read_record_batch(pa.py_buffer(payload), schema)
            else:
                process.unread = False
                return


class ProcessConnection:
    """An in-memory database with this configuration, with the method names of `duckdb`.

    Nobody can interrupt it before its first session has begun. Until then `check` is called while
    it is waited for.
    """

    def __init__(
        self,
        config: Mapping[str, str | int],
        *,
        patience_seconds: float = _PATIENCE_SECONDS,
        check: Check | None = None,
    ) -> None:
        """Raises `Unavailable` if no process can be started, `ProcessEnded`, and as `check`."""
        self.unread = False
        self._check = check
        self._patience = patience_seconds
        self._feeds: dict[str, pa.RecordBatchReader] = {}
        try:
            self._child, ours = start_with_socket("service.query.duckdb_process")
        except OSError as error:
            raise Unavailable(f"a search cannot be started: {error}") from error
        # A stopped process reads nothing: a write to it ends after this time.
        limit = struct.pack("@ll", *divmod(round(patience_seconds * 1e6), 1_000_000))
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)
        self._messages = Connection(ours.detach())
        try:
            self.ask({"connect": dict(config)})
        except BaseException:
            self.close()
            raise

    @property
    def pid(self) -> int:
        """Returns the child's process id."""
        return self._child.pid

    def cursor(self, check: Check | None = None) -> ProcessSession:
        """Returns a connection of its own to the database.

        Raises `ProcessEnded`, and as `check`.
        """
        self._check = check or self._check
        try:
            self.send({"begin": True})
            self.receive(min(self._patience, _IDLE_SECONDS))
        finally:
            self._check = None
        return ProcessSession(self)

    def execute(self, statement: str, parameters: Mapping[str, Any] | None = None) -> Result:
        """Runs a statement. Raises DuckDB's errors, a feed's errors, or `ProcessEnded`."""
        self.send({"execute": statement, "parameters": dict(parameters or {})})
        self.receive()  # the search's own limit interrupts it
        return Result(self)

    def register(self, name: str, data: pa.Table | pa.RecordBatchReader) -> None:
        """Registers a table, or a stream, which is read as the child asks for it."""
        if isinstance(data, pa.Table):
            sink = pa.BufferOutputStream()
            with pa.ipc.new_stream(sink, data.schema) as writer:
                writer.write_table(data)
            self.ask({"hold": name}, TABLE + bytes(sink.getvalue()))
        else:
            self._feeds[name] = data
            self.ask({"feed": name}, SCHEMA + bytes(data.schema.serialize()))

    def end_session(self) -> None:
        """Drops everything of the session. Raises `ProcessEnded`."""
        self._feeds.clear()
        if self.unread:
            raise self._ended()
        self.ask({"end": True})

    def interrupt(self) -> None:
        """Ends the process, whatever it does; its waiters raise `ProcessEnded`."""
        self._child.kill()

    def close(self) -> None:
        """Ends the process, and its memory."""
        self._child.kill()
        self._child.wait()
        self._messages.close()

    def send(self, command: Mapping[str, Any], *more: bytes) -> None:
        """Sends a command and its payload messages. Raises `ProcessEnded`."""
        for message in (COMMAND + orjson.dumps(command), *more):
            self._send(message)

    def receive(self, patience: float | None = None) -> tuple[bytes, bytes]:
        """Returns kind and payload of the next message that is not about a feed.

        Raises as `execute`, also if no message comes for `patience` seconds; None: waits for ever.
        """
        while True:
            try:
                self._wait(patience)
                message = self._messages.recv_bytes()
            except (EOFError, OSError) as error:
                raise self._ended() from error
            kind, payload = bytes(message[:1]), bytes(message[1:])
            if kind == FAILED:
                raise _rebuilt(orjson.loads(payload))
            if kind != FEED:
                return kind, payload
            self._send(self._next(payload.decode()))

    def _wait(self, patience: float | None) -> None:
        """Returns when a message has arrived. Raises as `receive`, and as `check`."""
        if self._check is None:
            if patience is not None and not self._messages.poll(patience):
                raise self._ended()
            return
        looks = math.inf if patience is None else patience / _LOOK_SECONDS
        while not self._messages.poll(_LOOK_SECONDS):
            self._check()
            looks -= 1
            if looks <= 0:
                raise self._ended()

    def ask(self, command: Mapping[str, Any], *more: bytes) -> None:
        """Sends a quick command, which is done once this returns. Raises as `execute`."""
        self.send(command, *more)
        self.receive(self._patience)

    def _next(self, name: str) -> bytes:
        """Sends only the fact of a failure to the child; the caller raises the feed's error."""
        try:
            return BATCH + bytes(self._feeds[name].read_next_batch().serialize())
        except StopIteration:
            return NO_MORE
        except Exception as error:  # noqa: BLE001 -- the statement fails with it, as in DuckDB
            return BROKEN + str(error).encode("utf-8", "replace")

    def _send(self, message: bytes) -> None:
        try:
            self._messages.send_bytes(message)
        except OSError as error:
            raise self._ended() from error

    def _ended(self) -> ProcessEnded:
        self._child.kill()
        return ProcessEnded(f"the search's process ended with status {self._child.wait()}")


class ProcessSession:
    """The work of one search in the process; `interrupt` ends both."""

    def __init__(self, process: ProcessConnection) -> None:
        self._process = process

    def execute(self, statement: str, parameters: Mapping[str, Any] | None = None) -> Result:
        """As `ProcessConnection.execute`."""
        return self._process.execute(statement, parameters)

    def register(self, name: str, data: pa.Table | pa.RecordBatchReader) -> None:
        """As `ProcessConnection.register`."""
        self._process.register(name, data)

    def interrupt(self) -> None:
        """As `ProcessConnection.interrupt`."""
        self._process.interrupt()

    def close(self) -> None:
        """Drops the search's data in the child. Raises `ProcessEnded`."""
        self._process.end_session()


def _rebuilt(failure: Mapping[str, Any]) -> Exception:
    """Returns DuckDB's error from the child; any other error as DuckDB's most general class."""
    kind = getattr(duckdb, failure["type"], None)
    if not (isinstance(kind, type) and issubclass(kind, duckdb.Error)):
        kind = duckdb.Error
    error = kind(failure["message"])
    if failure["status"] is not None:
        with suppress(AttributeError):
            error.status_code = failure["status"]  # type: ignore[attr-defined]
    return error


# --- The child ----------------------------------------------------------------------------------


class SearchChild:
    """Executes commands until its input ends."""

    def __init__(self, messages: Connection) -> None:
        self._messages = messages
        self._inbox: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self._sending = threading.Lock()
        self._database: duckdb.DuckDBPyConnection | None = None
        self._connection: duckdb.DuckDBPyConnection | None = None

    def run(self) -> None:
        """Runs for ever."""
        threading.Thread(target=self._receive, daemon=True).start()
        while True:
            command = orjson.loads(self._inbox.get()[1:])
            try:
                self._do(command)
            except Exception as error:  # noqa: BLE001 -- the other side raises it
                self._send(FAILED + _described(error))
            else:
                self._send(DONE)

    def _do(self, command: dict[str, Any]) -> None:
        if "connect" in command:
            self._database = duckdb.connect(":memory:", config=command["connect"])
            self._connection = self._database
            return
        database, connection = self._database, self._connection
        assert database is not None, "connect comes first"
        assert connection is not None, "connect comes first"
        if "begin" in command:
            self._connection = database.cursor()
        elif "end" in command:
            connection.close()
            self._connection = database
        elif "execute" in command:
            connection.execute(command["execute"], command["parameters"])
        elif "fetch" in command:
            self._fetch(connection.to_arrow_reader(command["fetch"]))
        elif "hold" in command:
            with pa.ipc.open_stream(self._inbox.get()[1:]) as table:
                connection.register(command["hold"], table.read_all())
        else:
            name, schema = command["feed"], pa.ipc.read_schema(pa.py_buffer(self._inbox.get()[1:]))
            batches = self._batches(name, schema)
            connection.register(name, pa.RecordBatchReader.from_batches(schema, batches))

    def _fetch(self, reader: pa.RecordBatchReader) -> None:
        self._send(SCHEMA + bytes(reader.schema.serialize()))
        for batch in reader:
            self._send(BATCH + bytes(batch.serialize()))

    def _batches(self, name: str, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        while True:
            self._send(FEED + name.encode())
            message = self._inbox.get()
            kind, payload = message[:1], message[1:]
            if kind == NO_MORE:
                return
            if kind == BROKEN:
                raise OSError(payload.decode())
            yield pa.ipc.read_record_batch(pa.py_buffer(payload), schema)

    def _send(self, message: bytes) -> None:
        with self._sending:
            self._messages.send_bytes(message)

    def _receive(self) -> None:
        try:
            while True:
                self._inbox.put(self._messages.recv_bytes())
        except (EOFError, OSError):
            os._exit(0)


def _described(error: Exception) -> bytes:
    message = str(error).encode("utf-8", "replace").decode()
    status = getattr(error, "status_code", None)
    return orjson.dumps({"type": type(error).__name__, "message": message, "status": status})


if __name__ == "__main__":
    SearchChild(Connection(os.dup(0))).run()
