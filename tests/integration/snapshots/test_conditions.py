"""A signal's filter → refused wherever it reads more than rows of the table that it is for."""

import pytest

from cdc.errors import TableRefusedError
from cdc.postgres.described import Leaf
from cdc.records.schema import TableName
from snapshots.chunk import check_condition
from snapshots.reader import ALL, of_range
from tests.fixtures.source import Conninfo, run, session

pytestmark = pytest.mark.postgres


@pytest.mark.parametrize(
    "text",
    [
        "true) UNION ALL SELECT id, body, '(0,1)' FROM secret WHERE (true",
        "true) UNION ALL SELECT id, v, ctid FROM ONLY item WHERE (true",
        "v IN (SELECT body FROM secret)",
        "EXISTS (SELECT FROM secret WHERE id > 0)",
        "true) AND (SELECT count(*) > 0 FROM secret) AND (true",
    ],
)
def test_a_condition_reads_no_other_table(database: Conninfo, text: str) -> None:
    run(
        database,
        "CREATE TABLE item (id int PRIMARY KEY, v text)",
        "CREATE TABLE secret (id int PRIMARY KEY, body text)",
        "INSERT INTO secret VALUES (1, 'salary')",
    )
    leaf = Leaf(0, TableName("public", "item"), 1, "d", frozenset({"id"}))
    with session(database) as opened:
        opened.execute("SET search_path = public")
        for condition in (
            "id > 1 AND v ~ 'x' OR id IN (1, 2) -- comment",
            "false",
            "v = '(SELECT)'",
        ):
            check_condition(opened, of_range(leaf, ["id", "v", "ctid"], ALL, [condition]), leaf)
        select = of_range(leaf, ["id", "v", "ctid"], ALL, [text])
        with pytest.raises(TableRefusedError):
            check_condition(opened, select, leaf)
