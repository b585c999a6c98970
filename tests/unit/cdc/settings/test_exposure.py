"""Settings → the parts that others on the network can read; refusals of ``tls = "required"``."""

from pathlib import Path
from typing import Never

import pytest

from cdc.errors import ConfigError
from cdc.settings import Settings, load
from cdc.settings.exposure import Exposure, is_local, of_kafka, of_registry, of_search, of_source
from cdc.settings.search import SearchSettings

REMOTE = {"host": "db.example", "password": "hunter2"}
SAFE = """
[source]
host = "db.example"
password = "hunter2"
sslmode = "verify-full"
[capture]
topic.prefix = "shop"
[kafka]
bootstrap.servers = "kafka.example:9093"
security.protocol = "ssl"
[format]
"value" = "avro"
"value.schema.registry.url" = "https://registry.example"
[search]
url = "https://search.example"
"""
LOCAL = (
    *("localhost", "LOCALHOST", "db.localhost", "127.0.0.1", "127.1.2.3", "::1", "[::1]"),
    *("::ffff:127.0.0.1", "/var/run/postgresql", "@socket"),
)
PLAIN = {
    "[source]": ('"verify-full"', '"prefer"'),
    "[snapshot_source]": ("[capture]", '[snapshot_source]\nsslmode = "disable"\n[capture]'),
    "[kafka]": ('"ssl"', '"plaintext"'),
    "[format]": ("https://registry", "http://u:hunter2@registry"),
    "[search]": ("https://search", "http://search"),
}
"""Section → what makes a safe configuration one that sends plain text."""


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("HOST", "HOSTADDR", "SERVICE", "SSLMODE", "SSLROOTCERT", "GSSENCMODE"):
        monkeypatch.delenv(f"PG{name}", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))


def settings_of(folder: Path, text: str) -> Settings:
    path = folder / "millrace.toml"
    path.write_text(text)
    return load(path)


@pytest.mark.parametrize("host", LOCAL)
def test_this_machine_is_no_network(host: str) -> None:
    assert is_local(host)
    assert not list(of_source("[source]", {"host": host}))
    assert not list(of_search(SearchSettings(url="http://localhost:9200", username="u")))
    assert not list(of_kafka({"bootstrap.servers": "localhost:9092,[::1]:9092,PLAINTEXT://[::1]"}))


@pytest.mark.parametrize("host", ["localhost.example", "10.0.0.1", "128.0.0.1", "db"])
def test_any_other_host_is_reached_by_a_network(host: str) -> None:
    assert not is_local(host)
    assert list(of_kafka({"bootstrap.servers": f"localhost:9092,{host}:9092"}))


@pytest.mark.parametrize(
    ("more", "plain", "unverified"),
    [
        ({}, 1, 0),
        ({"sslmode": "prefer"}, 1, 0),
        ({"sslmode": "allow"}, 1, 0),
        ({"sslmode": "disable"}, 1, 0),
        ({"sslmode": "disable", "gssencmode": "require"}, 0, 0),
        ({"sslmode": "require"}, 0, 1),
        ({"sslmode": "require", "sslrootcert": "ca.pem"}, 0, 0),
        ({"sslmode": "verify-ca"}, 0, 0),
        ({"sslmode": "verify-full"}, 0, 0),
        ({"hostaddr": "127.0.0.1"}, 0, 0),
        ({"host": "localhost", "hostaddr": "10.0.0.1"}, 1, 0),
        ({"host": "localhost,db.example"}, 1, 0),
        ({"host": "", "service": "shop"}, 1, 0),
        ({"host": "", "service": "shop", "sslmode": "verify-full"}, 0, 0),
        ({"host": "", "service": "shop", "hostaddr": "127.0.0.1"}, 0, 0),
        ({"host": "localhost", "service": "shop"}, 1, 0),
        ({"host": "localhost", "service": "shop", "sslmode": "require"}, 0, 1),
        ({"host": ""}, 0, 0),
        ({"host": "a,db.example", "hostaddr": "127.0.0.1,"}, 1, 0),
        ({"host": "a,db.example", "hostaddr": "127.0.0.1,::1"}, 0, 0),
        ({"host": "a,localhost", "hostaddr": "127.0.0.1,"}, 0, 0),
        ({"hostaddr": "", "host": "localhost"}, 0, 0),
    ],
)
def test_a_source_is_as_open_as_libpq_would_be(
    more: dict[str, str], plain: int, unverified: int
) -> None:
    found = list(of_source("[source]", REMOTE | more))
    assert [each.is_plain for each in found] == [True] * plain + [False] * unverified
    assert "hunter2" not in str(found)


def test_libpqs_variables_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PGHOST", "db.example")
    assert list(of_source("[source]", {}))
    monkeypatch.setenv("PGSSLMODE", "verify-full")
    assert not list(of_source("[source]", {}))


