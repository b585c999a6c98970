"""A signal's filter → refused wherever it reads more than rows of the table that it is for."""

import pytest

from cdc.errors import SourceError, TableRefusedError
from cdc.postgres.described import Leaf
from cdc.records.schema import TableName
from snapshots.chunk import check_condition
from snapshots.reader import ALL, of_range
from tests.fixtures.source import Conninfo, run, session

pytestmark = pytest.mark.postgres


SCHEMA = (
    "CREATE TABLE item (id int PRIMARY KEY, v text, hidden text)",
    "CREATE TABLE secret (id int PRIMARY KEY, body text)",
    "INSERT INTO secret VALUES (1, 'salary')",
)
LEAF = Leaf(0, TableName("public", "item"), 1, "d", frozenset({"id"}))
COLUMNS = ("id", "v", "ctid")


@pytest.mark.parametrize(
    "text",
    ["id > 1 AND v ~ 'x' OR id IN (1, 2) -- comment", "false", "v = '(SELECT)'", "(id) IN (7)"],
)
def test_a_plain_condition_is_taken(database: Conninfo, text: str) -> None:
    run(database, *SCHEMA)
    with session(database) as opened:
        check_condition(opened, LEAF, COLUMNS, text)


@pytest.mark.parametrize(
    "text",
    [
        "true) UNION ALL SELECT id, body, '(0,1)' FROM public.secret WHERE (true",
        "true) UNION ALL SELECT id, v, ctid FROM ONLY public.item WHERE (true",
        "false) UNION ALL (SELECT id, hidden, ctid FROM ONLY public.item WHERE true",
        "false) UNION ALL (SELECT 1, 'made up', '(0,1)'::tid",
        "false) OR (true) OR (false) UNION SELECT 1, 'x', '(0,1)' WHERE (true",
        "true)) OR ((true",
        "v IN (SELECT body FROM public.secret)",
        "EXISTS (SELECT FROM public.secret WHERE id > 0)",
        "true) AND (SELECT count(*) > 0 FROM public.secret) AND (true",
        "true); COMMIT; CREATE TABLE public.written (); SELECT (1",
        "true); COMMIT; CREATE TABLE public.written (); SELECT ((1",
        "true /*",
    ],
)
def test_a_condition_reads_no_other_table(database: Conninfo, text: str) -> None:
    run(database, *SCHEMA)
    with session(database) as opened:
        with pytest.raises((TableRefusedError, SourceError)):
            check_condition(opened, LEAF, COLUMNS, text)
        ((written,),) = opened.execute("SELECT to_regclass('public.written')::text").fetchall()
        assert written is None


def test_a_condition_stays_beside_the_others(database: Conninfo) -> None:
    """What is in brackets of its own widens nothing: neither the range nor the row filter."""
    run(database, *SCHEMA, "INSERT INTO item VALUES (1, 'a', 'h'), (2, 'b', 'h')")
    condition = "false) OR (true"
    with session(database) as opened:
        check_condition(opened, LEAF, COLUMNS, condition)
        select = of_range(LEAF, COLUMNS, ALL, ["id = 1", condition])
        assert [row[0] for row in opened.execute(select).fetchall()] == [1]
