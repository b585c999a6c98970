"""A folder → a certificate authority and a server certificate for this machine, for TLS tests."""

import asyncio
import contextlib
import ipaddress
import secrets
import ssl
import threading
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

_LIFETIME: Final = timedelta(days=30)
_NAMES: Final = (
    x509.DNSName("localhost"),
    x509.IPAddress(ipaddress.ip_address("127.0.0.1")),
    x509.IPAddress(ipaddress.ip_address("::1")),
)


_SSL_REQUEST: Final = bytes.fromhex("00000008 04d2162f")
_GSS_REQUEST: Final = bytes.fromhex("00000008 04d21630")
_CHUNK_BYTES: Final = 65_536


@dataclass(frozen=True, slots=True)
class Certificates:
    """PEM files: a client trusts `authority`, and a server presents the others."""

    authority: Path
    certificate: Path
    key: Path
    key_store: Path  # key and certificate chain in one file, for Kafka

    @classmethod
    def create(cls, folder: Path) -> "Certificates":
        """Create a new authority and a server certificate for 127.0.0.1, ::1 and localhost.

        The authority's key isn't kept, so it can never sign anything else.
        """
        folder.mkdir(parents=True, exist_ok=True)
        files = cls(*(folder / name for name in ("ca.pem", "server.pem", "key.pem", "store.pem")))
        authority_key, server_key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
        # A unique name: otherwise a client with another authority's file reports a bad signature.
        issuer = _name(f"Millrace local authority {secrets.token_hex(4)}")
        authority = _sign(
            _builder(issuer, issuer, authority_key.public_key())
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_key_usage(signs_certificates=True), critical=True),
            authority_key,
        )
        server = _sign(
            _builder(issuer, _name("localhost"), server_key.public_key())
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_key_usage(signs_certificates=False), critical=True)
            .add_extension(x509.SubjectAlternativeName(_NAMES), critical=False),
            authority_key,
        )
        key = server_key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        files.authority.write_bytes(authority)
        files.certificate.write_bytes(server)
        for secret in (files.key, files.key_store):
            secret.touch(mode=0o600)
        files.key.write_bytes(key)
        files.key_store.write_bytes(key + server + authority)
        return files


def _name(common_name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def _builder(
    issuer: x509.Name, subject: x509.Name, key: ec.EllipticCurvePublicKey
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .issuer_name(issuer)
        .subject_name(subject)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))  # clocks of containers and hosts differ
        .not_valid_after(now + _LIFETIME)
    )


def _key_usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def _sign(builder: x509.CertificateBuilder, key: ec.EllipticCurvePrivateKey) -> bytes:
    return builder.sign(key, hashes.SHA256()).public_bytes(Encoding.PEM)


class TlsFront:
    """A TLS listener on `port` that speaks plain TCP to `target`, in a thread of its own."""

    def __init__(self, port: int, target: int, certificates: Certificates) -> None:
        self.port = port
        self._target = target
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(certificates.certificate, certificates.key)
        self._runner: asyncio.Runner
        self._server: asyncio.Server
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin to listen. A second call does nothing."""
        if self._thread is None:
            self._runner = asyncio.Runner()
            listen = asyncio.start_server(self._serve, "127.0.0.1", self.port)
            self._server = self._runner.run(listen)
            forever = self._runner.get_loop().run_forever
            self._thread = threading.Thread(target=forever, daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """Close every connection and stop listening."""
        if self._thread is not None:
            loop = self._runner.get_loop()
            loop.call_soon_threadsafe(loop.stop)
            self._thread.join()
            self._server.close()
            self._runner.close()  # cancels the tasks of open connections
            self._thread = None

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        ended = (OSError, asyncio.IncompleteReadError, asyncio.CancelledError)
        with contextlib.suppress(*ended):
            request = await reader.readexactly(len(_SSL_REQUEST))
            if request == _GSS_REQUEST:
                writer.write(b"N")
                request = await reader.readexactly(len(_SSL_REQUEST))
            if request == _SSL_REQUEST:
                writer.write(b"S")
                await writer.start_tls(self._context)
                server = await asyncio.open_connection("127.0.0.1", self._target)
                await asyncio.gather(_pump(reader, server[1]), _pump(server[0], writer))
        writer.close()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(_CHUNK_BYTES):
            writer.write(data)
            await writer.drain()
    except OSError:
        pass  # one side is gone, and the close ends the other
    finally:
        writer.close()
