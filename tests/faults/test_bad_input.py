"""Unusable input → one clear message with its remedy, its exit code, and nothing lost."""

from collections.abc import Callable, Mapping
from pathlib import Path

import psycopg
import pytest
from confluent_kafka.cimpl import NewTopic
from psycopg.conninfo import make_conninfo

from cdc.errors import ExitCode
from cdc.kafka.admin import LogAdmin
from deploy.local.kafka import Kafka
from deploy.local.postgres import Postgres
from tests.fixtures.pipeline import RunningPipeline
from tests.fixtures.refusals import Configured, message_of, refusal

pytestmark = [pytest.mark.postgres, pytest.mark.kafka]
MakeRole = Callable[[str], dict[str, str]]


def run(database: Mapping[str, str], *statements: str) -> None:
    with psycopg.connect(make_conninfo(**database), autocommit=True) as connection:
        for statement in statements:
            connection.execute(statement.encode())


def has_left_nothing(database: Mapping[str, str], pipeline: RunningPipeline) -> bool:
    """No slot: nothing holds WAL back for a daemon that can't run."""
    with psycopg.connect(make_conninfo(**database)) as connection:
        name = pipeline.settings.capture.slot_name
        slots = "SELECT count(*) FROM pg_replication_slots WHERE slot_name = %s"
        return connection.execute(slots, [name]).fetchone() == (0,)


SOURCES: list[tuple[dict[str, str], ExitCode, tuple[str, ...]]] = [
    ({"port": "1"}, ExitCode.SOURCE_UNREACHABLE, ("127.0.0.1:1/", "check host and port")),
    ({"host": "nosuch.invalid"}, ExitCode.SOURCE_UNREACHABLE, ("nosuch.invalid",)),
    ({"password": "guessed-wrong"}, ExitCode.SOURCE_AUTHENTICATION, ("check user and password",)),
    ({"user": "nobody"}, ExitCode.SOURCE_AUTHENTICATION, ("nobody", "[source]")),
    ({"dbname": "nosuch"}, ExitCode.CONFIG, ("nosuch", "dbname")),
    ({"passwrd": "x"}, ExitCode.CONFIG, ("passwrd", "[source]")),
    ({"sslmode": "require"}, ExitCode.SOURCE_AUTHENTICATION, ("sslmode",)),
]


@pytest.mark.parametrize(("source", "code", "words"), SOURCES, ids=lambda value: str(value)[:40])
def test_a_source_that_cannot_be_entered_is_named(
    source: dict[str, str], code: ExitCode, words: tuple[str, ...], configured: Configured
) -> None:
    refusal(configured(source), code, *words)


KAFKAS: list[tuple[dict[str, str], ExitCode, tuple[str, ...]]] = [
    ({"bootstrap.servers": "127.0.0.1:1"}, ExitCode.LOG_UNREACHABLE, ("127.0.0.1:1", "bootstrap")),
    ({"linger.msec": "5"}, ExitCode.CONFIG, ("linger.msec", "[kafka]")),
    ({"linger.ms": "soon"}, ExitCode.CONFIG, ("queue.buffering.max.ms", "alias", "[kafka]")),
    ({"acks": "1"}, ExitCode.CONFIG, ("acks", "remove acks")),
]


@pytest.mark.parametrize(("options", "code", "words"), KAFKAS, ids=lambda value: str(value)[:40])
def test_a_log_that_cannot_be_used_is_named_and_no_slot_is_made(
    options: dict[str, str],
    code: ExitCode,
    words: tuple[str, ...],
    configured: Configured,
    database: dict[str, str],
) -> None:
    run(database, "CREATE TABLE item (id int PRIMARY KEY)")
    made = configured(None, options)
    refusal(made, code, *words)
    assert has_left_nothing(database, made)


def test_a_missing_configuration_file_is_named(configured: Configured) -> None:
    made = configured()
    made.config.unlink()
    refusal(made, ExitCode.CONFIG, str(made.config), "millrace init")


def test_an_unknown_key_and_broken_toml_are_named_without_the_secrets_beside_them(
    configured: Configured,
) -> None:
    made = configured()
    text = made.config.read_text()
    made.config.write_text(text.replace('"slot.name"', '"slot.nam"'))
    page = "docs/reference/configuration.md"
    refusal(made, ExitCode.CONFIG, "[capture] slot.nam: unknown key", page)
    made.config.write_text(text.replace("[capture]", "[capture"))
    ended = made.millrace("run")
    assert ended.returncode == ExitCode.CONFIG
    assert str(made.config) in message_of(ended.stderr, made.settings.source)


