"""`millrace dead-letters`, typed during the run of a daemon that has set rows aside."""

import json
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from cdc.errors import ExitCode
from tests.fixtures.command_line import CommandLine
from tests.fixtures.pipeline import state_of
from tests.fixtures.refusals import Configured

pytestmark = [pytest.mark.postgres, pytest.mark.kafka]
SENT_MAX = 100_000
SETTINGS = {"errors.dead.letter.include.list": "public.doc, public.note"}


def test_dead_letters_are_listed_shown_replayed_and_discarded(
    configured: Configured, database: dict[str, str], typed: CommandLine
) -> None:
    made = configured(None, {"message.max.bytes": str(SENT_MAX)}, **SETTINGS)

    def listed(*words: str) -> list[dict[str, Any]]:
        ended = typed(made.config, "dead-letters", "list", "--json", *words)
        assert ended.returncode == ExitCode.OK, ended.stderr
        rows: list[dict[str, Any]] = json.loads(ended.stdout)
        return rows

    with psycopg.connect(make_conninfo(**database), autocommit=True) as connection:
        connection.execute("CREATE TABLE doc (id int PRIMARY KEY, v text)")
        connection.execute("CREATE TABLE note (id int PRIMARY KEY, v text)")
        daemon = made.catch_up()
        # What is random can't be compressed below the limit.
        large = f"(SELECT string_agg(md5(i::text), '') FROM generate_series(1, {SENT_MAX // 16}) i)"
        connection.execute(f"INSERT INTO doc VALUES (1, {large}), (2, 'small')")
        connection.execute(f"INSERT INTO note VALUES (3, {large})")
        made.wait_until_logged(made.wal_end(), daemon)

        doc, note = listed()
        assert (doc["table"], doc["op"], doc["outcome"]) == ("public.doc", "c", None)
        assert [letter["number"] for letter in listed("--table", "public.note")] == [note["number"]]
        table = made.millrace("dead-letters", "list")  # a process of its own, as in a shell
        assert table.returncode == ExitCode.OK
        assert "public.doc" in table.stdout
        shown = typed(made.config, "dead-letters", "show", str(doc["number"]))
        assert shown.returncode == ExitCode.OK
        held = json.loads(shown.stdout)
        assert (held["key"], held["after"]["id"]) == ('{"id":1}', "1")
        assert len(held["after"]["v"]) > SENT_MAX

        connection.execute("UPDATE doc SET v = 'small by now' WHERE id = 1")
        replayed = typed(made.config, "dead-letters", "replay", str(doc["number"]))
        assert (replayed.returncode, replayed.stdout) == (ExitCode.OK, "replayed: 1\n")
        discarded = typed(made.config, "dead-letters", "discard", "--table", "public.note")
        assert (discarded.returncode, discarded.stdout) == (ExitCode.OK, "discarded: 1\n")
        made.wait_until_logged(made.wal_end(), daemon)

    assert listed() == []
    assert [letter["outcome"] for letter in listed("--handled")] == ["replayed", "discarded"]
    again = typed(made.config, "dead-letters", "replay", "--all")
    assert again.returncode == ExitCode.OK
    assert again.stdout == "nothing to do: they are already handled\n"
    for words in (("discard",), ("replay", "99"), ("show", "99")):
        refused = typed(made.config, "dead-letters", *words)
        assert (refused.returncode, refused.stdout) == (ExitCode.CONFIG, "")
        assert "millrace dead-letters list shows the numbers" in refused.stderr
    assert made.stop(daemon) == ExitCode.OK
    rows = state_of([record for record in made.log() if record.topic.endswith(".doc")])
    assert rows == {
        '{"id":1}': {"id": 1, "v": "small by now"},
        '{"id":2}': {"id": 2, "v": "small"},
    }
    assert [record for record in made.log() if record.topic.endswith(".note")] == []
