"""Whoever asks for the daemon's health costs it nothing, and its log no line."""

import socket
import struct
import threading
from http.client import HTTPConnection
from unittest.mock import Mock

import pytest
from prometheus_client import CollectorRegistry

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
