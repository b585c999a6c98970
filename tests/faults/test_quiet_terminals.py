"""Every command, with all servers down → one message, and no output that nothing asked for.

There is no stack trace, no logger's JSON, and no line of a client library.
"""

import re
import subprocess
import sys
from collections.abc import Collection, Mapping
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from cdc.errors import ExitCode
from deploy.local.processes import environment_with
from tests.fixtures.refusals import Configured

pytestmark = [pytest.mark.postgres, pytest.mark.kafka]
ROOT = Path(__file__).resolve().parents[2]
NOISE = re.compile(
    r"Traceback|^\s+at [\w.$]+\(|Exception in thread|^\{|^%\d\||rdkafka|\bWARN\b|\bERROR\b"
    r"|py4j\.|Warning:|site-packages",
    re.MULTILINE,
)
COMMANDS = {
    "run": ExitCode.LOG_UNREACHABLE,
    "new-epoch": ExitCode.LOG_UNREACHABLE,
    "snapshot": ExitCode.LOG_UNREACHABLE,
    "merge": ExitCode.LOG_UNREACHABLE,
    "merge search": ExitCode.SINK_UNREACHABLE,
    "rebuild search": ExitCode.LOG_UNREACHABLE,
    "compact topics": ExitCode.LOG_UNREACHABLE,
    "compact search": ExitCode.LOG_UNREACHABLE,
    "status": ExitCode.OK,
    "dead-letters list": ExitCode.LOG_UNREACHABLE,
    "search item x": ExitCode.SINK_UNREACHABLE,
}
"""Each with its exit code."""
FEW = ("run", "merge", "search item x")


@pytest.mark.parametrize(
    "commands",
    [FEW, pytest.param(COMMANDS.keys() - set(FEW), marks=pytest.mark.proof)],
    ids=["few", "others"],
)
def test_a_command_says_one_thing_of_servers_that_arent_there(
    configured: Configured, database: Mapping[str, str], commands: Collection[str]
) -> None:
    """All at once: each waits for ten seconds or more until it gives up."""
    with psycopg.connect(make_conninfo(**database), autocommit=True) as connection:
        connection.execute("CREATE TABLE item (id int PRIMARY KEY)")
    made = configured(options={"bootstrap.servers": "127.0.0.1:1"})
    with made.config.open("a", encoding="utf-8") as config:
        config.write('\n[search]\nurl = "http://127.0.0.1:1"\n')
    started = {
        words: subprocess.Popen(
            [sys.executable, "-m", "millrace", *words.split(), "--config", str(made.config)],
            cwd=ROOT,
            env=environment_with({"PYTHONPATH": str(ROOT)}),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for words in commands
    }
    for words, command in started.items():
        output, complaints = command.communicate(timeout=200)
        assert not NOISE.search(output + complaints), f"{words}: {output}{complaints}"
        assert command.returncode == COMMANDS[words], f"{words}: {output}{complaints}"
