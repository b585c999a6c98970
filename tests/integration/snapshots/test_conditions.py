"""A signal's filter → the same meaning to PostgreSQL after it was rewritten."""

import random
from contextlib import nullcontext, suppress

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from cdc.errors import TableRefusedError
from cdc.postgres.checks.conditions import rendered, rendered_for
from cdc.postgres.described import Leaf
from cdc.records.schema import TableName
from snapshots.reader import ALL, of_range
from tests.fixtures.source import Conninfo, capture, described, run, session

pytestmark = pytest.mark.postgres


SCHEMA = (
    "CREATE TYPE state AS ENUM ('new', 'done')",
    """CREATE TABLE item (
        id int PRIMARY KEY, small int2, big int8, n numeric, f float8, v text, w varchar(5),
        flag bool, day date, at timestamp, zoned timestamptz, length interval, u uuid, "A""b" text,
        s state
    )""",
    r"""INSERT INTO item SELECT i, i, i * 3000000000, i / 7.0, i / 3.0::float8,
        (ARRAY['a', 'B', 'a%', 'a\b', 'it''s', 'é', '', 'ab', NULL])[i % 9 + 1], left(i::text, 5),
        (ARRAY[true, false, NULL])[i % 3 + 1], date '2020-01-01' + i, timestamp '2020-01-01' +
        i * interval '7 hours', timestamptz '2020-01-01 00:00+02' + i * interval '7 hours',
        i * interval '1 day 2 hours', lpad(i::text, 32, '0')::uuid, chr(64 + i),
        (ARRAY['new', 'done', NULL]::state[])[i % 3 + 1] FROM generate_series(1, 40) i""",
)
CONDITIONS = r"""
id / 7 * 7 = id
-id % 7 = -3
id - 5 - 3 > 10
id - (5 - 3) > 10
2 + id * 3 - -1 < 50
n / 2 > 1.5 AND f < 1e1 OR id = .5 + .5
small / 2 = 3
big > 30000000000
v = 'a\b'
v LIKE 'a\%'
v LIKE 'a!%' ESCAPE '!'
v LIKE 'a\b' ESCAPE ''
v NOT LIKE 'a%'
v ILIKE 'b%'
v = 'it''s' -- a comment
v /* and /* another */ */ = 'é'
v || w = 'a1' OR 'x' || id + 1 = 'x3'
v IS DISTINCT FROM 'a'
v IS NOT DISTINCT FROM NULL
NOT flag OR flag IS NULL
flag IS NOT TRUE
flag IS UNKNOWN
flag
id IN (1, 2.0, 3) AND w IN ('1', '2')
id NOT IN (1, 2, NULL)
NOT id BETWEEN 3 AND 30
day > date '2020-01-15'
day - 3 < '2020-01-15'
at >= timestamp '2020-01-05 12:00+05'
zoned < timestamptz '2020-01-05 12:00+05'
zoned < '2020-01-05 12:00+05'::timestamp with time zone
length > '10 days'::interval AND length < CAST('1-0' AS interval)
u = '00000000000000000000000000000007'
at > timestamp '2021-01-01' - interval '360 days'
length > interval '1 day' * 20 OR length < interval '1-0'
length BETWEEN interval 'P1D' AND interval '1 day 2 hours' AND day > date 'epoch'
CASE WHEN length > interval '3 days' THEN id END > 5
zoned > now() - interval '1 year' OR n::decimal(3, 1) = numeric(3, 1) '1.1'
at = timestamp without time zone '2020-01-01 07:00' OR f > double precision '9.5'
v = varchar(1) 'ab'
u::text LIKE '%7'
n::numeric(3, 1) = 1.1
n::int = 2 OR f::int = 2
-f::int = -2
v::varchar(1) = 'a'
w::int + 1 = id + 1
CASE WHEN id > 5 THEN v END = 'a'
CASE flag WHEN true THEN id ELSE -id END > 10
coalesce(v, 'none') = 'none'
nullif(id, 3) IS NULL
greatest(id, 5, small) = least(5, id)
lower(v) = 'b' AND upper(v) = 'B'
length(v) = 2
abs(id - 20) < 3
at < now() AND day < current_date
"A""b" = 'A'
ID = 3 AND "id" = 3
s = 'new' OR s IN ('done')
s <> 'new'
s IS DISTINCT FROM 'new' AND s NOT IN ('done', NULL)
s::text > 'e'
CASE WHEN s = 'new' THEN id ELSE 2 END = 2
s IS NULL
true
false
NULL
""".strip().splitlines()


