"""A condition → the same in our own SQL, or a refusal that names the forbidden part."""

import inspect
import sys
import time
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlglot.errors import ParseError

from cdc.errors import TableRefusedError
from cdc.postgres.checks.condition_tokens import CHARACTERS_MAX, POSTGRES
from cdc.postgres.checks.conditions import rendered
from cdc.records.schema import Column, TableName

TABLE = TableName("public", "item")
COLUMNS = (
    *(Column(name=name, type="int4", type_oid=23, declared="integer") for name in "abc"),
    Column(name="due", type="timestamptz", type_oid=1184, declared="timestamp with time zone"),
    Column(name="day", type="date", type_oid=1082, declared="date"),
    *(Column(name=name, type="text", type_oid=25, declared="text") for name in ('A"b', "user")),
    Column(
        name="state",
        type="enum",
        type_oid=20_000,
        declared="app.state",
        typtype="e",
        labels=("new", "done"),
    ),
    Column(name="mail", type="text", type_oid=20_001, declared="app.mail", domain=True),
    Column(name="box", type="box", type_oid=20_002, declared="app.box", typtype="c"),
)
OR = '(("a" = 1) OR ("b" = 2) OR (("c" = 3) OR ("a" = 4)))'
STATE = 'pg_catalog.textin(pg_catalog.enum_out("state"))'


def refusal(condition: str) -> str:
    """What is said of a condition that isn't taken."""
    with pytest.raises(TableRefusedError) as refused:
        rendered(TABLE, COLUMNS, condition)
    assert refused.value.where == "table public.item"
    return refused.value.what


@pytest.mark.parametrize(
    ("condition", "sql"),
    [
        ("a > 1 -- the newest", '("a" > 1)'),
        ("A = 1 /* /* */ or true */", '("a" = 1)'),
        ("\"A\"\"b\" = 'it''s'", "(\"A\"\"b\" = 'it''s')"),
        (r"'a\' = 'b'", r"(E'a\\' = 'b')"),
        ("a = 1 OR b = 2 AND NOT c = 3", '(("a" = 1) OR (("b" = 2) AND (NOT ("c" = 3))))'),
        ("a + b * -c / 2", '("a" + ("b" * (- "c") / 2))'),
        ("a - b - (c - 1) + 2", '("a" - "b" - ("c" - 1) + 2)'),
        ("a = 1 OR b = 2 OR (c = 3 OR a = 4)", OR),
        ("a NOT IN (1, 2)", '(NOT ("a" IN (1, 2)))'),
        ("a::int8 = 1", '(CAST("a" AS pg_catalog.int8) = 1)'),
        (
            "due > now() - interval '1 day'",
            "(\"due\" > (CURRENT_TIMESTAMP - CAST('1 day' AS pg_catalog.interval)))",
        ),
        ("due > DATE '2026-01-01'", "(\"due\" > CAST('2026-01-01' AS pg_catalog.date))"),
        ("b = decimal(3, 1) '1.5'", "(\"b\" = CAST('1.5' AS pg_catalog.numeric(3, 1)))"),
        ("day = date '2026-01-01'", "(\"day\" = CAST('2026-01-01' AS pg_catalog.date))"),
        ("lower('X') = 'x'", "(pg_catalog.lower('X') = 'x')"),
        ("b IS NOT NULL", '("b" IS NOT NULL)'),
        ("\"user\" LIKE 'a!%' ESCAPE '!'", "(\"user\" LIKE 'a!%' ESCAPE '!')"),
        ("state = 'new'", f"({STATE} = 'new')"),
        ("(state) IN ('new', NULL)", f"({STATE} IN ('new', NULL))"),
        ("state IS DISTINCT FROM 'done'", f"({STATE} IS DISTINCT FROM 'done')"),
        ("state LIKE 'n%'", f"({STATE} LIKE 'n%')"),
        ("state::text > 'x'", f"(CAST({STATE} AS pg_catalog.text) > 'x')"),
        ("CASE a WHEN 1 THEN true END", '(CASE "a" WHEN 1 THEN TRUE END)'),
    ],
)
def test_a_plain_condition_is_written_again(condition: str, sql: str) -> None:
    assert rendered(TABLE, COLUMNS, condition) == sql


