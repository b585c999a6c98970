"""librdkafka's options → Spark's, or an error that names the option."""

from pathlib import Path

import pytest

from cdc.errors import ConfigError
from sinks.log.kafka_options import spark_options


def test_sasl_over_tls_becomes_jaas_and_inline_certificates(tmp_path: Path) -> None:
    authority = tmp_path / "ca.pem"
    authority.write_text("-----BEGIN CERTIFICATE-----\nAA==\n-----END CERTIFICATE-----\n")
    java_options = spark_options(
        {
            "bootstrap.servers": "b:9093",
            "security.protocol": "sasl_ssl",
            "sasl.mechanisms": "SCRAM-SHA-512",
            "sasl.username": "millrace",
            "sasl.password": 'p"a\\ss;',
            "ssl.ca.location": str(authority),
            "ssl.endpoint.identification.algorithm": "none",
            "socket.timeout.ms": "30000",
            "linger.ms": "5",
            "compression.type": "lz4",
        }
    )
    bounded = set(spark_options({"bootstrap.servers": "b"})) - {"kafka.bootstrap.servers"}
    assert {name: value for name, value in java_options.items() if name not in bounded} == {
        "kafka.bootstrap.servers": "b:9093",
        "kafka.security.protocol": "SASL_SSL",
        "kafka.sasl.mechanism": "SCRAM-SHA-512",
        "kafka.sasl.jaas.config": "org.apache.kafka.common.security.scram.ScramLoginModule "
        'required username="millrace" password="p\\"a\\\\ss;";',
        "kafka.ssl.truststore.type": "PEM",
        "kafka.ssl.truststore.certificates": authority.read_text(),
        "kafka.ssl.endpoint.identification.algorithm": "",
        "kafka.request.timeout.ms": "30000",
    }


def test_a_read_makes_no_topic() -> None:
    """The broker would, where the topic is deleted while it is read: by its own settings."""
    options = {"bootstrap.servers": "b", "allow.auto.create.topics": "false"}
    assert spark_options(options)["kafka.allow.auto.create.topics"] == "false"


def test_a_client_certificate_goes_along_as_text(tmp_path: Path) -> None:
    key, certificate = tmp_path / "key.pem", tmp_path / "cert.pem"
    key.write_text("KEY")
    certificate.write_text("CERT")
    java_options = spark_options(
        {
            "bootstrap.servers": "b",
            "security.protocol": "SSL",
            "ssl.key.location": str(key),
            "ssl.certificate.location": str(certificate),
            "ssl.key.password": "secret",
        }
    )
    assert java_options["kafka.ssl.keystore.type"] == "PEM"
    assert java_options["kafka.ssl.keystore.key"] == "KEY"
    assert java_options["kafka.ssl.keystore.certificate.chain"] == "CERT"
    assert java_options["kafka.ssl.key.password"] == "secret"


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"no.such.option": "1"}, "no.such.option"),
        ({"sasl.username": "u", "sasl.mechanism": "GSSAPI"}, "GSSAPI"),
        ({"enable.ssl.certificate.verification": "false"}, "always verifies"),
        ({"ssl.ca.location": "/no/such/file"}, "can't read the file"),
    ],
)
def test_what_has_no_meaning_is_refused(options: dict[str, str], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        spark_options({"bootstrap.servers": "b"} | options)
