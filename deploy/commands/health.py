"""The daemon's health and metrics → HTTP, for Kubernetes, Prometheus and load balancers.

``/health/live`` and ``/health/ready`` answer 200 or 503, with the same JSON, which has the reason.
``/metrics`` answers in Prometheus' formats. A thread of its own answers, whatever the daemon waits
for.
"""

import io
import json
import socket
import sys
import threading
import time
from collections import Counter
from contextlib import suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from socketserver import ThreadingTCPServer
from typing import Any, Final, Self

import structlog
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder

from cdc.capture.health import Health
from cdc.errors import ConfigError

log = structlog.get_logger()

_REQUEST_BYTES_MAX: Final = 16 << 10
_QUESTIONS: Final = {"/health/live": "live", "/health/ready": "ready"}


class HealthServer(ThreadingTCPServer):
    """A server that answers while its context lasts. ``listen`` is ``address:port``.

    A client of the port can't use more than a few threads, seconds and bytes. With one client too
    many, the oldest connection without a request ends, from the address with most of them. So a
    probe gets its answer, whatever another address does.
    """

    daemon_threads = True
    allow_reuse_address = True
    request_queue_size = 128
    asking_max = 64
    """Connections without a complete request."""
    threads_max = 2 * asking_max
    metrics_max = 4
    """Concurrent answers of /metrics, which take long with many tables."""
    request_s_max = 10.0
    """Maximum time of a request, which stops a slow sender."""

    def __init__(self, listen: str, health: Health, metrics: CollectorRegistry) -> None:
        host, _, port = listen.rpartition(":")
        host = host.strip("[]")
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self.health = health
        self.metrics = metrics
        self.metrics_slots = threading.BoundedSemaphore(self.metrics_max)
        self._asking: dict[socket.socket, tuple[str, float]] = {}
        """Connections without a complete request, the oldest first: address, and begin of each."""
        self._answering: dict[socket.socket, float] = {}
        self._threads_left = threading.BoundedSemaphore(self.threads_max)
        self._lock = threading.Lock()
        try:
            super().__init__((host, int(port)), _Handler)
        except OSError as error:
            raise not_listening(listen, error) from None

    def __enter__(self) -> Self:
        threading.Thread(target=self.serve_forever, name="health", daemon=True).start()
        return self

    def __exit__(self, *failure: object) -> None:
        self.shutdown()
        self.server_close()

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer in a thread. Further connections wait in the system's queue."""
        with self._lock:
            if len(self._asking) >= self.asking_max:
                self._make_room()
            self._asking[request] = client_address[0], time.monotonic()
        if not self._threads_left.acquire(timeout=1):
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except BaseException:
            self._threads_left.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Release the thread at its end."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._threads_left.release()

    def _make_room(self) -> None:
        counts = Counter(address for address, _ in self._asking.values())
        most = max(counts.values())
        oldest = next(
            each for each, (address, _) in self._asking.items() if counts[address] == most
        )
        del self._asking[oldest]
        _cut(oldest)

    def begin_answer(self, request: socket.socket) -> None:
        """Protect a connection from being closed. Raise ConnectionError if it already was."""
        with self._lock:
            if request not in self._asking:
                raise ConnectionError("closed: a newer connection needs its place")
            self._answering[request] = self._asking.pop(request)[1]

    def service_actions(self) -> None:
        """End what takes too long. Called twice a second."""
        before = time.monotonic() - self.request_s_max
        with self._lock:
            asking = {request: began for request, (_, began) in self._asking.items()}
            for request, began in (asking | self._answering).items():
                if began < before:
                    _cut(request)

    def shutdown_request(self, request: Any) -> None:
        """Close a connection."""
        with self._lock:
            self._asking.pop(request, None)
            self._answering.pop(request, None)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ARG002
        """Ignore a client that disconnects, as some probes reset each connection."""
        error = sys.exc_info()[1]
        if not isinstance(error, OSError):
            log.warning("a request for the daemon's health failed", error=type(error).__name__)


def not_listening(listen: str, error: OSError) -> ConfigError:
    """Return the error for an address that can't be used."""
    return ConfigError(
        f"can't listen at {listen}: {error}",
        where="[health] listen",
        remedy="choose a free port, and an address of this machine",
    )


def _cut(request: socket.socket) -> None:
    """Shut a connection down, so that its thread closes it."""
    with suppress(OSError):
        request.shutdown(socket.SHUT_RDWR)


class _Handler(BaseHTTPRequestHandler):
    server: HealthServer
    timeout = 5
    """A client that is silent for this long is disconnected."""
    server_version = "millrace"
    sys_version = ""

    def setup(self) -> None:
        """Read the whole head. The base class would accept megabytes of it."""
        super().setup()
        head = b""
        while b"\r\n\r\n" not in head and b"\n\n" not in head:
            piece = self.connection.recv(_REQUEST_BYTES_MAX - len(head))
            if not piece:
                raise ConnectionError("the request is invalid or too long")
            head += piece
        self.server.begin_answer(self.connection)
        self.rfile = io.BytesIO(head)

    def do_GET(self) -> None:
        path = self.path.partition("?")[0].rstrip("/")
        if path == "/metrics":
            if not self.server.metrics_slots.acquire(blocking=False):
                self.send_error(
                    HTTPStatus.SERVICE_UNAVAILABLE, "too many requests for metrics at once"
                )
                return
            try:
                self._answer(HTTPStatus.OK, *self._metrics())
            finally:
                self.server.metrics_slots.release()
        elif (question := _QUESTIONS.get(path)) is not None:
            report = self.server.health.report()
            status = HTTPStatus.OK if report[question] else HTTPStatus.SERVICE_UNAVAILABLE
            self._answer(status, "application/json", json.dumps(report).encode() + b"\n")
        else:
            self.send_error(HTTPStatus.NOT_FOUND)

    def _metrics(self) -> tuple[str, bytes]:
        """Return the metrics in the requested form, or the default if that isn't supported."""
        accepted = " ".join(self.headers.get("Accept", "").split())
        try:
            encode, kind = choose_encoder(accepted)
            return kind, encode(self.server.metrics)
        except (TypeError, ValueError):  # an invalid version
            encode, kind = choose_encoder("")
            return kind, encode(self.server.metrics)

    def _answer(self, status: HTTPStatus, kind: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def do_HEAD(self) -> None:
        """Answer as for GET, without a body."""
        self.do_GET()

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 (the base class's name)
        """Log nothing, as probes come every few seconds."""