def ids(opened: psycopg.Connection, condition: str) -> list[int] | str:
    """The rows that meet a condition, or what PostgreSQL says of it."""
    try:
        select = f"SELECT id FROM ONLY public.item WHERE ({condition}\n) ORDER BY id"
        return [row[0] for row in opened.execute(select.encode()).fetchall()]
    except psycopg.Error as error:
        return type(error).__name__


def random_condition(chance: random.Random, depth: int = 4) -> str:
    """Operators without brackets, so that each parser has to find the order."""

    def value(depth: int) -> str:
        if depth == 0 or chance.random() < 0.3:
            return chance.choice(["id", "small", "big", "3", "7", "(id + 1)", "abs(id)", "2::int8"])
        return chance.choice([
            f"{value(depth - 1)} {chance.choice('+-*/%')} {value(depth - 1)}",
            f"- {value(depth - 1)}",
            f"({value(depth - 1)})",
            f"{value(depth - 1)}::int8",
        ])  # fmt: skip

    if depth == 0 or chance.random() < 0.4:
        left, right = value(2), value(2)
        return chance.choice([
            f"{left} {chance.choice(['=', '<>', '!=', '<', '>=', 'IS DISTINCT FROM'])} {right}",
            f"{left} BETWEEN {right} AND {value(1)}",
            f"{left} NOT IN ({right}, 5)",
            f"{left} IS NOT NULL",
            f"'1' || {left} LIKE '%' || {right}",
            "flag IS TRUE",
        ])  # fmt: skip
    left, right = random_condition(chance, depth - 1), random_condition(chance, depth - 1)
    return chance.choice([f"{left} AND {right}", f"{left} OR {right}", f"NOT {left}", f"({left})"])


def test_it_means_the_same_to_postgresql(database: Conninfo) -> None:
    run(database, *SCHEMA)
    chance = random.Random(30)  # noqa: S311 - to be repeatable
    made = [random_condition(chance) for _ in range(1_000)]
    taken = 0
    with session(database) as ours, psycopg.connect(make_conninfo(**database)) as theirs:
        ours.autocommit = theirs.autocommit = True
        theirs.execute("SET TimeZone = 'UTC'; SET search_path = pg_catalog, public")
        (table,) = described(ours, capture(database, table_include_list="public.item"))
        for condition in [*CONDITIONS, *made]:
            with suppress(TableRefusedError) if condition in made else nullcontext():
                sql = rendered(table.name, table.columns, condition)
                assert ids(ours, sql) == ids(theirs, condition), (condition, sql)
                taken += 1
    assert taken > 700


def test_no_function_of_an_owner_runs(database: Conninfo) -> None:
    """Neither by name, by an operator, nor by a cast that PostgreSQL would find by itself."""
    run(
        database,
        *SCHEMA,
        "CREATE FUNCTION spy(state) RETURNS text IMMUTABLE LANGUAGE plpgsql AS"
        " $$ BEGIN RAISE 'ran'; END $$",
        "CREATE CAST (state AS text) WITH FUNCTION spy(state) AS IMPLICIT",
        "CREATE FUNCTION spy(text, text) RETURNS bool IMMUTABLE LANGUAGE plpgsql AS"
        " $$ BEGIN RAISE 'ran'; END $$",
        "CREATE OPERATOR public.= (FUNCTION = spy, LEFTARG = text, RIGHTARG = text)",
    )
    with session(database) as opened:
        (table,) = described(opened, capture(database, table_include_list="public.item"))
        for condition in ("s = 'new'", "s IN ('new')", "s::text = 'new'", "v = 'a'", "s IS NULL"):
            assert isinstance(ids(opened, rendered(table.name, table.columns, condition)), list)


def test_it_stays_beside_the_row_filter(database: Conninfo) -> None:
    run(database, *SCHEMA)
    leaf = Leaf(0, TableName("public", "item"), 1, "d", frozenset({"id"}))
    with session(database) as opened:
        (table,) = described(opened, capture(database, table_include_list="public.item"))
        condition = rendered(table.name, table.columns, "false OR true -- all")
        select = of_range(leaf, ["id"], ALL, ["id = 1", condition])
        assert opened.execute(select).fetchall() == [(1,)]


def test_it_tells_nothing_of_what_events_dont_show(database: Conninfo) -> None:
    run(database, *SCHEMA)
    hidden = {
        "column.exclude.list": "public.item.v",
        "column.mask.with.4.chars": "public.item.w",
        "column.truncate.to.1.chars": "public.item.A.b",
    }
    settings = capture(database, table_include_list="public.item", **hidden)
    with session(database) as opened:
        (table,) = described(opened, settings)
        for condition in ("v = 'a'", "length(w) > 1", '"A""b" LIKE \'A%\''):
            with pytest.raises(TableRefusedError):
                rendered_for(settings, table, condition)
        assert rendered_for(settings, table, "id = 1") == '("id" = 1)'