@pytest.mark.parametrize(
    "condition",
    [
        "query_to_xml('SELECT 1', true, true, '') IS NOT NULL",
        "pg_read_file('/etc/passwd') > ''",
        "pg_catalog.pg_sleep(1) IS NULL",
        "app.own(a)",
        "own(a) = 1",
        "a IN (SELECT 1)",
        "EXISTS (SELECT 1)",
        "CASE WHEN a = 1 THEN (SELECT true) END",
        "coalesce(a, (SELECT 1)) = 1",
        "a OPERATOR(app.=) 1",
        "a = ANY (ARRAY[1])",
        "a = ANY ('{1}')",
        "a::app.own = 1",
        "'pg_authid'::regclass = 1",
        "own '1' = a",
        "E'\\'' = 'x'",
        "$$x$$ = 'x'",
        *(f"{text} = 1" for text in ("$$a$$", "$x$a$x$", "E'a'", "N'a'", "U&'a'", "b'a'", "x'a'")),
        "true E'or' false",
        "lower E'(' 'x') = 'x'",
        "$1 = a",
        "U&'\\0041' = 'A'",
        'U&"\\0061" = 1',
        "x'1f' = a",
        "N'x' = 'x'",
        "(a).b = 1",
        "item.a = 1",
        "ctid = '(0,1)'",
        "xmin = 1",
        "hidden = 'x'",
        "mail = 'x'",
        "box IS NULL",
        "state > 'new'",
        "greatest(state, 'b') = 'b'",
        "user = 'postgres'",
        "current_user = 'postgres'",
        "unknown = 1",
        "a COLLATE \"C\" = 'x'",
        "count(*) > 1",
        "lower('X') OVER () = 'x'",
        "(a = 1)::text = 'true'",
        "a = b = c",
        "true) UNION ALL SELECT (1",
        "true; DROP TABLE item",
        "true /*",
        "a, b",
        "a AS b",
        "a ORDER BY 1",
        "",
        "--",
        "a = '\0'",
        "a = '\ud800'",
        "due > now() - interval '1' day",
        "due > now() - interval '1 day' day",
        "due > now() - interval 1",
        "due > now() - interval(2) '1 day'",
        "due > now() - interval day",
        "due > app.own '1'",
        "state = 'New'",
        "state <> 'nothing'",
        "state NOT IN ('new', 'nothing')",
        "'nothing' = (state)",
        "state IS DISTINCT FROM ('nothing')",
        "state = 'n' || 'ew'",
        'state = "user"',
        "coalesce(state, 'new') = 'nothing'",
        "CASE state WHEN 'nothing' THEN true END",
        "CASE WHEN a = 1 THEN state END = 'nothing'",
        "state || '' = 'nothing'",
        "lower(state) = 'nothing'",
        "state::int = 1",
        "state BETWEEN 'done' AND 'new'",
        "state IN ()",
        "like(a, '%c')",
        '"like"("user", \'%c\')',
        "like (\"user\", '%c')",
        "ilike(a, 'c')",
        "NOT like(a, 'c')",
        "a = 1 AND in(a, 1)",
        "between(a, 1, 2)",
        "mod(a, 2) = 1",
        "and(a = 1, b = 2)",
        "a == 1",
        "a <=> 1",
        "!b",
        "a {# = 2 OR a #} = 1",
        "a = 1 {# #}",
        "a IN (1,)",
        "a IN (,1)",
        "coalesce() = 1",
        "a = 1;",
        "nvl(a, 1) = 1",
        "ifnull(a, 1) = 1",
        "len(a) = 1",
        "lcase(a) = 'x'",
        "a::string = 'x'",
        "a::number = 1",
        "a::\"TEXT\" = '1'",
        "a = current_date()",
        "a = +1",
        "a = 1 2",
        "a = . 5",
        "a = 1.5.5",
        "if = 'x'",
        "a IS DISTINCT 1",
        "a FROM 1",
        "CASE WHEN a = 1 THEN 2) = 2",
        "(CASE a WHEN 1 THEN 2) END = 2",
        "a NOT = 1",
        "decimal(1) = 1",
        "decimal 1 = 1",
    ],
)
def test_whatever_else_it_has_is_refused(condition: str) -> None:
    assert "isn't a plain condition on the table's own columns" in refusal(condition)


@pytest.mark.parametrize(
    "condition",
    [
        "(" * 5_000 + "a" + ")" * 5_000,
        *(name + "(" * 30 + "a" + ")" * 30 for name in ("coalesce", "CAST", "lower")),
        "coalesce(" * 30 + "a" + ")" * 29,
        *(
            f"{name}(" * 25 + "1" + ")" * 25 + " = 1"
            for name in (
                *("decimal", "numeric", "varchar", "timestamp", "time", "char", "bit", "date"),
                *("float", "text", "int", "uuid", "boolean", "enum", "vector", "struct", "object"),
                *("money", "inet", "xml", "map", "array", "nullable", "interval", "like", "in"),
            )
        ),
        "a::" + "numeric(" * 25 + "1" + ")" * 25 + " = 1",
        "a::" + "numeric(" * 25,
        "CAST(" * 25 + "a" + " AS int)" * 25 + " = 1",
        "a" + "::int" * 5_000 + " = 1",
        "ARRAY[" * 30 + "a" + "]" * 30 + " = 1",
        "NOT " * 5_000 + "true",
        "- " * 5_000 + "1 = 1",
        "CASE WHEN " * 30 + "true",
        "CASE " * 5_000,
        "date " * 30 + "'2026-01-01' = 1",
        "interval " * 30 + "'1 day' = 1",
        "a = " * 5_000 + "1",
        "a LIKE " * 5_000 + "1",
        "a IN (" * 30 + "1" + ")" * 30,
        "a BETWEEN 1 AND " * 1_000 + "2",
        "a IS DISTINCT FROM " * 1_000 + "2",
        "true " * CHARACTERS_MAX,
        "a IN (" + "1," * 100_000 + "1)",
    ],
    ids=lambda condition: condition[:20],
)
def test_what_is_deep_or_long_is_refused_soon(condition: str) -> None:
    begun = time.monotonic()
    refusal(condition)
    assert time.monotonic() - begun < 3


