"""A JVM that is gone is said by an error, and by no words of py4j's beside it."""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Iterator

import pytest
from py4j.java_gateway import GatewayClient, GatewayParameters
from py4j.protocol import ERROR

from compactor.spark.jvm import quiet_py4j


@pytest.fixture
def dying() -> Iterator[int]:
    """The port of a server that ends each connection once it was asked for something."""
    listening = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        while True:
            try:
                connection, _ = listening.accept()
            except OSError:
                return
            with connection:
                connection.recv(100)

    thread = threading.Thread(target=serve)
    thread.start()
    yield listening.getsockname()[1]
    listening.shutdown(socket.SHUT_RDWR)
    listening.close()
    thread.join()


def test_py4j_is_silent_and_others_are_not(dying: int, caplog: pytest.LogCaptureFixture) -> None:
    quiet_py4j()
    client = GatewayClient(gateway_parameters=GatewayParameters(port=dying))
    assert client.send_command("c\n") == ERROR
    client.close()
    logging.error("this is heard")  # noqa: LOG015 - the logger that py4j uses
    assert caplog.messages == ["this is heard"]
