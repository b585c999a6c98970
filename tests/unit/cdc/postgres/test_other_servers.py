"""Servers other than PostgreSQL 14 or newer → refused first, on each kind of connection."""

import re
import socket
import struct
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial

import pytest

from cdc.errors import ConfigError, MillraceError, SourceSettingError
from cdc.postgres.connection import connect, connect_replication

PINNED = b"idle_session_timeout"
AUTHENTICATED = struct.pack("!cii", b"R", 8, 0)
READY = struct.pack("!cic", b"Z", 5, b"I")
_VERSION_3 = 196_608

CONNECT = pytest.mark.parametrize(
    "connected", [partial(connect, purpose="test"), connect_replication]
)


def greeting(parameters: Mapping[str, str]) -> bytes:
    told = b"".join(
        struct.pack("!ci", b"S", 4 + len(body)) + body
        for name, value in parameters.items()
        for body in [f"{name}\0{value}\0".encode()]
    )
    return AUTHENTICATED + told + READY


def refusal(text: str) -> bytes:
    body = b"SFATAL\0VFATAL\0C42704\0M" + text.encode() + b"\0\0"
    return struct.pack("!ci", b"E", 4 + len(body)) + body


def answer(client: socket.socket, answer_to: Callable[[bytes], bytes]) -> None:
    """Answer a client's start-up packet; its questions for encryption are declined."""
    with client, suppress(OSError):
        while True:
            length, code = struct.unpack("!ii", client.recv(8, socket.MSG_WAITALL))
            body = client.recv(length - 8, socket.MSG_WAITALL) if length > 8 else b""
            if code == _VERSION_3:
                break
            client.sendall(b"N")
        client.sendall(answer_to(body))
        client.recv(1)


@contextmanager
def server(answer_to: Callable[[bytes], bytes]) -> Iterator[dict[str, str]]:
    """A server that answers start-up packets so; how to connect to it."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            with suppress(OSError):
                while True:
                    client, _ = listening.accept()
                    threading.Thread(target=answer, args=(client, answer_to), daemon=True).start()

        threading.Thread(target=serve, daemon=True).start()
        yield {
            "host": "127.0.0.1",
            "port": str(listening.getsockname()[1]),
            "user": "me",
            "dbname": "shop",
            "password": "secret",
            "sslmode": "disable",
        }
        listening.shutdown(socket.SHUT_RDWR)


def refused(
    connected: Callable[[dict[str, str]], object], answer_to: Callable[[bytes], bytes]
) -> MillraceError:
    with server(answer_to) as source, pytest.raises(MillraceError) as caught:
        connected(source)
    return caught.value


@CONNECT
@pytest.mark.parametrize("version", ["13.14 (Debian 13.14-1)", "9.6.24", "11.2-YB-2.20.1.0-b0"])
def test_an_older_server_is_told_by_its_version_and_not_by_a_setting_that_it_lacks(
    version: str, connected: Callable[[dict[str, str]], object]
) -> None:
    def answer_to(packet: bytes) -> bytes:
        if PINNED in packet:
            return refusal('unrecognized configuration parameter "idle_session_timeout"')
        return greeting({"server_version": version})

    error = refused(connected, answer_to)
    assert isinstance(error, SourceSettingError)
    assert error.what.startswith(f"the server reports version {version}")
    assert "14 or newer" in error.what


@CONNECT
def test_one_that_takes_any_setting_is_told_as_well(
    connected: Callable[[dict[str, str]], object],
) -> None:
    error = refused(connected, lambda _: greeting({"server_version": "13.0.0"}))
    assert isinstance(error, SourceSettingError)
    assert "14 or newer" in error.what


@CONNECT
def test_a_setting_of_the_users_own_is_still_the_keyword_to_correct(
    connected: Callable[[dict[str, str]], object],
) -> None:
    text = 'unrecognized configuration parameter "nosuch"'
    error = refused(connected, lambda _: refusal(text))
    assert isinstance(error, ConfigError)
    assert "correct that keyword" in error.remedy


@CONNECT
@pytest.mark.parametrize(
    "answered",
    [
        refusal("unsupported startup parameter: replication"),
        refusal("unsupported startup parameter in options: bytea_output"),
        greeting({"server_version": "16.2", "IntervalStyle": "postgres"}),
    ],
)
def test_a_pooler_in_between_is_told(
    answered: bytes, connected: Callable[[dict[str, str]], object]
) -> None:
    error = refused(connected, lambda _: answered)
    assert isinstance(error, ConfigError | SourceSettingError)
    assert re.search("pooler", str(error))
    assert "to PostgreSQL itself" in error.remedy
