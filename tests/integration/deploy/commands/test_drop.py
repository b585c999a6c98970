"""`millrace drop`, typed: it removes Millrace's objects, and keeps and names earlier ones."""

import signal
from collections.abc import Callable
from typing import Any
from unittest.mock import Mock

import pytest

from cdc.errors import ExitCode, LogAccessError
from cdc.faults import VARIABLE, FaultPoint
from cdc.kafka.admin import LogAdmin
from cdc.kafka.making import TopicMaker
from cdc.kafka.topic_settings import WantedTopic
from cdc.kafka.topics import LogTopics
from cdc.records.schema import TableName
from cdc.records.topics import data_topic, made_topic, progress_topic
from deploy.commands import ddl_trigger
from deploy.local.kafka import Kafka
from tests.fixtures.command_line import CommandLine
from tests.fixtures.refusals import Configured
from tests.fixtures.source import run, session
from tests.integration.cdc.kafka.test_producer import make_topic
from tests.integration.cdc.kafka.test_topics import WEEK_MS

pytestmark = [pytest.mark.postgres, pytest.mark.kafka]
ITEM = "CREATE TABLE item (id int PRIMARY KEY)"


def count(database: dict[str, str], catalog: str, name: str) -> int:
    """How many rows of that name a catalog has."""
    column = {"pg_replication_slots": "slot_name", "pg_publication": "pubname"}[catalog]
    with session(database) as opened:
        statement = f"SELECT count(*) FROM {catalog} WHERE {column} = %s"
        row = opened.execute(statement.encode(), [name]).fetchone()
    assert row is not None
    return int(row[0])


def test_the_users_own_publication_and_topic_stay_and_all_else_goes(
    configured: Configured, database: dict[str, str], kafka: Kafka, typed: CommandLine
) -> None:
    run(database, ITEM, "CREATE TABLE pair (id int PRIMARY KEY)")
    run(database, "CREATE PUBLICATION own FOR TABLE item, pair")
    made = configured(**{"publication.name": "own", "publication.autocreate.mode": "disabled"})
    capture = made.settings.capture
    prefix = capture.topic_prefix
    found = data_topic(prefix, TableName("public", "item"))
    ours = data_topic(prefix, TableName("public", "pair"))
    kept = {"min_compaction_lag_ms": WEEK_MS, "delete_retention_ms": WEEK_MS}
    make_topic(kafka, found, 3, cleanup_policy="compact", **kept)
    assert made.stop(made.catch_up()) == 0

    ended = typed(made.config, "drop", "--yes", "--topics")
    assert ended.returncode == ExitCode.OK, ended.stderr
    lines = ended.stdout.splitlines()
    assert lines[0].startswith(f"to remove: slot {capture.slot_name}")
    (of_user,) = [line for line in lines if line.startswith("to leave: publication own")]
    assert "Millrace didn't create it." in of_user
    assert of_user.endswith("DROP PUBLICATION own;")
    assert f"to leave: topic {found}: it is older than Millrace's log" in lines
    removed = [line for line in lines if line.startswith("removed ")]
    assert removed[0].startswith(f"removed slot {capture.slot_name}")
    assert removed[-1] == f"removed topic {made_topic(prefix)}"
    assert f"removed topic {ours}" in removed
    left = [line for line in lines if line.startswith("left: ")]
    assert {"left: publication own", f"left: topic {found}"} <= set(left)

    assert count(database, "pg_replication_slots", capture.slot_name) == 0
    assert count(database, "pg_publication", "own") == 1
    left = [name for name in LogAdmin(made.settings.kafka).partitions() if prefix in name]
    assert left == [found]


