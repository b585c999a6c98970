"""`millrace cuts` and `millrace query`, typed over a lakehouse of two runs."""

import json

import pytest

from cdc.errors import ExitCode
from tests.fixtures.command_line import CommandLine
from tests.fixtures.lakehouse import Lakehouse
from tests.fixtures.pipeline import RunningPipeline
from tests.fixtures.spark import SPARK, at, column

pytestmark = [pytest.mark.kafka, pytest.mark.spark]
SUM = "SELECT count(*) AS rows, sum(n) AS n FROM public.t"


def test_cuts_are_listed_and_tables_are_queried_as_they_were_at_one(
    lakehouse: Lakehouse, typed: CommandLine
) -> None:
    log = lakehouse.log(column("id", "int4", 1), column("a", "text"), column("n", "int4"))
    log.row("r", at(16, 0), {"id": 1, "a": 'one, "two"', "n": 1})
    log.table(16)
    log.reached(at(16, 0))
    lakehouse.merge()
    log.row("u", at(32), {"id": 1, "a": 'one, "two"', "n": 5})
    log.row("c", at(32, 2), {"id": 2, "a": None, "n": 7})
    log.reached(at(32, 2))
    lakehouse.merge()
    config = RunningPipeline(
        lakehouse.folder.parent,
        {},
        lakehouse.kafka.client_options(),
        prefix=lakehouse.prefix,
        sections={"lakehouse": {"path": str(lakehouse.folder)}, "spark": SPARK},
    ).config

    listed = typed(config, "cuts", "--json")
    assert listed.returncode == ExitCode.OK
    assert [(cut["run"], cut["missing"]) for cut in json.loads(listed.stdout)] == [(1, []), (2, [])]

    newest = typed(config, "query", "-f", "csv", "SELECT id, a, n FROM t ORDER BY id")
    assert newest.returncode == ExitCode.OK
    assert newest.stdout.splitlines() == ["id,a,n", '1,"one, ""two""",5', "2,,7"]
    assert newest.stderr == "as of run 2, 0/20, before any commit was seen\n"

    nested = "SELECT array(1, NULL) AS a, named_struct('x', 'é', 'y', true) AS s, X'01' AS b"
    as_csv = typed(config, "query", "-f", "csv", nested).stdout
    assert as_csv.splitlines()[1] == '"[1, null]","{""x"": ""é"", ""y"": true}",\\x01'
    as_json = typed(config, "query", "-f", "json", nested).stdout
    assert json.loads(as_json) == {"a": [1, None], "s": {"x": "é", "y": True}, "b": "AQ=="}

    earlier = typed(config, "query", "--at", "0/1F", SUM)
    assert earlier.stderr.startswith("as of run 1, 0/10")
    assert earlier.stdout.splitlines()[1].split() == ["┃", "rows", "┃", "n", "┃"]
    assert earlier.stdout.splitlines()[3].split() == ["│", "1", "│", "1", "│"]

    refusals = {
        ("query", "--at", "0/FFFF", SUM): (ExitCode.SINK, "no cut has reached"),
        ("query", "--at", "yesterday", SUM): (ExitCode.CONFIG, "isn't an instant"),
        ("query", "DROP TABLE t"): (ExitCode.CONFIG, "only queries"),
        ("query", "SELECT ("): (ExitCode.CONFIG, "PARSE_SYNTAX_ERROR"),
        ("query", "SELECT nothing FROM t"): (ExitCode.CONFIG, "UNRESOLVED_COLUMN"),
        ("query", "SELECT CAST(a AS int) FROM t"): (ExitCode.CONFIG, "CAST_INVALID_INPUT"),
        ("query", "SELECT 1 / (n - n) FROM t"): (ExitCode.CONFIG, "DIVIDE_BY_ZERO"),
    }
    for words, (code, message) in refusals.items():
        refused = typed(config, *words)
        assert (refused.returncode, refused.stdout) == (code, "")
        assert "millrace: " in refused.stderr
        assert message in refused.stderr
        assert len(refused.stderr.splitlines()) <= len(("as of", "millrace:", "→"))
