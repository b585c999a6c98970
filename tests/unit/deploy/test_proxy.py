"""The proxy of the tests does to connections what it says."""

import socket
import socketserver
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from tests.fixtures.proxy import Proxy

MakeProxy = Callable[[int], Proxy]


class Echo(socketserver.BaseRequestHandler):
    def handle(self) -> None:
        while data := self.request.recv(1024):
            self.request.sendall(data)


@pytest.fixture
def echo() -> Iterator[int]:
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Echo) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_address[1]
        server.shutdown()


def connect(proxy: Proxy) -> socket.socket:
    return socket.create_connection(("127.0.0.1", proxy.port), timeout=1)


def ask(connection: socket.socket) -> bytes:
    connection.sendall(b"hello")
    return connection.recv(100)


def test_faithful_until_broken(echo: int, proxy: MakeProxy) -> None:
    with connect(proxy(echo)) as connection:
        assert ask(connection) == b"hello"


def test_cut_resets_and_refuses_until_restored(echo: int, proxy: MakeProxy) -> None:
    way = proxy(echo)
    with connect(way) as connection:
        assert ask(connection) == b"hello"
        way.cut()
        with pytest.raises(ConnectionError):
            ask(connection)
    with pytest.raises(ConnectionRefusedError):
        connect(way)
    way.restore()
    with connect(way) as connection:
        assert ask(connection) == b"hello"


def test_deaf_connection_stays_open_and_says_nothing(echo: int, proxy: MakeProxy) -> None:
    way = proxy(echo)
    with connect(way) as connection:
        assert ask(connection) == b"hello"
        way.deafen()
        with pytest.raises(TimeoutError):
            ask(connection)
        with connect(way) as late, pytest.raises(TimeoutError):
            ask(late)
    way.restore()
    with connect(way) as connection:
        assert ask(connection) == b"hello"


def test_slow_connection_answers_late(echo: int, proxy: MakeProxy) -> None:
    way = proxy(echo)
    way.slow(0.1)
    with connect(way) as connection:
        started = time.monotonic()
        assert ask(connection) == b"hello"
        assert time.monotonic() - started >= 0.2


def test_stalled_connection_answers_once_it_is_restored(echo: int, proxy: MakeProxy) -> None:
    way = proxy(echo)
    with connect(way) as connection:
        way.stall()
        connection.settimeout(0.1)
        with pytest.raises(TimeoutError):
            ask(connection)
        way.restore()
        connection.settimeout(1)
        assert connection.recv(100) == b"hello"
