"""Certificates of an authority that is made for a test, by the `openssl` command."""

from __future__ import annotations

import shutil
import socket
import ssl
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


def why_no_openssl() -> str | None:
    """A sentence that says what is missing; None if certificates can be made."""
    return None if shutil.which("openssl") else "openssl is not on PATH"


class Authority:
    """Signs certificates; `file` has its own."""

    def __init__(self, folder: Path, name: str) -> None:
        self._folder, self._name = folder, name
        self.file = folder / f"{name}.pem"
        self._key = folder / f"{name}.key"
        self._openssl(
            *("req", "-x509", "-days", "2", "-subj", f"/CN={name}", "-out", str(self.file)),
            *("-addext", "basicConstraints=critical,CA:TRUE", *_new_key(self._key)),
        )

    def certificate(self, subject: str, names: str) -> ssl.SSLContext:
        """Of a server with these alternative names, such as `DNS:localhost`."""
        base = self._folder / f"{self._name}-{subject}"
        key, request, signed = (base.with_suffix(end) for end in (".key", ".csr", ".pem"))
        more = base.with_suffix(".ext")
        more.write_text(f"subjectAltName={names}\n")
        self._openssl("req", "-subj", f"/CN={subject}", "-out", str(request), *_new_key(key))
        self._openssl(
            *("x509", "-req", "-days", "2", "-in", str(request), "-out", str(signed)),
            *("-CA", str(self.file), "-CAkey", str(self._key), "-CAcreateserial"),
            *("-extfile", str(more)),
        )
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(signed, key)
        return context

    def _openssl(self, *arguments: str) -> None:
        command = ["openssl", *arguments]
        done = subprocess.run(command, check=False, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr


def _new_key(path: Path) -> list[str]:
    options = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-noenc"]
    return [*options, "-keyout", str(path)]


@contextmanager
def tls_before(port: int, context: list[ssl.SSLContext]) -> Iterator[int]:
    """Ends TLS in front of a port of this machine: its own port.

    Each connection takes the context that is last in the list then.
    """
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def accept() -> None:
            with suppress(OSError):
                while True:
                    client, _ = listening.accept()
                    threading.Thread(
                        target=_relay, args=(client, port, context[-1]), daemon=True
                    ).start()

        threading.Thread(target=accept, daemon=True).start()
        yield listening.getsockname()[1]


def _relay(client: socket.socket, port: int, context: ssl.SSLContext) -> None:
    with suppress(OSError), client:
        with context.wrap_socket(client, server_side=True) as inside:
            with socket.create_connection(("127.0.0.1", port)) as behind:
                threading.Thread(target=_pump, args=(behind, inside), daemon=True).start()
                _pump(inside, behind)


def _pump(source: socket.socket, target: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(64 << 10):
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)
