"""Requests for the daemon's health of any form → little work, and no line in its log."""

import contextlib
import socket
import struct
import threading
import time
from collections.abc import Iterator
from http.client import HTTPConnection
from unittest.mock import Mock

import pytest
from prometheus_client import CollectorRegistry, Gauge
from prometheus_client.metrics_core import Metric

from deploy.commands.health import HealthServer
from deploy.local.processes import reserve_port


def test_a_client_that_goes_away_is_nothing_to_tell(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    port, handled = reserve_port(), threading.Event()
    monkeypatch.setattr(HealthServer, "close_request", lambda *_: handled.set())
    with HealthServer(f"127.0.0.1:{port}", Mock(), CollectorRegistry()):
        with socket.create_connection(("127.0.0.1", port)) as client:
            client.send(b"GET /health")
            # Closed so, it resets the connection, as some load balancers' checks do.
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        assert handled.wait(60)
    assert capfd.readouterr().err == ""


def test_probes_that_ask_for_the_head_alone_get_it() -> None:
    port, health = reserve_port(), Mock()
    health.report.return_value = {"live": True, "ready": False}
    with HealthServer(f"127.0.0.1:{port}", health, CollectorRegistry()):
        connection = HTTPConnection("127.0.0.1", port, timeout=60)
        connection.request("HEAD", "/health/ready")
        answer = connection.getresponse()
        assert (answer.status, answer.read()) == (503, b"")
        connection.close()


@pytest.fixture
def server() -> Iterator[HealthServer]:
    registry = CollectorRegistry()
    Gauge("millrace_live", "Whether it is.", registry=registry).set(1)
    health = Mock()
    health.report.return_value = {"live": True, "ready": True}
    with HealthServer(f"127.0.0.1:{reserve_port()}", health, registry) as started:
        yield started


def connected(server: HealthServer, own: str = "127.0.0.1") -> socket.socket:
    """A client's connection, from an address of its own."""
    address = ("127.0.0.1", server.server_address[1])
    return socket.create_connection(address, timeout=60, source_address=(own, 0))


def in_threads() -> list[threading.Thread]:
    """What the server does by now."""
    return [each for each in threading.enumerate() if "process_request" in each.name]


def ask(server: HealthServer, request: bytes) -> bytes:
    """Send bytes, and return all that is answered until the connection ends."""
    with connected(server) as client:
        answer = b""
        with contextlib.suppress(ConnectionError):
            client.sendall(request)
            while piece := client.recv(65_536):
                answer += piece
        return answer


@pytest.mark.parametrize(
    "accept",
    [
        b"application/openmetrics-text; version=x",
        b"application/openmetrics-text;version=1e5",
        b"text/plain;version=\xb2",
        b"text/plain;version=" + b"9" * 5_000,
        b"application/openmetrics-text;version=1.0.0\r\n ",
        b",;=,;",
    ],
    ids=range(6),
)
def test_metrics_are_told_whatever_form_is_asked_for(
    server: HealthServer, accept: bytes, capfd: pytest.CaptureFixture[str]
) -> None:
    answer = ask(server, b"GET /metrics HTTP/1.1\r\nAccept: " + accept + b"\r\n\r\n")
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.0 200 OK\r\n")
    assert all(b": " in line for line in head.split(b"\r\n")[1:])
    assert b"millrace_live 1.0" in body
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    "request_",
    [
        b"GET /health/live HTTP/1.1\r\nX: " + b"x" * 20_000,
        b"GET /" + b"x" * 1_000_000 + b" HTTP/1.1\r\n\r\n",
        b"\x16\x03\x01\x02\x00" + bytes(20_000),
        b"GET /health/live HTTP/9.9\r\n\r\n",
        b"\r\n\r\n",
        b"PUT /health/live HTTP/1.1\r\n\r\n",
    ],
    ids=range(6),
)
def test_what_is_no_request_or_a_long_one_is_neither_answered_as_one_nor_told(
    server: HealthServer, request_: bytes, capfd: pytest.CaptureFixture[str]
) -> None:
    assert b"200 OK" not in ask(server, request_)
    assert b"200 OK" in ask(server, b"GET /health/live HTTP/1.1\r\n\r\n")
    assert capfd.readouterr() == ("", "")


def test_a_probe_is_answered_beside_hundreds_of_clients_that_say_nothing(
    server: HealthServer,
) -> None:
    with contextlib.ExitStack() as stack:
        for _ in range(300):
            stack.enter_context(connected(server))
        assert b"200 OK" in ask(server, b"GET /health/live HTTP/1.1\r\n\r\n")
        assert len(in_threads()) <= server.threads_max


def test_a_request_that_takes_its_time_outlasts_clients_of_another_address(
    server: HealthServer,
) -> None:
    with contextlib.ExitStack() as stack:
        for _ in range(10):
            stack.enter_context(connected(server))
        probe = stack.enter_context(connected(server, "127.0.0.2"))
        for _ in range(300):
            stack.enter_context(connected(server))
        probe.sendall(b"GET /health/live HTTP/1.1\r\n\r\n")
        assert b"200 OK" in probe.recv(65_536)


def test_metrics_that_take_long_are_made_for_a_few_at_once_and_hold_up_no_probe(
    server: HealthServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on = threading.Event()

    def collect() -> Iterator[Metric]:
        go_on.wait(60)
        return iter(())

    monkeypatch.setattr(server.metrics, "collect", collect)
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(connected(server)) for _ in range(300)]
        for client in clients:
            with contextlib.suppress(ConnectionError):
                client.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
        assert b"200 OK" in ask(server, b"GET /health/live HTTP/1.1\r\n\r\n")
        until = time.monotonic() + 60
        while len(in_threads()) != server.metrics_max and time.monotonic() < until:
            time.sleep(0.05)
        assert len(in_threads()) == server.metrics_max
        assert b" 503 " in ask(server, b"GET /metrics HTTP/1.1\r\n\r\n")
        go_on.set()


def test_a_client_that_trickles_is_left_alone_in_time(
    server: HealthServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "request_s_max", 0.5)
    with connected(server) as client:
        began = time.monotonic()
        with pytest.raises(ConnectionError):  # noqa: PT012 (which send fails isn't known)
            while time.monotonic() < began + 60:
                client.sendall(b"G")
                time.sleep(0.1)
