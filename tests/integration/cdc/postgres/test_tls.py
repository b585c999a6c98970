"""TLS to PostgreSQL, TLS and a password to Kafka → the daemon works; an error names a wrong one."""

import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from cdc.errors import ExitCode
from deploy.local.certificates import Certificates
from deploy.local.kafka import Kafka, Security
from deploy.local.postgres import Postgres
from deploy.local.processes import Process, run_folder
from tests.faults.test_killed_daemon import SCHEMA, assert_log_is_the_source, change
from tests.fixtures.pipeline import RunningPipeline
from tests.fixtures.refusals import refusal

pytestmark = [
    pytest.mark.postgres,
    pytest.mark.kafka,
    pytest.mark.xdist_group("tls"),
    pytest.mark.native("its servers speak TLS"),
]


@dataclass(frozen=True)
class Servers:
    """A PostgreSQL and a Kafka that want TLS, and an authority that signed neither."""

    source: dict[str, str]
    kafka: dict[str, str]
    stranger: Path


@pytest.fixture(scope="module")
def secure() -> Iterator[Servers]:
    folder = run_folder("millrace-tls-")
    certificates = Certificates.create(folder / "tls")
    postgres = Postgres(folder, certificates=certificates)
    kafka = Kafka(folder, security=Security(certificates, mechanism="SCRAM-SHA-512"))
    try:
        postgres.start()
        kafka.start()
        source = postgres.create_database("shop")
        with psycopg.connect(make_conninfo(**source), autocommit=True) as connection:
            connection.execute(SCHEMA.encode())
        stranger = Certificates.create(folder / "stranger").authority
        yield Servers(source, kafka.client_options(), stranger)
    finally:
        postgres.stop()
        kafka.stop()
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def over_tls(tmp_path: Path, secure: Servers) -> Iterator[Callable[..., RunningPipeline]]:
    daemons: list[Process] = []

    def make(source: dict[str, str], kafka: dict[str, str]) -> RunningPipeline:
        made = RunningPipeline(
            tmp_path, {**secure.source, **source}, {**secure.kafka, **kafka}, prefix="shop"
        )
        made.daemons = daemons
        return made

    yield make
    for daemon in daemons:
        daemon.kill()


def test_snapshot_and_stream_go_over_tls_and_sasl(
    over_tls: Callable[..., RunningPipeline], secure: Servers
) -> None:
    made = over_tls({}, {})
    assert made.settings.source["sslmode"] == "verify-full"
    assert made.settings.kafka["security.protocol"] == "SASL_SSL"
    with psycopg.connect(make_conninfo(**secure.source), autocommit=True) as connection:
        daemon = made.start()
        change(connection, seed=5, transactions=20)
        made.wait_until_logged(made.wal_end(), daemon)
        change(connection, seed=6, transactions=20)
        made.wait_until_logged(made.wal_end(), daemon)
    assert made.stop(daemon) == 0
    assert_log_is_the_source(made, secure.source, "shop")


def test_a_stranger_at_either_end_is_refused_and_so_is_a_wrong_password(
    over_tls: Callable[..., RunningPipeline], secure: Servers
) -> None:
    stranger = str(secure.stranger)
    refusal(over_tls({"sslrootcert": stranger}, {}), ExitCode.SOURCE_AUTHENTICATION, "sslrootcert")
    refusal(over_tls({}, {"ssl.ca.location": stranger}), ExitCode.LOG_ACCESS, "ssl.*", "[kafka]")
    refusal(over_tls({}, {"sasl.password": "guessed-wrong"}), ExitCode.LOG_ACCESS, "sasl.*")
