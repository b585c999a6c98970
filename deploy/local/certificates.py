"""A folder -> a certificate authority and a server certificate for this machine, for TLS tests."""

import ipaddress
import secrets
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


@dataclass(frozen=True, slots=True)
class Certificates:
    """PEM files: what a client trusts (`authority`) and what a server shows (the others)."""

    authority: Path
    certificate: Path
    key: Path
    key_store: Path  # key and certificate chain in one file, as Kafka reads it

    @classmethod
    def create(cls, folder: Path) -> "Certificates":
        """Make a new authority and a server certificate for 127.0.0.1, ::1 and localhost.

        The authority's key isn't kept: nothing else can ever be signed by it.
        """
        folder.mkdir(parents=True, exist_ok=True)
        files = cls(*(folder / name for name in ("ca.pem", "server.pem", "key.pem", "store.pem")))
        authority_key, server_key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
        # A name of its own, or a client with another authority's file blames the signature.
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
