"""Names that need quotes → SQL that psql takes, and commands that a shell takes, as printed."""

import os
import re
import subprocess

import psycopg
import pytest
from psycopg import sql

from cdc.events.changes import no_key
from cdc.records.schema import TableName
from deploy.local.postgres import Postgres
from sinks.run.debezium_topic import MemberDoubt
from tests.fixtures.made_changes import table
from tests.fixtures.source import Conninfo

pytestmark = pytest.mark.postgres
NAMES = ['Weird "name"', "a b", "o'clock", "plain", "order", "$HOME; `ls` \\ é"]
DOUBT = MemberDoubt(changes=("v appeared",), columns=("v",), since=8, ts_ms=0)


def words(command: str) -> list[str]:
    """What a POSIX shell makes of a command's arguments."""
    script = f"printf '%s\\n' {command}"
    ended = subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=True)
    return ended.stdout.splitlines()


def paste(server: Postgres, database: Conninfo, text: str) -> None:
    """Paste SQL into psql."""
    known = {f"PG{name.upper()}": str(database[name]) for name in ("host", "port", "user")}
    known |= {"PGPASSWORD": database["password"], "PGDATABASE": database["dbname"]}
    ended = subprocess.run(
        [str(server.bin("psql")), "-X", "-v", "ON_ERROR_STOP=1"],
        input=text,
        env={**os.environ, **known},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ended.returncode, ended.stderr) == (0, "")


@pytest.mark.parametrize("name", NAMES)
def test_remedies_name_tables_so_that_they_can_be_pasted(
    postgres: Postgres, database: Conninfo, name: str
) -> None:
    known = TableName(name, name)
    with psycopg.connect(**database, autocommit=True) as connection:  # type: ignore[arg-type]
        place = sql.Identifier(*known)
        connection.execute(sql.SQL("CREATE SCHEMA {}").format(sql.Identifier(name)))
        columns = sql.SQL("CREATE TABLE {} (id text PRIMARY KEY, type text, data text)")
        connection.execute(columns.format(place))
        connection.execute(sql.SQL("ALTER TABLE {} REPLICA IDENTITY FULL").format(place))

        made = table("id int4!").model_copy(update={"namespace": name, "table": name})
        remedy = no_key(made).remedy
        identity = re.search(r"ALTER TABLE .* REPLICA IDENTITY DEFAULT", remedy, re.DOTALL)
        assert identity is not None
        paste(postgres, database, f"{identity[0]};")
        ((left,),) = connection.execute(
            "SELECT relreplident FROM pg_class WHERE relname = %s AND relkind = 'r'", [name]
        )
        assert left == "d"
        _, _, command = remedy.partition("stays without: ")
        assert words(command) == ["millrace", "snapshot", str(known)]

        remedy = DOUBT.remedy(str(known), str(known), str(known))
        insert = re.search(r"INSERT INTO .*}'\)", remedy, re.DOTALL)
        assert insert is not None
        paste(postgres, database, f"{insert[0]};")
        rows = connection.execute(
            sql.SQL("SELECT data::json->'data-collections'->>0 FROM {}").format(place)
        )
        assert rows.fetchall() == [(str(known),)]
        assert words(remedy.rpartition("default: ")[2])[-2:] == ["--accept-doubt", str(known)]