def test_no_table_to_capture_is_said(configured: Configured, database: dict[str, str]) -> None:
    run(database, "CREATE TABLE item (id int PRIMARY KEY)")
    made = configured(**{"table.include.list": "public.itm"})
    refusal(made, ExitCode.CONFIG, "no table is captured", "table.include.list")
    assert has_left_nothing(database, made)


def test_a_server_that_does_not_decode_is_told_how_to(
    configured: Configured, server_folder: Path
) -> None:
    server = Postgres(server_folder, {"wal_level": "replica"}).start()
    try:
        run(server.conninfo(), "CREATE TABLE item (id int PRIMARY KEY)")
        made = configured(server.conninfo())
        refusal(made, ExitCode.SOURCE_SETTING, "wal_level", "ALTER SYSTEM SET wal_level")
    finally:
        server.stop()


ROLES = [
    ("", "", "REPLICATION;"),
    ("REPLICATION", "", "GRANT SELECT ON public.item TO"),
    ("REPLICATION", "GRANT SELECT ON item TO {}", "CREATE PUBLICATION"),
]


@pytest.mark.parametrize(("attributes", "grant", "remedy"), ROLES)
def test_a_role_that_lacks_a_right_is_told_the_line_that_grants_it(
    attributes: str,
    grant: str,
    remedy: str,
    configured: Configured,
    database: dict[str, str],
    role: MakeRole,
) -> None:
    login = role(attributes)
    run(database, "CREATE TABLE item (id int PRIMARY KEY)", grant.format(login["user"]) or "SELECT")
    made = configured(login)
    refusal(made, ExitCode.SOURCE_PRIVILEGE, remedy)
    assert has_left_nothing(database, made)


def test_a_table_without_a_key_is_refused_where_that_is_asked_for(
    configured: Configured, database: dict[str, str]
) -> None:
    run(database, "CREATE TABLE loose (v int)", "ALTER TABLE loose REPLICA IDENTITY FULL")
    made = configured(**{"table.without.key": "refuse"})
    refusal(made, ExitCode.TABLE_REFUSED, "public.loose", "primary key", "table.exclude.list")
    assert has_left_nothing(database, made)


def test_a_table_without_an_identity_is_refused_before_its_updates_would_fail(
    configured: Configured, database: dict[str, str]
) -> None:
    run(database, "CREATE TABLE loose (v int)", "INSERT INTO loose VALUES (1)")
    line = "ALTER TABLE public.loose REPLICA IDENTITY FULL;"
    refusal(configured(), ExitCode.TABLE_REFUSED, "public.loose", line)
    run(database, "UPDATE loose SET v = 2")


def test_a_publication_of_other_tables_is_explained_and_left_alone(
    configured: Configured, database: dict[str, str]
) -> None:
    made = configured()
    name = made.settings.capture.publication_name
    run(
        database,
        "CREATE TABLE item (id int PRIMARY KEY)",
        "CREATE TABLE other (id int PRIMARY KEY)",
        f"CREATE PUBLICATION {name} FOR TABLE other WITH (publish_via_partition_root)",
    )
    add = f"ALTER PUBLICATION {name} ADD TABLE ONLY public.item;"
    refusal(made, ExitCode.PUBLICATION, "it lacks public.item", add)
    run(database, f"DROP PUBLICATION {name}")
    disabled = configured(**{"publication.autocreate.mode": "disabled"})
    refusal(disabled, ExitCode.PUBLICATION, "doesn't exist")
    assert has_left_nothing(database, made)


TOPICS = [
    (5, "compact", "has 5 partitions, not 3"),
    (3, "delete", "cleanup.policy is delete, not compact"),
]


@pytest.mark.parametrize(("partitions", "policy", "found"), TOPICS)
def test_a_topic_that_is_not_what_was_promised_is_left_alone(
    partitions: int,
    policy: str,
    found: str,
    configured: Configured,
    database: dict[str, str],
    kafka: Kafka,
    topic_prefix: str,
) -> None:
    keep = str(7 * 86_400_000)
    config = {
        "cleanup.policy": policy,
        "min.compaction.lag.ms": keep,
        "delete.retention.ms": keep,
    }
    topic = NewTopic(f"{topic_prefix}.public.item", partitions, 1, config=config)
    assert LogAdmin(kafka.client_options()).create([topic]) == {}
    run(database, "CREATE TABLE item (id int PRIMARY KEY)")
    made = configured()
    refusal(made, ExitCode.TOPIC_MISMATCH, topic.topic, found)
    assert has_left_nothing(database, made)


def test_debug_output_and_json_logs_hold_no_secret_either(configured: Configured) -> None:
    secret = {"password": "guessed-wrong"}
    ended = configured(secret).millrace("run", "--json", environment={"MILLRACE_DEBUG": "1"})
    assert ended.returncode == ExitCode.SOURCE_AUTHENTICATION
    assert secret["password"] not in ended.stdout + ended.stderr