def test_each_level_is_said_to_be_one_too_many_by_a_limit_of_ours() -> None:
    for opened, closed in (("(", ")"), ("abs(", ")"), ("CASE a WHEN 1 THEN ", " END")):
        rendered(TABLE, COLUMNS, opened * 12 + "a" + closed * 12 + " = 1")
        said = refusal(opened * 13 + "a" + closed * 13 + " = 1")
        assert "more than 12 nested brackets or CASEs" in said


@pytest.mark.parametrize(
    "condition",
    [
        *(
            "a" + more * ((CHARACTERS_MAX - 1) // len(more))
            for more in (" OR a = 1", " AND b", " + 1", " || c", " - a * b")
        ),
        "a IN (1" + ", 1" * ((CHARACTERS_MAX - 8) // 3) + ")",
        "NOT NOT (" * 12 + "a = - - 1::int8::text" + ")" * 12,
        "CASE WHEN NOT NOT " * 12 + "a" + " THEN - - a::int::int END" * 12,
        "coalesce(1, - - " * 12 + "a" + ")::int::int" * 12,
    ],
    ids=lambda condition: condition[:20],
)
def test_a_condition_may_be_as_long_and_deep_as_is_allowed(condition: str) -> None:
    """Wherever it is called from: the command takes what the daemon takes."""
    begun, limit = time.process_time(), sys.getrecursionlimit()
    sys.setrecursionlimit(len(inspect.stack()) + 700)
    try:
        rendered(TABLE, COLUMNS, condition)
    finally:
        sys.setrecursionlimit(limit)
    assert time.process_time() - begun < 2


def test_a_refusal_says_what_isnt_allowed() -> None:
    said = refusal("pg_read_file('x') = ''")
    assert said.endswith("it has 'the function pg_read_file', which isn't allowed")
    assert refusal("lower(nothing) = ''").endswith(
        "which isn't a column of a built-in type that events contain unchanged"
    )
    assert refusal("state = 'News'").endswith(
        "an enum compared with the label 'News', which isn't one of its labels"
    )
    assert refusal("(a = 1").endswith("no value, bracket or END where one must follow")
    assert refusal("a = )").endswith("')', which isn't allowed")
    assert refusal("a::regclass = 1").endswith("a cast to a type that isn't allowed")


def test_the_parser_writes_nothing_of_it_anywhere(caplog: pytest.LogCaptureFixture) -> None:
    refusal("if = 'x'")
    with suppress(ParseError):
        POSTGRES.parse("if = 'x'")
    assert caplog.records == []


TEXT = """
    a b c 1 2.5 'x' ( ) , = < + - * / % || :: [ ] ; . $$ a ( ) = /* */ -- E'\\' U&'\\0041' "A""b"
    AND OR NOT IN BETWEEN LIKE ESCAPE IS NULL TRUE DISTINCT FROM CASE WHEN THEN ELSE END AND OR NOT
    SELECT UNION ALL WHERE ANY ARRAY OPERATOR COLLATE ROW CAST AS int text regclass
    lower coalesce greatest now pg_read_file own state hidden mail user \xc4b
"""
WORDS = st.sampled_from([*TEXT.split(), "\n", "\xa0"])


@given(st.one_of(st.lists(WORDS, max_size=24).map(" ".join), st.text(max_size=40)))
def test_what_passes_is_the_same_when_it_is_read_again(condition: str) -> None:
    """What is written has nothing but what the list has: what it is read as is taken again."""
    try:
        sql = rendered(TABLE, COLUMNS, condition)
    except TableRefusedError:
        return
    assert not {"SELECT", "own", "regclass", "hidden", "mail"} & set(sql.replace('"', " ").split())
    assert "pg_read_file(" not in sql
    if "pg_catalog." in sql or "E'" in sql:
        return  # with a schema, and so on, a condition isn't taken: what passes has nothing of it
    assert rendered(TABLE, COLUMNS, sql) == sql


@given(st.text().filter(lambda text: "\0" not in text))
def test_a_literal_stays_one(text: str) -> None:
    quoted = text.replace("'", "''")
    try:
        text.encode()
    except UnicodeEncodeError:
        return
    sql = rendered(TABLE, COLUMNS, f"\"user\" = '{quoted}'")
    literal = sql.removeprefix('("user" = ').removesuffix(")")
    if literal.startswith("E"):
        literal, quoted = literal.removeprefix("E"), quoted.replace("\\", "\\\\")
    assert literal == f"'{quoted}'"
