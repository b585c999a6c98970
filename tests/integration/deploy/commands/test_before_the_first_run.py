"""Commands typed before the first `millrace run` → their messages; a daemon that then starts."""

import pytest

from cdc.errors import ExitCode
from cdc.kafka.admin import LogAdmin
from cdc.records.topics import progress_topic
from tests.fixtures.command_line import CommandLine
from tests.fixtures.refusals import Configured
from tests.fixtures.source import run

pytestmark = [pytest.mark.postgres, pytest.mark.kafka]


def test_a_merge_before_the_first_run_makes_no_topic_and_the_daemon_starts(
    configured: Configured, database: dict[str, str], typed: CommandLine
) -> None:
    """The broker makes topics by name, as Kafka does by default."""
    run(database, "CREATE TABLE item (id int PRIMARY KEY)", "INSERT INTO item VALUES (1)")
    made = configured()
    prefix = made.settings.capture.topic_prefix
    for words in (["merge"], ["merge", "lakehouse"], ["compact"]):
        ended = typed(made.config, *words)
        assert ended.returncode == ExitCode.LOG_MISSING, ended.stdout + ended.stderr
        said = ended.stdout + ended.stderr
        for word in (f"topic.prefix {prefix}", "bootstrap.servers 127.0.0.1:", "millrace run"):
            assert word in said
    assert f"topic.prefix {prefix} has no log" in typed(made.config, "status").stdout
    assert not [name for name in LogAdmin(made.settings.kafka).partitions() if prefix in name]

    assert made.stop(made.catch_up()) == 0
    state = LogAdmin(made.settings.kafka).describe([progress_topic(prefix)])
    assert state[progress_topic(prefix)].config["cleanup.policy"] == "compact"