@pytest.mark.parametrize("by_variable", [False, True])
def test_what_a_services_file_may_say_counts_more_than_variables(
    by_variable: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {
        "HOST": "localhost",
        "HOSTADDR": "127.0.0.1",
        "SSLMODE": "verify-full",
    }.items():
        monkeypatch.setenv(f"PG{name}", value)
    if by_variable:
        monkeypatch.setenv("PGSERVICE", "shop")
    keywords = {} if by_variable else {"service": "shop"}
    (found,) = of_source("[source]", keywords)
    assert found.is_plain
    assert "the hosts of the service shop" in found.what
    assert not list(of_source("[source]", {**keywords, "sslmode": "verify-full"}))


def test_a_keyword_counts_more_than_its_variable_also_where_it_is_empty(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PGHOSTADDR", "127.0.0.1")
    assert not list(of_source("[source]", REMOTE))
    assert list(of_source("[source]", REMOTE | {"hostaddr": ""}))


def test_require_verifies_where_libpq_finds_an_authority_of_the_users_own(tmp_path: Path) -> None:
    root = tmp_path / ".postgresql" / "root.crt"
    root.parent.mkdir()
    root.touch()
    assert not list(of_source("[source]", REMOTE | {"sslmode": "require"}))


@pytest.mark.parametrize(
    ("method", "error"),
    [("exists", PermissionError(13, "Permission denied")), ("expanduser", RuntimeError("no home"))],
)
def test_require_verifies_nothing_where_the_home_cant_be_reached(
    method: str, error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_path: Path) -> Never:
        raise error

    monkeypatch.setattr(Path, method, fail)
    (found,) = of_source("[source]", REMOTE | {"sslmode": "require"})
    assert not found.is_plain


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({}, "sends records to kafka.example:9092 in plain text"),
        ({"security.protocol": "SASL_PLAINTEXT"}, 'set security.protocol = "SASL_SSL"'),
        ({"security.protocol": "ssl"}, ""),
        ({"security.protocol": "SASL_SSL"}, ""),
        (
            {"security.protocol": "ssl", "enable.ssl.certificate.verification": "false"},
            "doesn't check the server's identity at kafka.example:9092",
        ),
        (
            {"security.protocol": "ssl", "enable.ssl.certificate.verification": "0"},
            "doesn't check the server's identity at kafka.example:9092",
        ),
        (
            {"security.protocol": "ssl", "ssl.endpoint.identification.algorithm": "none"},
            "doesn't check the server's identity at kafka.example:9092",
        ),
    ],
)
def test_kafka_is_open_without_tls_or_a_check(options: dict[str, str], says: str) -> None:
    found = list(of_kafka({"bootstrap.servers": "kafka.example:9092", **options}))
    assert [says in str(each) for each in found] == ([True] if says else [])


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"schema.registry.url": "https://a"}, ""),
        ({"schema.registry.url": "http://127.0.0.1:8081"}, ""),
        ({"schema.registry.url": "https://a, http://b"}, "sends schemas to b"),
        ({"value.schema.registry.url": "http://u:hunter2@b"}, "sends the password and schemas"),
        (
            {"key.schema.registry.url": "http://b", "basic.auth.user.info": "u:hunter2"},
            "sends the password and schemas to b in plain text (key.schema.registry.url",
        ),
    ],
)
def test_a_registry_is_open_over_http(options: dict[str, str], says: str) -> None:
    found = list(of_registry(options))
    assert [says in str(each) for each in found] == ([True] if says else [])
    assert "hunter2" not in str(found)


@pytest.mark.parametrize(
    ("more", "sent"),
    [
        ({}, "documents"),
        ({"username": "u", "password": "hunter2"}, "the password and documents"),
        ({"api.key": "hunter2"}, "the password and documents"),
        ({"url": "http://u:hunter2@search.example"}, "the password and documents"),
    ],
)
def test_search_is_open_over_http(more: dict[str, str], sent: str) -> None:
    search = SearchSettings.model_validate({"url": "http://search.example"} | more)
    assert [each.what for each in of_search(search)] == [
        f"sends {sent} to search.example in plain text (url = http://…)"
    ]


@pytest.mark.parametrize("section", PLAIN)
def test_required_tls_refuses_plain_text_and_names_the_section(
    tmp_path: Path, section: str
) -> None:
    text = SAFE.replace(*PLAIN[section])
    (found,) = settings_of(tmp_path, text).exposures
    assert found.where == section
    with pytest.raises(ConfigError, match="refuses plain text over a network") as refused:
        settings_of(tmp_path, f'tls = "required"\n{text}')
    assert f"\n  {section} " in str(refused.value)
    assert found.remedy in str(refused.value)
    assert "hunter2" not in str(refused.value)


def test_required_tls_takes_what_is_encrypted(tmp_path: Path) -> None:
    assert settings_of(tmp_path, f'tls = "required"\n{SAFE}').exposures == []
    unverified = SAFE.replace('"verify-full"', '"require"')
    (found,) = settings_of(tmp_path, f'tls = "required"\n{unverified}').exposures
    assert isinstance(found, Exposure)
    assert not found.is_plain
