"""Libraries as we configure them → an impostor that answers over TLS gets no password."""

import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from cdc.convert.converters import schema_reader
from cdc.errors import LogAccessError, MillraceError
from cdc.log.state import last_progress
from cdc.postgres.connection import connect
from cdc.settings import SearchSettings
from deploy.local.certificates import Certificates

PASSWORD = "hunter2"


class Stranger:
    """Has a certificate that no known authority signed, and notes what it is told nevertheless."""

    def __init__(self, certificates: Certificates) -> None:
        self.heard = b""
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(certificates.certificate, certificates.key)
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._server.getsockname()[1]
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._server.accept()
                threading.Thread(target=self._hear, args=[client], daemon=True).start()

    def _hear(self, client: socket.socket) -> None:
        with suppress(OSError), client:
            client.settimeout(10)
            first = client.recv(8, socket.MSG_PEEK)
            if first == bytes.fromhex("00000008 04d2162f"):  # PostgreSQL's request for TLS
                client.recv(8)
                client.sendall(b"S")
            with self._context.wrap_socket(client, server_side=True) as secured:
                self.heard += secured.recv(4096)

    def close(self) -> None:
        """Take no more connections."""
        self._server.close()


@pytest.fixture
def stranger(tmp_path: Path) -> Iterator[Stranger]:
    made = Stranger(Certificates.create(tmp_path))
    yield made
    made.close()


def test_opensearch_is_sent_nothing(stranger: Stranger) -> None:
    from sinks.search.client import check
    from sinks.search.client import connect as connect_search

    settings = SearchSettings.model_validate(
        {"url": f"https://127.0.0.1:{stranger.port}", "username": "u", "password": PASSWORD}
    )
    with pytest.raises(MillraceError, match="no TLS connection"):
        check(connect_search(settings), settings)
    assert stranger.heard == b""


def test_the_schema_registry_is_sent_nothing(stranger: Stranger) -> None:
    text_of = schema_reader(
        {
            "value.schema.registry.url": f"https://127.0.0.1:{stranger.port}",
            "value.schema.registry.basic.auth.user.info": f"u:{PASSWORD}",
            "value.schema.registry.max.retries": "0",
        }
    )
    assert text_of is not None
    with pytest.raises(MillraceError, match="CERTIFICATE_VERIFY_FAILED"):
        text_of(1)
    assert stranger.heard == b""


def test_kafka_is_sent_nothing(stranger: Stranger) -> None:
    options = {
        "bootstrap.servers": f"127.0.0.1:{stranger.port}",
        "security.protocol": "sasl_ssl",
        "sasl.mechanism": "PLAIN",
        "sasl.username": "u",
        "sasl.password": PASSWORD,
    }
    with pytest.raises(LogAccessError, match="certificate"):
        last_progress(options, "topic", "slot")
    assert stranger.heard == b""


def test_postgresql_is_sent_nothing_where_its_authority_is_named(
    stranger: Stranger, tmp_path: Path
) -> None:
    other = Certificates.create(tmp_path / "other").authority
    source = {
        "host": "127.0.0.1",
        "port": str(stranger.port),
        "user": "u",
        "password": PASSWORD,
        "sslmode": "verify-full",
        "sslrootcert": str(other),
    }
    with pytest.raises(MillraceError, match="certificate"):
        connect(source, purpose="test")
    assert stranger.heard == b""
