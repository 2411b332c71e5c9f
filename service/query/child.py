"""The child of `process`: one DuckDB connection, told by messages on standard input.

    {"connect": {configuration}}
    {"begin": true}, {"end": true}  a session: what is told between them goes with it
    {"execute": statement, "parameters": {…}}
    {"fetch": rows}                 the result of the statement: s, then b for each batch
    {"hold": name}                  a table, which the next message is
    {"feed": name}                  a stream, of which the next message is the schema

Each is answered by `d` or `e`. A statement asks for the next batch of a feed with `f`.
The process ends with its input, at any moment: a thread waits for that while DuckDB works.
"""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Iterator
from multiprocessing.connection import Connection
from typing import Any

import duckdb
import orjson
import pyarrow as pa

from service.query.process import BATCH, BROKEN, DONE, FAILED, FEED, NO_MORE, SCHEMA


class Child:
    """Does what it is told, until its input ends."""

    def __init__(self, messages: Connection) -> None:
        self._messages = messages
        self._inbox: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self._sending = threading.Lock()
        self._database: duckdb.DuckDBPyConnection | None = None
        self._connection: duckdb.DuckDBPyConnection | None = None

    def run(self) -> None:
        """Does not return."""
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
    Child(Connection(os.dup(0))).run()