def test_nothing_is_removed_while_a_daemon_runs_or_before_somebody_says_so(
    configured: Configured,
    database: dict[str, str],
    typed: CommandLine,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run(database, ITEM)
    made = configured()
    capture = made.settings.capture
    daemon = made.catch_up()
    running = typed(made.config, "drop", "--yes", "--topics")
    assert running.returncode == ExitCode.SLOT_IN_USE
    assert "nothing was removed" in running.stderr
    assert made.stop(daemon) == 0

    shown = typed(made.config, "drop", "--topics")
    assert shown.returncode == ExitCode.OK
    assert shown.stdout.endswith("nothing was changed: add --yes to remove it\n")
    monkeypatch.setattr("sys.stdin.isatty", lambda: True)
    asked = Mock(return_value=False)
    monkeypatch.setattr("typer.confirm", asked)
    assert "nothing was changed\n" in typed(made.config, "drop", "--topics").stdout
    assert count(database, "pg_replication_slots", capture.slot_name) == 1
    assert count(database, "pg_publication", capture.publication_name) == 1
    asked.return_value = True
    assert "removed slot" in typed(made.config, "drop", "--topics").stdout
    assert asked.call_count == 2
    assert count(database, "pg_replication_slots", capture.slot_name) == 0


def test_what_fails_holds_up_no_other_and_a_second_run_removes_it(
    configured: Configured,
    database: dict[str, str],
    typed: CommandLine,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Slot and publication are gone by then; what tells whose the topics are isn't."""
    run(database, ITEM)
    made = configured()
    capture = made.settings.capture
    item = data_topic(capture.topic_prefix, TableName("public", "item"))
    assert made.stop(made.catch_up()) == 0
    real = LogTopics.delete

    def delete(topics: LogTopics, names: list[str]) -> None:
        if names == [item]:
            raise LogAccessError("no right to delete it")
        real(topics, names)

    with monkeypatch.context() as patch:
        patch.setattr(LogTopics, "delete", delete)
        first = typed(made.config, "drop", "--yes", "--topics")
    assert first.returncode == ExitCode.LOG_ACCESS
    assert "no right to delete it" in first.stderr
    lines = first.stdout.splitlines()
    assert f"left: topic {item}: no right to delete it" in lines
    assert f"removed publication {capture.publication_name}" in lines
    (kept,) = [
        line for line in lines if line.startswith(f"left: topic {made_topic(capture.topic_prefix)}")
    ]
    assert "the next drop needs it to find what is left" in kept
    assert count(database, "pg_replication_slots", capture.slot_name) == 0

    second = typed(made.config, "drop", "--yes", "--topics")
    assert second.returncode == ExitCode.OK, second.stderr
    assert f"removed topic {item}" in second.stdout
    names = LogAdmin(made.settings.kafka).partitions()
    assert not [name for name in names if capture.topic_prefix in name]
    third = typed(made.config, "drop", "--yes", "--topics")
    assert third.stdout.endswith("there is nothing to remove\n")


def test_a_publication_of_ours_with_another_owner_stays_and_what_a_superuser_installed(
    configured: Configured,
    database: dict[str, str],
    role: Callable[[str], dict[str, str]],
    typed: CommandLine,
) -> None:
    """The slot went, and the command failed at the publication then."""
    run(database, ITEM)
    made = configured()
    capture = made.settings.capture
    assert made.stop(made.catch_up()) == 0
    owner, user = role("SUPERUSER"), role("REPLICATION")
    changed = f"ALTER PUBLICATION {capture.publication_name} OWNER TO {owner['user']}"
    run(database, changed, ddl_trigger._SQL)
    ended = typed(configured(user).config, "drop", "--yes")
    assert ended.returncode == ExitCode.OK, ended.stderr
    left = [line for line in ended.stdout.splitlines() if line.startswith("to leave: ")]
    said = "\n".join(left)
    name = capture.publication_name
    assert f"publication {name}: role {user['user']} no longer owns it" in said
    assert f"DROP PUBLICATION {name};" in said
    assert "event triggers millrace_ddl, millrace_drop, millrace_rewrite: a superuser" in said
    assert "DROP FUNCTION public.millrace_ddl() CASCADE;" in said
    assert f"role {user['user']} and its rights: you created them" in said
    assert "removed slot" in ended.stdout
    assert count(database, "pg_publication", name) == 1
    run(database, "DROP FUNCTION millrace_ddl() CASCADE")


def test_a_start_that_died_after_it_made_topics_has_made_them(
    configured: Configured, database: dict[str, str], typed: CommandLine
) -> None:
    """No table has a state yet: what is written before topics are made is all that tells."""
    run(database, ITEM)
    made = configured()
    prefix = made.settings.capture.topic_prefix
    assert made.start({VARIABLE: FaultPoint.CREATING_RECORDED}).wait(60) == -signal.SIGKILL
    lines = typed(made.config, "drop", "--topics").stdout.splitlines()
    for name in (data_topic(prefix, TableName("public", "item")), progress_topic(prefix)):
        assert f"to remove: topic {name}" in lines


@pytest.mark.parametrize("is_written", [True, False])
def test_a_start_that_died_before_it_made_the_topics_leaves_nothing_behind(
    configured: Configured,
    database: dict[str, str],
    typed: CommandLine,
    monkeypatch: pytest.MonkeyPatch,
    *,
    is_written: bool,
) -> None:
    """Both before and after it has written down that it makes them; so after the next start."""
    run(database, ITEM)
    made = configured()
    prefix = made.settings.capture.topic_prefix
    real = TopicMaker.make

    def make(maker: TopicMaker, wanted: list[WantedTopic], *more: Any) -> Any:
        if [topic.name for topic in wanted] != [made_topic(prefix)]:
            raise ConnectionError
        return real(maker, wanted, *more)

    with monkeypatch.context() as patch:
        if is_written:
            patch.setattr(TopicMaker, "make", make)
        else:
            patch.setattr("cdc.kafka.making.send", Mock(side_effect=ConnectionError))
        with pytest.raises(ConnectionError):
            LogTopics(made.settings).ensure_state_topics()
    lines = typed(made.config, "drop", "--topics").stdout.splitlines()
    assert f"to remove: topic {made_topic(prefix)}" in lines

    LogTopics(made.settings).ensure_state_topics()
    typed(made.config, "drop", "--yes", "--topics")
    assert not [name for name in LogAdmin(made.settings.kafka).partitions() if prefix in name]


def test_a_slot_that_the_log_doesnt_have_stays(
    configured: Configured, database: dict[str, str], typed: CommandLine
) -> None:
    made = configured()
    name = made.settings.capture.slot_name
    run(database, ITEM, f"SELECT pg_create_logical_replication_slot('{name}', 'pgoutput')")
    ended = typed(made.config, "drop", "--yes")
    assert ended.returncode == ExitCode.OK, ended.stderr
    assert f"to leave: slot {name}: the log doesn't say that Millrace created" in ended.stdout
    assert f"SELECT pg_drop_replication_slot('{name}');\n" in ended.stdout
    assert ended.stdout.endswith("there is nothing to remove\n")
    assert count(database, "pg_replication_slots", name) == 1


@pytest.mark.parametrize("plugin", ["pgoutput", "test_decoding"])
def test_a_slot_that_somebody_has_made_under_the_same_name_stays(
    configured: Configured, database: dict[str, str], typed: CommandLine, plugin: str
) -> None:
    run(database, ITEM)
    made = configured()
    capture = made.settings.capture
    assert made.stop(made.catch_up()) == 0
    assert typed(made.config, "drop", "--yes").returncode == ExitCode.OK
    assert count(database, "pg_replication_slots", capture.slot_name) == 0
    assert count(database, "pg_publication", capture.publication_name) == 0

    create = f"SELECT pg_create_logical_replication_slot('{capture.slot_name}', '{plugin}')"
    run(database, create, f"CREATE PUBLICATION {capture.publication_name} FOR TABLE item")
    ended = typed(made.config, "drop", "--yes")
    assert ended.returncode == ExitCode.OK, ended.stderr
    assert f"to leave: slot {capture.slot_name}: it" in ended.stdout
    assert f"to leave: publication {capture.publication_name}: Millrace didn't" in ended.stdout
    assert count(database, "pg_replication_slots", capture.slot_name) == 1
    assert count(database, "pg_publication", capture.publication_name) == 1


def test_while_no_broker_answers_the_slot_stays_and_the_line_for_it_is_named(
    configured: Configured,
    database: dict[str, str],
    typed: CommandLine,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("cdc.log.partitions.SILENCE_S", 1.0)
    made = configured(None, {"bootstrap.servers": "127.0.0.1:1"})
    name = made.settings.capture.slot_name
    run(database, ITEM, f"SELECT pg_create_logical_replication_slot('{name}', 'pgoutput')")
    ended = typed(made.config, "drop", "--yes")
    assert ended.returncode == ExitCode.LOG_UNREACHABLE
    assert f"SELECT pg_drop_replication_slot('{name}');" in ended.stderr
    assert count(database, "pg_replication_slots", name) == 1
