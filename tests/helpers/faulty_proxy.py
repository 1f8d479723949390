"""An HTTP proxy in front of an S3 server, on the loopback interface, that makes faults on demand.

slow_down  503, as a store answers that is asked too often
reset      the connection is reset before an answer
cut        the answer breaks off in the middle
half       a whole answer that holds half of what was asked for
slow       the answer comes after a pause
refused    403, as for wrong credentials
"""

from __future__ import annotations

import contextlib
import http.client
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

import pytest

HOP_HEADERS = {"connection", "content-length", "transfer-encoding", "keep-alive"}
DENIED = b"<Error><Code>AccessDenied</Code><Message>Access Denied</Message></Error>"
SLOW_DOWN = b"<Error><Code>SlowDown</Code><Message>Please reduce your rate</Message></Error>"
SLOW_S = 1.0


class Faults:
    """What is to go wrong, and what was asked for."""

    def __init__(self) -> None:
        self.endpoint = ""
        self.requests: list[tuple[str, str, str]] = []  # method, path, range
        self.before: Callable[[str, str], None] = lambda method, path: None
        self._kinds: list[str] = []
        self._guard = threading.Lock()
        self._part = ""

    def make(self, kind: str, times: int, part: str = "") -> None:
        """Answer the next GET requests whose path holds `part` with such a fault."""
        with self._guard:
            self._kinds, self._part = [kind] * times, part

    def next(self, method: str, path: str, span: str) -> str:
        """The fault of this request; empty for none."""
        self.before(method, path)
        with self._guard:
            self.requests.append((method, path, span))
            wanted = method == "GET" and self._part in path
            return self._kinds.pop() if wanted and self._kinds else ""


@contextlib.contextmanager
def faulty_proxy(endpoint: str) -> Iterator[Faults]:
    """A proxy to this server; the environment points at the proxy."""
    faults = Faults()
    server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(faults, endpoint))
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    faults.endpoint = f"http://127.0.0.1:{server.server_address[1]}"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ENDPOINT_URL", faults.endpoint)
        try:
            yield faults
        finally:
            server.shutdown()
            server.server_close()


def _handler(faults: Faults, endpoint: str) -> type[BaseHTTPRequestHandler]:
    to = urlsplit(endpoint).netloc

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *args: Any) -> None:
            """Say nothing."""

        def serve(self) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            body = self.rfile.read(length)
            fault = faults.next(self.command, self.path, self.headers.get("Range", ""))
            if fault == "reset":
                linger = struct.pack("ii", 1, 0)
                self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
                self.close_connection = True
                self.connection.close()
            elif fault == "slow_down":
                self._answer(503, {}, SLOW_DOWN)
            elif fault == "refused":
                self._answer(403, {}, DENIED)
            else:
                self._pass_on(body, fault)

        def _pass_on(self, body: bytes, fault: str) -> None:
            if fault == "slow":
                time.sleep(SLOW_S)
            connection = http.client.HTTPConnection(to, timeout=30)
            connection.request(self.command, self.path, body, dict(self.headers))
            found = connection.getresponse()
            data, headers = found.read(), dict(found.getheaders())
            connection.close()
            length = found.getheader("Content-Length") if self.command == "HEAD" else None
            self._answer(found.status, headers, data, length, fault)

        def _answer(
            self,
            status: int,
            headers: dict[str, str],
            data: bytes,
            length: str | None = None,
            fault: str = "",
        ) -> None:
            if fault == "half":
                data = data[: len(data) // 2]
                span = headers.get("Content-Range", "")
                if span:
                    first, rest = span.removeprefix("bytes ").split("-")
                    stop = int(first) + len(data) - 1
                    headers["Content-Range"] = f"bytes {first}-{stop}/{rest.split('/')[1]}"
            self.send_response(status)
            for name, value in headers.items():
                if name.lower() not in HOP_HEADERS:
                    self.send_header(name, value)
            self.send_header("Content-Length", length or str(len(data)))
            self.end_headers()
            if fault == "cut":
                data, self.close_connection = data[: len(data) // 2], True
            with contextlib.suppress(OSError):
                self.wfile.write(data)

    for method in ("GET", "HEAD", "PUT", "POST", "DELETE"):
        setattr(Handler, f"do_{method}", Handler.serve)
    return Handler
