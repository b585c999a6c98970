"""The daemon's health and metrics → HTTP, for Kubernetes, Prometheus and load balancers.

``/health/live`` and ``/health/ready`` answer 200 or 503, with the same JSON, which says why;
``/metrics`` in Prometheus' formats. A thread of its own answers, so that it does so whatever the
daemon waits for.
"""

import json
import socket
import sys
import threading
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from socketserver import ThreadingTCPServer
from types import TracebackType
from typing import Any, Final, Self

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder

from cdc.capture.health import Health
from cdc.errors import ConfigError

_ASKED: Final = {"/health/live": "live", "/health/ready": "ready"}


class HealthServer(ThreadingTCPServer):
    """Answers while its context lasts; ``listen`` is ``address:port``."""

    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, listen: str, health: Health, metrics: CollectorRegistry) -> None:
        host, _, port = listen.rpartition(":")
        host = host.strip("[]")
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self.health = health
        self.metrics = metrics
        try:
            super().__init__((host, int(port)), _Handler)
        except OSError as error:
            raise ConfigError(
                f"can't listen at {listen}: {error}",
                where="[health] listen",
                remedy="name a free port, and an address of this machine",
            ) from None

    def __enter__(self) -> Self:
        threading.Thread(target=self.serve_forever, name="health", daemon=True).start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.shutdown()
        self.server_close()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of a client that went away: some probes reset each connection."""
        if not isinstance(sys.exc_info()[1], OSError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    server: HealthServer
    timeout = 5
    """A client that says nothing for so long is left alone."""
    server_version = "millrace"
    sys_version = ""

    def do_GET(self) -> None:
        path = self.path.partition("?")[0].rstrip("/")
        if path == "/metrics":
            encode, kind = choose_encoder(self.headers.get("Accept", ""))
            self._answer(HTTPStatus.OK, kind, encode(self.server.metrics))
        elif (asked := _ASKED.get(path)) is not None:
            report = self.server.health.report()
            status = HTTPStatus.OK if report[asked] else HTTPStatus.SERVICE_UNAVAILABLE
            self._answer(status, "application/json", json.dumps(report).encode() + b"\n")
        else:
            self.send_error(HTTPStatus.NOT_FOUND)

    def _answer(self, status: HTTPStatus, kind: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def do_HEAD(self) -> None:
        """Answer as to GET, without a body."""
        self.do_GET()

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 (the base class's name)
        """Probes come every few seconds: nothing to tell."""
